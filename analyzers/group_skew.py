"""Load skew inside the groups of a job: tensor, sequence, expert, data and pipeline parallel.

The ranks of a tensor- or sequence-parallel group have equal parts of each layer, and those of an
expert-parallel group equal numbers of experts, so they should compute equally long; the stages of a
pipeline should, too, but need not. The whole job mixes these: ranks of two stages differ for their
stages, two of one stage only for their data or their devices. Hence each group is judged by itself.

What a group is for is told by its description, where the framework gives one, else by its
operations: all-to-all is expert parallel, sends are a pipeline, many equal all-reduces beside
others are tensor parallel, and what gathers and scatters shares its parameters or its sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.imbalance import Pattern, judge_skew
from gpuprof.analyzers.nccl.evidence import rank_list
from gpuprof.analyzers.rank_summary import RankSummary
from gpuprof.analyzers.why_late import RankParts, compare_kernels
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence

I64 = NDArray[np.int64]

NAMED_FROM = 0.05
"""Of the step, lost inside the group: the share from which causes are named."""

MOST_NAMED = 3

SAME_KERNELS_FRAC = 0.1
"""Launches that make up less than a tenth of the difference are no other work."""

_DESCRIPTIONS = (
    ("expert", re.compile(r"expert|(?:^|_)(?:ep|moe)(?:_|$)", re.IGNORECASE)),
    ("sequence parallel", re.compile(r"sequence|context|(?:^|_)(?:cp|sp)(?:_|$)", re.IGNORECASE)),
    ("tensor parallel", re.compile(r"tensor|model_parallel|(?:^|_)tp(?:_|$)", re.IGNORECASE)),
    ("pipeline", re.compile(r"pipeline|(?:^|_)pp(?:_|$)", re.IGNORECASE)),
    ("data parallel", re.compile(r"data|(?:^|_)(?:dp|fsdp)(?:_|$)", re.IGNORECASE)),
)

_SAYS: dict[Pattern, str] = {
    "data": "another rank from step to step: uneven data (sequence lengths, tokens an expert gets)",
    "slow worker": "the same rank in every step, with the kernels of the others: a slower device",
    "more work": "the same rank in every step, with more kernels or others: more work",
    "stages": "by stage: an uneven partition of the layers",
    "partition": "several ranks in every step: an uneven partition",
    "unknown": "the same rank in every step",
}


@dataclass(frozen=True, slots=True)
class GroupSkew:
    """One group. what: "tensor parallel", "expert parallel", …; "" where it can't be told.

    ranks: of it that were given. lost_frac: share of the step by which the longest computes longer
    than the mean, step by step. heaviest: the rank that computes longest.
    """

    what: str
    ranks: tuple[int, ...]
    lost_frac: float
    pattern: Pattern
    heaviest: int
    more_frac: float

    def sentence(self) -> str:
        kind = f"{self.what} group" if self.what else "group"
        return (
            f"In the {kind} of {rank_list(self.ranks)}, rank {self.heaviest} computes"
            f" {percent(self.more_frac)} longer than the mean, and {percent(self.lost_frac)} of the"
            f" step is lost: {_SAYS.get(self.pattern, 'unequal work')}."
        )


def group_skews(
    summaries: Sequence[RankSummary],
    parts: Mapping[int, RankParts],
    descriptions: Mapping[str, str] | None = None,
) -> tuple[GroupSkew, ...]:
    """The uneven groups of a job that are not the whole of it, the costliest first.

    Args:
        summaries: One a rank.
        parts: What each rank does in an average step, for its kernels.
        descriptions: Name of a process group -> what the framework calls it.
    """
    by_rank = {one.rank: one for one in summaries}
    members: dict[tuple[int, ...], set[str]] = {}
    kinds: dict[tuple[int, ...], I64] = {}
    for one in summaries:
        for number, group in enumerate(one.groups):
            if len(group.ranks) < 2 or len(group.ranks) >= len(summaries):
                continue
            members.setdefault(group.ranks, set()).add(group.name)
            counts = np.bincount(one.kind[one.group == number], minlength=len(CollectiveKind))
            kinds[group.ranks] = kinds.get(group.ranks, np.zeros_like(counts)) + counts
    found = []
    for ranks, names in members.items():
        given = [by_rank[rank] for rank in ranks if rank in by_rank]
        skew = _skew(given, parts)
        if skew is None or skew[0] < NAMED_FROM:
            continue
        lost, pattern, heaviest, more = skew
        what = _what(names, kinds[ranks], descriptions or {})
        if what == "pipeline" and pattern in ("partition", "more work", "unknown"):
            pattern = "stages"
        numbers = tuple(one.rank for one in given)
        found.append(GroupSkew(what, numbers, lost, pattern, heaviest, more))
    return tuple(sorted(found, key=lambda one: -one.lost_frac))


def evidence_of(skews: Sequence[GroupSkew]) -> list[Evidence]:
    """A sentence for each of the costliest groups."""
    return [
        Evidence(text=one.sentence(), value=round(one.lost_frac, 4), unit="share of step")
        for one in skews[:MOST_NAMED]
    ]


def _skew(
    given: Sequence[RankSummary], parts: Mapping[int, RankParts]
) -> tuple[float, Pattern, int, float] | None:
    """What is lost, in which way, by which rank, and how much more that one computes."""
    if len(given) < 2:
        return None
    rows = [one.compute_ns[np.asarray(one.kept, np.bool_)].astype(np.float64) for one in given]
    if len({len(row) for row in rows}) != 1 or not len(rows[0]):
        return None
    table = np.stack(rows)
    steps = [one.step_ns[np.asarray(one.kept, np.bool_)].astype(np.float64) for one in given]
    length = float(np.mean([one.mean() for one in steps if len(one)]))
    mean = table.mean(axis=1)
    if length <= 0 or mean.mean() <= 0:
        return None
    lost = float((table.max(axis=0) - table.mean(axis=0)).mean()) / length
    heaviest = given[int(np.argmax(mean))].rank
    others = [parts[one.rank] for one in given if one.rank != heaviest and one.rank in parts]
    own = parts.get(heaviest)
    compared = compare_kernels(own, others) if own is not None and others else None
    same = None
    if compared is not None and compared.longer_ns + compared.more_ns > 0:
        same = compared.more_ns < SAME_KERNELS_FRAC * (compared.more_ns + compared.longer_ns)
    pattern = judge_skew(table, same_kernels=same).pattern
    return min(lost, 1.0), pattern, heaviest, float(mean.max() / mean.mean()) - 1.0


def _what(names: set[str], kinds: I64, descriptions: Mapping[str, str]) -> str:
    for name in sorted(names):
        text = f"{descriptions.get(name, '')} {name}"
        for what, pattern in _DESCRIPTIONS:
            if pattern.search(text):
                return "expert parallel" if what == "expert" else what
    counted = {CollectiveKind(kind): number for kind, number in enumerate(kinds.tolist())}
    if counted.get(CollectiveKind.ALL_TO_ALL):
        return "expert parallel"
    if counted.get(CollectiveKind.SEND_RECV):
        return "pipeline"
    gathers = counted.get(CollectiveKind.ALL_GATHER, 0)
    gathers += counted.get(CollectiveKind.REDUCE_SCATTER, 0)
    if gathers > counted.get(CollectiveKind.ALL_REDUCE, 0):
        return "sharded"
    return "tensor parallel" if counted.get(CollectiveKind.ALL_REDUCE, 0) > len(names) * 8 else ""
