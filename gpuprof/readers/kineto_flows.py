"""Correlation ids from arrows, for traces that record them nowhere else.

Kineto draws an arrow from each launch to what it launched: two flow events that carry the
correlation id and repeat the process, thread and start of the rows that they join.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_categories import DEVICE, KINDS
from gpuprof.readers.kineto_decode import EventDecoder
from gpuprof.readers.kineto_events import INT64_MAX, FlowEnd, FlowPoint
from gpuprof.readers.kineto_lanes import ordinal
from gpuprof.readers.kineto_mend import to_int
from gpuprof.readers.kineto_times import I64, MAX_US
from gpuprof.trace import Category, Lane

SAMPLE = 1000
"""Device rows that are tried first; nearly always one of them is joined."""

LAUNCH_FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "async"})
"""The categories of arrows from calls to device rows; `fwdbwd` joins operators."""


def need_flows(category: NDArray[np.uint8], corr: I64) -> bool:
    """Whether there are calls and device rows, and no correlation id joins any of them."""
    launched = corr[(KINDS[category] & DEVICE) > 0]
    calls = corr[category == Category.RUNTIME]
    if not len(launched) or not len(calls):
        return False
    launched = launched[launched > 0]
    return not any(_any_in(part, calls) for part in (launched[:SAMPLE], launched))


def _any_in(few: I64, many: I64) -> bool:
    """Whether any of many numbers is among a few; numpy.isin would sort them all."""
    if not len(few):
        return False
    ordered = np.sort(few)
    place = np.minimum(np.searchsorted(ordered, many), len(ordered) - 1)
    return bool((ordered[place] == many).any())


def read_flows(blocks: Iterator[bytes]) -> dict[tuple[int, int, int], int]:
    """Correlation ids by (pid, tid, start in µs × 1000, as the file counts it)."""
    decoder = EventDecoder(flows=True)
    found: dict[tuple[int, int, int], int] = {}

    def add(events: list[object]) -> None:
        for event in events:
            if type(event) in (FlowPoint, FlowEnd) and event.cat in LAUNCH_FLOWS:  # type: ignore[attr-defined]
                number = to_int(event.id)  # type: ignore[attr-defined]
                if number is not None and 0 < number <= INT64_MAX and abs(event.ts) < MAX_US:  # type: ignore[attr-defined]
                    place = (ordinal(event.pid), ordinal(event.tid), round(event.ts * 1000))  # type: ignore[attr-defined]
                    found[place] = number

    def take(text: bytes) -> bool:
        events = decoder.batch(text)
        if events is not None:
            add(events)
        return events is not None

    EventStream(blocks, take, lambda texts: add(decoder.one_by_one(texts))).run()
    return found


def join_flows(
    flows: dict[tuple[int, int, int], int],
    *,
    start_ns: I64,
    lane: NDArray[np.int32],
    lanes: list[Lane],
    category: NDArray[np.uint8],
) -> I64:
    """A correlation id for each row at which an arrow starts or ends, 0 for others, int64 (n,)."""
    corr = np.zeros(len(start_ns), dtype=np.int64)
    rows = np.flatnonzero(((KINDS[category] & DEVICE) > 0) | (category == Category.RUNTIME))
    for row in rows.tolist():
        place = lanes[lane[row]]
        corr[row] = flows.get((place.pid, place.tid, int(start_ns[row])), 0)
    return corr
