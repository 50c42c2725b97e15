"""The host can't launch work as fast as the device does it.

What it finds: idle time of the device in which the launching thread was busy with nothing that
another cause names: Python between operators, the operators' own host code (dispatcher, shape
checks, autograd bookkeeping), the launch calls, the allocator.

Why it costs: a kernel of a few microseconds needs some ten microseconds of host work to launch. A
host that is behind leaves the device empty between any two kernels.

How it is measured: every idle gap whose launch came late is charged to what the launching thread
did meanwhile; after a call that drained the queue, only pauses of over 1 ms are. The gain is the
replay with host work and launch calls free, which is what CUDA graphs come near to. What the
profiler itself costs the host is taken out before the verdict: a run that only looks host-bound
under the profiler is not named.

How to fix: torch.compile, CUDA graphs, fused optimizers, fewer and larger operations; what the run
already does is not advised again.

Limits: Python's share shows only as time without an operator, unless Python calls were recorded.
Where they show that the host waits in asyncio's event loop, that part is left out, and of the rest
no gain is quoted: the replay can't tell the two apart.
"""

from __future__ import annotations

import re

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    RECORD_BOTH,
    Cause,
    Verdict,
    confidence,
    finding,
    may_hide,
    too_little,
)
from gpuprof.analyzers.communication_fixes import named_ranks
from gpuprof.analyzers.event_loop import told_waits, waiting_frac
from gpuprof.analyzers.host_fixes import AHEAD_US, host_fixes
from gpuprof.analyzers.idle_lines import idle_lines
from gpuprof.analyzers.intervals import Spans, covered, subtract, union
from gpuprof.analyzers.late_reasons import own_host_fix
from gpuprof.analyzers.recorded_window import READY_FROM
from gpuprof.analyzers.recurring import recurring_host_ns
from gpuprof.analyzers.run_view import ALONE, LEAST_GAIN, RunView
from gpuprof.analyzers.wording import microseconds, percent
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Gain, NotJudged, Place, RuledOut
from gpuprof.trace import Category

ID = "host-overhead"

BUCKETS = ("host", "allocator")

_COMPILING = re.compile(
    r".*(_compile\.compile_inner|compile_fx|CachingAutotuner|torch[/\\]_dynamo[/\\]convert_frame\.py)"
)


def judge(run: RunView) -> Verdict:
    """Judges cause 5."""
    if not any(rank.host.recorded for rank in run.ranks):
        return NotJudged(
            cause=ID,
            missing="what the host did was not recorded",
            command=RECORD_BOTH,
        )
    charged = run.share(*BUCKETS)
    waited = run.share_behind_communication(charged, "host", "allocator")
    share = run.share_after_calls(waited)
    if share < run.named_from:
        hidden = may_hide(run, ID, _subject(run), share)
        why = too_little(_subject(run), share, run) + _after_blocking_calls(run)
        return hidden or RuledOut(cause=ID, why=why, share=share)
    gain = run.price("host", "allocator")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"the host is late for {percent(share)} of the step, but a faster host would make"
            f" it only {percent(gain.reduction)} shorter",
            share=share,
        )
    unprofiled = run.price("host", "allocator", profiled=False)
    if unprofiled is not None and unprofiled.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"the host is late for {percent(share)} of the recorded step, about as much as the"
            " profiler's own records cost it",
            share=min(unprofiled.reduction, share),
        )
    if not run.has_device:
        other = _passing(run, share, unprofiled)
        if other is not None:
            return other
    waiting = waiting_frac(run.ranks)
    if waiting >= run.named_from:
        if share - waiting < run.named_from:
            return _only_waits(run, share, waiting)
        share, waited, charged = (max(x - waiting, 0.0) for x in (share, waited, charged))
        gain = None
    alone = _alone(run)
    worst = max(run.ranks, key=lambda rank: (rank.rank in alone, run.share_of(rank, *BUCKETS)))
    who = "device waits for the host" if run.has_device else "CPU is busy outside of operators"
    title = f"The {who} {percent(share)} of {run.each_step}"
    if share - waited > waited:
        title += ", most of it after blocking calls"
    elif waited > charged:
        whose = "the ranks' own and those they wait for"
        if alone:
            whose = f"those of {named_ranks(alone)}"
        title = f"Late hosts, {whose}, hold {percent(share)} of a step"
    return finding(
        ID,
        title,
        share=share,
        gain=_credited(gain, run, share),
        confidence=confidence(run, share, gain),
        evidence=[
            *_evidence(run, worst, charged, unprofiled if gain is not None else None),
            *_after_calls(run, share - waited),
            *told_waits(waiting, run.named_from),
        ],
        fixes=[*map(own_host_fix, alone[:1]), *host_fixes(run, worst)],
        where=_where(worst.lines),
        ranks=alone or run.ranks_with(*BUCKETS),
    )


def _after_blocking_calls(run: RunView) -> str:
    """Where a faster host would end idle time that is charged to the calls which drain the queue:
    then it is not the cause, and worth a word all the same."""
    if run.share("sync") < run.named_from:
        return ""
    gain = run.price("host", "allocator")
    if gain is None or gain.reduction < run.named_from:
        return ""
    return (
        f"; after blocking calls (see sync-points) a host that took no time would get ahead sooner,"
        f" and the step would be {percent(gain.reduction)} shorter"
    )


def _alone(run: RunView) -> tuple[int, ...]:
    """The ranks whose hosts make all others wait, where the hosts of the others cost nothing."""
    hosts = run.late_hosts
    if hosts is None or hosts.others_frac >= LEAST_GAIN:
        return ()
    return tuple(sorted(hosts.ranks))


def _passing(run: RunView, share: float, unprofiled: Gain | None) -> Verdict | None:
    """Where the CPU is the device: time outside of operators that is no fault of the code. It is
    the profiler's, or other processes', that had the core meanwhile."""
    if unprofiled is not None and unprofiled.reduction < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"{percent(share)} of the recorded step passes outside of operators, and"
            f" {percent(unprofiled.reduction)} without the profiler's own records; named from"
            f" {percent(run.named_from)}",
            share=min(unprofiled.reduction, share),
        )
    if run.ready_frac < READY_FROM:
        return None
    recurring = [recurring_host_ns(rank) for rank in run.ranks]
    known = [ns for ns in recurring if ns is not None]
    step_ns = 1e6 * run.step_ms()
    if len(known) < len(recurring) or step_ns <= 0:
        return None
    # Short stretches are rarely hit: at least that part of the step, and at most that of a quiet
    # machine's shorter one.
    least = sum(known) / len(known) / step_ns
    most = least / max(1 - run.ready_frac, least)
    if least >= run.named_from:
        return None
    busy = f"other processes had the core {percent(run.ready_frac)} of the time"
    if most >= run.named_from:
        return NotJudged(
            cause=ID,
            missing=f"{busy}: {percent(least)} to {percent(most)} of the step passes outside of"
            " operators at the same places in each step, and the band begins between them",
            command=ALONE,
        )
    return RuledOut(
        cause=ID,
        why=f"{percent(share)} of the step passes outside of operators, but only {percent(least)}"
        f" at the same places in each step: the rest comes and goes, and {busy}",
        share=least,
    )


def _subject(run: RunView) -> str:
    return "idle that the host's own work causes" if run.has_device else "time outside of operators"


def _credited(gain: Gain | None, run: RunView, share: float) -> Gain | None:
    """The gain, up to the time that this cause holds.

    A host without any cost would also hide the waits of other causes (a loader in the training
    process then runs beside the device). That part is theirs and is counted there.
    """
    if gain is None:
        return None
    if not run.has_device:
        how = "the step without the time outside of operators"
        most = share
    else:
        how = (
            "the step replayed with host work and launch calls taking no time, the most that CUDA"
            " graphs or compilation can reach"
        )
        # What `sync` is charged with passes in host work, too: that of the queue's refill.
        most = share + run.share("launch", "sync") + _waiting_for_hosts(run)
    reduction = min(gain.reduction, most)
    if reduction < gain.reduction:
        how += "; only the time that this cause itself holds is counted"
    return Gain(
        step_ms=run.step_ms() * (1 - reduction),
        reduction=reduction,
        low=min(gain.low, reduction),
        high=min(gain.high, max(most, reduction)),
        how=how,
    )


def _waiting_for_hosts(run: RunView) -> float:
    """Share of the step in which ranks wait for each other, where the replay of all ranks together
    can tell whose doing that is."""
    if run.joint is None or run.comparison is None:
        return 0.0
    return run.comparison.wait_frac()


def _split(rank: RankAccount) -> dict[str, float]:
    """What the late host was doing, as shares of the step: launch calls, operators, the rest."""
    gaps = rank.main.budget.gaps
    host = gaps.parts["host"] + gaps.parts["allocator"]
    held = np.flatnonzero(host > 0)
    total = max(rank.main.budget.total_ns, 1)
    if not len(held):
        return {}
    start, end = gaps.start_ns[held], gaps.host_end_ns[held]
    trace = rank.trace
    on_driving = trace.on_lanes(rank.host.lanes)

    def spans_of(category: Category) -> Spans:
        rows = np.flatnonzero((trace.category == category) & on_driving)
        return union(trace.start_ns[rows], trace.start_ns[rows] + trace.dur_ns[rows])

    in_calls = spans_of(Category.RUNTIME)
    in_operators = subtract(spans_of(Category.CPU_OP), in_calls)
    calls = np.minimum(covered(in_calls, start, end), host[held])
    operators = np.minimum(covered(in_operators, start, end), host[held] - calls)
    rest = np.maximum(host[held] - calls - operators, 0)
    return {
        "launch calls and other runtime calls": float(calls.sum()) / total,
        "inside operators (dispatcher, shapes, autograd)": float(operators.sum()) / total,
        "between operators (Python, or nothing recorded)": float(rest.sum()) / total,
    }


def _only_waits(run: RunView, share: float, waiting: float) -> NotJudged:
    """The host is late because nobody has asked it for anything, as far as can be seen."""
    return NotJudged(
        cause=ID,
        missing=f"{_subject(run)} holds {percent(share)} of {run.each_step}, and"
        f" {percent(waiting)} pass in the event loop (asyncio), which waits for requests or for"
        " whatever else the program awaits: for which is not recorded",
        command="record while requests keep coming",
    )


def _evidence(
    run: RunView, rank: RankAccount, charged: float, unprofiled: Gain | None
) -> list[Evidence]:
    evidence = [
        Evidence(
            text=f"{run.time_of(charged)} the host is late with the next launch."
            if run.has_device
            else f"{run.time_of(charged)} pass outside of operators.",
            value=round(charged, 4),
            unit="share of step",
            windows=run.longest_gaps(rank, "host"),
        )
    ]
    parts = {what: part for what, part in _split(rank).items() if part >= 0.005}
    if parts and run.has_device:
        text = ", ".join(f"{percent(p)} {w}" for w, p in sorted(parts.items(), key=lambda x: -x[1]))
        evidence.append(Evidence(text=f"Of the step: {text}.", unit=""))
    ahead = rank.launches.run_ahead_ns
    if len(ahead):
        median = float(np.median(ahead)) / 1e3
        evidence.append(
            Evidence(
                text=_ahead(median),
                value=round(median, 2),
                unit="µs",
            )
        )
        kernels = len(rank.main.events) / max(len(rank.main.steps), 1)
        duration = (rank.launches.end_ns - rank.launches.start_ns)[rank.main.events]
        evidence.append(
            Evidence(
                text=f"{counted(kernels, 'device event')} a step with a median length of"
                f" {microseconds(float(np.median(duration)) / 1e3)}.",
                value=round(kernels, 1),
                unit="events per step",
            )
        )
    if unprofiled is not None and run.has_device:
        evidence.append(
            Evidence(
                text="With the profiler's own cost taken out, a host without any cost would still"
                f" make the step {percent(unprofiled.reduction)} shorter.",
                value=round(unprofiled.reduction, 4),
                unit="share of step",
            )
        )
    waiting = _waiting_for_hosts(run)
    if waiting >= run.named_from and not _alone(run):
        evidence.append(
            Evidence(
                text=f"Ranks wait for each other {percent(waiting)} of the step. In the replay of"
                " all ranks together that goes as far as late hosts, in turns, have caused it.",
                value=round(waiting, 4),
                unit="share of step",
            )
        )
    allocator = run.share("allocator")
    if allocator >= LEAST_GAIN:
        evidence.append(
            Evidence(
                text=f"{percent(allocator)} of the step goes to the device allocator asking the"
                " driver for memory or giving it back.",
                value=round(allocator, 4),
                unit="share of step",
                windows=run.longest_gaps(rank, "allocator"),
            )
        )
    if any(map(_COMPILING.match, rank.trace.names)):
        evidence.append(Evidence(text="Something was compiled during the recorded steps.", unit=""))
    return evidence


def _after_calls(run: RunView, share: float) -> list[Evidence]:
    """What `RunView.share_after_calls` found, if it did."""
    calls = run.price("sync")
    if share <= 0 or calls is None:
        return []
    return [
        Evidence(
            text=f"{percent(share)} of the step passes after blocking calls, until the host is"
            " ahead again. The budget charges that to them, but if they did not wait the step would"
            f" be only {percent(calls.reduction)} shorter.",
            value=round(share, 4),
            unit="share of step",
        )
    ]


def _ahead(median_us: float) -> str:
    ahead = microseconds(max(round(median_us), 0))
    text = f"Half of the launches end no more than {ahead} before their kernel"
    if median_us <= AHEAD_US:
        return f"{text} starts: the host is not ahead of the device."
    return f"{text} starts, the other half earlier: the host falls behind only now and then."


def _where(rank: RankAccount) -> tuple[Place, ...]:
    event = rank.main.budget.gaps.event
    lane = np.full(len(event), rank.host.main_lane, np.int64)
    if len(rank.launches.lane):
        known = event >= 0
        lane[known] = rank.launches.lane[event[known]]
    return idle_lines(rank, "host", lane)


CAUSE = Cause(
    id=ID,
    title="Host overhead",
    judge=judge,
    docs=__doc__ or "",
    removes=("host", "allocator"),
)
