"""Host time that comes back at the same place in every step.

Code that is slow is slow in each step, at the same place. A thread that is put off its core, by
other processes of a busy machine, stops wherever it happens to be. Where the CPU is the device both
look alike, as time in which nothing is computed; what tells them apart is whether it recurs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.pricing import own_host_ns
from gpuprof.distinct import is_in
from gpuprof.trace import Category

I64 = NDArray[np.int64]

FEWEST_STEPS = 4
"""A median over fewer steps is decided by the odd one."""


def recurring_host_ns(rank: RankAccount) -> float | None:
    """ns a step outside of operators, the profiler's records not counted: at each place the median
    over the steps.

    A place is the operator before a gap, the one after it, and the how manieth gap of such a pair
    in its step it is. None with fewer than `FEWEST_STEPS` accounted steps.
    """
    steps, gaps = rank.main.steps, rank.main.budget.gaps
    kept = np.flatnonzero(steps.keep)
    if len(kept) < FEWEST_STEPS:
        return None
    step = np.searchsorted(steps.start_ns, gaps.start_ns, side="right") - 1
    held = np.flatnonzero((gaps.parts["host"] > 0) & is_in(step, kept))
    if not len(held):
        return 0.0
    place = _places(rank, gaps.start_ns[held], gaps.end_ns[held], step[held])
    column = np.searchsorted(kept, step[held])
    table = np.zeros((int(place.max()) + 1, len(kept)))
    np.add.at(table, (place, column), own_host_ns(gaps, rank.profiler)[held])
    return float(np.median(table, axis=1).sum())


def _places(rank: RankAccount, start_ns: I64, end_ns: I64, step: I64) -> I64:
    """Dense numbers of the places of some gaps, (k,)."""
    trace = rank.trace
    rows = np.flatnonzero((trace.category == Category.CPU_OP) & (trace.lane == rank.host.main_lane))
    if not len(rows):
        return np.zeros(len(start_ns), np.int64)
    by_end = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    before = np.searchsorted(trace.end_ns[by_end], start_ns, side="right") - 1
    by_start = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    after = np.searchsorted(trace.start_ns[by_start], end_ns, side="left")
    names = len(trace.names) + 1
    first = np.where(before >= 0, trace.name[by_end[np.maximum(before, 0)]] + 1, 0)
    last = after < len(by_start)
    second = np.where(last, trace.name[by_start[np.minimum(after, len(by_start) - 1)]] + 1, 0)
    pair = first.astype(np.int64) * names + second
    ordinal = _ordinal(pair, step)
    _, dense = np.unique(np.stack((pair, ordinal)), axis=1, return_inverse=True)
    result: I64 = dense.reshape(-1).astype(np.int64)
    return result


def _ordinal(pair: I64, step: I64) -> I64:
    """How many gaps of the same pair came before in the same step, (k,)."""
    order = np.lexsort((np.arange(len(pair)), pair, step))
    new = np.ones(len(pair), np.bool_)
    new[1:] = (pair[order][1:] != pair[order][:-1]) | (step[order][1:] != step[order][:-1])
    position = np.arange(len(pair))
    count = position - np.maximum.accumulate(np.where(new, position, 0))
    result = np.empty(len(pair), np.int64)
    result[order] = count
    return result
