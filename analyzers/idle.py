"""Why the device was idle: every gap is charged to what held the next launch back.

Take a gap and the device event that ends it. If the event had been launched before the gap began,
the device waited on itself. Otherwise the host was late, and what the launching thread did since
the gap began says why.

A blocking call costs nothing while the device is busy: the host waits for work that has to be
done anyway. What it costs is the head start: while it waited the host could have gone on
launching. So each blocking call lends a *credit* of the time it waited on a busy device, and the
host-made idle that follows is charged to `sync` until the credit is used up. That is the refill of
a drained queue, wherever it shows, and never more than the call took away. Time in which the host
stops launching altogether (`gpuprof.analyzers.pauses`) uses the credit up, too, as a full queue
would have hidden it, but it is no refill: it stays the host's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.host import LABELS, Blocking, HostActivity
from gpuprof.analyzers.intervals import Spans, contains, covered, union
from gpuprof.analyzers.launches import Launches
from gpuprof.distinct import is_in

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

QUEUE_DEPTH = 1024
"""Launches that fit in the queue of a stream before the launch call itself blocks (CUDA). No head
start is longer than the work that fits in it."""

IDLE_BUCKETS = (*LABELS, "host", "launch", "communication", "unknown")


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """The gaps of one device, shape (n,), ordered by time, and what each is charged to.

    event: the device event (index into the trace's device rows) that ended the gap, -1 for the
    host's tail after the last one. host_end_ns: until when the host was to blame. parts: bucket
    -> ns, each (n,); for every gap they add up to its length. sync_by_kind: `Blocking` -> ns,
    each (n,): what of `sync` is whose.
    """

    start_ns: I64
    end_ns: I64
    event: I64
    host_end_ns: I64
    parts: dict[str, I64]
    sync_by_kind: dict[int, I64]


def attribute_idle(
    gaps: Spans,
    busy: Spans,
    events: I64,
    is_communication: Bools,
    launches: Launches,
    host: HostActivity,
) -> IdleGaps:
    """Charges every gap of one device.

    Args:
        gaps: The device's idle time inside the accounted window.
        busy: Its busy time.
        events: Its events (indices into the device rows), ordered by start, (k,).
        is_communication: Whether a device row is a collective, (n_device,).
        launches: Launches of all device rows.
        host: What the host was doing.
    """
    n_gaps = len(gaps)
    g0, g1 = gaps.start, gaps.end
    length = g1 - g0
    starts = launches.start_ns[events]
    position = np.searchsorted(starts, g1, side="left")
    tail = position >= len(events)
    ends_at = position.copy()
    ends_at[tail] = 0
    event = np.where(tail, -1, events[ends_at]) if len(events) else np.full(n_gaps, -1)

    known = ~tail
    known[known] = launches.known[event[known]]
    call_end, lane = g1.copy(), np.full(n_gaps, -1, np.int64)
    call_end[known] = launches.call_end_ns[event[known]]
    lane[known] = launches.lane[event[known]]
    early = known & (call_end <= g0)
    blind = ~known & ~tail

    parts = {bucket: np.zeros(n_gaps, np.int64) for bucket in IDLE_BUCKETS}
    waits_for_peers = early.copy()
    waits_for_peers[early] = is_communication[event[early]]
    parts["communication"][waits_for_peers] = length[waits_for_peers]
    own = early & ~waits_for_peers
    parts["launch"][own] = length[own]

    host_end = np.where(early, g0, np.minimum(call_end, g1))
    host_end[blind | tail] = g1[blind | tail]
    if not host.recorded:
        late = ~early
        parts["unknown"][late] = length[late]
        nothing = {int(kind): np.zeros(n_gaps, np.int64) for kind in Blocking}
        return IdleGaps(g0, g1, event, np.where(late, g0, host_end), parts, nothing)

    charged = host.charge(lane, g0, host_end)
    labelled = np.zeros(n_gaps, np.int64)
    for label in LABELS:
        take = np.minimum(charged[label], host_end - g0 - labelled)
        parts[label] += take
        labelled += take
    plain = host_end - g0 - labelled
    # Without its launch nobody knows when the host was done: only named reasons count.
    parts["unknown"][blind] += plain[blind]
    plain[blind] = 0
    parts["launch"] += np.where(early, 0, g1 - host_end)

    by_kind = _waiting_by_kind(g0, host_end, parts["sync"], host)
    paused = np.minimum(covered(host.pauses, g0, host_end), plain)
    for kind, lent in _charge_credit(g0, plain, busy, launches, events, host).items():
        own = np.minimum(lent, paused)
        paused -= own
        used = lent - own
        by_kind[kind] += used
        parts["sync"] += used
        plain = plain - used
    parts["host"] += plain
    return IdleGaps(g0, g1, event, host_end, parts, by_kind)


def _waiting_by_kind(g0: I64, host_end: I64, waiting: I64, host: HostActivity) -> dict[int, I64]:
    """Splits the time inside blocking calls by their kind."""
    calls = host.blocking
    by_kind = {int(kind): np.zeros(len(g0), np.int64) for kind in Blocking}
    left = waiting.copy()
    for kind, charged in by_kind.items():
        mine = is_in(calls.lane, host.lanes) & (calls.kind == kind)
        spans = union(calls.start_ns[mine], calls.end_ns[mine])
        np.minimum(covered(spans, g0, host_end), left, out=charged)
        left -= charged
    return by_kind


def _charge_credit(
    gap_start: I64,
    demand: I64,
    busy: Spans,
    launches: Launches,
    events: I64,
    host: HostActivity,
) -> dict[int, I64]:
    """How much of the host-made idle of each gap blocking calls have caused, kind -> ns (n_gaps,).

    The latest call pays first: it was the one that drained the queue.
    """
    calls = host.blocking
    result = {int(kind): np.zeros(len(gap_start), np.int64) for kind in Blocking}
    if not len(calls.row) or not len(gap_start):
        return result
    driving = np.flatnonzero(is_in(calls.lane, host.lanes))
    returned = calls.end_ns[driving]
    waited = covered(busy, calls.start_ns[driving], returned)
    # A call that drained the queue lends its credit from the moment the device ran dry.
    last = np.searchsorted(busy.end, returned, side="right") - 1
    dry = busy.end[np.maximum(last, 0)] if len(busy) else returned
    drained = (last >= 0) & (dry >= calls.start_ns[driving]) & ~contains(busy, returned)
    lent = np.where(drained, dry, returned)
    busy_ns = (launches.end_ns - launches.start_ns)[events]
    ceiling = int(QUEUE_DEPTH * float(busy_ns.mean())) if len(busy_ns) else 0

    needs = np.flatnonzero(demand > 0)
    time = np.concatenate((lent, gap_start[needs]))
    amount = np.concatenate((waited, -demand[needs]))
    which = np.concatenate((calls.kind[driving].astype(np.int64), needs))
    order = np.argsort(time, kind="stable")
    stack: list[tuple[int, int]] = []
    total = 0
    for value, index in zip(amount[order].tolist(), which[order].tolist(), strict=True):
        if value >= 0:
            room = min(value, ceiling - total)
            if room > 0:
                stack.append((index, room))
                total += room
            continue
        want = -value
        while want and stack:
            kind, credit = stack.pop()
            used = min(credit, want)
            result[kind][index] += used
            want -= used
            total -= used
            if credit > used:
                stack.append((kind, credit - used))
    return result
