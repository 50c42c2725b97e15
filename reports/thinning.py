"""Fewer events for the same picture: what a timeline over its byte budget leaves out.

Inside the decisive windows every event stays. Elsewhere an event stays when it is long enough.
Short ones that nothing contains are merged, a bucket of time at a time, into blocks that keep their
summed time (so a column's busy share stays right to within a bucket); short nested ones go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.reports.lanes import CATEGORIES, Arranged, DrawnLane
from gpuprof.trace import Bools

BUCKET_TIMES = 16
"""A bucket is this many times the shortest event that stays: blocks stay few in the file."""

Span = tuple[int, int]
"""Start and end in ns from the timeline's zero."""


def inside(events: Arranged, windows: Sequence[Span]) -> Bools:
    """Which events touch one of the windows, bool (n,)."""
    mask = np.zeros(len(events.start_ns), dtype=np.bool_)
    if not windows:
        return mask
    last = max(end for _, end in windows)
    first = min(start for start, _ in windows)
    near = np.flatnonzero((events.start_ns < last) & (events.end_ns > first))
    starts, ends = events.start_ns[near], events.end_ns[near]
    hit = np.zeros(len(near), dtype=np.bool_)
    for start, end in windows:
        hit |= (starts < end) & (ends > start)
    mask[near[hit]] = True
    return mask


def thin(events: Arranged, kept: Bools, shortest_ns: int, merged_key: int) -> Arranged:
    """Keeps the `kept` events and those of at least `shortest_ns`, merges the rest.

    Args:
        kept: events that stay whatever their length, bool (n,): see `inside`.
        merged_key: key of the name that merged events go by, category 0.
    """
    duration = events.end_ns - events.start_ns
    lane = events.lane_index()
    keep = (duration >= shortest_ns) | kept
    # An event is outermost when it starts behind all that started before it in its lane. Lanes are
    # set apart by more than any time, so that one running maximum serves all of them.
    # In place: a timeline of millions of events is where the memory of an analysis peaks.
    apart = int(events.end_ns.max(initial=0)) + 1
    start = lane * apart
    end = start + events.end_ns
    start += events.start_ns
    np.maximum.accumulate(end, out=end)
    outermost = np.ones(len(end), dtype=np.bool_)
    outermost[1:] = start[1:] >= end[:-1]
    del start, end

    short = np.flatnonzero(~keep & outermost)
    key = events.key.copy()
    if len(short):
        category = key[short] % CATEGORIES
        bucket = events.start_ns[short] // (BUCKET_TIMES * max(shortest_ns, 1))
        kept_before = np.cumsum(keep & outermost)[short]
        first = np.ones(len(short), dtype=np.bool_)
        first[1:] = np.diff(lane[short]) != 0
        for column in (bucket, kept_before, category):
            first[1:] |= np.diff(column) != 0
        at = np.flatnonzero(first)
        blocks = short[at]
        merged = np.diff(np.append(at, len(short))) > 1
        duration[blocks] = np.add.reduceat(duration[short], at)
        key[blocks] = np.where(merged, merged_key + category[at], key[blocks])
        keep[blocks] = True
    counts = np.bincount(lane[keep], minlength=len(events.lanes))
    left = np.flatnonzero(counts)
    del lane
    start_ns = events.start_ns[keep]
    return Arranged(
        lanes=tuple(
            DrawnLane(events.lanes[i].label, events.lanes[i].kind, int(counts[i])) for i in left
        ),
        start_ns=start_ns,
        end_ns=start_ns + duration[keep],
        key=key[keep],
        link=events.link[keep],
        lanes_left_out=events.lanes_left_out,
    )
