"""Ranks that differ in load: pipeline bubbles, uneven stages, long sequences, one slow worker.

Pipeline. Filling and draining P stages with M micro-batches leaves each stage without work for
(P - 1) / (M + P - 1) of the step (Huang et al. 2019, GPipe; the same for 1F1B, Narayanan et al.
2019); with v interleaved chunks a device (P - 1) / (v M + P - 1) (Narayanan et al. 2021). What is
measured beyond that is not the schedule's: uneven stages, or communication that is not hidden.

Skew. Of ranks that should have the same load, the slowest sets the pace; (max - mean) / max of the
device time is idle on average. Compute time splits as in a two-way analysis of variance: a part
that a rank has in every step, and a rest that moves from rank to rank. Which one is large tells
where to look:

* in every step, one rank: a slow worker when its kernels are the same and longer, else more work;
* in every step, many ranks: uneven stages, or a partition of heads, experts or tables;
* it moves: the data are uneven (sequence lengths, tokens an expert gets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.distributions import incomplete_beta
from gpuprof.distinct import distinct

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Pattern = Literal["balanced", "slow worker", "more work", "stages", "partition", "data", "unknown"]

SKEW_FROM = 0.05
"""A skew under 5 % is within what equal devices with equal work differ by, and not worth moving
work for."""

SIGNIFICANCE = 0.01
"""Differences between ranks that chance makes in 1 of 100 runs are not called lasting."""

STANDS_OUT = 0.6
"""One rank is the outlier when it alone makes up 60 % of the spread of all ranks."""

BETWEEN_STAGES = 0.8
"""Ranks differ by stage when stages explain 80 % of the variance between ranks."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How uneven the load of ranks is.

    skew: (max - mean) / max of the ranks' mean load. cost: mean over steps of (slowest - mean) /
    slowest: what perfect balance in each step would save of it. lasting_frac: share of the variance
    that ranks have in every step. p_value: of differences between ranks, None for a single step.
    ranks: the heaviest ones, positions in the input.
    """

    pattern: Pattern
    skew: float
    cost: float
    lasting_frac: float
    p_value: float | None
    ranks: tuple[int, ...]


def bubble_frac(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step that filling and draining a pipeline leaves idle.

    Args:
        stages: P, at least 1. micro_batches: M, at least 1. chunks: v model chunks a device.

    Raises:
        ValueError: a number is less than 1.
    """
    if stages < 1 or micro_batches < 1 or chunks < 1:
        raise ValueError("stages, micro-batches and chunks count from 1")
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def judge_skew(
    load_ns: F64, *, stage: Sequence[int] | None = None, same_kernels: bool | None = None
) -> Skew:
    """How uneven the load of ranks is, and in which way.

    Args:
        load_ns: Compute time of each rank in each step, (n_ranks, n_steps), at least two ranks that
            should have the same load.
        stage: Pipeline stage of each rank, where known.
        same_kernels: Whether the heaviest rank runs the same kernels as often as the others, only
            longer (`gpuprof.analyzers.why_late.compare_kernels`), None where not known.
    """
    load = np.asarray(load_ns, np.float64)
    n_ranks, n_steps = load.shape
    mean = load.mean(axis=1)
    heaviest = float(mean.max())
    if n_ranks < 2 or heaviest <= 0:
        return Skew("balanced", 0.0, 0.0, 0.0, None, ())
    skew = float((heaviest - mean.mean()) / heaviest)
    slowest = np.maximum(load.max(axis=0), 1.0)
    cost = float(((slowest - load.mean(axis=0)) / slowest).mean())
    lasting, p_value = _lasting(load)
    above = tuple(np.flatnonzero(mean - mean.mean() >= 0.5 * (heaviest - mean.mean())).tolist())
    if cost < SKEW_FROM:
        return Skew("balanced", skew, cost, lasting, p_value, ())
    pattern: Pattern
    if n_steps > 1 and (p_value is None or p_value > SIGNIFICANCE or skew < 0.5 * cost):
        pattern, above = "data", ()
    else:
        pattern = _lasting_pattern(mean, stage, same_kernels)
        if n_steps == 1 and pattern == "partition":
            pattern = "unknown"  # a long sequence in this one step looks alike
    return Skew(pattern, skew, cost, lasting, p_value, above)


def _lasting(load: F64) -> tuple[float, float | None]:
    """Share of the variance that is the ranks' own, and the F test for it."""
    n_ranks, n_steps = load.shape
    if n_steps < 2:
        return 1.0, None
    centered = load - load.mean(axis=0)  # steps differ for all ranks alike: not of interest
    of_rank = centered.mean(axis=1, keepdims=True)
    between = float((of_rank**2).sum()) * n_steps
    rest = float(((centered - of_rank) ** 2).sum())
    if between + rest <= 0:
        return 0.0, 1.0
    d1, d2 = n_ranks - 1, (n_ranks - 1) * (n_steps - 1)
    if rest <= 1e-18 * between:
        return 1.0, 0.0
    ratio = (between / d1) / (rest / d2)
    return between / (between + rest), incomplete_beta(d2 / 2, d1 / 2, d2 / (d2 + d1 * ratio))


def _lasting_pattern(mean: F64, stage: Sequence[int] | None, same_kernels: bool | None) -> Pattern:
    if stage is not None and len(set(stage)) > 1 and _between(mean, stage) >= BETWEEN_STAGES:
        return "stages"
    ordered = np.sort(mean)
    alone = float(ordered[-1] - ordered[-2]) >= STANDS_OUT * float(ordered[-1] - ordered[0])
    if alone:
        return (
            "slow worker" if same_kernels else "more work" if same_kernels is False else "unknown"
        )
    return "partition"


def _between(mean: F64, stage: Sequence[int]) -> float:
    """Share of the variance between ranks that their stages explain, adjusted for the number of
    stages (so that stages of one rank each explain nothing unless there is nothing else)."""
    of = np.asarray(stage)
    total = float(((mean - mean.mean()) ** 2).sum())
    if total <= 0:
        return 0.0
    stages = distinct(of)
    within = sum(float(((mean[of == s] - mean[of == s].mean()) ** 2).sum()) for s in stages)
    free = len(mean) - len(stages)
    if free <= 0:
        return 1.0
    return 1.0 - (within / free) / (total / (len(mean) - 1))
