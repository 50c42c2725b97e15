"""Reads a Kineto trace (`torch.profiler`'s JSON, gzip or plain, of any version) into a `Trace`.

The file streams through in blocks: memory holds one block of events and the columns. Nothing is
trusted: what cannot be read is left out and counted in `Trace.dropped` and `Trace.warnings`, and a
file that is no Kineto trace is refused in one line that says what it is.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.files import ByteSource
from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_columns import MAX_NAME_CHARS, ColumnBuilder, to_ns
from gpuprof.readers.kineto_events import EventDecoder, to_int, to_text
from gpuprof.readers.kineto_flows import join_flows, need_flows, read_flows
from gpuprof.readers.kineto_foreign import refuse
from gpuprof.readers.kineto_values import (
    device_info,
    flag,
    loads,
    process_groups,
    structured,
)
from gpuprof.trace import (
    Category,
    DeviceColumns,
    Lane,
    MemoryColumns,
    Trace,
    TraceMeta,
)

BLOCK_BYTES = 1 << 20
"""Plain bytes a batch, some 4,000 events: calls do not count and objects stay in the cache.
On 350 MB of JSON, 256 KiB took 6 % longer and 4 MiB 20 %."""

EPOCH_US = 1_000_000_000_000_000
"""Starts above this (2001-09-09 in µs since the epoch) already count from the epoch: `baseTime`
moves with the calendar, so that relative starts stay below some 8e12."""

MAX_SPAN_NS = 7 * 86_400 * 1_000_000_000
"""An event more than a week away from the median of all starts is damage, not part of a trace."""

ANNOTATIONS = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.", "DistributedDataParallel.")
"""What torch names its own annotations by; until PyTorch 1.11 they had the operators' category."""

I64 = NDArray[np.int64]


def read_trace(path: str | os.PathLike[str], *, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Reads one rank's Kineto trace.

    Args:
        path: A `.json` or `.json.gz` file; gzip is told by its content, not by its name.
        block_bytes: How much of the plain text is decoded at a time. It never changes the result.

    Raises:
        InputError: the file cannot be opened, is something else, or holds no event.
    """
    builder, decoder = ColumnBuilder(), EventDecoder()
    with ByteSource(path, block_bytes=block_bytes) as source, _collector_paused():

        def take(text: bytes) -> bool:
            events = decoder.batch(text)
            if events is not None and not builder.add(events):
                be_exact()
                events = decoder.batch(text)
                return events is not None and builder.add(events)
            return events is not None

        def take_each(texts: list[bytes]) -> None:
            before = decoder.dropped.copy()
            if not builder.add(decoder.one_by_one(texts)):
                be_exact()
                decoder.dropped = before
                builder.add(decoder.one_by_one(texts))

        def be_exact() -> None:
            builder.exact = True
            decoder.be_exact()

        stream = EventStream(source.blocks(), take, take_each)
        stream.run()
        source.finish()
    refuse(source.path, stream, builder, source.damaged)
    return _Assembly(source, stream, builder, decoder).trace()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic garbage collection: a batch makes many objects and no cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Assembly:
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
        self.base_ns = to_int(self._value("baseTimeNanoseconds")) or 0
        self.epoch = False
        self.notes: list[str] = []
        self.truncated = stream.truncated or bool(source.damaged)

    def _value(self, key: str) -> Any:
        raw = self.header.get(key)
        return loads(raw) if raw else None

    def trace(self) -> Trace:
        builder = self.builder
        start = self._join("start_ns", np.int64)
        dur = self._join("dur_ns", np.int64)
        category = self._join("category", np.uint8)
        order = self._order(start, dur)
        place = np.full(len(start), -1, dtype=np.int64)
        place[order] = np.arange(len(order))

        lanes, lane = builder.lane_table(self._join("lane", np.int32))
        joined = self._join("corr", np.int64)
        if need_flows(category, joined):
            joined = self._from_flows(start, lane, lanes, category)
        sets, set_codes = builder.argument_table()
        stacks, stack_codes = builder.stack_table()
        device = self._device(order, place, lanes, lane)
        memory = self._memory()
        names = list(builder.names)
        if builder.names.cut:
            builder.clamped[f"ends of names beyond {MAX_NAME_CHARS:,} characters"] += (
                builder.names.cut
            )
        name = self._join("name", np.int32)
        _separate_annotations(names, name, category)
        corr = self._correlations(joined[order], category[order])
        self.dropped.update(builder.dropped)
        dropped = {reason: count for reason, count in self.dropped.items() if count}
        return Trace(
            meta=self._meta(lanes),
            start_ns=start[order] + self.base_ns,
            dur_ns=dur[order],
            category=category[order],
            name=name[order],
            lane=lane[order],
            corr=corr,
            op_args=_recode(self._join("op_args", np.int32)[order], set_codes),
            stack=_recode(self._join("stack", np.int32)[order], stack_codes),
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

    def _join(self, field: str, dtype: Any) -> NDArray[Any]:
        parts = [getattr(block, field) for block in self.builder.blocks]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

    def _from_flows(
        self, start: I64, lane: NDArray[np.int32], lanes: list[Lane], category: NDArray[np.uint8]
    ) -> I64:
        """Correlation ids from a second reading, for the arrows; 0 where arrows do not help."""
        with ByteSource(self.source.path, block_bytes=BLOCK_BYTES) as source, _collector_paused():
            flows = read_flows(source.blocks())
        corr = join_flows(flows, start_ns=start, lane=lane, lanes=lanes, category=category)
        if need_flows(category, corr):
            count = len(self._join("device_rows", np.int64))
            self.notes.append(f"{count:,} device events cannot be joined to their launches")
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
        sorted_start = start[order]
        same = np.flatnonzero(sorted_start[1:] == sorted_start[:-1])
        if len(same):
            tied = np.union1d(same, same + 1)
            rows = order[tied]
            order[tied] = rows[np.lexsort((rows, -dur[rows], start[rows]))]
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
        blocks = self.builder.blocks
        rows = self._join("device_rows", np.int64)
        kept = np.flatnonzero(place[rows] >= 0)
        kept = kept[np.argsort(place[rows[kept]], kind="stable")]

        def column(key: str, dtype: Any) -> NDArray[Any]:
            parts = [block.device[key] for block in blocks]
            return (np.concatenate(parts) if parts else np.zeros(0, dtype=dtype))[kept]

        device = np.array([-1 if entry.device is None else entry.device for entry in lanes] or [0])
        stream = np.array([-1 if entry.stream is None else entry.stream for entry in lanes] or [0])
        on = lane[rows[kept]]
        return DeviceColumns(
            rows=place[rows[kept]],
            device=device[on].astype(np.int32),
            stream=stream[on].astype(np.int64),
            bytes=column("bytes", np.int64),
            blocks=column("blocks", np.int64),
            threads=column("threads", np.int32),
            warps_per_sm=column("warps_per_sm", np.float32),
            occupancy_pct=column("occupancy_pct", np.float32),
        )

    def _memory(self) -> MemoryColumns:
        parts = self.builder.memory
        table = np.concatenate(parts, axis=1) if parts else np.zeros((5, 0), dtype=np.int64)
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
        _, first = np.unique(corr[calls], return_index=True)
        if len(first) < len(calls):
            again = np.ones(len(calls), dtype=np.bool_)
            again[first] = False
            corr[calls[again]] = 0
            self.builder.clamped["correlation ids that a second call claims"] += int(again.sum())
        return corr

    def _meta(self, lanes: list[Lane]) -> TraceMeta:
        info = structured(self.header.get("distributedInfo", b""))
        info = info if isinstance(info, dict) else {}
        devices = device_info(structured(self.header.get("deviceProperties", b"")))
        rank, world = to_int(info.get("rank")), to_int(info.get("world_size"))
        span = self.builder.span_us
        span_ns = None
        if span is not None:
            first, last = to_ns(np.array(span)).tolist()
            span_ns = (first + self.base_ns, last + self.base_ns)
        rocm = any(
            key.startswith(("roctracer", "hip_", "rocprofiler")) for key in self.header
        ) or any(
            word in device.name for device in devices for word in ("AMD", "Instinct", "Radeon")
        )
        return TraceMeta(
            path=self.source.path,
            size_bytes=self.source.size_bytes,
            sha256=self.source.sha256,
            rank=rank if rank is not None and rank >= 0 else None,
            world_size=world if world is not None and world > 0 else None,
            backend=to_text(info.get("backend"))[:256],
            nccl_version=to_text(info.get("nccl_version"))[:256],
            devices=devices,
            groups=process_groups(info.get("pg_config")),
            record_shapes=flag(self._value("record_shapes")),
            with_stack=flag(self._value("with_stack")),
            profile_memory=flag(self._value("profile_memory")),
            epoch=self.epoch,
            host_name=to_text(self._value("host_name"))[:256],
            is_rocm=rocm,
            span_ns=span_ns,
            truncated=self.truncated,
        )

    def _warnings(self, dropped: dict[str, int]) -> Iterator[str]:
        path = self.source.path
        if self.truncated:
            why = self.source.damaged or "the JSON ends early"
            yield f"{path}: {why}; read up to the last whole event"
        for note in self.notes:
            yield f"{path}: {note}"
        for reason, count in dropped.items():
            yield f"{path}: left out {count:,} events {reason}"
        for reason, count in self.builder.clamped.items():
            yield f"{path}: ignored {count:,} {reason}"


def _separate_annotations(
    names: list[str], name: NDArray[np.int32], category: NDArray[np.uint8]
) -> None:
    """Turns annotations that old versions wrote as operators into annotations, in place."""
    codes = [code for code, text in enumerate(names) if text.startswith(ANNOTATIONS)]
    if codes:
        category[np.isin(name, codes) & (category == Category.CPU_OP)] = Category.USER_ANNOTATION


def _recode(codes: NDArray[np.int32], table: I64) -> NDArray[np.int32]:
    """Replaces each code by its entry in the table."""
    return table.astype(np.int32)[codes]
