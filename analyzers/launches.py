"""Which runtime call launched each device event, and whether the two clocks agree.

Kineto joins a launch and its device events by a correlation id. One call can stand for many
events (a CUDA graph). The device's timestamps are converted to host time by the driver; when that
conversion is off, events seem to start before their own launch, which is impossible, so the
violation measures the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

SKEW_NOISE_NS = 2_000
"""Violations up to 2 µs are the rounding of traces written in whole microseconds, both ends."""

SKEW_QUANTILE = 0.999
"""A handful of impossible pairs are damaged rows; a clock that is off shows in many of them."""

MAX_SKEW_NS = 10_000_000
"""Beyond 10 ms the pairs are not one launch and its kernel: correlation ids were reused."""

GRAPH_LAUNCHES = ("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True, slots=True)
class Launches:
    """The launch of every device row of a trace; arrays of shape (n_device,), in device order.

    row: row of the runtime call in the trace, -1 where it was not recorded.
    call_start_ns, call_end_ns: the call on the host, meaningful where `row >= 0`.
    start_ns, end_ns: the event on the device, with the clock error taken out.
    lane: the launching thread's lane, -1 where unknown.
    from_graph: the launch was a graph's, which stands for many events.
    backlog: launched before the recording began, by a host that was ahead.
    skew_ns: what was added to device times so that no event starts before its launch.
    impossible: how many events still start before their launch by more than the noise.
    """

    row: I64
    call_start_ns: I64
    call_end_ns: I64
    start_ns: I64
    end_ns: I64
    lane: I64
    from_graph: Bools
    backlog: Bools
    skew_ns: int
    impossible: int

    @property
    def known(self) -> Bools:
        """Where the launch was recorded, (n_device,)."""
        return self.row >= 0

    @property
    def run_ahead_ns(self) -> I64:
        """How long before its kernel started each launch ended, (n_known,): positive when the
        host is ahead of the device."""
        known = self.known
        return (self.start_ns - self.call_end_ns)[known]


def find_launches(trace: Trace) -> Launches:
    """Joins the device rows of a trace with the runtime calls that launched them."""
    rows = trace.device.rows
    runtime = trace.rows_of(Category.RUNTIME)
    runtime = runtime[trace.corr[runtime] != 0]
    row = _join(trace, rows, runtime)

    known = row >= 0
    safe = np.where(known, row, 0)
    has_rows = len(trace) > 0
    call_start = np.where(known, trace.start_ns[safe], 0) if has_rows else np.zeros(0, np.int64)
    call_end = call_start + (np.where(known, trace.dur_ns[safe], 0) if has_rows else 0)
    lane = np.where(known, trace.lane[safe], -1) if has_rows else np.zeros(0, np.int64)
    graph_rows = trace.name_mask(lambda name: name.startswith(GRAPH_LAUNCHES))
    from_graph = known & graph_rows[safe] if has_rows else np.zeros(0, np.bool_)

    start = trace.start_ns[rows]
    early = (call_start - start)[known]
    skew = _skew(early)
    return Launches(
        row=row,
        call_start_ns=call_start.astype(np.int64),
        call_end_ns=call_end.astype(np.int64),
        start_ns=start + skew,
        end_ns=start + skew + trace.dur_ns[rows],
        lane=lane.astype(np.int64),
        from_graph=from_graph,
        backlog=_backlog(trace, known),
        skew_ns=skew,
        impossible=int(np.count_nonzero(early > skew + SKEW_NOISE_NS)),
    )


def _join(trace: Trace, rows: I64, runtime: I64) -> I64:
    """The runtime row with the same correlation id, the latest one not after the event.

    Ids are unique in a sound trace. Where one is used twice, the last call that had started when
    the event started is the launch; taking any other would make a wait out of nothing.
    """
    found = np.full(len(rows), -1, dtype=np.int64)
    if not len(rows) or not len(runtime):
        return found
    order = np.lexsort((trace.start_ns[runtime], trace.corr[runtime]))
    ordered = runtime[order]
    ids = trace.corr[ordered]
    wanted = trace.corr[rows]
    low = np.searchsorted(ids, wanted, side="left")
    high = np.searchsorted(ids, wanted, side="right")
    matched = (high > low) & (wanted != 0)
    found[matched] = ordered[high[matched] - 1]
    for event in np.flatnonzero(matched & (high - low > 1)):
        candidates = ordered[low[event] : high[event]]
        begun = candidates[trace.start_ns[candidates] <= trace.start_ns[rows[event]]]
        found[event] = begun[-1] if len(begun) else candidates[0]
    return found


def _backlog(trace: Trace, known: Bools) -> Bools:
    """Which events were launched before the recording began, (n_device,).

    A stream works in the order of the launches. So what comes in it before its first event with a
    recorded launch is older than that one, even where another stream has gone on to new work
    meanwhile: a receive can be under way long before the step ends that it was launched in. A
    stream without any recorded launch is judged by the first one of its device.
    """
    if known.all() or not known.any():
        return np.zeros(len(known), np.bool_)
    n, place = len(known), np.arange(len(known))
    _, device = np.unique(trace.device.device, return_inverse=True)
    names, stream = np.unique(trace.device.stream, return_inverse=True)
    line = device * len(names) + stream
    first_of_device = np.full(int(device.max()) + 1, n)
    first_of_line = np.full(int(line.max()) + 1, n)
    np.minimum.at(first_of_device, device[known], place[known])
    np.minimum.at(first_of_line, line[known], place[known])
    first_of_device[first_of_device == n] = 0
    first = np.where(first_of_line[line] < n, first_of_line[line], first_of_device[device])
    older: Bools = ~known & (place < first)
    return older


def _skew(early_ns: I64) -> int:
    """The device clock's error, ns: the least shift after which no launch is impossible."""
    if not len(early_ns):
        return 0
    late = early_ns[early_ns > SKEW_NOISE_NS]
    late = late[late < MAX_SKEW_NS]
    if len(late) < 3:
        return 0
    return int(np.sort(late)[int(SKEW_QUANTILE * (len(late) - 1))])
