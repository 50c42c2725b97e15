"""The host's side of a program: its calls in order, the work between them, what they wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.host import LABELS, HostActivity
from gpuprof.analyzers.intervals import contains
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.overhead import ProfilerCost
from gpuprof.analyzers.program import NOT_BLOCKING, Region
from gpuprof.distinct import is_in

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

WAIT_SLACK_NS = 5_000
"""A call that returns within 5 µs after an event was done may have waited for it (the driver's
polling and the two clocks' rounding)."""

LONG_CALL_RATIO = 10
LONG_CALL_NS = 50_000
"""A launch that takes ten times the usual and over 50 µs did more than launch: it waited for a
place in the queue, or loaded a module."""

WAITED_FRAC = 0.02
"""Waits for a batch of under 2 % of the step do not show that the loader sets the pace: batches of
many megabytes take as long to be handed over. Nothing that costs less is named (`LEAST_GAIN`)."""

WAITED_FOR_NS = 20_000
"""It waited for the device if a device event ended in the last 20 µs of the call."""


@dataclass(frozen=True, slots=True)
class Items:
    start_ns: I64
    end_ns: I64
    first: I64
    count: I64
    kind: NDArray[np.uint8]
    lane: I64


def in_order(
    chosen: I64, launches: Launches, host: HostActivity, host_from: int, host_to: int
) -> Items:
    """Launches and blocking calls, in order of their start."""
    row, first, count = np.unique(launches.row[chosen], return_index=True, return_counts=True)
    by_time = np.argsort(first, kind="stable")
    row, first, count = row[by_time], first[by_time], count[by_time]
    calls = host.blocking
    inside = (calls.start_ns >= host_from) & (calls.start_ns < host_to)
    inside &= is_in(calls.lane, host.lanes)
    blocking_rows = calls.row[inside]
    is_launch = is_in(blocking_rows, row)
    kind = np.full(len(row), NOT_BLOCKING, np.uint8)
    kinds = dict(zip(blocking_rows.tolist(), calls.kind[inside].tolist(), strict=True))
    for position in np.flatnonzero(is_in(row, blocking_rows)):
        kind[position] = kinds[int(row[position])]
    alone = np.flatnonzero(inside)[~is_launch]

    start = np.concatenate((launches.call_start_ns[chosen[first]], calls.start_ns[alone]))
    end = np.concatenate((launches.call_end_ns[chosen[first]], calls.end_ns[alone]))
    lane = np.concatenate((launches.lane[chosen[first]], calls.lane[alone]))
    all_first = np.concatenate((first, np.zeros(len(alone), np.int64)))
    all_count = np.concatenate((count, np.zeros(len(alone), np.int64)))
    all_kind = np.concatenate((kind, calls.kind[alone]))
    order = np.argsort(start, kind="stable")
    return Items(
        start[order], end[order], all_first[order], all_count[order], all_kind[order], lane[order]
    )


def with_end(items: Items, host_to: int) -> Items:
    """Adds the item that stands for the host's end."""
    last = max(host_to, int(items.end_ns.max(initial=host_to)))
    return Items(
        np.append(items.start_ns, last),
        np.append(items.end_ns, last),
        np.append(items.first, 0),
        np.append(items.count, 0),
        np.append(items.kind, np.uint8(NOT_BLOCKING)),
        np.append(items.lane, -1),
    )


def regions(items: Items, host: HostActivity) -> NDArray[np.uint8]:
    region = np.full(len(items.start_ns), int(Region.STEP), np.uint8)
    for label, value in (("input", Region.INPUT), ("checkpoint", Region.CHECKPOINT)):
        for lane, spans in host.spans[label].items():
            region[(items.lane == lane) & contains(spans, items.start_ns)] = int(value)
    return region


def work_between(
    items: Items, host: HostActivity, host_from: int, cost: ProfilerCost
) -> tuple[dict[str, I64], I64]:
    """Host work before each item by label, and how much of the plain work the profiler made; time
    that threads overlap counts once."""
    previous = np.concatenate(([host_from], np.maximum.accumulate(items.end_ns)[:-1]))
    charged = host.charge(items.lane, np.minimum(previous, items.start_ns), items.start_ns)
    total = np.maximum(items.start_ns - previous, 0)
    work: dict[str, I64] = {}
    left = total.copy()
    for label in LABELS:
        if label == "sync":
            continue  # blocking calls are items of their own
        part = np.minimum(charged[label], left)
        work[label] = part
        left = left - part
    work["host"] = left
    return work, np.minimum(
        cost.between(np.minimum(previous, items.start_ns), items.start_ns), left
    )


def arrivals(items: Items, host: HostActivity, host_from: int, step_ns: float) -> tuple[I64, I64]:
    """When a batch from worker processes came in the work before each item, 0 where none was waited
    for, and what of that work was left then, ns. step_ns: the usual step."""
    previous = np.concatenate(([host_from], np.maximum.accumulate(items.end_ns)[:-1]))
    came = host.fetches.end[host.fetches.lengths > WAITED_FRAC * step_ns]
    if not len(came):
        return np.zeros_like(previous), np.zeros_like(previous)
    latest = came[np.maximum(np.searchsorted(came, items.start_ns, side="right") - 1, 0)]
    inside = (latest > previous) & (latest <= items.start_ns)
    return np.where(inside, latest, 0), np.where(inside, items.start_ns - latest, 0)


def find_waits(
    items: Items, stream: I64, start: I64, end: I64, ready: I64, older_ends: I64
) -> tuple[Bools, I64, I64, Bools, dict[int, tuple[int, ...]]]:
    """Which calls wait, for which events, and what they cost beside it.

    A launch that waited for its place in the queue until work from before the window was done waits
    for nothing here: with a quicker device that work would have been done earlier as well, and
    without one the host is that far ahead anyway.

    Args:
        items: The host's calls.
        stream, start, end: Of the events.
        ready: When each stream is free of older work.
        older_ends: When older work ended, in order.
    """
    n_items = len(items.start_ns)
    duration = items.end_ns - items.start_ns
    blocking = items.kind != NOT_BLOCKING
    plain = duration[~blocking & (items.count > 0)]
    usual = int(np.median(plain)) if len(plain) else 0
    long_call = ~blocking & (items.count > 0)
    long_call &= (duration > LONG_CALL_RATIO * usual) & (duration > LONG_CALL_NS)

    waits = np.zeros(n_items, np.bool_)
    queue_wait = np.zeros(n_items, np.bool_)
    tail = np.zeros(n_items, np.int64)
    call = duration.copy()
    wait_events: dict[int, tuple[int, ...]] = {}
    streams = [np.flatnonzero(stream == s) for s in range(len(ready))]
    reach = [np.maximum.accumulate(end[mine]) if len(mine) else end[:0] for mine in streams]
    ends_sorted = np.sort(end)
    by_end = np.argsort(end, kind="stable")

    launched = np.cumsum(items.count) if n_items else items.count
    for i in np.flatnonzero(blocking).tolist():
        begun, done = int(items.start_ns[i]), int(items.end_ns[i])
        if items.count[i]:
            last = int(items.first[i] + items.count[i] - 1)
            targets: tuple[int, ...] = (last,)
            target_end = int(end[last])
        else:
            # What was launched before and done when the call returned: all of a stream that it
            # synchronizes, the part before the event it waits for, or nothing.
            n_before = int(launched[i])
            picked, target_end = [], 0
            for mine, reached in zip(streams, reach, strict=True):
                k = int(np.searchsorted(mine, n_before))
                k = min(k, int(np.searchsorted(reached, done + WAIT_SLACK_NS, side="right"))) - 1
                if k >= 0:
                    picked.append(int(mine[k]))
                    target_end = max(target_end, int(reached[k]))
            targets = tuple(picked)
        if not targets:
            continue
        waits[i] = True
        wait_events[i] = targets
        if target_end > begun:
            tail[i] = max(done - target_end, 0)
            call[i] = min(int(duration[i]), usual)
    for i in np.flatnonzero(long_call).tolist():
        done = int(items.end_ns[i])
        waited_from = max(done - WAITED_FOR_NS, int(items.start_ns[i]))
        k = int(np.searchsorted(ends_sorted, done, side="right")) - 1
        if k < 0 or ends_sorted[k] < waited_from:
            older = int(np.searchsorted(older_ends, done, side="right")) - 1
            if older >= 0 and older_ends[older] >= waited_from:
                call[i] = usual
            continue
        target = int(by_end[k])
        if target >= int(launched[i]) - int(items.count[i]):
            continue
        waits[i] = queue_wait[i] = True
        wait_events[i] = (target,)
        tail[i] = done - int(ends_sorted[k])
        call[i] = usual
    return waits, tail, call, queue_wait, wait_events
