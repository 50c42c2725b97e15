"""What makes a late rank late, in words, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuprof.analyzers.rank_summary import RankSummary
from gpuprof.analyzers.why_late import (
    GROWN_FRAC,
    Cause,
    RankParts,
    Reason,
    compare_kernels,
    parts_of,
    why_late,
)
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.diagnosis import Evidence, Fix

Parts = Mapping[int, RankParts]
"""Rank -> what it does in an average step."""

MOST_REASONS = 2
LEAST_FRAC = 0.02
"""An excess below 2 % of the step is not what makes a rank late."""

_SAYS: dict[Cause, str] = {
    "loader": "waits longer for its data loader",
    "host": "spends longer in host code, launches and blocking calls",
    "checkpoint": "writes checkpoints that the others do not write, or more slowly",
    "copy": "copies longer between host and device",
    "more work": "runs more kernels, or others: it has more work (a larger stage, more experts,"
    " more micro-batches)",
    "larger inputs": "runs as many kernels as the others, and larger ones: its inputs are larger"
    " (longer sequences, more tokens)",
    "slow device": "runs the kernels of the others, and they take longer: its device is slower"
    " (clock, power, temperature, a neighbour on it)",
}


def parts_by_rank(summaries: Sequence[RankSummary]) -> dict[int, RankParts]:
    """What each rank does in an average step."""
    return {summary.rank: parts_of(summary) for summary in summaries}


def reasons_of(parts: Parts, rank: int, late: Sequence[int]) -> tuple[Reason, ...]:
    """What explains that a rank is late, the largest part first; () where nothing is known."""
    own = parts.get(rank)
    others = [one for number, one in parts.items() if number not in late and number != rank]
    if own is None or not others:
        return ()
    step_ns = sum(own.buckets.values())
    reasons = why_late(own, others)[:MOST_REASONS]
    return tuple(one for one in reasons if one.excess_ns >= LEAST_FRAC * step_ns)


def evidence_of(parts: Parts, rank: int, late: Sequence[int]) -> list[Evidence]:
    """Sentences about why a rank is late."""
    found = []
    for reason in reasons_of(parts, rank, late):
        text = (
            f"Rank {rank} {_SAYS[reason.cause]}: {milliseconds(reason.excess_ns / 1e6)} a step more"
            f" than the middle one of the others, {percent(reason.share)} of all that it spends"
            " more."
        )
        found.append(
            Evidence(text=text, value=round(reason.excess_ns / 1e6, 3), unit="ms per step")
        )
    return found


def has_larger_launches(parts: Parts, rank: int) -> bool:
    """Whether a rank's launches have more blocks than the others', be it in few of its kernels."""
    own = parts.get(rank)
    others = [one for number, one in parts.items() if number != rank]
    compared = compare_kernels(own, others) if own is not None and others else None
    return compared is not None and (compared.growth or 0.0) >= GROWN_FRAC


def kernels_of(parts: Parts, rank: int) -> Evidence | None:
    """How the kernels of the rank that computes longest differ from those of the others."""
    own = parts.get(rank)
    others = [one for number, one in parts.items() if number != rank]
    compared = compare_kernels(own, others) if own is not None and others else None
    if compared is None or compared.more_ns + compared.longer_ns <= 0:
        return None
    more, longer = max(compared.more_ns, 0.0), max(compared.longer_ns, 0.0)
    text = (
        f"Of what rank {rank} computes longer than the middle one of the others,"
        f" {percent(more / (more + longer))} is more launches and"
        f" {percent(longer / (more + longer))} longer ones; the middle kernel is"
        f" {percent(max(compared.factor - 1, 0.0))} longer, and"
        f" {percent(compared.uniform)} of the kernel time by about as much."
    )
    if compared.growth is not None:
        text += (
            f" Launches with more thread blocks than the others' make up {percent(compared.growth)}"
            " of its kernel time: "
            + (
                "its inputs are larger."
                if compared.growth >= GROWN_FRAC
                else "the work of each is the same."
            )
        )
    return Evidence(text=text, value=round(compared.factor, 4), unit="times as long")


def fixes_of(parts: Parts, late: Sequence[int]) -> list[Fix]:
    """What to do about the largest reason of the costliest late rank."""
    if not late:
        return []
    rank = late[0]
    reason = next(iter(reasons_of(parts, rank, late)), None)
    return [] if reason is None else [_FIXES[reason.cause](rank)]


def _loader(rank: int) -> Fix:
    return Fix(
        title=f"Speed up the data loader of rank {rank}",
        detail="It waits for batches that the others have in time: its share of the files is larger"
        " or colder, its disk slower, or its workers have fewer cores.",
        code="DataLoader(…, num_workers=…, persistent_workers=True, prefetch_factor=4)",
        cost="memory for batches that wait",
    )


def own_host_fix(rank: int) -> Fix:
    """For a rank whose host does what the others do not."""
    return Fix(
        title=f"Take from rank {rank} what only it does on the host",
        detail="Logging, metrics and progress bars on one rank make all others wait; so do cores"
        " that it shares with other processes.",
        code="if step % 100 == 0: log(…)   # and see taskset -pc PID",
        cost="none",
    )


def _checkpoint(rank: int) -> Fix:
    return Fix(
        title=f"Write the checkpoints of rank {rank} beside the training",
        detail="The others wait in their next collective until it is written.",
        code="torch.distributed.checkpoint.async_save(…)",
        cost="memory for a copy of the state",
    )


def _copy(rank: int) -> Fix:
    return Fix(
        title=f"See why copies take rank {rank} longer",
        detail="Pageable memory, a PCIe link of fewer lanes, or memory of the other socket.",
        code="nvidia-smi -q -d PCIE; numactl --cpunodebind=… --membind=…",
        cost="none",
    )


def _work(rank: int) -> Fix:
    return Fix(
        title=f"Move work from rank {rank} to the others",
        detail="Stages, experts and micro-batches are even when their times are.",
        cost="a new split of the model or of the batch",
    )


def _inputs(rank: int) -> Fix:
    return Fix(
        title="Deal samples out by their cost, not by their count",
        detail=f"Rank {rank} got the longer ones. Sort by length and deal in turn, or pack to a"
        " fixed number of tokens.",
        cost="batches are no longer drawn independently of length",
    )


def look_at_device(rank: int) -> Fix:
    """For a rank that takes longer for the work of the others."""
    return Fix(
        title=f"Look at the device of rank {rank}",
        detail="The same work takes longer there: power or temperature limits, a lower clock,"
        " another process, another model of GPU.",
        code="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE",
        cost="none",
    )


_FIXES = {
    "loader": _loader,
    "host": own_host_fix,
    "checkpoint": _checkpoint,
    "copy": _copy,
    "more work": _work,
    "larger inputs": _inputs,
    "slow device": look_at_device,
}
