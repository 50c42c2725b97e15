"""Why a rank is late: what it does longer than the ranks that are on time.

Between two collectives a rank waits for its loader, runs its host code, and computes. What the late
rank spends above the middle one of the others, part by part, explains its lateness. Longer compute
is told apart by its kernels:

* more of them, or others: the rank has more work (uneven stages, more experts, more micro-batches);
* as many, and the longer ones run more thread blocks: the same program on larger inputs (longer
  sequences, more tokens);
* as many, of as many blocks, and longer nevertheless: the device is slow (clock, power,
  temperature, a neighbour on the same device).

Where grids were not recorded, a device is slow when nearly all kernels are longer by one factor;
where some are not, inputs are larger, since what works on the weights alone keeps its time. A
lowered core clock can look alike there, if most kernels are limited by memory.

The functions take plain numbers per rank, from whatever recorded them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gpuprof.analyzers.rank_summary import RankSummary

Cause = Literal["loader", "host", "checkpoint", "copy", "more work", "larger inputs", "slow device"]

NAMED_FROM = 0.2
"""A part that explains less than a fifth of the lateness is not named."""

UNIFORM_FRAC = 0.8
UNIFORM_WITHIN = 0.5
"""A device is slow when four fifths of its kernel time is longer by the middle factor, give or take
half of its excess: optimizer and weight-sized kernels would not follow longer inputs."""

MORE_BLOCKS_FROM = 1.01
GROWN_FRAC = 0.05
"""A slow device runs exactly the blocks of the others. Larger inputs need not show in all kernels
(persistent ones have as many blocks as there are multiprocessors), but in some: pointwise ones, and
normalization, take a twentieth of the time in any model."""

SLOWER_FROM = 1.02
"""Kernels of equal devices differ by 1 % from rank to rank."""

_PARTS: dict[str, tuple[str, ...]] = {
    "loader": ("input",),
    "checkpoint": ("checkpoint",),
    "copy": ("copy",),
    "host": ("host", "sync", "allocator", "launch", "unknown"),
}
"""Buckets of the step budget that make up each part; compute is split by kernels."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """One rank in an average step.

    buckets: ns a bucket of the step budget. kernels: name -> (launches, ns) of kernels that
    compute, as far as they were recorded. blocks: name -> thread blocks, where grids were.
    """

    buckets: Mapping[str, float]
    kernels: Mapping[str, tuple[float, float]]
    blocks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """A part that the late rank spends more on.

    excess_ns: above the middle one of the others, a step. share: of all that it spends more.
    """

    cause: Cause
    excess_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class ComputeExcess:
    """Kernel time of a step above that of the others, ns: for more launches, and for longer ones.

    factor: how much longer the middle kernel is, weighted by time. uniform: share of the kernel
    time that is longer by about that factor. growth: share of the kernel time whose launches have
    more blocks; None where grids were not recorded.
    """

    more_ns: float
    longer_ns: float
    factor: float
    uniform: float
    growth: float | None = None


def parts_of(summary: RankSummary) -> RankParts:
    """What a rank's summary says of an average accounted step."""
    steps = max(int(summary.kept.sum()), 1)
    return RankParts(
        buckets={name: ns / steps for name, ns in summary.buckets.items()},
        kernels={n: (k.count / steps, k.total_ns / steps) for n, k in summary.kernels.items()},
        blocks={n: k.blocks / steps for n, k in summary.kernels.items() if k.blocks >= 0},
    )


def why_late(late: RankParts, others: Sequence[RankParts]) -> tuple[Reason, ...]:
    """What explains a rank's lateness, the largest part first; () where nothing does.

    Args:
        late: The late rank.
        others: Ranks that are on time, at least one.
    """
    if not others:
        return ()
    excess: dict[Cause, float] = {}
    for cause, buckets in _PARTS.items():
        own = sum(late.buckets.get(b, 0.0) for b in buckets)
        usual = [sum(one.buckets.get(b, 0.0) for b in buckets) for one in others]
        excess[cause] = own - float(np.median(usual))  # type: ignore[index]
    compute = _excess(late, others, "compute")
    if compute > 0:
        excess.update(_split_compute(late, others, compute))
    total = sum(value for value in excess.values() if value > 0)
    reasons = [
        Reason(cause, value, value / total)
        for cause, value in excess.items()
        if total > 0 and value / total >= NAMED_FROM
    ]
    return tuple(sorted(reasons, key=lambda reason: -reason.excess_ns))


def compare_kernels(late: RankParts, others: Sequence[RankParts]) -> ComputeExcess | None:
    """How the kernels of a rank differ from those of the others; None without kernels."""
    if not late.kernels or not any(one.kernels for one in others):
        return None
    more = longer = 0.0
    factors: list[float] = []
    weights: list[float] = []
    for name in late.kernels.keys() | {n for one in others for n in one.kernels}:
        count, total = late.kernels.get(name, (0.0, 0.0))
        usual = np.array([one.kernels.get(name, (0.0, 0.0)) for one in others], np.float64)
        usual_count = float(np.median(usual[:, 0]))
        have = usual[:, 0] > 0
        if not count or not have.any():
            more += total - float(np.median(usual[:, 1]))
            continue
        mean = total / count
        usual_mean = float(np.median(usual[have, 1] / usual[have, 0]))
        more += (count - usual_count) * usual_mean
        longer += count * (mean - usual_mean)
        if usual_mean > 0:
            factors.append(mean / usual_mean)
            weights.append(usual_mean * count)
    if not factors:
        return ComputeExcess(more, longer, 1.0, 0.0)
    factor = _weighted_median(np.array(factors), np.array(weights))
    near = np.abs(np.array(factors) - factor) <= UNIFORM_WITHIN * max(factor - 1.0, 0.0)
    uniform = float(np.array(weights)[near].sum() / sum(weights))
    return ComputeExcess(more, longer, factor, uniform, _growth(late, others))


def _growth(late: RankParts, others: Sequence[RankParts]) -> float | None:
    """Share of the kernel time whose launches have more blocks than those of the others."""
    grown = known = 0.0
    for name, blocks in late.blocks.items():
        count, total = late.kernels.get(name, (0.0, 0.0))
        usual = [
            one.blocks[name] / one.kernels[name][0]
            for one in others
            if name in one.blocks and one.kernels.get(name, (0.0, 0.0))[0]
        ]
        if usual and count:
            known += total
            grown += total if blocks / count > MORE_BLOCKS_FROM * float(np.median(usual)) else 0.0
    return grown / known if known > 0 else None


def _split_compute(
    late: RankParts, others: Sequence[RankParts], compute_ns: float
) -> dict[Cause, float]:
    kernels = compare_kernels(late, others)
    if kernels is None or kernels.more_ns + kernels.longer_ns <= 0:
        return {"more work": compute_ns}
    more, longer = max(kernels.more_ns, 0.0), max(kernels.longer_ns, 0.0)
    # Kernels overlap, so their sums are used as proportions of what the budget counts once.
    part = longer / (more + longer)
    slow = kernels.factor >= SLOWER_FROM and kernels.uniform >= UNIFORM_FRAC
    if kernels.growth is not None:
        slow = kernels.growth < GROWN_FRAC
    of_longer: Cause = "slow device" if slow else "larger inputs"
    return {"more work": compute_ns * (1 - part), of_longer: compute_ns * part}


def _excess(late: RankParts, others: Sequence[RankParts], bucket: str) -> float:
    usual = float(np.median([one.buckets.get(bucket, 0.0) for one in others]))
    return late.buckets.get(bucket, 0.0) - usual


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])
