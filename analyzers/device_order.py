"""The device's side of a program: what each event was seen to wait for before it started."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.program import NO_EVENT
from gpuprof.distinct import quantile

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

LATENCY_QUANTILE = 0.25
"""The launch latency is a low quantile of those observed when the device was idle: higher ones
hold other waits."""

LATENCY_UNSEEN_NS = 10_000
"""Where the device never waited for a launch, its latency was not seen; 10 µs is usual."""

LEAST_QUEUED = 10
"""With fewer events that were queued behind another, nothing says what is usual."""

MOST_TURNAROUND_NS = 10_000
"""Devices turn to the next kernel in 0.7 to 3.4 µs in all recordings seen; what takes over 10 µs
is no turnaround but a wait that the model does not know."""


def launch_latency(offsets: I64, device_free: Bools) -> int:
    """ns from the start of a launch call to the start of its event on a device that was free."""
    alone = offsets[device_free & (offsets >= 0)]
    if not len(alone):
        alone = offsets[offsets >= 0]
        return min(int(alone.min()), LATENCY_UNSEEN_NS) if len(alone) else 0
    return int(quantile(alone, LATENCY_QUANTILE))


def turnaround(start: I64, previous_end: I64, others_ns: I64) -> int:
    """ns from the end of an event to the start of the next one that was queued behind it.

    Args:
        start, previous_end: of each event, and of the one before it in its stream.
        others_ns: when everything else that it needed was there.
    """
    queued = (others_ns <= previous_end) & (start >= previous_end)
    if np.count_nonzero(queued) < LEAST_QUEUED:
        return 0
    return min(int(np.median((start - previous_end)[queued])), MOST_TURNAROUND_NS)


def previous_in_stream(stream: I64, end: I64, ready: I64) -> I64:
    """End of the event before each one in its stream (launch order), or the stream's start."""
    previous = np.empty(len(stream), np.int64)
    for s in range(len(ready)):
        mine = np.flatnonzero(stream == s)
        if len(mine):
            ends = np.maximum.accumulate(end[mine])
            previous[mine] = np.concatenate(([ready[s]], np.maximum(ends[:-1], ready[s])))
    return previous


def latest_of_others(stream: I64, n_streams: int, start: I64, end: I64) -> NDArray[np.int64]:
    """The latest event of every other stream, launched earlier, that had ended at the start.

    Which event of another stream an event waited for is not recorded, so the order that was
    observed is kept; this can only make a what-if slower than it would be.
    """
    after = np.full((len(stream), n_streams), NO_EVENT, np.int64)
    if n_streams == 1:
        return after
    index = np.arange(len(stream))
    for s in range(n_streams):
        mine = np.flatnonzero(stream == s)
        if not len(mine):
            continue
        ends = np.maximum.accumulate(end[mine])
        by_end = np.searchsorted(ends, start, side="right") - 1
        by_launch = np.searchsorted(mine, index, side="left") - 1
        pick = np.minimum(by_end, by_launch)
        others = (stream != s) & (pick >= 0)
        after[others, s] = mine[pick[others]]
    return after


def may_follow(stream: I64, call_start: I64, from_graph: Bools, waits_ns: I64) -> Bools:
    """Which events can depend on another stream, (n_events,), given when streams were told to wait.

    Streams do not wait for each other by themselves: the host has to call cudaStreamWaitEvent.
    Which stream it spoke of is not recorded, but a wait is there for what is launched next: after n
    such calls in a row, the n streams that are launched into next may have been told to wait. What
    follows in the same stream is held by that stream's order. Unknown, and taken for possible: the
    first event of each stream, the events of a graph, all where no such call was recorded.
    """
    if not len(waits_ns):
        return np.ones(len(stream), np.bool_)
    may = from_graph.copy()
    seen: set[int] = set()
    calls = np.searchsorted(waits_ns, call_start, side="right")
    before = 0
    left: int = 0
    served: set[int] = set()
    for i, (own, told) in enumerate(zip(stream.tolist(), calls.tolist(), strict=True)):
        if told > before:
            left, served, before = told - before, set(), told
        if own not in seen:
            seen.add(own)
            may[i] = True
        if left and own not in served:
            served.add(own)
            left -= 1
            may[i] = True
    return may
