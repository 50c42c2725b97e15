"""The program that the replay runs: host calls in order, and the device events they launch.

It is distilled once from a trace; every what-if then replays the same program with one thing
changed. The host is taken as one line of work over all threads that drive the device (they hand
over to each other: forward, then the backward thread); between two calls lies host work of known
kinds. Nothing here depends on what is asked later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.host import LABELS, HostActivity
from gpuprof.analyzers.intervals import contains
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.overhead import ProfilerCost
from gpuprof.analyzers.steps import Steps

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_ITEMS = 12_000
"""Host calls and device events that one replay runs through: about 10 ms of CPU. A longer window
is represented by a stretch of whole steps."""

LATENCY_QUANTILE = 0.25
"""The launch latency is a low quantile of those observed when the device was idle: higher ones
hold other waits."""

LEAST_QUEUED = 10
"""With fewer events that were queued behind another, nothing says what is usual."""

MOST_TURNAROUND_NS = 10_000
"""Devices turn to the next kernel in 0.7 to 3.4 µs in all recordings seen; what takes over 10 µs
is no turnaround but a wait that the model does not know."""

LATENCY_UNSEEN_NS = 10_000
"""Where the device never waited for a launch, its latency was not seen; 10 µs is usual."""

WAIT_SLACK_NS = 5_000
"""A call that returns within 5 µs after an event was done may have waited for it (the driver's
polling and the two clocks' rounding)."""

LONG_CALL_RATIO = 10
LONG_CALL_NS = 50_000
"""A launch that takes ten times the usual and over 50 µs did more than launch: it waited for a
place in the queue, or loaded a module."""

WAITED_FOR_NS = 20_000
"""It waited for the device if a device event ended in the last 20 µs of the call."""

NO_EVENT = -1
NOT_BLOCKING = 255


class Region(IntEnum):
    """The part of the step that a call belongs to."""

    STEP = 0
    INPUT = 1
    CHECKPOINT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One stretch of whole steps on one device.

    Host items, shape (n_items,), in order of their start:
        work_ns: label -> host work before the item; "host" is what no label names.
        profiler_ns: the part of that work that the profiler caused.
        call_ns: what the call itself costs without waiting.
        first_event, n_events: the device events it launches: a range of the event arrays.
        waits: the call returns only when device work is done; kind: its `Blocking`, 255 for none.
        is_queue_wait: the wait is for a place in the launch queue, whatever is changed.
        tail_ns: how long after that the call returns.
        step: which step issued it. region: what the call is part of, a `Region`.
    The last item is no call: it stands for the host's work until the last step ends.
    wait_events: item -> last events, one a stream, that must be done.

    Device events, shape (n_events,), in the order of their launches:
        dur_ns, stream (dense), latency_ns (from the start of the call), lag_ns (how much later it
        started than everything else here explains; negative where the stream turned to it faster
        than usual), after: (n_events, n_streams) the latest event of each other stream
        that had ended when it started, NO_EVENT where none. source: index into the device rows.

    turnaround_ns: from the end of an event to the start of the next one that is queued behind it.
    stream_ready_ns: when each stream is free of work launched before. host_start_ns: when the
    host begins. origin_ns: the end of the step before. measured_ns: length of each step as
    recorded, (n_steps,). host_lead_ns: how much longer the host took for these steps than the
    device, 0 where it did not: the backlog that it let shrink. steps_used: first and last step,
    both inclusive. ends_with_host: whether the last step lasts until the host is done (it does
    where it is the recording's last one).
    """

    n_steps: int
    work_ns: dict[str, I64]
    profiler_ns: I64
    call_ns: I64
    first_event: I64
    n_events: I64
    waits: Bools
    kind: NDArray[np.uint8]
    is_queue_wait: Bools
    tail_ns: I64
    step: I64
    wait_events: dict[int, tuple[int, ...]]
    dur_ns: I64
    stream: I64
    latency_ns: I64
    lag_ns: I64
    after: NDArray[np.int64]
    source: I64
    event_step: I64
    turnaround_ns: int
    stream_ready_ns: I64
    host_start_ns: int
    origin_ns: int
    measured_ns: I64
    steps_used: tuple[int, int]
    ends_with_host: bool
    host_lead_ns: int
    region: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Items:
    start_ns: I64
    end_ns: I64
    first: I64
    count: I64
    kind: NDArray[np.uint8]
    lane: I64


def build_program(
    steps: Steps,
    events: I64,
    launches: Launches,
    streams: I64,
    host: HostActivity,
    cost: ProfilerCost,
) -> Program | None:
    """Distils the program of one device, or None where launches were not recorded.

    Args:
        steps: The device's steps.
        events: Its events (indices into the device rows), ordered by start.
        launches: Launches of all device rows.
        streams: Stream of every device row.
        host: What the host was doing.
        cost: What the profiler cost it.
    """
    if not launches.known[events].any():
        return None
    launches, launched, backlog = _with_every_launch(events, launches)
    span = _choose_steps(steps, launched, launches, host)
    if span is None:
        return None
    first, last = span
    host_from = int(steps.host_start_ns[first])
    host_to = int(steps.host_end_ns[last])
    if steps.source == "none":
        host_to = int(launches.call_end_ns[launched].max()) + 1
    issued = launches.call_start_ns[launched]
    inside = (issued >= host_from) & (issued < host_to)
    chosen = launched[inside]
    if not len(chosen):
        return None
    before = np.concatenate((backlog, launched[issued < host_from]))

    order = np.lexsort(
        (launches.start_ns[chosen], launches.row[chosen], launches.call_start_ns[chosen])
    )
    chosen = chosen[order]
    items = _with_end(_host_items(chosen, launches, host, host_from, host_to), host_to)
    stream_ids, stream = np.unique(
        np.concatenate((streams[chosen], streams[before])), return_inverse=True
    )
    ready = np.zeros(len(stream_ids), np.int64)
    np.maximum.at(ready, stream[len(chosen) :], launches.end_ns[before])
    stream = stream[: len(chosen)].astype(np.int64)

    start, end = launches.start_ns[chosen], launches.end_ns[chosen]
    call_start = launches.call_start_ns[chosen]
    previous_end = _previous_in_stream(stream, end, ready)
    after = _after(stream, len(stream_ids), start, end)
    after[~_may_follow(stream, call_start, launches.from_graph[chosen], host.stream_waits_ns)] = (
        NO_EVENT
    )
    after_end = np.where(after >= 0, end[np.maximum(after, 0)], 0).max(axis=1, initial=0)
    held = np.maximum(previous_end, after_end)
    offsets = start - call_start
    typical = _launch_latency(offsets, call_start >= held)
    latency = np.clip(offsets, 0, typical)
    issued_ns = call_start + latency
    turnaround = _turnaround(start, previous_end, np.maximum(after_end, issued_ns))
    ready_ns = np.maximum(after_end, np.maximum(previous_end + turnaround, issued_ns))
    lag = np.maximum(start - ready_ns, -turnaround)

    waits, tail, call, queue_wait, wait_events = _waits(items, stream, start, end, ready)
    work, profiler = _host_work(items, host, host_from, cost)
    step_of_item = np.clip(
        np.searchsorted(steps.host_start_ns, items.start_ns, side="right") - 1, first, last
    )
    event_item = np.repeat(np.arange(len(items.start_ns)), items.count)
    origin = int(steps.start_ns[first])
    measured = (steps.end_ns - steps.start_ns)[first : last + 1]
    ends_with_host = steps.source != "none" and last == len(steps) - 1
    return Program(
        n_steps=last - first + 1,
        work_ns=work,
        profiler_ns=profiler,
        call_ns=call,
        first_event=items.first,
        n_events=items.count,
        waits=waits,
        kind=items.kind,
        is_queue_wait=queue_wait,
        tail_ns=tail,
        step=step_of_item - first,
        wait_events=wait_events,
        dur_ns=end - start,
        stream=stream,
        latency_ns=latency,
        lag_ns=lag,
        after=after,
        source=chosen,
        event_step=(step_of_item - first)[event_item],
        turnaround_ns=turnaround,
        stream_ready_ns=ready,
        host_start_ns=host_from,
        origin_ns=origin,
        measured_ns=measured,
        steps_used=(first, last),
        ends_with_host=ends_with_host,
        host_lead_ns=max(0, (host_to - host_from) - int(measured.sum())),
        region=_region(items, host),
    )


def _with_every_launch(events: I64, launches: Launches) -> tuple[Launches, I64, I64]:
    """Gives an event whose launch was not recorded the launch of the event before it.

    Returns the completed launches, the events that have one now, and those that began before any
    launch was recorded: work from before the window.
    """
    known = launches.known[events]
    position = np.maximum.accumulate(np.where(known, np.arange(len(events)), -1))
    launched = events[position >= 0]
    giver = events[position[position >= 0]]
    row, call_start = launches.row.copy(), launches.call_start_ns.copy()
    call_end, lane = launches.call_end_ns.copy(), launches.lane.copy()
    for field in (row, call_start, call_end, lane):
        field[launched] = field[giver]
    complete = replace(launches, row=row, call_start_ns=call_start, call_end_ns=call_end, lane=lane)
    return complete, launched, events[position < 0]


def _launch_latency(offsets: I64, device_free: Bools) -> int:
    """ns from the start of a launch call to the start of its event on a device that was free."""
    alone = offsets[device_free & (offsets >= 0)]
    if not len(alone):
        alone = offsets[offsets >= 0]
        return min(int(alone.min()), LATENCY_UNSEEN_NS) if len(alone) else 0
    return int(np.quantile(alone, LATENCY_QUANTILE))


def _turnaround(start: I64, previous_end: I64, others_ns: I64) -> int:
    """ns from the end of an event to the start of the next one that was queued behind it.

    Args:
        start, previous_end: of each event, and of the one before it in its stream.
        others_ns: when everything else that it needed was there.
    """
    queued = (others_ns <= previous_end) & (start >= previous_end)
    if np.count_nonzero(queued) < LEAST_QUEUED:
        return 0
    return min(int(np.median((start - previous_end)[queued])), MOST_TURNAROUND_NS)


def _choose_steps(
    steps: Steps, known: I64, launches: Launches, host: HostActivity
) -> tuple[int, int] | None:
    """The longest run of accounted steps that fits; of several, the one whose median length is
    nearest to that of all."""
    kept = np.flatnonzero(steps.keep)
    if not len(kept):
        return None
    breaks = np.flatnonzero(np.diff(kept) > 1)
    runs = np.split(kept, breaks + 1)
    run = max(runs, key=len)
    if steps.source == "none":
        return int(run[0]), int(run[-1])
    bounds = np.append(steps.host_start_ns[run], steps.host_end_ns[run[-1]])
    per_step = np.diff(
        np.searchsorted(np.sort(launches.call_start_ns[known]), bounds)
        + np.searchsorted(host.blocking.start_ns, bounds)
    )
    if per_step.sum() <= MAX_ITEMS:
        return int(run[0]), int(run[-1])
    width = max(1, int(MAX_ITEMS / max(float(per_step.mean()), 1.0)))
    width = min(width, len(run))
    length = (steps.end_ns - steps.start_ns)[run].astype(np.float64)
    usual = float(np.median(length))
    offsets = range(0, len(run) - width + 1, max(1, width // 2))
    best = min(offsets, key=lambda i: abs(float(length[i : i + width].mean()) - usual))
    return int(run[best]), int(run[best + width - 1])


def _host_items(
    chosen: I64, launches: Launches, host: HostActivity, host_from: int, host_to: int
) -> _Items:
    """Launches and blocking calls, in order of their start."""
    row, first, count = np.unique(launches.row[chosen], return_index=True, return_counts=True)
    by_time = np.argsort(first, kind="stable")
    row, first, count = row[by_time], first[by_time], count[by_time]
    calls = host.blocking
    inside = (calls.start_ns >= host_from) & (calls.start_ns < host_to)
    inside &= np.isin(calls.lane, host.lanes)
    blocking_rows = calls.row[inside]
    is_launch = np.isin(blocking_rows, row)
    kind = np.full(len(row), NOT_BLOCKING, np.uint8)
    kinds = dict(zip(blocking_rows.tolist(), calls.kind[inside].tolist(), strict=True))
    for position in np.flatnonzero(np.isin(row, blocking_rows)):
        kind[position] = kinds[int(row[position])]
    alone = np.flatnonzero(inside)[~is_launch]

    start = np.concatenate((launches.call_start_ns[chosen[first]], calls.start_ns[alone]))
    end = np.concatenate((launches.call_end_ns[chosen[first]], calls.end_ns[alone]))
    lane = np.concatenate((launches.lane[chosen[first]], calls.lane[alone]))
    all_first = np.concatenate((first, np.zeros(len(alone), np.int64)))
    all_count = np.concatenate((count, np.zeros(len(alone), np.int64)))
    all_kind = np.concatenate((kind, calls.kind[alone]))
    order = np.argsort(start, kind="stable")
    return _Items(
        start[order], end[order], all_first[order], all_count[order], all_kind[order], lane[order]
    )


def _with_end(items: _Items, host_to: int) -> _Items:
    """Adds the item that stands for the host's end."""
    last = max(host_to, int(items.end_ns.max(initial=host_to)))
    return _Items(
        np.append(items.start_ns, last),
        np.append(items.end_ns, last),
        np.append(items.first, 0),
        np.append(items.count, 0),
        np.append(items.kind, np.uint8(NOT_BLOCKING)),
        np.append(items.lane, -1),
    )


def _region(items: _Items, host: HostActivity) -> NDArray[np.uint8]:
    region = np.full(len(items.start_ns), int(Region.STEP), np.uint8)
    for label, value in (("input", Region.INPUT), ("checkpoint", Region.CHECKPOINT)):
        for lane, spans in host.spans[label].items():
            region[(items.lane == lane) & contains(spans, items.start_ns)] = int(value)
    return region


def _host_work(
    items: _Items, host: HostActivity, host_from: int, cost: ProfilerCost
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


def _previous_in_stream(stream: I64, end: I64, ready: I64) -> I64:
    """End of the event before each one in its stream (launch order), or the stream's start."""
    previous = np.empty(len(stream), np.int64)
    for s in range(len(ready)):
        mine = np.flatnonzero(stream == s)
        if len(mine):
            ends = np.maximum.accumulate(end[mine])
            previous[mine] = np.concatenate(([ready[s]], np.maximum(ends[:-1], ready[s])))
    return previous


def _after(stream: I64, n_streams: int, start: I64, end: I64) -> NDArray[np.int64]:
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


def _may_follow(stream: I64, call_start: I64, from_graph: Bools, waits_ns: I64) -> Bools:
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


def _waits(
    items: _Items, stream: I64, start: I64, end: I64, ready: I64
) -> tuple[Bools, I64, I64, Bools, dict[int, tuple[int, ...]]]:
    """Which calls wait, for which events, and what they cost beside it."""
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
        k = int(np.searchsorted(ends_sorted, done, side="right")) - 1
        if k < 0 or ends_sorted[k] < max(done - WAITED_FOR_NS, int(items.start_ns[i])):
            continue
        target = int(by_end[k])
        if target >= int(launched[i]) - int(items.count[i]):
            continue
        waits[i] = queue_wait[i] = True
        wait_events[i] = (target,)
        tail[i] = done - int(ends_sorted[k])
        call[i] = usual
    return waits, tail, call, queue_wait, wait_events
