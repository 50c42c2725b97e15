"""The device waits in communication.

What it finds: time in which a collective or a send or receive runs on the device and no other
kernel does, and time in which the host waits inside a collective of its own (gloo, mpi).

Why it costs: communication beside computation is free; alone it is part of the step. A collective
also lasts from the moment this rank arrives until the last rank has come and the data has passed:
most of a long one is often waiting for another rank.

How it is measured: the share is exposed communication: collectives minus all kernels beside them,
and idle time until a collective that is launched already. With the traces of several ranks it is
split: the shortest duration of a collective over its ranks is the transfer, what another rank
spends above that is waiting, and the rank that waits least is the one that came last. The gain is
the replay of the step with communication taking no time. Where a late rank makes the others wait,
all ranks are replayed together with nobody waiting for it; where they can't be, each of the others
on its own, with its waits shortened to those that would remain.

How to fix: more overlap (bucket sizes, prefetching), fewer bytes (compression, sharding), the right
transport; when a rank is late, what makes that rank late.

Limits: from one rank alone waiting can't be told from transfer. A host that sets the pace takes up
what faster communication would free; then it is ruled out with that reason. On a run whose device
is the CPU, collectives run on threads of their own, and only those that the training thread is seen
to wait for count, or those that several ranks show. Sends, receives and broadcasts are counted but
not split.
"""

from __future__ import annotations

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    CERTAIN,
    Cause,
    Verdict,
    confidence,
    explained,
    finding,
    too_little,
)
from gpuprof.analyzers.collective_evidence import largest_kinds, link_shares
from gpuprof.analyzers.communication_fixes import (
    communication_fixes,
    named_ranks,
)
from gpuprof.analyzers.exposed import ExposedCollectives, exposed_collectives, waited_frac
from gpuprof.analyzers.late_evidence import fixes_of_late, where_late, who_is_late
from gpuprof.analyzers.late_ranks import (
    held_up_by,
    waiting_frac,
    without_lateness,
    without_transfers,
)
from gpuprof.analyzers.pricing import gain_of
from gpuprof.analyzers.ranks import RankComparison
from gpuprof.analyzers.run_view import LEAST_GAIN, MOST_WINDOWS, RunView
from gpuprof.analyzers.wording import percent
from gpuprof.analyzers.work_skew import find_bubble, price_evened_out, rank_skew
from gpuprof.diagnosis import Evidence, Gain, NotJudged, RuledOut, Window

ID = "nccl-wait"

HOW = "the step replayed with transfers taking no time: the most that overlap can do"

BUCKETS = ("communication", "communication_host")

MOSTLY = 0.5
"""When half of the exposed communication is waiting, the ranks are the first thing to look at."""


def judge(run: RunView) -> Verdict:
    """Judges cause 4."""
    bubble = find_bubble(run.ranks)
    if bubble is not None and run.share(*BUCKETS) - bubble.idle_frac < run.named_from:
        # A stage's receive lasts until the other stage is done: no network shortens that.
        return RuledOut(
            cause=ID,
            why=f"the stages of a pipeline pass {percent(bubble.idle_frac)} of the step in sends"
            " and receives, which is waiting for each other (see imbalance); other communication"
            f" holds {percent(max(run.share(*BUCKETS) - bubble.idle_frac, 0.0))}",
            share=max(run.share(*BUCKETS) - bubble.idle_frac, 0.0),
        )
    if run.comparison is not None and run.comparison.matched:
        return _compared(run, run.comparison)
    return _alone(run)


def _compared(run: RunView, comparison: RankComparison) -> Verdict:
    """What several ranks of one job show: transfer, waiting, and who is late."""
    share = run.share(*BUCKETS)
    late = _late(run, comparison)
    if share < run.named_from and not late:
        tables = [exposed_collectives(rank) for rank in run.ranks]
        return RuledOut(cause=ID, why=_hidden(run, tables, share), share=share)
    waiting = min(waiting_frac(run.ranks, comparison), share)
    split = _split(run, comparison, share, waiting)
    if late:
        gain = _punctual(run, comparison, late)
        if gain is not None and gain.reduction < LEAST_GAIN:
            return RuledOut(
                cause=ID,
                why=f"{named_ranks(late)} often {'comes' if len(late) == 1 else 'come'} last, but"
                f" if nobody waited the step would be only {percent(gain.reduction)} shorter",
                share=share,
            )
        title = _title(run, comparison, late, gain)
        if share < run.named_from and run.late_hosts is not None:
            share = run.late_hosts.saved_frac  # they wait elsewhere, in blocking calls
    else:
        if (others := run.may_be_others(ID, share)) is not None:
            return others
        gain = _faster(run, comparison)
        if gain is not None and gain.reduction < LEAST_GAIN:
            why = _other_work_comes_out(share, gain)
            if waiting >= MOSTLY * share:
                why += f"; {percent(waiting)} is waiting for other ranks, and none of them is late"
            return RuledOut(cause=ID, why=why, share=share)
        title = f"Communication that nothing hides takes {percent(share)} of {run.each_step}"
    worst = max(run.ranks, key=lambda rank: run.share_of(rank, *BUCKETS))
    table = exposed_collectives(worst)
    certain = CERTAIN if all(one.lasting for one in comparison.late) else 0.85
    hosts = run.late_hosts if late else None
    return finding(
        ID,
        title,
        share=share,
        gain=gain,
        confidence=confidence(run, share, gain, certain=certain),
        evidence=[
            *split,
            *who_is_late(run.ranks, comparison, run.parts, late, hosts),
            *_evidence(run, worst, table, share),
            *link_shares(run.first, comparison),
        ],
        fixes=communication_fixes(
            run.facts,
            table,
            late_ranks=late,
            known=fixes_of_late(comparison, run.parts, late, hosts),
            waits=waiting >= MOSTLY * share,
            transfers=share - waiting >= run.named_from,
            on_device=run.has_device,
        ),
        where=where_late(run.ranks, comparison, late, hosts),
        ranks=run.ranks_with(*BUCKETS),
        late_ranks=late,
    )


def _late(run: RunView, comparison: RankComparison) -> tuple[int, ...]:
    """The ranks that cost enough to be named for it, ascending. What a rank that is late for its
    own host costs is known from the replay, wherever the others wait for it."""
    late: set[int] = set()
    # A late rank waits for nobody, though its steps are as long as those that wait for it.
    if waiting_frac(run.ranks, comparison, comparison.late_ranks) >= run.named_from:
        late.update(comparison.late_ranks)
    if run.late_hosts is not None and run.late_hosts.saved_frac >= run.named_from:
        late.update(run.late_hosts.ranks)
    return tuple(sorted(late))


def _title(
    run: RunView, comparison: RankComparison, late: tuple[int, ...], gain: Gain | None
) -> str:
    one, who = len(late) == 1, named_ranks(late).capitalize()
    waited = waiting_frac(run.ranks, comparison, late)
    if waited >= run.named_from:
        come = "comes" if one else "come"
        return f"{who} {come} late: the others wait {percent(waited)} of {run.each_step}"
    # They wait in blocking calls of their own; then a replay of all ranks has said what it costs.
    hold, saved = "holds" if one else "hold", gain.reduction if gain is not None else waited
    return f"{who} {hold} the others up for {percent(saved)} of {run.each_step}"


def _faster(run: RunView, comparison: RankComparison) -> Gain | None:
    """The gain when data passes in no time. Waiting for a rank is none of it: that ends with what
    makes the rank late, be it unequal work or chance."""
    if run.is_replayed_together:
        return explained(run.price("communication"), HOW)
    return explained(
        without_transfers(run.ranks, comparison),
        "each rank replayed with transfers taking no time, and waiting for others as it did",
    )


def _punctual(run: RunView, comparison: RankComparison, late: tuple[int, ...]) -> Gain | None:
    """The gain when the late ranks come with the rest: all ranks replayed together where that can
    be done, else each of the others on its own."""
    held = [held_up_by(run.ranks, late, rank) for rank in late]
    if all(one is not None and one[0] == "compute" for one in held):
        skew = rank_skew(run.ranks)
        price = price_evened_out(run.ranks, skew) if not skew.same_work else None
        if price is not None:
            # Work can't be wished away: if a rank is late for having more of it, others must do it.
            return gain_of(
                price,
                run.step_ms(),
                f"the step replayed with the work of {named_ranks(late)} evened out over all",
            )
    gain = run.price_without_waiting_for(late)
    how = f"all ranks replayed together, with nobody waiting for {named_ranks(late)}"
    if gain is None:
        gain = without_lateness(run.ranks, comparison)
        how = (
            f"the other ranks replayed as if {named_ranks(late)} came to collectives with the rest;"
            " the one that gains least sets the pace"
        )
    return explained(gain, how)


def _split(
    run: RunView, comparison: RankComparison, share: float, waiting: float
) -> list[Evidence]:
    """How much of the exposed communication is waiting for another rank."""
    whole = "all" if comparison.complete else f"{len(comparison.ranks)} of {comparison.world_size}"
    text = (
        f"Over {whole} ranks, {percent(waiting)} of the step is waiting for another rank and"
        f" {percent(max(share - waiting, 0.0))} transfer and what could not be compared."
    )
    if not comparison.complete:
        text += " A rank that was not given may be late as well: that would count as transfer."
    return [Evidence(text=text, value=round(waiting, 4), unit="share of step")]


def _alone(run: RunView) -> Verdict:
    """What one rank shows, or several that have nothing in common to compare."""
    share = run.share(*BUCKETS)
    tables = [exposed_collectives(rank) for rank in run.ranks]
    if not share and not any(len(table) for table in tables):
        return RuledOut(cause=ID, why="no collective ran in the recorded steps", share=0.0)
    if share < run.named_from:
        return RuledOut(cause=ID, why=_hidden(run, tables, share), share=share)
    if not run.has_device:
        waited = float(np.mean([waited_frac(rank) for rank in run.ranks]))
        if waited < run.named_from:
            return NotJudged(
                cause=ID,
                missing=f"for {percent(share)} of the step a collective is under way and nothing is"
                " computed, but it runs on a thread of its own, and the recording of one rank does"
                " not show whether the training thread waits for it, or for which rank",
                command="record every rank, and give all of their traces: `gpuprof analyze FOLDER`",
            )
    gain = run.price("communication")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(cause=ID, why=_other_work_comes_out(share, gain), share=share)
    worst = max(run.ranks, key=lambda rank: run.share_of(rank, *BUCKETS))
    table = tables[run.ranks.index(worst)]
    return finding(
        ID,
        f"Communication that nothing hides takes {percent(share)} of {run.each_step}",
        share=share,
        gain=explained(gain, HOW),
        confidence=confidence(run, share, gain, certain=0.93),
        evidence=[*_evidence(run, worst, table, share), _one_rank_only(run)],
        fixes=communication_fixes(run.facts, table, on_device=run.has_device),
        ranks=run.ranks_with(*BUCKETS),
    )


def _other_work_comes_out(share: float, gain: Gain) -> str:
    return (
        f"communication that nothing hides holds {percent(share)} of the step, but if it took no"
        f" time the step would be only {percent(gain.reduction)} shorter: the host, or other work,"
        " sets the pace"
    )


def _hidden(run: RunView, tables: list[ExposedCollectives], share: float) -> str:
    text = too_little("communication that nothing hides", share, run)
    ran = sum(table.running_ns for table in tables)
    if ran:
        beside = 1.0 - sum(table.exposed_total_ns for table in tables) / ran
        text += f" ({percent(max(beside, 0.0))} of all communication runs beside other work)"
    return text


def _evidence(
    run: RunView, rank: RankAccount, table: ExposedCollectives, share: float
) -> list[Evidence]:
    of = f" of rank {rank.rank}" if len(run.ranks) > 1 else ""
    device = "the device" if run.has_device else "training"
    evidence = [
        Evidence(
            text=f"For {run.time_of(share)} {device} only communicates.",
            value=round(share, 4),
            unit="share of step",
            windows=_longest(run, rank, table),
        )
    ]
    if table.running_ns:
        beside = 1.0 - table.exposed_total_ns / table.running_ns
        evidence.append(
            Evidence(
                text=f"{percent(max(beside, 0.0))} of the communication{of} runs beside other"
                " work.",
                value=round(beside, 4),
                unit="share of communication",
            )
        )
    host = run.share("communication_host")
    if host > 0.1 * share:
        evidence.append(
            Evidence(
                text=f"{percent(host)} of the step passes in collectives of the host.",
                value=round(host, 4),
                unit="share of step",
            )
        )
    return evidence + largest_kinds(rank, table)


def _one_rank_only(run: RunView) -> Evidence:
    return Evidence(
        text="A collective lasts until the last rank has come and the data has passed. Which of the"
        " two takes the time can't be told without the other ranks' traces.",
        unit="",
    )


def _longest(run: RunView, rank: RankAccount, table: ExposedCollectives) -> tuple[Window, ...]:
    found = table.collectives
    longest = table.mine[np.argsort(-table.exposed_ns)[:MOST_WINDOWS]].tolist()
    return tuple(run.window(rank, int(found.start_ns[i]), int(found.end_ns[i])) for i in longest)


CAUSE = Cause(
    id=ID,
    title="Exposed communication",
    judge=judge,
    docs=__doc__ or "",
    removes=("communication",),
)
