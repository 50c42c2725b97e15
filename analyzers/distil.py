"""Distils the program of a step (`gpuprof.analyzers.program`) from what was recorded of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers import device_order, host_items
from gpuprof.analyzers.host import HostActivity
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.overhead import ProfilerCost
from gpuprof.analyzers.program import NO_EVENT, Program
from gpuprof.analyzers.steps import Steps

I64 = NDArray[np.int64]

LEAST_KNOWN = 0.5
"""An event whose launch was not recorded gets that of the event before it. Where that is so for
most of them, the program is a guess and not the run's."""

MAX_ITEMS = 12_000
"""Host calls and device events that one replay runs through: about 10 ms of CPU. A longer window
is represented by a stretch of whole steps."""


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
    # What was launched before the window lacks nothing: a host far ahead leaves a lot of it.
    own = events[~launches.backlog[events]]
    if not np.count_nonzero(launches.known[own]) > LEAST_KNOWN * len(own):
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
    items = host_items.with_end(
        host_items.in_order(chosen, launches, host, host_from, host_to), host_to
    )
    stream_ids, stream = np.unique(
        np.concatenate((streams[chosen], streams[before])), return_inverse=True
    )
    ready = np.zeros(len(stream_ids), np.int64)
    np.maximum.at(ready, stream[len(chosen) :], launches.end_ns[before])
    stream = stream[: len(chosen)].astype(np.int64)

    start, end = launches.start_ns[chosen], launches.end_ns[chosen]
    call_start = launches.call_start_ns[chosen]
    previous_end = device_order.previous_in_stream(stream, end, ready)
    after = device_order.latest_of_others(stream, len(stream_ids), start, end)
    after[
        ~device_order.may_follow(
            stream, call_start, launches.from_graph[chosen], host.stream_waits_ns
        )
    ] = NO_EVENT
    after_end = np.where(after >= 0, end[np.maximum(after, 0)], 0).max(axis=1, initial=0)
    held = np.maximum(previous_end, after_end)
    offsets = start - call_start
    typical = device_order.launch_latency(offsets, call_start >= held)
    latency = np.clip(offsets, 0, typical)
    issued_ns = call_start + latency
    turnaround = device_order.turnaround(start, previous_end, np.maximum(after_end, issued_ns))
    ready_ns = np.maximum(after_end, np.maximum(previous_end + turnaround, issued_ns))
    lag = np.maximum(start - ready_ns, -turnaround)

    waits, tail, call, queue_wait, wait_events = host_items.find_waits(
        items, stream, start, end, ready, np.sort(launches.end_ns[before])
    )
    work, profiler = host_items.work_between(items, host, host_from, cost)
    step_of_item = np.clip(
        np.searchsorted(steps.host_start_ns, items.start_ns, side="right") - 1, first, last
    )
    event_item = np.repeat(np.arange(len(items.start_ns)), items.count)
    origin = int(steps.start_ns[first])
    measured = (steps.end_ns - steps.start_ns)[first : last + 1]
    arrival, left = host_items.arrivals(items, host, host_from, float(measured.mean()))
    ends_with_host = steps.source != "none" and last == len(steps) - 1
    return Program(
        n_steps=last - first + 1,
        work_ns=work,
        profiler_ns=profiler,
        arrival_ns=arrival,
        left_ns=left,
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
        region=host_items.regions(items, host),
    )


def _with_every_launch(events: I64, launches: Launches) -> tuple[Launches, I64, I64]:
    """Gives an event whose launch was not recorded the launch of the event before it.

    Returns the completed launches, the events that have one now, and the work from before the
    window.
    """
    known, older = launches.known[events], launches.backlog[events]
    position = np.maximum.accumulate(np.where(known, np.arange(len(events)), -1))
    launched = events[~older]
    giver = events[position[~older]]
    row, call_start = launches.row.copy(), launches.call_start_ns.copy()
    call_end, lane = launches.call_end_ns.copy(), launches.lane.copy()
    for field in (row, call_start, call_end, lane):
        field[launched] = field[giver]
    complete = replace(launches, row=row, call_start_ns=call_start, call_end_ns=call_end, lane=lane)
    return complete, launched, events[older]


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
