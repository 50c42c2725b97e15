"""Reads the sampler's recording: `NODE-0000.jsonl`, `NODE-0001.jsonl.gz`, … (sample_format.py).

A recording that was cut off yields what it holds: half a last line, a damaged compressed segment
and lines of a newer version are counted and left out.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from gpuprof.counted import counted
from gpuprof.errors import InputError
from gpuprof.sample_format import (
    FORMAT,
    STATUS_WORDS,
    VERSION,
    AnyRecord,
    Clock,
    Columns,
    Device,
    End,
    Event,
    Header,
    Note,
    Number,
    Processes,
    Rank,
    Ring,
    Row,
    Status,
    StatusChange,
    Window,
    decoder,
)
from gpuprof.samples import (
    I64,
    U8,
    DeviceFacts,
    GpuProcess,
    Missing,
    RankFacts,
    SampleEvent,
    Samples,
    Series,
    series,
)

MAX_LINE_BYTES = 4 << 20
MAX_SEGMENT_BYTES = 64 << 20
"""The sampler writes segments of 8 MiB; what unpacks to more is not its work."""
SEGMENT_NAME = re.compile(r"(.+)-(\d{4,})\.jsonl(\.gz)?")


def is_samples(path: Path) -> bool:
    """Whether this is a folder with a recording, or one of its files."""
    if path.is_dir():
        return any(is_samples(file) for file in path.iterdir() if file.is_file())
    if not SEGMENT_NAME.fullmatch(path.name):
        return False
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            return f'"format":"{FORMAT}"'.encode() in file.read(256)
    except (OSError, EOFError, zlib.error):
        return False


def read_samples(path: Path) -> list[Samples]:
    """All nodes' recordings in a folder (or the one file), one `Samples` a node and boot.

    Raises:
        InputError: there is no recording, or it is of a newer version.
    """
    folder_files = sorted(path.iterdir()) if path.is_dir() else [path]
    segments: dict[str, dict[int, Path]] = {}
    for file in folder_files:
        match = SEGMENT_NAME.fullmatch(file.name)
        if match and is_samples(file):
            # Between compression and removal both exist; they hold the same.
            segments.setdefault(match[1], {}).setdefault(int(match[2]), file)
    if not segments:
        raise InputError(f"{path}: no recording of the sampler", hint="name its folder")
    builders: dict[tuple[str, str], _Builder] = {}
    for stem in sorted(segments):
        for number in sorted(segments[stem]):
            _read_segment(segments[stem][number], builders)
    if not builders:
        raise InputError(f"{path}: the recording was cut off before its first line was whole")
    return [builder.finish() for builder in builders.values()]


def _read_segment(path: Path, builders: dict[tuple[str, str], _Builder]) -> None:
    builder: _Builder | None = None
    damaged = 0
    for text in _lines(path):
        if text is None:
            damaged += 1
            continue
        try:
            record = decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            damaged += 1
            continue
        if isinstance(record, Header):
            if record.format != FORMAT or record.version > VERSION:
                raise InputError(
                    f"{path}: written by gpuprof {record.gpuprof or '?'}, format version "
                    f"{record.version}, and this one reads up to {VERSION}",
                    hint="install a newer gpuprof",
                )
            key = (record.node, record.boot_id)
            builder = builders.setdefault(key, _Builder(record.node))
            builder.writer = record.pid
            builder.writers.add(record.pid)
        elif builder is not None:
            builder.add(record)
    if builder is not None:
        builder.pack()
        if damaged:
            builder.warnings.append(
                f"{path.name}: {counted(damaged, 'damaged line was', 'damaged lines were')} left"
                " out"
            )


def _lines(path: Path) -> Iterator[bytes | None]:
    """Lines of a segment; None stands for one that is damaged or too long."""
    opener = gzip.open if path.suffix == ".gz" else open
    read = 0
    try:
        with opener(path, "rb") as file:
            while read < MAX_SEGMENT_BYTES:
                text = file.readline(MAX_LINE_BYTES)
                if not text:
                    return
                read += len(text)
                yield text if text.endswith(b"\n") else None
            yield None
    except (OSError, EOFError, zlib.error):
        yield None


@dataclass
class _Table:
    """The rows of one `Columns` record while they are read."""

    columns: Columns
    time: list[int] = field(default_factory=list)
    took: list[int] = field(default_factory=list)
    rows: list[list[Number | None]] = field(default_factory=list)
    packed: list[tuple[I64, I64, np.ndarray[tuple[int, int], np.dtype[np.float64]]]] = field(
        default_factory=list
    )
    changes: list[StatusChange] = field(default_factory=list)

    def pack(self) -> None:
        """Turns lists into arrays: a row is a Python list only while its segment is read."""
        if self.rows:
            values = np.array(self.rows, dtype=np.float64)  # None becomes NaN
            times = np.array(self.time, dtype=np.int64), np.array(self.took, dtype=np.int64)
            self.packed.append((*times, values))
            self.time, self.took, self.rows = [], [], []


@dataclass
class _Builder:
    """Collects one node's records. Columns numbers count per writing process."""

    node: str
    writer: int = 0
    tables: dict[tuple[int, int], _Table] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    devices: dict[int, DeviceFacts] = field(default_factory=dict)
    ranks: dict[int, RankFacts] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    rings: dict[tuple[str, str], list[Ring]] = field(default_factory=dict)
    processes: list[Processes] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)

    def add(self, record: AnyRecord) -> None:
        if isinstance(record, Row):
            table = self.tables.get((self.writer, record.c))
            if table is not None and len(record.v) == len(table.columns.names):
                table.time.append(record.t)
                table.took.append(record.d)
                table.rows.append(record.v)
        elif isinstance(record, Ring):
            if len(record.dt) == len(record.v) - 1:
                self.rings.setdefault((record.m, record.scope), []).append(record)
        elif isinstance(record, Columns):
            self.tables.setdefault((self.writer, record.c), _Table(record))
        elif isinstance(record, StatusChange):
            table = self.tables.get((self.writer, record.c))
            if table is not None and record not in table.changes[-1:]:
                table.changes.append(record)
        elif isinstance(record, Clock):
            self.clocks[record.t] = record.unix
        elif isinstance(record, Device):
            self._device(record)
        elif isinstance(record, Rank):
            self._rank(record)
        elif isinstance(record, Window):
            self.windows[record.scope] = record.window_ns
        elif isinstance(record, Event):
            self.events.append(record)
        elif isinstance(record, Processes):
            self.processes.append(record)
        elif isinstance(record, Note):
            where = f"{record.scope}: " if record.scope else ""
            self.notes[f"{where}{record.text}"] = None
        elif isinstance(record, End):
            self.ended.add(self.writer)

    def _device(self, record: Device) -> None:
        known = self.devices.get(record.g)
        if known is not None and not record.uuid and known.uuid:
            return  # a later start of the reader found it lost: what it was is still true
        self.devices[record.g] = DeviceFacts(
            record.g,
            record.uuid,
            record.name,
            record.facts,
            STATUS_WORDS.get(record.status, Status.ERROR),
            record.why,
        )

    def _rank(self, record: Rank) -> None:
        known = self.ranks.get(record.pid)
        uuids = tuple(record.uuids) or (known.uuids if known else ())
        cpus = record.cpus or (known.cpus if known else "")
        mems = record.mems or (known.mems if known else "")
        self.ranks[record.pid] = RankFacts(record.pid, record.rank, uuids, cpus, mems)

    def pack(self) -> None:
        for table in self.tables.values():
            table.pack()

    # ---- from records to columns --------------------------------------------------------

    def finish(self) -> Samples:
        found: dict[tuple[str, str], list[Series]] = {}
        missing: dict[tuple[str, str], Missing] = {}
        for table in self.tables.values():
            for name, one in self._columns(table):
                found.setdefault((name, table.columns.scope), []).append(one)
            for change in table.changes:
                for name, word in change.s.items():
                    key, why = (name, table.columns.scope), change.why.get(name, "")
                    if name not in table.columns.names and (why or key not in missing):
                        missing[key] = Missing(STATUS_WORDS.get(word, Status.ERROR), why)
        for (name, scope), rings in self.rings.items():
            found.setdefault((name, scope), []).append(self._ring(name, scope, rings))
        merged = {key: _merged(parts) for key, parts in found.items()}
        return Samples(
            node=self.node,
            source="sampler",
            devices=tuple(self.devices[index] for index in sorted(self.devices)),
            ranks=tuple(sorted(self.ranks.values(), key=lambda r: (r.rank, r.pid))),
            series=merged,
            missing={key: why for key, why in missing.items() if key not in merged},
            windows=self.windows,
            events=tuple(
                SampleEvent(self._unix(e.t), e.scope, e.type, e.data, e.text) for e in self.events
            ),
            processes=tuple(
                GpuProcess(self._unix(record.t), record.scope, pid, used, sm, name)
                for record in self.processes
                for pid, used, sm, name in record.p
            ),
            notes=tuple(self.notes),
            warnings=tuple(self.warnings),
            epoch=bool(self.clocks),
            truncated=not self.writers <= self.ended,
        )

    def _columns(self, table: _Table) -> Iterator[tuple[str, Series]]:
        if not table.packed:
            return
        time, took, values = (np.concatenate(parts) for parts in zip(*table.packed, strict=True))
        unix = self._unix_array(time)
        changed_at = np.array([change.t for change in table.changes], dtype=np.int64)
        for i, name in enumerate(table.columns.names):
            column = np.ascontiguousarray(values[:, i])
            failed = np.isnan(column)
            status = np.zeros(len(column), dtype=np.uint8)
            if failed.any():
                status[failed] = _status_at(name, table.changes, changed_at, time[failed])
            yield name, series(name, table.columns.scope, unix, column, status=status, read_ns=took)

    def _ring(self, name: str, scope: str, rings: list[Ring]) -> Series:
        times = [ring.t + 1000 * np.cumsum([0, *ring.dt], dtype=np.int64) for ring in rings]
        values = np.concatenate([np.array(ring.v, dtype=np.float64) for ring in rings])
        return series(name, scope, self._unix_array(np.concatenate(times)), values)

    def _unix(self, t: int) -> int:
        return int(self._unix_array(np.array([t], dtype=np.int64))[0])

    def _unix_array(self, t: I64) -> I64:
        """CLOCK_MONOTONIC to the epoch, following the wall clock between its records."""
        if not self.clocks:
            return t
        marks = np.array(sorted(self.clocks), dtype=np.int64)
        offsets = np.array([self.clocks[mark] - mark for mark in marks.tolist()], dtype=np.int64)
        drift = np.interp(
            (t - marks[0]).astype(np.float64),
            (marks - marks[0]).astype(np.float64),
            (offsets - offsets[0]).astype(np.float64),
        )
        unix: I64 = t + offsets[0] + drift.astype(np.int64)
        return unix


def _status_at(name: str, changes: list[StatusChange], changed_at: I64, time: I64) -> U8:
    """The status of a metric at each time: that of the last change at or before it."""
    known = [STATUS_WORDS.get(change.s.get(name, ""), Status.ERROR) for change in changes]
    table = np.array([Status.ERROR, *known], dtype=np.uint8)
    return table[np.searchsorted(changed_at, time, side="right")]


def _merged(parts: list[Series]) -> Series:
    if len(parts) == 1:
        return parts[0]
    time_ns, value, status, read_ns = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("time_ns", "value", "status", "read_ns")
    )
    metric, scope = parts[0].metric, parts[0].scope
    return series(metric, scope, time_ns, value, status=status, read_ns=read_ns)
