"""The program that the replay runs: host calls in order, and the device events they launch.

It is distilled once from a trace (`gpuprof.analyzers.distil`); every what-if then replays the same
program with one thing changed. The host is taken as one line of work over all threads that drive
the device (they hand over to each other: forward, then the backward thread); between two calls
lies host work of known kinds. Nothing here depends on what is asked later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

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
        arrival_ns: when, in that work, a batch came from worker processes that the host waited
        for, 0 where none did; left_ns: what of the work was left then.
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
    arrival_ns: I64
    left_ns: I64
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
