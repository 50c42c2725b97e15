"""A trace's rows in the order in which the timeline draws them: lane by lane, each by start.

A lane is a host thread or a device stream. Marks on a stream (projected annotations, sync records)
are no device work, so they get a lane of their own and never cover a kernel. Each device also gets
a lane of its idle gaps: the time in which none of its streams had any work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.distinct import distinct
from gpuprof.reports import linked, text
from gpuprof.reports.words import Catalog
from gpuprof.trace import I32, I64, Category, Trace

CLASSES = (
    "compute", "comm", "copy", "runtime", "annotation", "cpu", "python", "idle",
    "idle-input", "idle-sync", "idle-checkpoint", "idle-host", "idle-comm",
)  # fmt: skip
"""What the timeline colours apart. `Category` has more kinds than an eye can tell apart. Gaps are
coloured by what held them."""

IDLE_CLASS = {
    "input": "idle-input",
    "sync": "idle-sync",
    "checkpoint": "idle-checkpoint",
    "host": "idle-host",
    "allocator": "idle-host",
    "communication_host": "idle-comm",
    "communication": "idle-comm",
}
"""Bucket of a gap -> its class; the others are plain `idle`."""

MAX_LANES = 256
"""Lanes of one trace that are drawn: a real rank has under a hundred, a hostile file millions."""

MIN_GAP_NS = 10_000
"""Idle gaps from here on get a mark of their own: shorter ones are a launch's own latency."""

HORIZON_NS = 2**50
"""Times are cut to 13 days behind the first event: what is further is a broken clock."""

CATEGORIES = 16
"""Room for `Category` in a key of name and category; a power of two above its largest value."""

_COLLECTIVE = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|deep_?ep", re.IGNORECASE
)
_CLASS_OF: dict[int, str] = {
    Category.CPU_OP: "cpu",
    Category.USER_ANNOTATION: "annotation",
    Category.PYTHON: "python",
    Category.RUNTIME: "runtime",
    Category.SYNC: "runtime",
    Category.KERNEL: "compute",
    Category.MEMCPY: "copy",
    Category.MEMSET: "copy",
    Category.GPU_ANNOTATION: "annotation",
    Category.OVERHEAD: "python",
    Category.OTHER: "python",
}


@dataclass(frozen=True, slots=True)
class DrawnLane:
    """One lane: its label, whether it is `gaps`, a `stream`, `marks` or a `thread`, its events."""

    label: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class Arranged:
    """Events of one trace, lane by lane, each lane ordered by start, the longer event first.

    start_ns, end_ns: int64 (n,), from the timeline's zero, within [0, `HORIZON_NS`].
    key: int32 (n,), name index × `CATEGORIES` + category. Names beyond the trace's own stand for
    merged events and for idle gaps, one for each of `linked.HELD`.
    link: int32 (n,), the number of a collective that other ranks have too, 0 for all else.
    """

    lanes: tuple[DrawnLane, ...]
    start_ns: I64
    end_ns: I64
    key: I32
    link: I32
    lanes_left_out: int

    def lane_index(self) -> I64:
        """The lane of each event, int64 (n,)."""
        return np.repeat(np.arange(len(self.lanes)), [lane.count for lane in self.lanes])


def class_of(name: str, category: int) -> str:
    """The colour class of an event."""
    if category == Category.KERNEL and _COLLECTIVE.search(name[:400]):
        return "comm"
    return _CLASS_OF.get(category, "python")


def merged_key(trace: Trace) -> int:
    """The key of the name that stands for merged events, without its category."""
    return len(trace.names) * CATEGORIES


def gap_key(trace: Trace) -> int:
    """The key of the name that stands for a gap that nobody accounted for.

    That of a gap with a code of `linked.HELD` is larger by that many times `CATEGORIES`.
    """
    return (len(trace.names) + 1) * CATEGORIES + int(Category.OTHER)


def idle_gaps(start_ns: I64, end_ns: I64, shortest_ns: int = MIN_GAP_NS) -> tuple[I64, I64]:
    """The gaps in the union of intervals that are ordered by start: their starts and ends."""
    if len(start_ns) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    covered = np.maximum.accumulate(end_ns)[:-1]
    gap = np.flatnonzero(start_ns[1:] - covered >= shortest_ns)
    return covered[gap], start_ns[1:][gap]


def _order_of_lanes(trace: Trace, code: NDArray[np.int32]) -> tuple[list[int], int]:
    """Codes (lane × 2 + marks) in display order, and how many are left out.

    Streams come first, the fullest first; then threads: the one whose annotations cover most time
    (it runs the steps), then the one that launches most.
    """
    counts = np.bincount(code, minlength=2 * len(trace.lanes))
    launches = np.bincount(
        trace.lane[trace.category == Category.RUNTIME], minlength=len(trace.lanes)
    )
    annotated = np.flatnonzero(trace.category == Category.USER_ANNOTATION)
    covered = np.bincount(
        trace.lane[annotated], weights=trace.dur_ns[annotated], minlength=len(trace.lanes)
    )

    def place(item: int) -> tuple[object, ...]:
        lane = trace.lanes[item // 2]
        if lane.is_stream:
            return (0, lane.device, item % 2, -int(counts[item]), item)
        steps, calls = float(covered[item // 2]), int(launches[item // 2])
        return (1, 0, -steps, -calls, -int(counts[item]), item)

    used = np.flatnonzero(counts)
    if len(used) > MAX_LANES:
        used = used[np.argsort(-counts[used], kind="stable")[:MAX_LANES]]
    return sorted(used.tolist(), key=place), int(np.count_nonzero(counts)) - len(used)


def _of_device(trace: Trace, device: int | None, label: str, words: Catalog) -> str:
    """The label, with its device in front of it where the trace has several."""
    if len({lane.device for lane in trace.lanes if lane.is_stream}) < 2:
        return label
    return words.say("lane.of_device", device=device, lane=label.lower())


def _label(trace: Trace, code: int, words: Catalog) -> str:
    lane = trace.lanes[code // 2]
    if lane.is_stream:
        key = "lane.marks" if code % 2 else "lane.stream"
        return _of_device(trace, lane.device, words.say(key, stream=lane.stream), words)
    name = text.clean(lane.name, 60).strip() or str(lane.tid)
    return name if name.lower().startswith("thread") else words.say("lane.thread", name=name)


def _times(trace: Trace, rows: I64, zero_ns: int) -> tuple[I64, I64]:
    """Start and end of rows from the timeline's zero, cut to [0, `HORIZON_NS`].

    In place where it can be: at millions of events fresh memory costs more than the arithmetic.
    """
    start = trace.start_ns.take(rows)
    start -= zero_ns
    np.clip(start, 0, HORIZON_NS, out=start)
    end = trace.dur_ns.take(rows)
    np.clip(end, 0, HORIZON_NS, out=end)
    end += start
    np.minimum(end, HORIZON_NS, out=end)
    return start, end


def arrange(
    trace: Trace,
    zero_ns: int,
    words: Catalog,
    shortest_gap_ns: int,
    account: RankAccount | None = None,
    links: tuple[I64, I64] | None = None,
) -> Arranged:
    """Orders a trace's rows for drawing and adds its devices' idle gaps.

    Args:
        zero_ns: the trace's time that becomes 0.
        shortest_gap_ns: gaps below this get no mark.
        account: who held the gaps, where that is known.
        links: rows of collectives that other ranks have too, and their numbers.
    """
    is_stream = np.array([lane.is_stream for lane in trace.lanes], dtype=np.bool_)
    code = trace.lane.astype(np.int32) * np.int32(2)
    marks = np.flatnonzero(trace.is_one_of(Category.GPU_ANNOTATION, Category.SYNC))
    if len(marks):
        code[marks] += is_stream[trace.lane[marks]]
    codes, left_out = _order_of_lanes(trace, code)
    position = np.full(2 * len(trace.lanes), len(codes), dtype=np.uint16)
    position[codes] = np.arange(len(codes), dtype=np.uint16)
    place = position.take(code)
    counts = np.bincount(place, minlength=len(codes) + 1)
    order = np.argsort(place, kind="stable")[: len(trace) - int(counts[len(codes)])]

    lanes: list[DrawnLane] = []
    parts: list[tuple[I64, I64]] = []
    held: list[I64] = []
    device_start, device_end = _times(trace, trace.device.rows, zero_ns)
    for device in distinct(trace.device.device).tolist()[:MAX_LANES]:
        mine = trace.device.device == device
        all_mine = bool(mine.all())
        gaps = idle_gaps(
            device_start if all_mine else device_start[mine],
            device_end if all_mine else device_end[mine],
            shortest_gap_ns,
        )
        if len(gaps[0]):
            label = _of_device(trace, device, words.say("lane.gaps"), words)
            lanes.append(DrawnLane(label, "gaps", len(gaps[0])))
            parts.append(gaps)
            on_clock = gaps[0] + zero_ns, gaps[1] + zero_ns
            held.append(linked.holders(account, device, *on_clock))
    gap_count = sum(lane.count for lane in lanes)
    for index, item in enumerate(codes):
        lane = trace.lanes[item // 2]
        kind = ("marks" if item % 2 else "stream") if lane.is_stream else "thread"
        lanes.append(DrawnLane(_label(trace, item, words), kind, int(counts[index])))
    start, end = _times(trace, order, zero_ns)
    key = trace.name.take(order)
    key *= CATEGORIES
    key += trace.category.take(order)
    link = _links(len(trace), links).take(order)
    if gap_count:
        start = np.concatenate([*(part[0] for part in parts), start])
        end = np.concatenate([*(part[1] for part in parts), end])
        gaps_key = gap_key(trace) + CATEGORIES * np.concatenate(held)
        key = np.concatenate([gaps_key.astype(np.int32), key])
        link = np.concatenate([np.zeros(gap_count, np.int32), link])
    return Arranged(tuple(lanes), start, end, key, link, left_out)


def _links(rows: int, links: tuple[I64, I64] | None) -> I32:
    """The number of the collective of each row, int32 (rows,), 0 for all else."""
    numbers = np.zeros(rows, np.int32)
    if links is not None:
        numbers[links[0]] = links[1]
    return numbers


def busy_bins(
    trace: Trace, bins: int, most: int, words: Catalog
) -> tuple[list[tuple[str, NDArray[np.float64]]], int]:
    """The busy share of each device stream in equal parts of the trace's span.

    Returns:
        Up to `most` streams, the busiest first: a label and shares in [0, 1] of shape (bins,); and
        how many streams were left out.
    """
    rows = trace.device.rows
    if not len(rows):
        return [], 0
    first = int(trace.start_ns[0])
    last = int(trace.start_ns[-1])
    last = max(last, int((trace.start_ns[rows] + trace.dur_ns[rows]).max()), first + bins)
    edges = np.linspace(
        0, last - first, bins + 1
    )  # from `first`: epoch ns are too large for floats
    lane_of = trace.lane[rows]
    counts = np.bincount(lane_of, minlength=len(trace.lanes))
    used = np.flatnonzero(counts)
    chosen: Sequence[int] = used[np.argsort(-counts[used], kind="stable")[:most]].tolist()
    result = []
    for lane in chosen:
        mine = rows if len(used) == 1 else rows[lane_of == lane]
        start = trace.start_ns[mine] - first
        end = start + np.maximum(trace.dur_ns[mine], 0)
        covered = np.maximum.accumulate(end)
        begin = start.copy()
        begin[1:] = np.maximum(start[1:], covered[:-1])
        length = np.maximum(end - begin, 0)
        total = np.cumsum(length)
        at = np.searchsorted(begin, edges, side="right") - 1
        before = np.maximum(at, 0)
        busy = total[before] - length[before] + np.clip(edges - begin[before], 0, length[before])
        busy[at < 0] = 0
        share = np.clip(np.diff(busy) / ((last - first) / bins), 0, 1)
        here = trace.lanes[lane]
        label = _of_device(trace, here.device, words.say("lane.stream", stream=here.stream), words)
        result.append((label, share))
    return result, len(used) - len(chosen)
