"""Turns batches of Kineto events into columns: per batch NumPy blocks, text interned once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_events import INT64_MAX, Args, Complete, Instant, Metadata
from gpuprof.readers.kineto_values import collective_args, op_args, product, stack_text
from gpuprof.trace import Category, CollectiveArgs, Lane, OpArgs

MAX_NAME_CHARS = 4096
"""Longer names are cut: C++ kernel names of templates reach some 3,000 characters."""

CATEGORIES: dict[str, Category] = {
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "hip": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "hip_api": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "cuda_sync": Category.SYNC,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "overhead": Category.OVERHEAD,
}
"""The names of categories in all of Kineto's dialects."""

SPAN_CATEGORY = "Trace"
SPAN_NAME = "PyTorch Profiler"
MEMORY_NAME = "[memory]"

MAX_DEVICES = 1 << 16
"""A larger ordinal is a process id or damage, not a device."""

DEVICE_TYPE_CPU = 0
"""c10::DeviceType::CPU, the only host type an allocator event carries."""

EMPTY_ARGS = Args()

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

STREAM_CATEGORIES = (
    Category.SYNC,
    Category.KERNEL,
    Category.MEMCPY,
    Category.MEMSET,
    Category.GPU_ANNOTATION,
)
"""What is drawn on a device's stream."""


class Codes(dict[Any, int]):
    """Numbers keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


@dataclass(frozen=True, slots=True)
class Block:
    """The columns of one batch, in the file's order; times still as the file counts them."""

    start_ns: I64
    dur_ns: I64
    category: NDArray[np.uint8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    corr: I64
    op_args: NDArray[np.int32]
    stack: NDArray[np.int32]
    device_rows: I64
    device: dict[str, NDArray[Any]]


DEVICE_FIELDS: dict[str, Any] = {
    "bytes": np.int64,
    "blocks": np.int64,
    "threads": np.int32,
    "warps_per_sm": np.float32,
    "occupancy_pct": np.float32,
}


def to_ns(us: F64) -> I64:
    """Whole nanoseconds of times in µs, float64 (n,): the fraction apart, so that 1.6e15 fits."""
    whole = np.floor(us)
    fraction = np.rint((us - whole) * 1000.0)
    result: I64 = whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    return result


class ColumnBuilder:
    """Collects batches; `gpuprof.readers.kineto` joins them into a `Trace`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.rows = 0
        self.events = 0
        self.names = Codes()
        self.dropped: Counter[str] = Counter()
        self.clamped: Counter[str] = Counter()
        self.categories = Codes()
        self.category_rows: Counter[int] = Counter()
        self.threads = Codes()
        self.streams = Codes()
        self.argument_keys = Codes()
        self.stack_keys = Codes()
        self.argument_sets: dict[OpArgs, int] = {}
        self.argument_map: list[int] = []
        self.stacks: dict[str, int] = {}
        self.stack_map: list[int] = []
        self.collectives: dict[int, CollectiveArgs] = {}
        self.memory: list[NDArray[np.int64]] = []
        self.process_names: dict[int | str, str] = {}
        self.process_labels: dict[int | str, str] = {}
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self.span_us: tuple[float, float] | None = None
        self._grids: dict[bytes, int] = {}
        self._category_codes: list[int] = []

    def add(self, events: list[Any]) -> None:
        """Adds a batch of decoded events."""
        self.events += len(events)
        rows: list[Complete] = []
        instants: list[Instant] = []
        for event in events:
            kind = type(event)
            if kind is Complete:
                rows.append(event)
            elif kind is Instant:
                instants.append(event)
            elif kind is Metadata:
                self._metadata(event)
        if instants:
            self._instants(instants)
        if rows:
            self._complete(rows)

    def _metadata(self, event: Metadata) -> None:
        args = event.args
        if args is None:
            return
        if event.name == "process_name":
            self.process_names[event.pid] = args.name[:MAX_NAME_CHARS]
        elif event.name == "process_labels":
            self.process_labels[event.pid] = args.labels[:MAX_NAME_CHARS]
        elif event.name == "thread_name":
            self.thread_names[event.pid, event.tid] = args.name[:MAX_NAME_CHARS]

    def _instants(self, events: list[Instant]) -> None:
        found = [
            (
                event.ts,
                -1 if args.device_type == DEVICE_TYPE_CPU else args.device_id,
                args.size,
                args.allocated,
                args.reserved,
            )
            for event in events
            if (args := event.args) is not None
            and args.size is not None
            and event.name == MEMORY_NAME
        ]
        kept = [
            row
            for row in found
            if abs(row[0]) < 9e15 and all(abs(value) <= INT64_MAX for value in row[1:])
        ]
        self.dropped["allocator events with impossible values"] += len(found) - len(kept)
        if kept:
            table = np.empty((5, len(kept)), dtype=np.int64)
            table[0] = to_ns(np.array([row[0] for row in kept], dtype=np.float64))
            for column in range(1, 5):
                table[column] = [row[column] for row in kept]
            self.memory.append(table)

    def _complete(self, rows: list[Complete]) -> None:
        start_us = np.array([row.ts for row in rows], dtype=np.float64)
        dur_us = np.array([row.dur for row in rows], dtype=np.float64)
        codes = self._codes([row.cat for row in rows])
        good = (np.abs(start_us) < 9e15) & (dur_us >= 0) & (dur_us < 9e15) & (codes < 255)
        if not good.all():
            self._count_bad(rows, start_us, dur_us, codes)
            rows = [row for row, keep in zip(rows, good.tolist(), strict=True) if keep]
            if not rows:
                return
            start_us, dur_us, codes = start_us[good], dur_us[good], codes[good]
        names = self.names
        name_codes = [names[row.name] for row in rows]
        threads = self.threads
        lane_codes = np.array([threads[row.pid, row.tid] for row in rows], dtype=np.int32)
        args = [row.args or EMPTY_ARGS for row in rows]
        count = len(rows)

        corr = np.zeros(count, dtype=np.int64)
        joined = np.flatnonzero(
            (codes == Category.RUNTIME) | ((codes >= Category.SYNC) & (codes <= Category.MEMSET))
        )
        corr[joined] = [self._correlation(args[row]) for row in joined.tolist()]

        arguments = np.full(count, -1, dtype=np.int32)
        stacks = np.full(count, -1, dtype=np.int32)
        host = np.flatnonzero(codes <= Category.USER_ANNOTATION).tolist()
        argument_keys, stack_keys = self.argument_keys, self.stack_keys
        with_arguments: list[int] = []
        argument_codes: list[int] = []
        for row in host:
            arg = args[row]
            dims = bytes(arg.dims) or bytes(arg.old_dims)
            if dims:
                with_arguments.append(row)
                argument_codes.append(argument_keys[dims, bytes(arg.types), bytes(arg.concrete)])
            stack = bytes(arg.call_stack)
            if len(stack) > 2:
                stacks[row] = stack_keys[stack]
        arguments[with_arguments] = argument_codes
        device_rows = np.flatnonzero((codes >= Category.KERNEL) & (codes <= Category.MEMSET))
        streams = self.streams
        on_stream = np.flatnonzero(np.isin(codes, STREAM_CATEGORIES))
        lane_codes[on_stream] = [
            -1 - streams[(event := rows[row]).pid, event.tid, (arg := args[row]).device, arg.stream]
            for row in on_stream.tolist()
        ]
        base = self.rows
        for row, arg in enumerate(args):
            if arg.collective is not EMPTY_ARGS.collective:
                self.collectives[base + row] = collective_args(arg)
        self.blocks.append(
            Block(
                start_ns=to_ns(start_us),
                dur_ns=np.rint(dur_us * 1000.0).astype(np.int64),
                category=codes.astype(np.uint8),
                name=np.array(name_codes, dtype=np.int32),
                lane=lane_codes,
                corr=corr,
                op_args=arguments,
                stack=stacks,
                device_rows=device_rows + base,
                device=self._device([args[row] for row in device_rows.tolist()]),
            )
        )
        self.rows += count

    def _codes(self, categories: list[str]) -> NDArray[np.int64]:
        """The `Category` of each row, 255 for the profiler's own span."""
        known = self.categories
        raw = [known[text] for text in categories]
        table = self._category_codes
        for text in list(known)[len(table) :]:
            table.append(
                255 if text == SPAN_CATEGORY else int(CATEGORIES.get(text, Category.OTHER))
            )
        return np.array(table, dtype=np.int64)[raw]

    def _count_bad(
        self, rows: list[Complete], start: F64, dur: F64, codes: NDArray[np.int64]
    ) -> None:
        span = codes == 255
        for row in np.flatnonzero(span).tolist():
            if rows[row].name.startswith(SPAN_NAME) and start[row] + dur[row] < 9e15:
                self.span_us = (float(start[row]), float(dur[row]))
        bad_start = ~(np.abs(start) < 9e15) & ~span
        bad_dur = ~((dur >= 0) & (dur < 9e15)) & ~span & ~bad_start
        self.dropped["with an impossible start"] += int(bad_start.sum())
        self.dropped["with a negative or impossible duration"] += int(bad_dur.sum())

    def _correlation(self, args: Args) -> int:
        corr = args.corr
        if corr is None:
            corr = args.cuda_correlation or args.hip_correlation or 0
        if 0 <= corr <= INT64_MAX:
            return corr
        self.clamped["correlation ids outside of 64 bits"] += 1
        return 0

    def _device(self, args: list[Args]) -> dict[str, NDArray[Any]]:
        return {
            "bytes": np.array([self._size(arg.bytes) for arg in args], dtype=np.int64),
            "blocks": np.array([self._product(arg.grid) for arg in args], dtype=np.int64),
            "threads": np.array(
                [min(self._product(arg.block), (1 << 31) - 1) for arg in args], dtype=np.int32
            ),
            "warps_per_sm": np.array([arg.warps for arg in args], dtype=np.float32),
            "occupancy_pct": np.array([arg.occupancy for arg in args], dtype=np.float32),
        }

    def _size(self, value: int | str | None) -> int:
        if value is None:
            return -1
        if isinstance(value, str):
            value = int(value) if value.isdecimal() and len(value) < 20 else -1
        return value if 0 <= value <= INT64_MAX else -1

    def _product(self, raw: msgspec.Raw) -> int:
        key = bytes(raw)
        known = self._grids.get(key)
        if known is None:
            known = self._grids[key] = product(key)
        return known

    # After the last batch

    def argument_table(self) -> tuple[list[OpArgs], I64]:
        """The distinct argument sets, and the number of the set for each key met, int64 (k,)."""
        sets: dict[OpArgs, int] = {}
        codes = [sets.setdefault(op_args(*key), len(sets)) for key in self.argument_keys]
        return list(sets), np.array(codes, dtype=np.int64)

    def stack_table(self) -> tuple[list[str], I64]:
        """The distinct stacks, and the number of the stack for each key met, int64 (k,)."""
        stacks: dict[str, int] = {}
        codes = [stacks.setdefault(stack_text(key), len(stacks)) for key in self.stack_keys]
        return list(stacks), np.array(codes, dtype=np.int64)

    def name_table(self) -> list[str]:
        """The names, cut to `MAX_NAME_CHARS`."""
        result = []
        for name in self.names:
            if len(name) > MAX_NAME_CHARS:
                self.clamped["names cut to 4096 characters"] += 1
            result.append(name[:MAX_NAME_CHARS])
        return result

    def lane_table(self, codes: NDArray[np.int32]) -> tuple[list[Lane], NDArray[np.int32]]:
        """The lanes that rows use, and each row's index into them.

        Args:
            codes: int32 (n,), as the blocks hold them: threads from 0 up, streams from -1 down.
        """
        used, inverse = np.unique(codes, return_inverse=True)
        thread_keys, stream_keys = list(self.threads), list(self.streams)
        names = {
            (_ordinal(pid), _ordinal(tid)): name for (pid, tid), name in self.thread_names.items()
        }
        lanes: dict[Lane, int] = {}
        table = [
            lanes.setdefault(
                self._thread(names, *thread_keys[code])
                if code >= 0
                else self._stream(names, *stream_keys[-1 - code]),
                len(lanes),
            )
            for code in used.tolist()
        ]
        return list(lanes), np.array(table, dtype=np.int32)[inverse.reshape(-1)]

    def _thread(self, names: dict[tuple[int, int], str], pid: int | str, tid: int | str) -> Lane:
        number, thread = _ordinal(pid), _ordinal(tid)
        odd = " ".join(str(value)[:64] for value in (pid, tid) if _ordinal(value) == -1)
        return Lane(number, thread, None, None, names.get((number, thread)) or odd.strip())

    def _stream(
        self,
        names: dict[tuple[int, int], str],
        pid: int | str,
        tid: int | str,
        device: int | str | None,
        stream: int | str | None,
    ) -> Lane:
        process, thread = _ordinal(pid), _ordinal(tid)
        index = process if device is None else _ordinal(device)
        if not 0 <= index < MAX_DEVICES:
            index = process if 0 <= process < MAX_DEVICES else 0
        number = thread if stream is None else _ordinal(stream)
        return Lane(process, thread, index, number, names.get((process, thread), "").strip())


def _ordinal(value: int | str) -> int:
    """The number in an id such as 7, "7" or "stream 7"; -1 where there is none."""
    if isinstance(value, int):
        return value if abs(value) <= INT64_MAX else -1
    digits = value.rsplit(" ", 1)[-1]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else -1
