"""Turns batches of Kineto events into columns: per batch NumPy blocks, text interned once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_categories import (
    DEVICE,
    HOST,
    JOINED,
    KINDS,
    ON_STREAM,
    SPAN,
    SPAN_NAME,
)
from gpuprof.readers.kineto_events import (
    INT64_MAX,
    Args,
    Complete,
    ExactComplete,
    Instant,
    Metadata,
    WideArgs,
    WideComplete,
)
from gpuprof.readers.kineto_interning import MAX_NAME_CHARS, Codes, Names, Places, Sizes
from gpuprof.readers.kineto_memory import decoded_memory
from gpuprof.readers.kineto_times import F64, I64, MAX_US, exact_ns, to_ns, too_coarse
from gpuprof.readers.kineto_values import collective_args, op_args
from gpuprof.trace import CollectiveArgs, OpArgs

MAX_STACK_CHARS = 1 << 16
"""Longer stacks are cut: a frame takes some 100 characters, a deep stack has some 100 frames."""

EMPTY_ARGS = WideArgs()

NO_ARGUMENTS = b"\0\0\0"

JOIN = b"\0".join
"""Makes one key of several JSON texts; JSON holds no NUL."""

FLOAT32_MAX = float(np.finfo(np.float32).max)


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
    at: I64 | None = None
    """The number of each row's event in its batch, ascending; None where it doesn't matter."""


class ColumnBuilder:
    """Collects batches; `gpuprof.readers.kineto` joins them into a `Trace`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.rows = 0
        self.events = 0
        self.record: type[Complete] = Complete
        """How complete events are to be decoded."""
        self.names = Names()
        self.dropped: Counter[str] = Counter()
        self.clamped: Counter[str] = Counter()
        self.places = Places()
        self.categories = self.places.categories
        self.threads = self.places.threads
        self.streams = Codes()
        self.argument_keys = Codes({NO_ARGUMENTS: 0})
        self.stack_keys = Codes({"": 0})
        self.collectives: dict[int, CollectiveArgs] = {}
        self.memory: list[NDArray[np.int64]] = []
        self.process_names: dict[int | str, str] = {}
        self.process_labels: dict[int | str, str] = {}
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self.span_us: tuple[float, float] | None = None
        """Start and end of the profiler's own span."""
        self.sizes = Sizes()

    def add(self, events: list[Any], at: I64 | None = None) -> bool:
        """Adds a batch of decoded events; `at` says which events of a block they are.

        Returns False, and adds nothing, where the events hold more than their records: a collective
        that says what it does, or starts with a fraction that float64 is too coarse for. The batch
        must then be decoded again, complete events as `record`.
        """
        record = self.record
        rows: list[Complete] = [event for event in events if type(event) is record]
        start_us = np.fromiter([row.ts for row in rows], np.float64, len(rows))
        dur_us = np.fromiter([row.dur for row in rows], np.float64, len(rows))
        args = [row.args or EMPTY_ARGS for row in rows]
        if record is not ExactComplete:
            if too_coarse(start_us, dur_us):
                self.record = ExactComplete
            elif any([arg.collective for arg in args]):  # noqa: C419 (a list is faster)
                self.record = WideComplete
            if self.record is not record:
                return False
        self.events += len(events)
        if len(rows) < len(events):
            instants = [event for event in events if type(event) is Instant]
            if instants:
                self.memory.append(decoded_memory(instants, self.dropped))
            for event in events:
                if type(event) is Metadata:
                    self._metadata(event)
        if rows:
            if at is not None:
                at = at[[type(event) is record for event in events]]
            self._complete(rows, args, start_us, dur_us, at)
        return True

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

    def _complete(
        self,
        rows: list[Complete],
        args: list[Args],
        start_us: F64,
        dur_us: F64,
        at: I64 | None,
    ) -> None:
        count = len(rows)
        places = self.places
        found = np.fromiter([places[row.cat, row.pid, row.tid] for row in rows], np.int32, count)
        codes = np.frombuffer(places.category, np.uint8).take(found)
        good = (np.abs(start_us) < MAX_US) & (dur_us >= 0) & (dur_us < MAX_US) & (codes != SPAN)
        if not good.all():
            self._count_bad(rows, start_us, dur_us, codes)
            kept = np.flatnonzero(good).tolist()
            rows, args = [rows[row] for row in kept], [args[row] for row in kept]
            start_us, dur_us = start_us[good], dur_us[good]
            found, codes = found[good], codes[good]
            at = None if at is None else at[good]
            count = len(rows)
            if not count:
                return
        names = self.names
        name = np.fromiter([names[row.name] for row in rows], np.int32, count)
        lane = np.array(places.thread, np.int32).take(found)

        kinds = KINDS[codes]
        host = np.flatnonzero(kinds & HOST)
        host_args = [args[row] for row in host.tolist()]
        keys, stack_keys = self.argument_keys, self.stack_keys
        op_args = np.zeros(count, dtype=np.int32)
        op_args[host] = [
            keys[JOIN((arg.dims, arg.old_dims, arg.types, arg.concrete))] for arg in host_args
        ]
        stack = np.zeros(count, dtype=np.int32)
        stacks = [arg.call_stack for arg in host_args]
        if any(stacks):
            stack[host] = [stack_keys[text] for text in stacks]

        joined = np.flatnonzero(kinds & JOINED)
        corr = np.zeros(count, dtype=np.int64)
        corr[joined] = self._correlations([args[row] for row in joined.tolist()])

        streams = self.streams
        on_stream = np.flatnonzero(kinds & ON_STREAM)
        lane[on_stream] = [
            -1 - streams[(event := rows[row]).pid, event.tid, (arg := args[row]).device, arg.stream]
            for row in on_stream.tolist()
        ]
        device = np.flatnonzero(kinds & DEVICE)
        device_args = [args[row] for row in device.tolist()]
        if self.record is not Complete:
            self._collectives(host, host_args)
            self._collectives(device, device_args)
        self.blocks.append(
            Block(
                start_ns=exact_ns(rows) if self.record is ExactComplete else to_ns(start_us),
                dur_ns=np.rint(dur_us * 1000.0).astype(np.int64),
                category=codes,
                name=name,
                lane=lane,
                corr=corr,
                op_args=op_args,
                stack=stack,
                device_rows=device + self.rows,
                device=self._device(device_args),
                at=at,
            )
        )
        self.rows += count

    def _collectives(self, rows: I64, args: list[Any]) -> None:
        for position, arg in enumerate(args):
            if arg.collective:
                self.collectives[self.rows + int(rows[position])] = collective_args(arg)

    def _count_bad(
        self, rows: list[Complete], start: F64, dur: F64, codes: NDArray[np.uint8]
    ) -> None:
        span = codes == SPAN
        for row in np.flatnonzero(span).tolist():
            first, last = float(start[row]), float(start[row] + dur[row])
            if rows[row].name.startswith(SPAN_NAME) and -MAX_US < first <= last < MAX_US:
                known = self.span_us or (first, last)
                self.span_us = (min(first, known[0]), max(last, known[1]))
        bad_start = ~(np.abs(start) < MAX_US) & ~span
        bad_dur = ~((dur >= 0) & (dur < MAX_US)) & ~span & ~bad_start
        self.dropped["with an impossible start"] += int(bad_start.sum())
        self.dropped["with a negative or impossible duration"] += int(bad_dur.sum())

    def _correlations(self, args: list[Args]) -> I64:
        """The correlation ids, int64 (n,), 0 where there is none."""
        try:
            corr = np.fromiter([arg.corr for arg in args], np.int64, len(args))
        except OverflowError:
            corr = np.fromiter(
                [value if 0 <= (value := arg.corr) <= INT64_MAX else -1 for arg in args],
                np.int64,
                len(args),
            )
        for row in np.flatnonzero(corr == 0).tolist():
            other = args[row].cuda_correlation or args[row].hip_correlation
            corr[row] = other if 0 <= other <= INT64_MAX else -1
        bad = corr < 0
        if bad.any():
            self.clamped["correlation ids outside of 64 bits"] += int(bad.sum())
            corr[bad] = 0
        return corr

    def _device(self, args: list[Args]) -> dict[str, NDArray[Any]]:
        count, known = len(args), self.sizes
        sizes = [known[JOIN((arg.grid, arg.block))] for arg in args]
        return {
            "bytes": np.fromiter([self._size(arg.bytes) for arg in args], np.int64, count),
            "blocks": np.fromiter([size[0] for size in sizes], np.int64, count),
            "threads": np.minimum(
                np.fromiter([size[1] for size in sizes], np.int64, count),
                (1 << 31) - 1,
            ).astype(np.int32),
            "warps_per_sm": float32([arg.warps for arg in args]),
            "occupancy_pct": float32([arg.occupancy for arg in args]),
        }

    def _size(self, value: int | str | None) -> int:
        if value is None:
            return -1
        if isinstance(value, str):
            value = int(value) if value.isdecimal() and len(value) < 20 else -1
        return value if 0 <= value <= INT64_MAX else -1

    # After the last batch

    def argument_table(self) -> tuple[list[OpArgs], NDArray[np.int32]]:
        """The distinct argument sets, and the number of the set for each key met, int32 (k,)."""
        sets: dict[OpArgs, int] = {}
        codes = [
            sets.setdefault(op_args(dims or old, types, concrete), len(sets)) if dims or old else -1
            for dims, old, types, concrete in (key.split(b"\0") for key in self.argument_keys)
        ]
        return list(sets), np.array(codes, dtype=np.int32)

    def stack_table(self) -> tuple[list[str], NDArray[np.int32]]:
        """The distinct stacks, and the number of the stack for each key met, int32 (k,)."""
        stacks: dict[str, int] = {}
        codes = [
            stacks.setdefault(key[:MAX_STACK_CHARS], len(stacks)) if key else -1
            for key in self.stack_keys
        ]
        return list(stacks), np.array(codes, dtype=np.int32)


def float32(values: list[float] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Numbers of a file as float32; beyond its range there is no number that means anything."""
    wide = np.array(values, np.float64)
    return np.where(np.abs(wide) <= FLOAT32_MAX, wide, np.nan).astype(np.float32)
