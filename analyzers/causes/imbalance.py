"""Devices have unequal work, and those with less wait for those with more.

What it finds: ranks (or devices of one process) that compute longer than the others in each step:
longer sequences, more experts' tokens, heavier pipeline stages, a slower device. And the bubble of
a pipeline: the time in which its stages wait for each other.

Why it costs: all ranks take the same steps. The one that computes longest sets the pace, and what
the others compute less they spend waiting, usually in a collective. A pipeline of P stages with M
micro-batches is idle for (P − 1) / (M + P − 1) of the step even if its stages are even.

How it is measured: the lost share is the longest compute time over ranks minus the mean one, by the
step. The gain is the replay of the rank that computes longest with its kernels shortened to the
mean. The bubble is the share of the step that stages only spend in sends and receives.

How to fix: deal work out by its cost and not by its count; move layers between stages; more
micro-batches, an interleaved schedule; look at the clocks of a device that is slower at equal work.

Limits: needs the traces of several ranks. A rank that is late because of its host, with equal
compute, is no imbalance of work: that is the cause "nccl-wait". The number of micro-batches is
known where sends are recorded one by one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    Cause,
    Verdict,
    confidence,
    finding,
)
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.communication_fixes import named_ranks
from gpuprof.analyzers.exposed import exposed_collectives
from gpuprof.analyzers.group_skew import evidence_of
from gpuprof.analyzers.imbalance import bubble_frac
from gpuprof.analyzers.late_reasons import has_larger_launches, kernels_of, look_at_device
from gpuprof.analyzers.pricing import gain_of
from gpuprof.analyzers.run_view import LEAST_GAIN, RunView
from gpuprof.analyzers.wording import milliseconds, percent, significant
from gpuprof.analyzers.work_skew import (
    Bubble,
    Skew,
    device_skew,
    find_bubble,
    price_evened_out,
    rank_skew,
)
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, RuledOut

ID = "imbalance"

ABOVE_IDEAL = 1.5
"""A bubble half as large again as the ideal one holds something else than filling and draining."""

SMALL_BUBBLE = 0.05
"""The bubble that advice about micro-batches aims at: the share below which nothing is named."""

_MOST_LISTED = 8
"""Ranks whose times are written out."""


def judge(run: RunView) -> Verdict:
    """Judges cause 7."""
    if len(run.ranks) == 1:
        return _one_rank(run)
    skew = _reconsidered(run, rank_skew(run.ranks))
    bubble = find_bubble(run.ranks)
    if bubble is None and not run.share("communication", "communication_host"):
        return RuledOut(
            cause=ID,
            why="the ranks do not communicate in the recorded steps: none waits for another",
            share=0.0,
        )
    idle = bubble.idle_frac if bubble is not None else 0.0
    # What uneven stages lose shows in the bubble as well: the larger of the two is the cost.
    share = max(skew.lost_frac, idle)
    if share < run.named_from:
        return RuledOut(cause=ID, why=_even(run, skew, bubble), share=share)
    uneven = skew.lost_frac >= run.named_from
    others = run.may_be_others(ID, share)
    if others is not None and skew.lasting_frac < run.named_from and not idle:
        return others
    # A rank alone is replayed with its sends and receives as they were: what evened out stages
    # would save shows in none of them.
    gain = _evened_out(run, skew) if uneven and bubble is None else None
    if uneven and gain is not None and gain.reduction < LEAST_GAIN and idle < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"ranks compute unequally long ({percent(skew.lost_frac)} of the step), but evened"
            f" out the step would be only {percent(gain.reduction)} shorter: something else holds"
            " the rank that computes longest",
            share=share,
        )
    late = run.late_ranks
    return finding(
        ID,
        _title(skew, bubble, uneven, run.each_step),
        share=share,
        gain=gain,
        confidence=confidence(run, share, gain, 0.93 if uneven else 0.8, compared=True),
        evidence=[
            *(_skew_evidence(skew, "rank") if uneven or bubble is None else []),
            *(_kernel_evidence(run, skew) if uneven else []),
            *(evidence_of(run.skews) if uneven or bubble is not None else []),
            *(_bubble_evidence(bubble) if bubble is not None else []),
        ],
        fixes=_fixes(run, skew, bubble, uneven),
        ranks=tuple(rank.rank for rank in run.ranks),
        late_ranks=tuple(r for r in late if r in skew.heavy) if uneven else (),
    )


def _reconsidered(run: RunView, skew: Skew) -> Skew:
    """The same skew, unless some kernels of the heaviest rank are larger: persistent ones have as
    many blocks whatever they work on, and hide in the sum that its work is more."""
    if skew.same_work and has_larger_launches(run.parts, skew.labels[skew.heaviest]):
        pattern = "more work" if skew.pattern == "slow worker" else skew.pattern
        return replace(skew, same_work=False, pattern=pattern)
    return skew


def _one_rank(run: RunView) -> Verdict:
    rank = run.first
    if len(rank.devices) > 1:
        return _devices(run, rank)
    world_size = rank.trace.meta.world_size
    collectives = bool(rank.is_communication.any()) or run.share("communication") > 0
    if world_size == 1 or (world_size is None and not collectives):
        return RuledOut(
            cause=ID, why="one rank on one device: nothing to compare it with", share=0.0
        )
    of = f" of {world_size}" if world_size else ""
    return NotJudged(
        cause=ID,
        missing=f"one rank{of} was given: whether the others compute as long is in their traces",
        command="record every rank, and give all of their traces: `gpuprof analyze FOLDER`",
    )


def _devices(run: RunView, rank: RankAccount) -> Verdict:
    """Several devices of one process."""
    skew = device_skew(rank)
    if skew.lost_frac < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"the {len(rank.devices)} devices of the process compute equally long"
            f" ({percent(skew.lost_frac)} of the step is lost, named from"
            f" {percent(run.named_from)})",
            share=skew.lost_frac,
        )
    return finding(
        ID,
        f"The devices of one process compute unequally long: {percent(skew.lost_frac)} of"
        f" {run.each_step} is lost",
        share=skew.lost_frac,
        gain=None,
        confidence=confidence(run, skew.lost_frac, None, certain=0.8),
        evidence=_skew_evidence(skew, "device"),
        fixes=[_move_layers(), _deal_out()],
        ranks=(rank.rank,),
    )


def _even(run: RunView, skew: Skew, bubble: Bubble | None) -> str:
    text = (
        f"all {len(run.ranks)} ranks compute about equally long: on average the longest takes"
        f" {percent(skew.spread_frac)} more than the mean; step by step {percent(skew.lost_frac)}"
        f" is lost (named from {percent(run.named_from)})"
    )
    if bubble is not None:
        text += f"; the pipeline's bubble is {percent(bubble.idle_frac)}"
    late = run.late_ranks
    if late:
        one = len(late) == 1
        text += (
            f". {named_ranks(late).capitalize()} {'comes' if one else 'come'} late for other"
            " reasons than more work (see nccl-wait)"
        )
    return text


def _evened_out(run: RunView, skew: Skew) -> Gain | None:
    price = price_evened_out(run.ranks, skew)
    if price is None:
        return None
    return gain_of(
        price,
        run.step_ms(),
        "the rank that computes longest replayed with its kernels shortened to the mean of all",
    )


def _title(skew: Skew, bubble: Bubble | None, uneven: bool, each_step: str) -> str:
    if uneven:
        if skew.pattern == "data" or not skew.heavy:
            return f"Ranks compute unequally long: {percent(skew.lost_frac)} of {each_step} is lost"
        computes = "computes" if len(skew.heavy) == 1 else "compute"
        return (
            f"{named_ranks(skew.heavy).capitalize()} {computes} longer than the others:"
            f" {percent(skew.lost_frac)} of {each_step} is lost"
        )
    assert bubble is not None
    return (
        f"The stages of the pipeline wait for each other {percent(bubble.idle_frac)} of {each_step}"
    )


def _skew_evidence(skew: Skew, worker: str) -> list[Evidence]:
    slowest = skew.labels[skew.heaviest]
    ranked = sorted(zip(skew.compute_ms.tolist(), skew.labels, strict=True), reverse=True)
    listed = ", ".join(f"{label}: {significant(ms)}" for ms, label in ranked[:_MOST_LISTED])
    more = "" if len(ranked) <= _MOST_LISTED else ", …"
    evidence = [
        Evidence(
            text=f"{worker.capitalize()} {slowest} computes {milliseconds(skew.compute_ms.max())}"
            f" of each {milliseconds(skew.step_ms)} step, {percent(skew.spread_frac)} more than the"
            f" mean of {milliseconds(skew.compute_ms.mean())}.",
            value=round(skew.lost_frac, 4),
            unit="share of step",
        ),
        Evidence(text=f"ms of compute a step, by {worker}: {listed}{more}.", unit=""),
    ]
    if skew.pattern == "data":
        evidence.append(
            Evidence(
                text=f"It is another {worker} from step to step: over all steps only"
                f" {percent(skew.lasting_frac)} of the step is lost to the same one.",
                value=round(skew.lasting_frac, 4),
                unit="share of step",
            )
        )
    if skew.same_work:
        evidence.append(
            Evidence(
                text=f"{worker.capitalize()} {slowest} runs as many thread blocks as the others:"
                " the work is the same, the device is slower.",
                unit="",
            )
        )
    return evidence


def _kernel_evidence(run: RunView, skew: Skew) -> list[Evidence]:
    """Whether the rank that computes longest has more kernels, larger ones, or a slower device."""
    if skew.pattern == "data":  # another rank in each step: the mean over steps tells nothing
        return []
    found = kernels_of(run.parts, skew.labels[skew.heaviest])
    return [found] if found is not None else []


def _bubble_evidence(bubble: Bubble) -> list[Evidence]:
    text = (
        f"The {bubble.stages} stages spend {percent(bubble.idle_frac)} of the step only in sends"
        " and receives."
    )
    ideal = bubble.ideal_frac
    if ideal is None:
        text += (
            f" How many micro-batches M there are was not recorded; ({bubble.stages} − 1) / (M +"
            f" {bubble.stages} − 1) is {percent(bubble_frac(bubble.stages, bubble.stages))} for M ="
            f" {bubble.stages} and {percent(bubble_frac(bubble.stages, 4 * bubble.stages))} for M ="
            f" {4 * bubble.stages}."
        )
        return [Evidence(text=text, value=round(bubble.idle_frac, 4), unit="share of step")]
    m, p = bubble.micro_batches, bubble.stages
    text += (
        f" With {m} micro-batches ({p} − 1) / ({m} + {p} − 1) = {percent(ideal)} can't be avoided"
    )
    if bubble.idle_frac > ABOVE_IDEAL * ideal:
        text += ": the rest is uneven stages, slow transfers or late hosts"
    return [Evidence(text=text + ".", value=round(bubble.idle_frac, 4), unit="share of step")]


def _fixes(run: RunView, skew: Skew, bubble: Bubble | None, uneven: bool) -> list[Fix]:
    fixes: list[Fix] = []
    if uneven and skew.same_work:
        fixes.append(look_at_device(skew.labels[skew.heaviest]))
    elif uneven and bubble is not None:
        fixes.append(_move_layers())
    elif uneven:
        table = exposed_collectives(run.ranks[skew.heaviest])
        moves = skew.pattern == "data"
        if table.main_kind == CollectiveKind.ALL_TO_ALL:
            fixes.append(_balance_experts())
        fixes.append(_deal_out(moves=moves))
    if bubble is not None and bubble.idle_frac >= run.named_from:
        fixes += _smaller_bubble(bubble)
    return fixes


def _deal_out(*, moves: bool = False) -> Fix:
    return Fix(
        title="Deal samples out by their cost, not by their count",
        detail="Sort samples by length (tokens, pixels, edges) and deal them to the ranks in turn,"
        " there and back again, or pack them to a fixed number of tokens per rank."
        + (
            " The heavy rank changes with the data, so it has to be done per batch."
            if moves
            else ""
        ),
        code="order = sorted(batch, key=cost)\n"
        "lap = range(world_size)\n"
        "seats = itertools.cycle([*lap, *reversed(lap)])\n"
        "mine = [x for x, seat in zip(order, seats) if seat == rank]",
        cost="batches are no longer drawn independently of length",
    )


def _balance_experts() -> Fix:
    return Fix(
        title="Even out experts or embedding tables",
        detail="In a mixture of experts a load-balancing loss and a capacity limit keep tokens"
        " spread; embedding tables are placed by how often they are looked up, large ones split"
        " over ranks.",
        cost="a placement to maintain, or dropped tokens",
    )


def _move_layers() -> Fix:
    return Fix(
        title="Move layers from the longest stage to the shortest",
        detail="Stages are even when their times are, not their numbers of layers: the embedding"
        " and the loss over a large vocabulary weigh as much as several layers.",
        cost="a new split of the checkpoint",
    )


def _smaller_bubble(bubble: Bubble) -> list[Fix]:
    enough = math.ceil((bubble.stages - 1) * (1 / SMALL_BUBBLE - 1))
    detail = (
        f"With {bubble.stages} stages {enough} micro-batches bring the ideal bubble to"
        f" {percent(SMALL_BUBBLE)}."
    )
    if bubble.micro_batches:
        twice = bubble_frac(bubble.stages, 2 * bubble.micro_batches)
        detail += (
            f" Twice as many as now, {2 * bubble.micro_batches}, bring it to {percent(twice)}."
        )
    return [
        Fix(
            title="Use more micro-batches in a step",
            detail=detail,
            code="schedule = Schedule1F1B(stage, n_microbatches=…)  # torch.distributed.pipelining",
            cost="smaller micro-batches, or a larger batch",
        ),
        Fix(
            title="Interleave the stages",
            detail="With v smaller stages per rank the bubble is divided by v.",
            code="schedule = ScheduleInterleaved1F1B(stages, n_microbatches=…)",
            cost="v times as many sends and receives",
        ),
    ]


CAUSE = Cause(
    id=ID,
    title="Unequal work",
    judge=judge,
    docs=__doc__ or "",
)
