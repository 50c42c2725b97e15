"""The host waits for the device when it need not.

What it finds: idle time of the device that calls such as `.item()`, `.cpu()`, `.tolist()`,
`print(tensor)`, `if tensor:`, `nonzero()`, boolean-mask indexing and explicit synchronizes cause.

Why it costs: the call returns only when everything launched before it is done. By then the queue
is empty, and the device is idle until the host has launched again. Waiting itself costs nothing:
the device is busy meanwhile. Only the idle that follows is counted.

How it is measured: each blocking call lends a credit of the time it waited on a busy device; idle
time that the host then causes is charged to the latest such call until the credit is used up. Time
in which the host launches nothing for over 1 ms and far longer than usual, such as logging, is no
refill of the queue: the call only brings it out, and it counts as host overhead. The gain is the
replay of the step with these calls not waiting. Small copies to the device out of pageable memory
wait in the same way and are counted; copies of more than 64 KiB, in either direction, belong to the
cause "memcpy".

How to fix: keep results on the device; read them once every N steps; say it in the shapes instead
of asking the device.

Limits: the line is known where Python calls or stacks were recorded. A call whose result decides
what is launched next can't simply be dropped; the replay prices it as if it could.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    RECORD_BOTH,
    Cause,
    Verdict,
    confidence,
    explained,
    finding,
    held_open,
    may_hide,
    too_little,
)
from gpuprof.analyzers.host import SAME_COPY_NS, Blocking
from gpuprof.analyzers.host_fixes import FUSED_ON_GPU
from gpuprof.analyzers.intervals import contains, covered
from gpuprof.analyzers.operators import innermost
from gpuprof.analyzers.places import lines_of
from gpuprof.analyzers.recorded_window import with_called_lines
from gpuprof.analyzers.run_view import LEAST_GAIN, MOST_WINDOWS, RunView
from gpuprof.analyzers.wording import milliseconds, percent, significant
from gpuprof.counted import agrees, counted
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, Place, RuledOut, Window
from gpuprof.distinct import is_in
from gpuprof.trace import Category

ID = "sync-points"

HOW = "the step replayed with these calls not waiting for the device"

KINDS = (int(Blocking.SYNCHRONIZE), int(Blocking.TO_HOST), int(Blocking.SMALL_TO_DEVICE))
"""Larger copies are the cause "memcpy"."""

HALF = 0.5
"""A host that would save half as much as calls that do not wait is worth a word beside them."""

MANY_A_STEP = 20
"""Reading single values this often in a step is a loop over tensor elements, not logging."""

_SPELLINGS = {
    "aten::item": "`.item()`",
    "aten::_local_scalar_dense": "`.item()`",
    "aten::is_nonzero": "a truth test of a tensor (`if tensor:`)",
    "aten::nonzero": "`nonzero()` or boolean-mask indexing",
    "aten::masked_select": "`masked_select()`",
    "aten::unique2": "`unique()`",
    "aten::_unique2": "`unique()`",
    "aten::equal": "`torch.equal()`",
}


def judge(run: RunView) -> Verdict:
    """Judges cause 3."""
    if not run.has_device:
        return RuledOut(
            cause=ID,
            why="the CPU is the device: the host can't run ahead of it, so nothing is lost",
            share=0.0,
        )
    if not any(rank.host.recorded for rank in run.ranks):
        return NotJudged(
            cause=ID,
            missing="runtime calls were not recorded",
            command=RECORD_BOTH,
        )
    calls = sum(int(_counted(rank).sum()) for rank in run.ranks)
    share = float(np.mean([_share(rank) for rank in run.ranks]))
    if calls:
        share = run.share_behind_communication(share, "sync")
    charged = share
    if calls:
        share = run.share_behind_waits(share, "sync")
    if not calls:
        return RuledOut(
            cause=ID, why="no call in the recorded steps waits for the device", share=0.0
        )
    if share < run.named_from:
        hidden = may_hide(run, ID, "idle after blocking calls", share)
        return hidden or RuledOut(cause=ID, why=_harmless(run, calls, share), share=share)
    gain = run.price("sync")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"the device is idle {percent(share)} of the step after blocking calls, but without"
            f" them the step would be only {percent(gain.reduction)} shorter",
            share=share,
        )
    worst = max(run.ranks, key=_share)
    title = f"Blocking calls leave the device idle {percent(share)} of {run.each_step}"
    if share > charged:
        of = f"{percent(share)} of {run.each_step}"
        title = f"Blocking calls keep other waits, {of}, from being hidden"
    return finding(
        ID,
        title,
        share=share,
        gain=explained(gain, HOW),
        confidence=confidence(run, share, gain),
        evidence=[
            *held_open(share, charged),
            *_evidence(run, worst, charged),
            *_slow_to_refill(run, gain),
        ],
        fixes=_fixes(run, worst),
        where=with_called_lines(_where(worst.lines), run.told, worst.rank, "sync"),
        ranks=tuple(rank.rank for rank in run.ranks if _share(rank) >= run.named_from),
    )


def _share(rank: RankAccount) -> float:
    """Share of the accounted steps that is idle because of calls of this cause."""
    budget = rank.main.budget
    if not budget.total_ns:
        return 0.0
    return int(_charged(rank)[_kept_gaps(rank)].sum()) / budget.total_ns


def _charged(rank: RankAccount) -> NDArray[np.int64]:
    """ns that each idle gap is charged with, (n_gaps,)."""
    by_kind = rank.main.budget.gaps.sync_by_kind
    charged: NDArray[np.int64] = np.sum([by_kind[kind] for kind in KINDS], axis=0)
    return charged


def _kept_gaps(rank: RankAccount) -> NDArray[np.bool_]:
    steps, gaps = rank.main.steps, rank.main.budget.gaps
    step = np.searchsorted(steps.start_ns, gaps.start_ns, side="right") - 1
    kept: NDArray[np.bool_] = steps.keep[np.clip(step, 0, len(steps) - 1)]
    return kept


def _mine(rank: RankAccount) -> NDArray[np.bool_]:
    """Which blocking calls are this cause's, inside the steps and on a thread that launches."""
    calls, steps, host = rank.host.blocking, rank.main.steps, rank.host
    inside = (calls.start_ns >= steps.host_start_ns[0]) & (calls.start_ns < steps.host_end_ns[-1])
    mine = is_in(calls.kind, KINDS) & inside & is_in(calls.lane, host.lanes)
    for label in ("checkpoint", "input"):
        for lane, spans in host.spans[label].items():
            mine &= ~((calls.lane == lane) & contains(spans, calls.start_ns))
    result: NDArray[np.bool_] = mine
    return result


def _counted(rank: RankAccount) -> NDArray[np.bool_]:
    """Those of `_mine` that are a wait of their own: a copy that waited and the synchronize right
    after it are the two halves of one `.item()`."""
    calls, trace = rank.host.blocking, rank.trace
    if not len(calls.row):
        return np.zeros(0, np.bool_)
    synchronizes = trace.name_mask(lambda name: "Synchronize" in name)[calls.row]
    second = np.zeros(len(calls.row), np.bool_)
    second[1:] = (
        synchronizes[1:]
        & ~synchronizes[:-1]
        & (calls.lane[1:] == calls.lane[:-1])
        & (calls.kind[1:] == calls.kind[:-1])
        & (calls.start_ns[1:] - calls.end_ns[:-1] < SAME_COPY_NS)
    )
    counted: NDArray[np.bool_] = _mine(rank) & ~second
    return counted


def _harmless(run: RunView, calls: int, share: float) -> str:
    waited = sum(float(_waited(rank).sum()) for rank in run.ranks) / len(run.ranks) / 1e6
    per_step = calls / len(run.ranks) / max(len(run.first.main.steps), 1)
    text = too_little("idle after blocking calls", share, run)
    if waited > 1.0:
        text += (
            f" ({counted(per_step, 'blocking call')} a step {agrees(per_step, 'waits', 'wait')}"
            f" {milliseconds(waited)} in all, but the device is busy meanwhile)"
        )
    return text


def _waited(rank: RankAccount) -> NDArray[np.int64]:
    calls, mine = rank.host.blocking, _mine(rank)
    return covered(rank.main.budget.work.busy, calls.start_ns[mine], calls.end_ns[mine])


def _by_spelling(rank: RankAccount) -> list[tuple[str, int]]:
    """How the calls are spelled in PyTorch, most frequent first, by the operator around them."""
    trace, calls, mine = rank.trace, rank.host.blocking, _counted(rank)
    ops = trace.rows_of(Category.CPU_OP)
    named = np.array([name in _SPELLINGS for name in trace.names], np.bool_)
    ops = ops[named[trace.name[ops]]] if len(ops) else ops
    rows = innermost(trace, calls.lane[mine], calls.start_ns[mine], ops)
    spelled: Counter[str] = Counter()
    each = zip(rows.tolist(), calls.row[mine].tolist(), calls.kind[mine].tolist(), strict=True)
    for row, call, kind in each:
        if int(kind) == Blocking.SMALL_TO_DEVICE:
            spelled["a small copy to the device (`.to(device)`, `torch.tensor(…, device=…)`)"] += 1
        elif row >= 0:
            spelled[_SPELLINGS[trace.names[trace.name[row]]]] += 1
        elif int(kind) == Blocking.TO_HOST:
            spelled["a copy to the host (`.cpu()`, `.tolist()`, `.numpy()`, `print(tensor)`)"] += 1
        else:
            spelled[f"`{trace.names[trace.name[call]]}`"] += 1
    return spelled.most_common()


def _evidence(run: RunView, rank: RankAccount, share: float) -> list[Evidence]:
    steps = max(len(rank.main.steps), 1)
    n_calls = int(_counted(rank).sum())
    within, each = ("a step", " a step") if run.has_steps else ("in the recording", "")
    evidence = [
        Evidence(
            text=f"The device is idle {run.time_of(share)}"
            " because a blocking call had emptied its queue.",
            value=round(share, 4),
            unit="share of step",
            windows=_longest(run, rank),
        ),
        Evidence(
            text=f"{counted(n_calls / steps, 'blocking call')} {within};"
            f" {agrees(n_calls / steps, 'it waits', 'they wait')}"
            f" {milliseconds(float(_waited(rank).sum()) / steps / 1e6)}{each} on a busy device,"
            " which by itself costs nothing.",
            value=round(n_calls / steps, 2),
            unit="calls per step",
        ),
    ]
    spelled = _by_spelling(rank)
    if spelled:
        made = "A step makes them" if run.has_steps else "They are made"
        text = ", ".join(f"{significant(count / steps)} × {what}" for what, count in spelled[:4])
        evidence.append(Evidence(text=f"{made} as: {text}.", unit=""))
    return evidence


def _slow_to_refill(run: RunView, gain: Gain | None) -> list[Evidence]:
    """Where a faster host would end the same idle time, though little of it is charged to it:
    how long the device idles after a call is how long the host takes to get ahead again."""
    if gain is None or run.share("host", "allocator") >= run.named_from:
        return []  # what the host costs is a finding of its own
    host, both = run.price("host", "allocator"), run.price("host", "allocator", "sync")
    if host is None or both is None or host.reduction < max(run.named_from, HALF * gain.reduction):
        return []
    return [
        Evidence(
            text="After such a call the host is slow to get ahead again: if it took no time, and"
            f" the calls still waited, the step would be {percent(host.reduction)} shorter; with"
            f" both repairs {percent(both.reduction)}.",
            value=round(host.reduction, 4),
            unit="share of step",
        )
    ]


def _longest(run: RunView, rank: RankAccount) -> tuple[Window, ...]:
    gaps, charged = rank.main.budget.gaps, _charged(rank)
    longest = [int(i) for i in charged.argsort()[::-1][:MOST_WINDOWS] if charged[i] > 0]
    return tuple(run.window(rank, int(gaps.start_ns[i]), int(gaps.end_ns[i])) for i in longest)


def _where(rank: RankAccount) -> tuple[Place, ...]:
    """Lines of the calls, weighed by the idle that follows each."""
    calls, mine = rank.host.blocking, np.flatnonzero(_mine(rank))
    if not len(mine):
        return ()
    gaps, charged = rank.main.budget.gaps, _charged(rank)
    held = np.flatnonzero(charged > 0)
    # A gap is the doing of the last blocking call that had begun when the host was done with it.
    latest = np.searchsorted(calls.start_ns[mine], gaps.host_end_ns[held], side="right") - 1
    weight = np.bincount(
        np.maximum(latest, 0), weights=charged[held].astype(np.float64), minlength=len(mine)
    ).astype(np.float64)
    total = float(max(rank.main.budget.total_ns, 1))
    return lines_of(rank.trace, rank.host, calls.lane[mine], calls.start_ns[mine], weight, total)


def _fixes(run: RunView, rank: RankAccount) -> list[Fix]:
    spelled = dict(_by_spelling(rank))
    steps = max(len(rank.main.steps), 1)
    fixes: list[Fix] = []
    scalars = sum(count for what, count in spelled.items() if "item" in what or "truth" in what)
    if scalars / steps >= MANY_A_STEP:
        fixes.append(
            Fix(
                title="Read many values at once, not one by one",
                detail=f"{scalars / steps:.0f} single values are read in each step. Keep the loop's"
                " data on the device, or fetch all of it with one copy before the loop.",
                code="values = torch.stack(values).tolist()  # one wait instead of one a value",
                cost="none",
            )
        )
    elif scalars or any("copy to the host" in what for what in spelled):
        fixes.append(
            Fix(
                title="Keep the loss and the metrics on the device, read them every N steps",
                detail="Adding up on the device launches a kernel and waits for nothing.",
                code="running_loss += loss.detach()            # stays on the device\n"
                "if step % 100 == 0:\n"
                "    print(running_loss.item() / 100)     # one wait in 100 steps\n"
                "    running_loss.zero_()",
                cost="logged values come in blocks",
            )
        )
    fusable = run.facts.optimizer in FUSED_ON_GPU and run.facts.optimizer_fused is not True
    if scalars and run.facts.scaled and fusable:
        fixes.append(_fused_under_a_scaler(run.facts.optimizer))
    if any("nonzero" in what or "masked" in what or "unique" in what for what in spelled):
        fixes.append(
            Fix(
                title="Avoid results whose size depends on the data",
                detail="Boolean-mask indexing and nonzero() have to ask the device how large their"
                " result is. torch.where or multiplying by the mask keeps the shape.",
                code="y = torch.where(mask, x, 0)              # instead of x[mask]",
                cost="some arithmetic on masked elements",
            )
        )
    if any("copy to the device" in what for what in spelled):
        fixes.append(
            Fix(
                title="Make small tensors on the device, once",
                detail="Each small copy out of pageable memory waits for everything before it."
                " Build constants and indices outside the loop, or in pinned memory.",
                code="index = torch.arange(n, device=device)   # not torch.arange(n).to(device)\n"
                "x = x.pin_memory().to(device, non_blocking=True)",
                cost="none",
            )
        )
    if any("Synchronize" in what for what in spelled):
        fixes.append(
            Fix(
                title="Drop explicit synchronizes from the loop",
                detail="torch.cuda.synchronize() is for timing; in the loop it only empties the"
                " queue. Time with CUDA events instead and read them later.",
                code="start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))",
                cost="none",
            )
        )
    fixes.append(
        Fix(
            title="Copy to the host without waiting",
            detail="Into pinned memory with non_blocking=True the copy runs behind the next step;"
            " wait for its event when the value is needed.",
            code="host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)\n"
            "host.copy_(x, non_blocking=True)\n"
            "copied = torch.cuda.Event(); copied.record()\n"
            "...                                          # later\n"
            "copied.synchronize()",
            cost="results arrive a step later",
        )
    )
    return fixes


def _fused_under_a_scaler(optimizer: str) -> Fix:
    return Fix(
        title="Take the fused optimizer under GradScaler",
        detail="GradScaler.step() reads with `.item()` whether all gradients are finite, in each"
        " step and for each optimizer; a fused one looks on the device.",
        code=f"torch.optim.{optimizer}(model.parameters(), …, fused=True)",
        cost="none",
    )


CAUSE = Cause(
    id=ID,
    title="Synchronization points",
    judge=judge,
    docs=__doc__ or "",
    removes=("sync",),
)
