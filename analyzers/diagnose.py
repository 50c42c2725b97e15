"""From traces to the answer: accounts → comparison of ranks → bound → causes → Diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.about import clock_facts, data_warnings, facts_table, input_file
from gpuprof.analyzers.account import CPU, RankAccount, account_rank
from gpuprof.analyzers.bound import find_bound
from gpuprof.analyzers.causes import CAUSES
from gpuprof.analyzers.causes.base import Cause, Verdict, within_the_loader
from gpuprof.analyzers.facts import find_facts
from gpuprof.analyzers.group_skew import GroupSkew, group_skews
from gpuprof.analyzers.host_beside import gpu_while_recorded, with_samples
from gpuprof.analyzers.joint import joint_pricing
from gpuprof.analyzers.late_hosts import find_late_hosts
from gpuprof.analyzers.late_reasons import parts_by_rank
from gpuprof.analyzers.one_step import held_to_recur
from gpuprof.analyzers.pricing import Pricing, trusted
from gpuprof.analyzers.rank_summary import summarize
from gpuprof.analyzers.ranks import compare_summaries
from gpuprof.analyzers.recorded import TOO_FEW_STEPS, missing_work, recording_warnings, remedy
from gpuprof.analyzers.recorded_window import recorded_window, recording_cost, window_warnings
from gpuprof.analyzers.run_view import RunView
from gpuprof.analyzers.sources import OtherSources, Verdicts, findings_of, join
from gpuprof.analyzers.step_lengths import long_steps, steps_of_the_run
from gpuprof.analyzers.steps import WARM_UP_STEPS
from gpuprof.analyzers.summary import (
    device_roofline,
    headline,
    heaviest_kernels,
    mean_budget,
    rank_summaries,
    steps_summary,
)
from gpuprof.analyzers.why_late import RankParts
from gpuprof.analyzers.without_steps import without_steps
from gpuprof.analyzers.without_trace import diagnose_without_trace
from gpuprof.analyzers.wording import percent
from gpuprof.counted import agrees
from gpuprof.diagnosis import (
    Bound,
    Diagnosis,
    Estimate,
    Finding,
    NotJudged,
    ReplaySummary,
    RuledOut,
    RunSummary,
)
from gpuprof.run import RankRecord
from gpuprof.trace import Trace

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a run beside its traces.

    traces: one a rank, their times are used. attribution: rank -> a trace of later steps with
    stacks and shapes, used for lines only. cores: CPU cores that a process of the run may use.
    other: recordings beside the traces. records: what gpuprof's own recorder noted of each rank;
    step_us: the lengths of all steps of each.
    """

    traces: tuple[Trace, ...]
    attribution: dict[int, Trace] = field(default_factory=dict)
    cores: int | None = None
    other: OtherSources = field(default_factory=OtherSources)
    records: dict[int, RankRecord] = field(default_factory=dict)
    step_us: dict[int, NDArray[np.int64]] = field(default_factory=dict)


def view_of(recorded: Recorded, progress: Progress | None = None) -> tuple[RunView, list[str]]:
    """Accounts for a run and compares its ranks.

    Returns:
        The view that causes judge, and warnings.

    Args:
        recorded: At least one trace.
        progress: Told what is done, how far, of how many.
    """
    traces, warnings = _by_rank(recorded.traces)
    used = [trace for _, trace in traces]
    warnings += recording_warnings(used)
    missing = missing_work(used)
    accounts = []
    for done, (rank, trace) in enumerate(traces):
        if progress is not None:
            progress("accounting", done, len(traces))
        account = account_rank(trace, rank)
        if missing:
            account = account.without_account()
        lines = recorded.attribution.get(rank)
        if lines is not None:
            account = account.with_lines(account_rank(lines, rank))
        accounts.append(account)
    accounts, cut = _without_cut_ranks(accounts)
    warnings += cut
    if not missing and not any(_is_whole(account) for account in accounts):
        missing = TOO_FEW_STEPS
        accounts = [account.without_account() for account in accounts]
    first = accounts[0]
    roofline = device_roofline(first, first.main)
    comparison = joint = None
    parts: dict[int, RankParts] = {}
    skews: tuple[GroupSkew, ...] = ()
    if len(accounts) > 1:
        summaries = [summarize(account) for account in accounts]
        comparison = compare_summaries(summaries)
        parts = parts_by_rank(summaries)
        named = {group.name: group.description for group in first.trace.meta.groups}
        skews = group_skews(summaries, parts, named)
        joint = joint_pricing(
            [account.main.pricing for account in accounts], summaries, comparison.clock_offset_ns
        )
    told = {
        rank: recorded_window(recorded.records[rank], trace.meta.path)
        for rank, trace in traces
        if rank in recorded.records
    }
    view = RunView(
        ranks=tuple(accounts),
        roofline=roofline,
        facts=find_facts(first, roofline, recorded.cores),
        bound=_unknown(missing) if missing else find_bound(accounts, joint),
        comparison=comparison,
        joint=joint,
        missing=missing,
        parts=parts,
        told=told,
        skews=skews,
        late_hosts=find_late_hosts([account.rank for account in accounts], joint),
        step_us=recorded.step_us,
    )
    warnings += window_warnings(told) + long_steps(recorded.step_us)
    return view, warnings + [w for account in accounts for w in data_warnings(account)]


def _is_whole(account: RankAccount) -> bool:
    """Whether enough steps are known: of a file that is cut off fewer than `WARM_UP_STEPS` do not
    say what is usual."""
    known = int(np.count_nonzero(account.main.steps.keep))
    return known >= WARM_UP_STEPS or not account.trace.meta.truncated


def _without_cut_ranks(accounts: list[RankAccount]) -> tuple[list[RankAccount], list[str]]:
    """Leaves out ranks whose file ends before steps of theirs are whole, if there are others; or
    before their first kernel, which makes them look as if the CPU were their device."""
    on_device = any(account.main.index != CPU for account in accounts)
    kept, warnings = [], []
    for account in accounts:
        lacks_device = on_device and account.main.index == CPU and account.trace.meta.truncated
        if _is_whole(account) and not lacks_device:
            kept.append(account)
        else:
            before = "its first kernel" if lacks_device else "the end of its third step"
            warnings.append(
                f"rank {account.rank} is left out: {account.trace.meta.path} is cut off before"
                f" {before}"
            )
    return (kept, warnings) if kept else (accounts, [])


def diagnose(
    recorded: Recorded, version: str, progress: Progress | None = None
) -> tuple[Diagnosis, RunView | None]:
    """The diagnosis of a run, and the view it was made from (None without a trace).

    Args:
        recorded: What was recorded; at least one trace or other source.
        version: Version of gpuprof, for the record.
        progress: Told what is done, how far, of how many.
    """
    if not recorded.traces:
        return diagnose_without_trace(recorded.other, version), None
    view, warnings = view_of(recorded, progress)
    accounts = view.ranks
    judged = _judge_all(view, CAUSES, warnings)
    samples = recorded.other.samples
    judged = replace(judged, findings=with_samples(judged.findings, accounts, samples))
    verdicts = join(judged, findings_of(recorded.other))
    findings = verdicts.findings
    replayed = _replay_summary(view)
    if not replayed.trusted:
        untrusted = _untrusted(accounts, replayed)
        warnings.append(f"no gain is quoted: {view.missing}" if view.missing else untrusted)
    together = _together(view, findings)
    steps = steps_summary(accounts)
    late = sorted({rank for f in findings for rank in f.late_ranks})
    waits = view.comparison.wait_fracs() if view.comparison is not None else {}
    world_size = max([len(accounts), *(a.trace.meta.world_size or 0 for a in accounts)])
    if len(accounts) < world_size:
        warnings.append(
            f"{len(accounts)} of {world_size} ranks {agrees(len(accounts), 'was', 'were')} given:"
            " waiting for the others can't be told from transfer"
        )
    diagnosis = Diagnosis(
        gpuprof=version,
        inputs=(
            *(account.trace.meta.path for account in accounts),
            *(file.path for file in recorded.other.files),
        ),
        run=RunSummary(
            world_size=world_size,
            ranks=tuple(account.rank for account in accounts),
            devices=tuple(sorted({d.name or "unknown" for a in accounts for d in a.devices})),
            steps=steps,
        ),
        bound=view.bound,
        budget=mean_budget(accounts),
        replay=replayed,
        findings=findings,
        ruled_out=verdicts.ruled_out,
        not_judged=verdicts.not_judged,
        warnings=tuple(dict.fromkeys(warnings)),
        headline=f"What the run waits for can't be told: {view.missing}."
        if view.missing
        else headline(
            accounts,
            view.bound,
            findings,
            together,
            view.step_ms() or None,
            verdicts.not_judged,
        ),
        together=together,
        ranks=rank_summaries(accounts, waits, late),
        kernels=heaviest_kernels(view.first),
        files=(*(input_file(account.trace) for account in accounts), *recorded.other.files),
        facts={
            **facts_table(view.facts),
            **clock_facts(view.comparison),
            **recording_cost(view.told),
            **steps_of_the_run(recorded.step_us),
            **gpu_while_recorded(accounts, samples),
        },
    )
    return diagnosis, view


def _by_rank(traces: Sequence[Trace]) -> tuple[list[tuple[int, Trace]], list[str]]:
    """Gives every trace a rank: its own, or the next free one; the larger of two of one rank."""
    warnings: list[str] = []
    by_rank: dict[int, Trace] = {}
    without = [trace for trace in traces if trace.meta.rank is None]
    for trace in traces:
        rank = trace.meta.rank
        if rank is None:
            continue
        other = by_rank.get(rank)
        if other is not None:
            kept, left = (other, trace) if len(other) >= len(trace) else (trace, other)
            warnings.append(
                f"two traces of rank {rank}: {left.meta.path} is left out, {kept.meta.path} is used"
            )
            by_rank[rank] = kept
        else:
            by_rank[rank] = trace
    for trace in without:
        rank = next(i for i in range(len(traces) + 1) if i not in by_rank)
        if len(traces) > 1:
            warnings.append(f"{trace.meta.path} does not say its rank; taken for rank {rank}")
        by_rank[rank] = trace
    return sorted(by_rank.items()), warnings


def _judge_all(view: RunView, causes: Sequence[Cause], warnings: list[str]) -> Verdicts:
    if view.missing:
        known = [cause.id for cause in causes if cause.number is not None]
        command = remedy(view.missing)
        nothing = [NotJudged(cause=i, missing=view.missing, command=command) for i in known]
        return Verdicts((), (), tuple(nothing))
    findings: list[Finding] = []
    ruled_out: list[RuledOut] = []
    not_judged: list[NotJudged] = []
    for cause in causes:
        verdict = _judged(cause, view, warnings)
        if isinstance(verdict, Finding):
            findings.append(within_the_loader(view, cause, verdict))
        elif cause.number is None:
            continue
        elif isinstance(verdict, RuledOut):
            ruled_out.append(verdict)
        else:
            not_judged.append(verdict)
    return Verdicts(tuple(findings), tuple(ruled_out), tuple(not_judged))


def _judged(cause: Cause, view: RunView, warnings: list[str]) -> Verdict:
    """One cause's verdict; a fault in a rule is that rule's answer and stops nothing else."""
    try:
        verdict = held_to_recur(view, cause, cause.judge(view))
        return verdict if view.has_steps else without_steps(verdict)
    except Exception as error:
        warnings.append(
            f"gpuprof failed to judge {cause.id} ({type(error).__name__}: {error}); please report"
        )
        return NotJudged(cause=cause.id, missing="gpuprof itself failed on it, see the warnings")


def _unknown(missing: str) -> Bound:
    return Bound(class_="unknown", why=f"{missing[:1].upper()}{missing[1:]}; {remedy(missing)}")


def _replay_summary(view: RunView) -> ReplaySummary:
    pricings: list[Pricing | None] = [account.main.pricing for account in view.ranks]
    if view.joint is not None:
        pricings = [view.joint]
    known = [p for p in pricings if p is not None and p.measured_ns > 0]
    if not known:
        return ReplaySummary(measured_ms=None, replayed_ms=None, error=None, trusted=False)
    worst = max(known, key=lambda p: p.error)
    return ReplaySummary(
        measured_ms=round(float(np.mean([p.measured_ns for p in known])) / 1e6, 4),
        replayed_ms=round(float(np.mean([p.replayed_ns for p in known])) / 1e6, 4),
        error=round(worst.error, 5),
        trusted=len(known) == len(pricings) and all(trusted(p) for p in known),
    )


def _untrusted(accounts: Sequence[RankAccount], replayed: ReplaySummary) -> str:
    if replayed.error is None:
        return "no gain is quoted: launches were not recorded, so the step can't be replayed"
    return (
        "no gain is quoted: the replay misses the measured step by"
        f" {percent(replayed.error)} (up to 3 % is trusted)"
    )


def _together(view: RunView, findings: Sequence[Finding]) -> Estimate | None:
    """One replay with everything removed that was found: savings overlap, so they don't add up.

    Never less than the best of them alone: the gain of a cause that removes nothing (a larger
    batch) is in no such replay.
    """
    gains = {finding.cause: finding.gain for finding in findings if finding.gain is not None}
    parts = [part for cause in CAUSES if cause.id in gains for part in cause.removes]
    whole = view.price(*parts) if parts else None
    if whole is not None and "input" not in parts:
        whole = view.limited(whole)
    known = [gain for gain in (*gains.values(), whole) if gain is not None]
    if not known:
        return None
    gain = max(known, key=lambda gain: gain.reduction)
    return Estimate(
        step_ms=round(gain.step_ms, 4), reduction=round(gain.reduction, 4), limit=gain.limit
    )
