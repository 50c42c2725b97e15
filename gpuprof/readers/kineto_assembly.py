"""Joins the blocks of columns into a `Trace`: one order, one epoch, counted losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuprof.counted import agrees, counted
from gpuprof.readers.files import ByteSource, shown
from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_categories import DEVICE, KINDS
from gpuprof.readers.kineto_columns import ColumnBuilder
from gpuprof.readers.kineto_decode import EventDecoder
from gpuprof.readers.kineto_flows import join_flows, need_flows, read_flows
from gpuprof.readers.kineto_interning import MAX_NAME_CHARS
from gpuprof.readers.kineto_lanes import lane_table
from gpuprof.readers.kineto_mend import to_int
from gpuprof.readers.kineto_meta import header_value, trace_meta
from gpuprof.readers.kineto_times import I64
from gpuprof.trace import Category, DeviceColumns, Lane, MemoryColumns, Trace

Item = TypeVar("Item")

COLUMNS = (
    "start_ns",
    "dur_ns",
    "category",
    "name",
    "lane",
    "corr",
    "op_args",
    "stack",
    "device_rows",
)
DEVICE_COLUMNS = ("bytes", "blocks", "threads", "warps_per_sm", "occupancy_pct")
"""What blocks hold of each row, and of each device row."""

FLOW_BLOCK_BYTES = 1 << 20
"""Block size of the second reading, for arrows only."""

EPOCH_US = 1_000_000_000_000_000
"""Starts above this (2001-09-09 in µs since the epoch) already count from the epoch: `baseTime`
moves with the calendar, so that relative starts stay below some 8e12."""

MAX_SPAN_NS = 7 * 86_400 * 1_000_000_000
"""An event more than a week away from the median of all starts is damage, not part of a trace."""

ANNOTATIONS = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.", "DistributedDataParallel.")
"""What torch names its own annotations by; until PyTorch 1.11 they had the operators' category."""


HOLE_BYTES = 4_096
"""So much text that is no JSON held more than one event: what they belong to is not whole."""


class Assembly:
    """Joins the blocks, orders the rows and reads the header."""

    def __init__(
        self,
        source: ByteSource,
        stream: EventStream,
        builder: ColumnBuilder,
        decoder: EventDecoder,
    ) -> None:
        self.source = source
        self.stream = stream
        self.builder = builder
        self.header = stream.header
        self.dropped: Counter[str] = Counter(decoder.dropped)
        if stream.lost:
            self.dropped["without an end"] += stream.lost
        self.base_ns = to_int(header_value(self.header, "baseTimeNanoseconds")) or 0
        self.epoch = False
        self.notes: list[str] = []
        self.lost_bytes = decoder.lost_bytes
        self.truncated = stream.truncated or bool(source.damaged) or self.lost_bytes >= HOLE_BYTES
        self._parts = self._take_parts()

    def trace(self) -> Trace:
        builder = self.builder
        start = self._join("start_ns", np.int64)
        dur = self._join("dur_ns", np.int64)
        category = self._join("category", np.uint8)
        order = self._order(start, dur)
        place = np.full(len(start), -1, dtype=np.int64)
        place[order] = np.arange(len(order))

        lanes, lane = lane_table(self._join("lane", np.int32), builder)
        joined = self._join("corr", np.int64)
        if need_flows(category, joined):
            joined = self._from_flows(start, lane, lanes, category)
        sets, set_codes = builder.argument_table()
        stacks, stack_codes = builder.stack_table()
        device = self._device(order, place, lanes, lane)
        memory = self._memory()
        if builder.names.cut:
            ends = f"ends of names beyond {MAX_NAME_CHARS:,} characters"
            builder.clamped[ends] += builder.names.cut
        names = list(builder.names)
        name = self._join("name", np.int32)
        _separate_annotations(names, name, category)
        category = category.take(order)
        names, name = by_use(names, name.take(order))
        lanes, lane = by_use(lanes, lane.take(order))
        sets, op_args = by_use(sets, set_codes.take(self._join("op_args", np.int32).take(order)))
        stacks, stack = by_use(stacks, stack_codes.take(self._join("stack", np.int32).take(order)))
        corr = self._correlations(joined.take(order), category)
        self.dropped.update(builder.dropped)
        dropped = {reason: count for reason, count in self.dropped.items() if count}
        return Trace(
            meta=trace_meta(
                self.source,
                self.header,
                builder.span_us,
                base_ns=self.base_ns,
                epoch=self.epoch,
                truncated=self.truncated,
            ),
            start_ns=start.take(order) + self.base_ns,
            dur_ns=dur.take(order),
            category=category,
            name=name,
            lane=lane,
            corr=corr,
            op_args=op_args,
            stack=stack,
            names=names,
            lanes=lanes,
            arg_sets=sets,
            stacks=stacks,
            device=device,
            memory=memory,
            collectives={
                int(place[row]): args
                for row, args in builder.collectives.items()
                if place[row] >= 0
            },
            dropped=dropped,
            warnings=tuple(self._warnings(dropped)),
        )

    def _take_parts(self) -> dict[str, list[NDArray[Any]]]:
        """The blocks' columns by name; the builder keeps none, so that joined ones are freed."""
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*COLUMNS, *DEVICE_COLUMNS)}
        for block in self.builder.blocks:
            for name in COLUMNS:
                parts[name].append(getattr(block, name))
            for name in DEVICE_COLUMNS:
                parts[name].append(block.device[name])
        self.builder.blocks.clear()
        return parts

    def _join(self, name: str, dtype: Any) -> NDArray[Any]:
        """A column of all blocks; it can be had once."""
        parts = self._parts.pop(name)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

    def _from_flows(
        self, start: I64, lane: NDArray[np.int32], lanes: list[Lane], category: NDArray[np.uint8]
    ) -> I64:
        """Correlation ids from a second reading, for the arrows; 0 where arrows do not help."""
        with ByteSource(self.source.path, block_bytes=FLOW_BLOCK_BYTES) as source:
            flows = read_flows(source.blocks())
        corr = join_flows(flows, start_ns=start, lane=lane, lanes=lanes, category=category)
        if need_flows(category, corr):
            count = int(np.count_nonzero(KINDS.take(category) & DEVICE))
            self.notes.append(
                f"{counted(count, 'device event')} cannot be joined to"
                f" {agrees(count, 'its launch', 'their launches')}"
            )
            corr[:] = 0
        return corr

    def _order(self, start: I64, dur: I64) -> I64:
        """The rows to keep, by start, the longer first, then as in the file; int64 (k,)."""
        middle = int(np.partition(start, len(start) // 2)[len(start) // 2])
        self._set_base(middle)
        far = (np.abs(start - middle) > MAX_SPAN_NS) | (dur > MAX_SPAN_NS)
        order = np.argsort(start, kind="stable")
        if far.any():
            self.dropped["more than a week away from the rest"] += int(far.sum())
            order = order[~far[order]]
        sorted_start = start.take(order)
        same = sorted_start[1:] == sorted_start[:-1]
        if same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            rows = order[tied]
            order[tied] = rows[np.lexsort((-dur[rows], sorted_start[tied]))]
        return order.astype(np.int64, copy=False)

    def _set_base(self, middle: int) -> None:
        """Decides what starts count from, by a start in the middle of the file's."""
        if middle >= EPOCH_US * 1000:
            self.base_ns = 0
            self.epoch = True
        elif 0 < self.base_ns < 1 << 62:
            self.epoch = True
        else:
            self.base_ns = 0

    def _device(
        self, order: I64, place: I64, lanes: list[Lane], lane: NDArray[np.int32]
    ) -> DeviceColumns:
        rows = self._join("device_rows", np.int64)
        kept = np.flatnonzero(place[rows] >= 0)
        kept = kept[np.argsort(place[rows[kept]], kind="stable")]

        device = np.array([-1 if entry.device is None else entry.device for entry in lanes] or [0])
        stream = np.array([-1 if entry.stream is None else entry.stream for entry in lanes] or [0])
        on = lane[rows[kept]]
        return DeviceColumns(
            rows=place[rows[kept]],
            device=device[on].astype(np.int32),
            stream=stream[on].astype(np.int64),
            bytes=self._join("bytes", np.int64)[kept],
            blocks=self._join("blocks", np.int64)[kept],
            threads=self._join("threads", np.int32)[kept],
            warps_per_sm=self._join("warps_per_sm", np.float32)[kept],
            occupancy_pct=self._join("occupancy_pct", np.float32)[kept],
        )

    def _memory(self) -> MemoryColumns:
        parts = self.builder.memory
        table = np.concatenate(parts, axis=1) if parts else np.zeros((5, 0), dtype=np.int64)
        parts.clear()
        table = table[:, np.argsort(table[0], kind="stable")]
        return MemoryColumns(
            time_ns=table[0] + self.base_ns,
            device=table[1].astype(np.int32),
            delta_bytes=table[2],
            allocated_bytes=table[3],
            reserved_bytes=table[4],
        )

    def _correlations(self, corr: I64, category: NDArray[np.uint8]) -> I64:
        """Leaves each correlation id to one runtime call only: the first."""
        calls = np.flatnonzero((category == Category.RUNTIME) & (corr > 0))
        ordered = np.sort(corr[calls])
        if (ordered[1:] == ordered[:-1]).any():
            _, first = np.unique(corr[calls], return_index=True)
            again = np.ones(len(calls), dtype=np.bool_)
            again[first] = False
            corr[calls[again]] = 0
            self.builder.clamped["correlation ids that a second call claims"] += int(again.sum())
        return corr

    def _warnings(self, dropped: dict[str, int]) -> Iterator[str]:
        path = shown(self.source.path)
        if self.truncated:
            if self.stream.truncated or self.source.damaged:
                why = self.source.damaged or self.source.doubtful or "the JSON ends early"
                yield f"{path}: {why}; read up to the last whole event"
            if self.lost_bytes >= HOLE_BYTES:
                yield (
                    f"{path}: {self.lost_bytes / 1e6:,.2f} MB within it can't be read, and the"
                    " events in them are missing"
                )
        elif self.source.doubtful:
            yield f"{path}: {self.source.doubtful}; all of its events were read, some may be wrong"
        for note in self.notes:
            yield f"{path}: {note}"
        for reason, count in dropped.items():
            yield f"{path}: left out {counted(count, 'event')} {reason}"
        for reason, count in self.builder.clamped.items():
            yield f"{path}: ignored {reason}: {count:,}"


def _separate_annotations(
    names: list[str], name: NDArray[np.int32], category: NDArray[np.uint8]
) -> None:
    """Turns annotations that old versions wrote as operators into annotations, in place."""
    own = np.array([text.startswith(ANNOTATIONS) for text in names], dtype=np.bool_)
    if own.any():
        category[own[name] & (category == Category.CPU_OP)] = Category.USER_ANNOTATION


def by_use(items: list[Item], codes: NDArray[np.int32]) -> tuple[list[Item], NDArray[np.int32]]:
    """Items in the order in which rows use them, without those that none uses, and the new codes.

    So the numbers don't depend on how the file was cut into blocks, nor on rows that were left out.

    Args:
        codes: For each row an index into the items, or -1.
    """
    count = len(codes)
    first = np.full(len(items) + 1, count)
    first[codes[::-1]] = np.arange(count - 1, -1, -1)  # of several the last stays: the first row
    first[-1] = count
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < count)]
    table = np.full(len(items) + 1, -1, np.int32)
    table[order] = np.arange(len(order), dtype=np.int32)
    return [items[place] for place in order.tolist()], table.take(codes)
