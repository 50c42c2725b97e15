"""Interval algebra on int64 nanoseconds: unions, intersections, gaps and coverage.

Every account of time in gpuprof is a sum of lengths of half-open intervals [start, end). A `Spans`
is the canonical form: sorted, disjoint, no empty interval, touching ones merged, so that two equal
sets of nanoseconds have equal arrays. Everything costs O(n log n) at most, in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """A set of nanoseconds: sorted, disjoint, non-empty, non-touching half-open intervals.

    start, end: int64 (n,), with start[i] < end[i] < start[i + 1]. Made by `union` and the other
    functions here; a caller that builds one by hand keeps that promise itself.
    """

    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    __hash__ = None  # type: ignore[assignment]

    @property
    def lengths(self) -> I64:
        """Length of each interval, int64 (n,)."""
        return self.end - self.start


def empty() -> Spans:
    """The set without a nanosecond."""
    nothing = np.empty(0, dtype=np.int64)
    return Spans(nothing, nothing)


def union(start: ArrayLike, end: ArrayLike) -> Spans:
    """The union of any intervals: unsorted, overlapping, touching, empty or reversed (dropped).

    Args:
        start: Starts, shape (n,), taken as int64.
        end: Ends, shape (n,), exclusive.
    """
    starts = np.asarray(start, dtype=np.int64)
    ends = np.asarray(end, dtype=np.int64)
    real = ends > starts
    if not real.all():
        starts, ends = starts[real], ends[real]
    if len(starts) == 0:
        return empty()
    if not (starts[1:] >= starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    # A new interval begins where the start lies beyond everything before it; equal = touching.
    first = np.empty(len(starts), dtype=np.bool_)
    first[0] = True
    np.greater(starts[1:], reach[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    lasts = np.append(begins[1:] - 1, len(starts) - 1)
    return Spans(starts[begins], reach[lasts])


def merge(*spans: Spans) -> Spans:
    """The union of several sets."""
    if not spans:
        return empty()
    return union(
        np.concatenate([each.start for each in spans]), np.concatenate([each.end for each in spans])
    )


def intersect(a: Spans, b: Spans) -> Spans:
    """The nanoseconds that are in both sets."""
    if len(a) == 0 or len(b) == 0:
        return empty()
    # Each interval of `a` meets a contiguous run of intervals of `b`.
    low = np.searchsorted(b.end, a.start, side="right")
    high = np.searchsorted(b.start, a.end, side="left")
    count = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(len(a)), count)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    other = low[owner] + offset
    # The pieces are disjoint and in order; those of two canonical sets cannot touch either.
    return Spans(np.maximum(a.start[owner], b.start[other]), np.minimum(a.end[owner], b.end[other]))


def complement(a: Spans, lo: int, hi: int) -> Spans:
    """The nanoseconds of the window [lo, hi) that are not in `a`: its gaps and its two margins."""
    if hi <= lo:
        return empty()
    inside = clip(a, lo, hi)
    starts = np.concatenate([np.array([lo], dtype=np.int64), inside.end])
    ends = np.concatenate([inside.start, np.array([hi], dtype=np.int64)])
    real = ends > starts
    return Spans(starts[real], ends[real])


def subtract(a: Spans, b: Spans) -> Spans:
    """The nanoseconds of `a` that are not in `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a.start[0]), int(a.end[-1])))


def clip(a: Spans, lo: int, hi: int) -> Spans:
    """The nanoseconds of `a` inside the window [lo, hi)."""
    if len(a) == 0 or hi <= lo:
        return empty()
    first = int(np.searchsorted(a.end, lo, side="right"))
    last = int(np.searchsorted(a.start, hi, side="left"))
    if first >= last:
        return empty()
    return Spans(np.maximum(a.start[first:last], lo), np.minimum(a.end[first:last], hi))


def total(a: Spans) -> int:
    """How many nanoseconds the set holds."""
    return int((a.end - a.start).sum())


def covered(a: Spans, query_start: ArrayLike, query_end: ArrayLike) -> I64:
    """How many nanoseconds of each query window [start, end) are in `a`, int64 (k,).

    Windows may overlap and come in any order; an empty or reversed one is covered by 0 ns.
    """
    starts = np.asarray(query_start, dtype=np.int64)
    ends = np.asarray(query_end, dtype=np.int64)
    if len(a) == 0:
        return np.zeros(np.broadcast_shapes(starts.shape, ends.shape), dtype=np.int64)
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(a.end - a.start)])
    amount: I64 = _held_before(a, before, ends) - _held_before(a, before, starts)
    return np.maximum(amount, 0)


def contains(a: Spans, times: ArrayLike) -> NDArray[np.bool_]:
    """Which of the instants lie in the set, bool (k,)."""
    instants = np.asarray(times, dtype=np.int64)
    at = np.searchsorted(a.start, instants, side="right") - 1
    inside: NDArray[np.bool_] = np.zeros(instants.shape, dtype=np.bool_)
    if len(a):
        inside = (at >= 0) & (instants < a.end[np.maximum(at, 0)])
    return inside


def _held_before(a: Spans, before: I64, times: I64) -> I64:
    """Nanoseconds of `a` before each instant; `before[i]`: the length of the first i intervals."""
    at = np.searchsorted(a.start, times, side="right")
    last = np.maximum(at - 1, 0)
    # All intervals that have begun, less the part of the last one that is still to come.
    rest = np.where(at > 0, np.maximum(a.end[last] - times, 0), 0)
    held: I64 = before[at] - rest
    return held
