"""From what a scan of a block found to the block's columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.distinct import distinct
from gpuprof.readers.kineto_bytes import I64
from gpuprof.readers.kineto_categories import DEVICE, HOST, JOINED, KINDS, ON_STREAM, SPAN
from gpuprof.readers.kineto_columns import JOIN, Block, ColumnBuilder, float32
from gpuprof.readers.kineto_events import EMPTY, NAN, Args
from gpuprof.readers.kineto_interning import MAX_NAME_CHARS
from gpuprof.readers.kineto_slices import SliceCodes

NONE = -(1 << 62)
"""Stands for a number that an event doesn't have."""

DEFAULTS: dict[str, float | int] = {
    "corr": 0,
    "cuda_correlation": 0,
    "hip_correlation": 0,
    "device": NONE,
    "stream": NONE,
    "bytes": -1,
    "warps": NAN,
    "occupancy": NAN,
}

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Complete events that were read without decoding; all arrays have shape (n,).

    at: the event's number in the block. head, lists: codes of the first line and of the lists (-1
    for none). start_ns, dur_ns: as the file counts them. columns: the numbers that any event of
    the block has.
    """

    at: I64
    head: I32
    lists: I32
    start_ns: I64
    dur_ns: I64
    columns: dict[str, NDArray[Any]]

    def column(self, name: str, rows: I64) -> NDArray[Any]:
        """A number of some of the rows, or what stands for none."""
        column = self.columns.get(name)
        if column is None:
            return np.full(len(rows), DEFAULTS[name])
        return column.take(rows)


class Head(msgspec.Struct, tag_field="ph", tag="X", gc=False, kw_only=True):
    """The first line of a complete event; the last three have no business there."""

    cat: str = ""
    name: str
    pid: int | str = ""
    tid: int | str = ""
    ts: msgspec.Raw = EMPTY
    dur: msgspec.Raw = EMPTY
    args: msgspec.Raw = EMPTY


def _decoders(record: type[Any]) -> list[Any]:
    return [msgspec.json.Decoder(record, strict=strict) for strict in (True, False)]


def _decoded(decoders: list[Any], text: bytes) -> Any:
    for decoder in decoders:
        try:
            return decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
    return None


class HeadCodes:
    """First lines of complete events: their place (category, process, thread) and name.

    Code n stands for entry n of `place` and `name`, numbers of the builder's.
    """

    def __init__(self, builder: ColumnBuilder) -> None:
        self._builder = builder
        self._decoders = _decoders(Head)
        self.slices = SliceCodes(self._make)
        self.place = array("i")
        self.name = array("i")

    def categories(self, codes: I32) -> NDArray[np.uint8]:
        """The `Category` of each first line, uint8 (n,)."""
        place = np.frombuffer(self.place, np.int32).take(codes)
        return np.frombuffer(self._builder.places.category, np.uint8).take(place)

    def _make(self, line: bytes) -> int:
        head = _decoded(self._decoders, b"{" + line[:-1] + b"}") if line.endswith(b",") else None
        if head is None or head.ts or head.dur or head.args or len(head.name) > MAX_NAME_CHARS:
            return -1
        places = self._builder.places
        if places.categories[head.cat] == SPAN:
            return -1
        self.place.append(places[head.cat, head.pid, head.tid])
        self.name.append(self._builder.names[head.name])
        return len(self.name) - 1


class ListCodes:
    """Slices of lists in `args`: the shapes of an operator, the sizes of a kernel.

    Entry n + 1 of `arguments` and `sizes` belongs to code n, entry 0 to an event without lists.
    """

    def __init__(self, builder: ColumnBuilder) -> None:
        self._builder = builder
        self._decoders = _decoders(Args)
        self._by_prefix: dict[bytes, SliceCodes] = {}
        self._keys = [b"\0\0\0"]
        self.sizes: list[tuple[int, int]] = [(-1, -1)]
        self._arguments = np.zeros(1, np.int32)

    def after(self, prefix: bytes) -> SliceCodes:
        """The slices that make an object when `prefix` stands before them and a brace behind."""
        if prefix not in self._by_prefix:
            self._by_prefix[prefix] = SliceCodes(lambda text: self._make(prefix + text + b"}"))
        return self._by_prefix[prefix]

    def forget(self) -> None:
        """Drops all slices."""
        for known in self._by_prefix.values():
            known.forget()
        self._by_prefix.clear()

    def _make(self, text: bytes) -> int:
        args = _decoded(self._decoders, text)
        if args is None or not self._only_lists(args):
            return -1
        self._keys.append(JOIN((args.dims, args.old_dims, args.types, args.concrete)))
        self.sizes.append(self._builder.sizes[JOIN((args.grid, args.block))])
        return len(self._keys) - 2

    @staticmethod
    def _only_lists(args: Args) -> bool:
        """Whether nothing but lists is wanted of these members."""
        others = (args.corr, args.cuda_correlation, args.hip_correlation, len(args.collective))
        absent = (args.device, args.stream, args.bytes)
        return (
            not any(others)
            and not args.call_stack
            and all(value is None for value in absent)
            and args.warps != args.warps
            and args.occupancy != args.occupancy
        )

    def arguments(self, codes: I32) -> I32:
        """The number of the builder's that each slice's shapes have, int32 (n,)."""
        new = len(self._keys) - len(self._arguments)
        if new:
            self._arguments = np.append(self._arguments, np.full(new, -1, np.int32))
        found = self._arguments.take(codes + 1)
        if (found < 0).any():
            for code in distinct(codes[found < 0]).tolist():
                self._arguments[code + 1] = self._builder.argument_keys[self._keys[code + 1]]
            found = self._arguments.take(codes + 1)
        return found


def block_of(rows: FoundRows, heads: HeadCodes, lists: ListCodes, builder: ColumnBuilder) -> Block:
    """The columns of rows that come behind those that the builder has."""
    places = builder.places
    place = np.frombuffer(heads.place, np.int32).take(rows.head)
    category = np.frombuffer(places.category, np.uint8).take(place)
    kinds = KINDS.take(category)
    count = len(category)

    host = np.flatnonzero(kinds & HOST)
    op_args = np.zeros(count, np.int32)
    op_args[host] = lists.arguments(rows.lists.take(host))

    joined = np.flatnonzero(kinds & JOINED)
    found = rows.column("corr", joined)
    for other in ("cuda_correlation", "hip_correlation"):
        if other in rows.columns:
            found = np.where(found == 0, rows.column(other, joined), found)
    corr = np.zeros(count, np.int64)
    corr[joined] = found

    lane = np.frombuffer(places.thread, np.int32).take(place)
    on_stream = np.flatnonzero(kinds & ON_STREAM)
    if len(on_stream):
        lane[on_stream] = _streams(rows, place, on_stream, builder)

    device = np.flatnonzero(kinds & DEVICE)
    sizes = np.array(lists.sizes, np.int64)[rows.lists.take(device) + 1]
    return Block(
        start_ns=rows.start_ns,
        dur_ns=rows.dur_ns,
        category=category,
        name=np.frombuffer(heads.name, np.int32).take(rows.head),
        lane=lane,
        corr=corr,
        op_args=op_args,
        stack=np.zeros(count, np.int32),
        device_rows=device + builder.rows,
        device={
            "bytes": rows.column("bytes", device).astype(np.int64),
            "blocks": sizes[:, 0],
            "threads": np.minimum(sizes[:, 1], (1 << 31) - 1).astype(np.int32),
            "warps_per_sm": float32(rows.column("warps", device)),
            "occupancy_pct": float32(rows.column("occupancy", device)),
        },
        at=rows.at,
    )


def _streams(rows: FoundRows, place: I32, on_stream: I64, builder: ColumnBuilder) -> I32:
    """The lanes of rows on streams, int32 (k,)."""
    places = place.take(on_stream).astype(np.int64)
    ids = np.stack([rows.column(name, on_stream) for name in ("device", "stream")])
    usual = np.zeros((2, len(builder.places)), np.int64)
    usual[:, places] = ids
    if not np.array_equal(usual[:, places], ids):  # else each process and thread has one stream
        keys, places = np.unique(np.vstack((places, ids)), axis=1, return_inverse=True)
        places = places.reshape(-1).astype(np.int64, copy=False)
        found = keys.T.tolist()
    else:
        used = distinct(places)
        found = np.vstack((used, usual[:, used])).T.tolist()
        places = np.searchsorted(used, places).astype(np.int64, copy=False)
    names = list(builder.places)
    lanes = []
    for number, device, stream in found:
        _, pid, tid = names[number]
        key = (pid, tid, None if device == NONE else device, None if stream == NONE else stream)
        lanes.append(-1 - builder.streams[key])
    return np.array(lanes, np.int32).take(places)


def in_file_order(first: Block, second: Block, builder: ColumnBuilder, first_row: int) -> Block:
    """Two parts of one block as one: `first` begins at the builder's row `first_row`."""
    assert first.at is not None
    assert second.at is not None
    at = np.concatenate((first.at, second.at))
    order = np.argsort(at, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = {
        row: builder.collectives.pop(row)
        for row in range(first_row, first_row + len(first.at))
        if row in builder.collectives
    }
    for row, args in moved.items():
        builder.collectives[first_row + int(place[row - first_row])] = args

    def both(name: str) -> NDArray[Any]:
        joined = np.concatenate((getattr(first, name), getattr(second, name)))
        return joined.take(order)

    device_rows = np.concatenate((first.device_rows, second.device_rows))
    return Block(
        start_ns=both("start_ns"),
        dur_ns=both("dur_ns"),
        category=both("category"),
        name=both("name"),
        lane=both("lane"),
        corr=both("corr"),
        op_args=both("op_args"),
        stack=both("stack"),
        device_rows=place.take(device_rows - first_row) + first_row,
        device={
            key: np.concatenate((first.device[key], second.device[key])) for key in first.device
        },
        at=None,
    )
