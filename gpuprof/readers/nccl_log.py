"""Reads NCCL and RCCL logs of any version into a `CommLog`.

Many ranks and hosts may be interleaved in one file, or there may be one file a rank; the lines may
be buried in a job's other output; frameworks may repeat NCCL's last warning without its prefix.
`nccl_scan` finds the lines, this module makes rows of them, `nccl_finish` names ranks and dates
the library. Nothing here judges.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from gpuprof.commlog import CommLog, Event, Fact
from gpuprof.errors import InputError
from gpuprof.readers import nccl_scan
from gpuprof.readers.nccl_calls import CallKeeper
from gpuprof.readers.nccl_finish import LineKeeper, ProcessKeeper, date_log, name_ranks
from gpuprof.readers.nccl_grammar import (
    BARE,
    INFO_KINDS,
    RING_ORDER,
    TRANSPORT_FIELDS,
    TRANSPORTS,
)
from gpuprof.readers.nccl_prefix import PREFIX, TIMESTAMP, launcher_label
from gpuprof.readers.nccl_rows import ROWS, transport
from gpuprof.readers.nccl_tests_output import HEADER, TableReader
from gpuprof.readers.text import text_chunks

MAX_TEXT = 600
"""Characters of a line that are kept; the longest WARN of NCCL is below 500."""

MAX_PART = 4_096
"""Bytes of a line that patterns see. Longer lines are progress bars that rewrite themselves with
carriage returns: of those the last states are looked at, each on its own."""

MAX_STATES = 16
MAX_PREFIX = 512
"""Bytes before the word NCCL that are looked at: launchers and log collectors write below 200."""

MAX_EVENTS_PER_PROCESS = 60
BARE_PROCESSES = 100
"""Lines without a prefix belong to nobody, so they share the room of this many processes."""

MAX_EVENTS = 40_000
"""The first cause is among the first lines of some process; later ones are only counted."""

MAX_TRANSPORTS = 120_000
"""512 ranks with 100 peers each, both directions; beyond it the matrix says nothing more."""

MAX_TRANSPORT_BYTES = 64 << 20
MAX_PREFIXES = 50_000
MAX_RINGS = 4_096
MAX_FILES = 20_000
"""One file a rank of the largest jobs."""

MAX_BANDWIDTHS = 10_000

WARN = b"NCCL WARN "
RANK_IN_TEXT = re.compile(r"\[(?:PG [^\]]*)?Rank (\d+)\]|\[rank(\d+)\]|\bRank (\d+)\]")
BARE_INFO = re.compile(
    r"\s*(?:=== System|Pattern \d, cross|\+ (?:PCI|NVL)\[|Connected all rings)|"
    r".{0,40}GPU Direct RDMA "
)
BARE_KINDS = ("system", "pattern", "topology_node", "connected", "gdr")
"""INFO texts that people quote without the prefix."""


def read_nccl_log(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    damaged: list[str] | None = None,
) -> CommLog:
    """Reads one or many logs of one job; a folder stands for the files in it.

    Args:
        damaged: Gets a line for each compressed file whose end is lost.

    Raises:
        InputError: a file cannot be read, or no file holds a line of NCCL, RCCL or of PyTorch's
            process group.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    given = [Path(path) for path in paths]
    places = tuple(str(file) for path in given for file in _files(path))
    if not places:
        where = f"{given[0]} holds no file" if given else "no NCCL log was given"
        raise InputError(where, hint="name at least one log")
    reader = _Reader(CommLog(paths=places))
    for index, place in enumerate(places):
        reader.line = 1
        for data in text_chunks(Path(place), "ranks", damaged):
            reader.read(data, index)
    log = reader.finish()
    found = log.counts or log.events or log.transports or log.calls or log.bandwidths
    if not (reader.marked or found):
        raise InputError(
            f"{places[0]} holds no line of NCCL, RCCL or PyTorch's process group",
            hint="record one with NCCL_DEBUG=INFO",
        )
    return log


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file())[:MAX_FILES]


class Origin(NamedTuple):
    """What stands before the word NCCL of a line."""

    process: int | None = None
    device: int | None = None
    source: str = ""
    source_line: int | None = None
    time_ns: int | None = None


NOWHERE = Origin()


class _Reader:
    """Holds what is known while the chunks go by."""

    def __init__(self, log: CommLog) -> None:
        self.log = log
        self.processes = ProcessKeeper()
        self.lines = LineKeeper()
        self.prefixes: dict[bytes, Origin] = {}
        self.transports: set[bytes] = set()
        self.transport_bytes = 0
        self.channels = False  # a release that says Channel never says Ring
        self.calls = CallKeeper(lambda before: self._prefix(before).process)
        self.kept: Counter[tuple[int | None, int]] = Counter()
        self.events: dict[tuple[int | None, int | None, str], Event] = {}
        self.event_devices: dict[tuple[int | None, int | None, str], int | None] = {}
        self.events_of: Counter[int | None] = Counter()
        self.counts: Counter[str] = Counter()
        self.file = 0
        self.line = 1
        self.marked = False
        self.table: TableReader | None = None

    def read(self, data: bytes, file: int) -> None:
        self.file = file
        first_line = self.line
        self.log.size_bytes += len(data)
        self.marked = self.marked or nccl_scan.MARK in data
        for found in nccl_scan.scan(nccl_scan.Chunk(data, first_line)):
            if found.kinds:
                self._prefixed(found)
            else:
                self._other(found)
        self._transports(data, first_line)
        if self.table is None and HEADER in data:
            self.table = TableReader()
        if self.table is not None and len(self.log.bandwidths) < MAX_BANDWIDTHS:
            self.log.bandwidths += self.table.read(data, first_line)
        newlines = data.count(b"\n")
        self.line += newlines
        self.log.line_count += newlines
        if b"opCount " in data:
            self.calls.read(data, self.line)

    def _prefixed(self, found: nccl_scan.Found) -> None:
        origin = self._prefix(found.before)
        if all(self.kept[origin.process, kind] >= INFO_KINDS[kind].keep for kind in found.kinds):
            self.counts[INFO_KINDS[found.kinds[0]].name] += 1
            return
        text = found.text[:MAX_PART].decode("utf-8", "replace").rstrip()
        self._info(origin, text, found.line, found.kinds)

    def _other(self, found: nccl_scan.Found) -> None:
        start = found.text.find(WARN)
        if start < 0:
            for part in found.text.split(b"\r")[-MAX_STATES:]:
                self._bare(part[:MAX_PART], found.after[:MAX_PART], found.line)
            return
        text = found.text[start + len(WARN) :][:MAX_PART].decode("utf-8", "replace").rstrip()
        self._event(self._prefix(found.text[:start]), "WARN", text, found.line)

    def _prefix(self, before: bytes) -> Origin:
        if len(before) > MAX_PREFIX:
            before = before[: MAX_PREFIX // 4] + b" " + before[-MAX_PREFIX:]
        known = self.prefixes.get(before)
        if known is not None:
            return known
        match = PREFIX.search(before)
        host, pid, _tid, device, source, source_line, _function = (
            match.groups() if match else (None,) * 7
        )
        process = None
        if host is not None and pid is not None:
            process = self.processes.index(host, int(pid), launcher_label(before))
        stamp = TIMESTAMP.search(before)
        origin = Origin(
            process,
            None if device is None else int(device),
            "" if source is None else source.decode("utf-8", "replace"),
            None if source_line is None else int(source_line),
            _time_ns(stamp.group(1)) if stamp else None,
        )
        if stamp is None:  # a stamped prefix is its own line's; keeping it would only cost memory
            if len(self.prefixes) >= MAX_PREFIXES:
                self.prefixes.clear()
            self.prefixes[before] = origin
        return origin

    def _info(self, origin: Origin, text: str, line: int, kinds: tuple[int, ...]) -> None:
        process, device = origin.process, origin.device
        for index in kinds:
            match = nccl_scan.KIND_PATTERNS[index].match(text)
            if match is None:
                continue
            kind = INFO_KINDS[index]
            self.counts[kind.name] += 1
            if self.kept[process, index] >= kind.keep:
                return
            self.kept[process, index] += 1
            if kind.name in ("nccl_info_error", "error_path"):
                self._event(origin, "INFO", text, line)
                return
            self.lines.add(line, process, index, text[:MAX_TEXT])
            fields = {k: v for k, v in match.groupdict().items() if v is not None}
            row = ROWS.get(kind.name)
            if row is not None:
                row(self.log, process, device, fields, line)
            else:
                self.log.facts.append(Fact(process, kind.name, fields, line))
            return

    def _event(
        self, origin: Origin, level: str, text: str, line: int, rank: int | None = None
    ) -> None:
        text = text[:MAX_TEXT]
        process = origin.process
        self.counts["warn" if level == "WARN" else "bare" if level == "BARE" else "failure"] += 1
        key = (process, rank if process is None else origin.device, text)
        known = self.events.get(key)
        if known is not None:
            self.events[key] = replace(known, count=known.count + 1)
            return
        room = MAX_EVENTS_PER_PROCESS * (1 if process is not None else BARE_PROCESSES)
        if self.events_of[process] >= room:
            return
        if len(self.events) >= MAX_EVENTS:
            self.log.truncated = True
            return
        self.events_of[process] += 1
        self.event_devices[key] = origin.device
        self.events[key] = Event(
            file=self.file,
            line=line,
            process=process,
            rank=rank,
            level=level,
            text=text,
            source=origin.source,
            source_line=origin.source_line,
            time_ns=origin.time_ns,
        )

    def _bare(self, raw: bytes, after: bytes, line: int) -> None:
        text = raw.decode("utf-8", "replace").rstrip()
        if not BARE.search(text):
            return
        label = launcher_label(raw)
        named = RANK_IN_TEXT.search(text)
        rank = next((int(g) for g in named.groups() if g is not None), None) if named else None
        if rank is None and label is not None and label.kind in ("mpi", "rank"):
            rank = label.number
        if "CCL version" in text:
            match = nccl_scan.KIND_PATTERNS[0].search(text[text.index("CCL version") - 1 :])
            if match is not None:
                ROWS["version"](
                    self.log, None, None, {k: v for k, v in match.groupdict().items() if v}, line
                )
                self.counts["version"] += 1
                if "rror" not in text and "ailure" not in text:
                    return
        if re.search(r"\d%\|", text) and not re.search(r"Rank \d+\]", text):
            if len(self.log.progress) < 1000:
                self.log.progress.append((line, text[:MAX_TEXT]))
            return
        if BARE_INFO.match(text):
            kinds = tuple(i for i, k in enumerate(INFO_KINDS) if k.name in BARE_KINDS)
            self._info(NOWHERE, text.strip(), line, kinds)
            return
        old = re.search(rb"(?:^|\s)(\S+:\d+) WARN ", raw)  # up to 2.2: no word NCCL
        if old is not None:
            message = raw[old.end() :].decode("utf-8", "replace")
            self._event(self._prefix(raw[: old.end() - len("WARN ")]), "WARN", message, line)
            return
        self._event(NOWHERE, "BARE", text, line, rank)
        if re.search(r"Last error:\s*$", text) and after.strip():
            repeated = after.decode("utf-8", "replace").strip()
            self._event(NOWHERE, "BARE", repeated, line + 1, rank)

    def _transports(self, data: bytes, first_line: int) -> None:
        for pattern in TRANSPORTS[: 1 if self.channels else None]:
            new = set(pattern.findall(data)) - self.transports
            if not new:
                continue
            self.transport_bytes += sum(map(len, new))
            full = self.transport_bytes > MAX_TRANSPORT_BYTES
            if full or len(self.transports) >= MAX_TRANSPORTS:
                self.log.truncated = True
                return
            self.transports |= new
            self.channels = self.channels or pattern is TRANSPORTS[0]
            seen: set[bytes] = set()
            at = 0
            line = first_line
            for match in pattern.finditer(data):
                text = match.group(1)
                if text not in new or text in seen:
                    continue
                seen.add(text)
                shown = text.decode("utf-8", "replace")
                fields = TRANSPORT_FIELDS.match(shown)
                if fields is None and RING_ORDER.match(shown) is None:
                    continue
                start = data.rfind(b"\n", 0, match.start()) + 1
                line += data.count(b"\n", at, start)
                at = start
                nccl = data.rfind(b"NCCL INFO ", start, match.start())
                process = self._prefix(data[start:nccl]).process if nccl >= 0 else None
                if fields is not None:
                    self.log.transports.append(transport(fields, process, line))
                elif len(self.log.rings) < MAX_RINGS:
                    ranks = tuple(int(rank) for rank in shown.split())
                    self.log.rings[f"{process}/{len(self.log.rings)}"] = ranks
                if len(seen) == len(new):
                    break

    def finish(self) -> CommLog:
        log = self.log
        log.processes = self.processes.rows()
        log.lines = self.lines.table()
        log.calls = {tail.handle: tail for tail in self.calls.tails.values()}
        if self.calls.count:
            self.counts["collective"] = self.calls.count
        log.counts = dict(self.counts)
        devices = [self.event_devices[key] for key in self.events]
        log.events = list(self.events.values())
        name_ranks(log, devices, self.processes.labels_are_ranks())
        log.events.sort(key=lambda event: (event.file, event.line))
        date_log(log)
        return log


def _time_ns(stamp: bytes) -> int | None:
    """`2026-01-02 03:04:05.123` as ns; the zone is unknown, so only differences mean something."""
    text = stamp.decode("ascii").replace("_", " ").replace("T", " ")
    whole, _, part = text.partition(".")
    try:
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp()) * 10**9 + (int(part.ljust(9, "0")) if part else 0)
