"""Reads PyTorch flight-recorder dumps (pickle or JSON) of any number of ranks.

Dumps come from other hosts and are untrusted: the pickle form goes through `plain_pickle`, which
admits plain containers and scalars only. Fields that a version lacks are absent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.errors import InputError
from gpuprof.readers.files import ByteSource
from gpuprof.readers.plain_pickle import PlainPickleError, loads

MAX_DUMP_BYTES = 256 << 20
"""A buffer of 20 000 entries with C++ stacks stays below 200 MB."""

MAX_FRAMES = 16
PENDING_STATES = ("scheduled", "started")


@dataclass(frozen=True, slots=True)
class Frame:
    """A Python frame of the call."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded call. `sequence` counts collectives of the group, `p2p_sequence` send/recv."""

    group: str
    description: str
    group_id: int
    sequence: int
    p2p_sequence: int
    is_p2p: bool
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int | None
    frames: tuple[Frame, ...]
    timeout_ms: int | None

    @property
    def pending(self) -> bool:
        """Issued and not finished."""
        return self.state in PENDING_STATES and not self.retired

    def describe(self) -> str:
        """`all_to_all of 4027x5120 BFloat16`."""
        name = self.operation.removeprefix("nccl:")
        shape = ", ".join("x".join(map(str, size)) for size in self.sizes[:2]) or "no data"
        return f"{name} of {shape}" + (f" {self.dtypes[0]}" if self.dtypes else "")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. `ranks` are global; empty when the dump does not list them."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one rank left. `status` maps the local group id to (enqueued, completed) numbers.

    `written_ns` is the time of the file: of the dump, or of a later copy.
    """

    rank: int
    path: str
    version: str
    library: str
    groups: Mapping[str, Group]
    status: Mapping[int, tuple[int, int]]
    entries: tuple[Entry, ...]
    written_ns: int


@dataclass(slots=True)
class FlightRecords:
    """The dumps of a job by rank."""

    ranks: dict[int, RankDump] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by name, the longest list of ranks that any dump has; where none lists them,
        the ranks that recorded a call of the group."""
        found: dict[str, Group] = {}
        for dump in self.ranks.values():
            for name, group in dump.groups.items():
                if name not in found or len(group.ranks) > len(found[name].ranks):
                    found[name] = group
        callers: dict[str, set[int]] = {}
        for rank, dump in self.ranks.items():
            for entry in dump.entries:
                callers.setdefault(entry.group, set()).add(rank)
        for name, ranks in callers.items():
            if name not in found or not found[name].ranks:
                found[name] = Group(name, "", tuple(sorted(ranks)))
        return found


def read_flight_recorder(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    damaged: list[str] | None = None,
) -> FlightRecords:
    """Reads dumps; a folder stands for its files whose name ends in a rank.

    The rank is the number at the end of the file's name, else the one rank that is in all groups
    of the dump.

    Args:
        damaged: Gets a line for each file that can't be read; None for an error instead. A rank
            that was killed leaves half a dump, and those of the others still tell who waits.

    Raises:
        InputError: a file is no dump, holds objects, is too large, or its rank cannot be told; with
            `damaged`, if that is so of all.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    records = FlightRecords()
    for path in _files([Path(path) for path in paths]):
        try:
            dump = _dump(path)
        except InputError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
            continue
        if dump.rank in records.ranks:
            raise InputError(
                f"{path} and {records.ranks[dump.rank].path} are both of rank {dump.rank}",
                hint="give the dumps of one job only",
            )
        records.ranks[dump.rank] = dump
    if not records.ranks and damaged:
        raise InputError(damaged[0])
    if not records.ranks:
        raise InputError("no flight-recorder dump was given", hint="name a file or folder")
    return records


def _files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if re.search(r"\d+(?:\.json)?$", p.name))
        else:
            found.append(path)
    return found


def _read(path: Path) -> bytes:
    parts: list[bytes] = []
    size = 0
    with ByteSource(path, block_bytes=1 << 20) as source:
        for block in source.blocks():
            size += len(block)
            if size > MAX_DUMP_BYTES:
                raise InputError(
                    f"{path} is larger than {MAX_DUMP_BYTES >> 20} MiB",
                    hint="a flight-recorder dump is not; lower TORCH_NCCL_TRACE_BUFFER_SIZE",
                )
            parts.append(block)
    return b"".join(parts)


def _dump(path: Path) -> RankDump:
    data = _read(path)
    try:
        is_json = data.lstrip()[:1] == b"{"
        content = msgspec.json.decode(data) if is_json else loads(data)
    except (PlainPickleError, msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"{path} is no flight-recorder dump that can be read safely", hint=str(error)
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("entries", []), list):
        raise InputError(f"{path} is no flight-recorder dump", hint="it has no list of entries")
    if "entries" not in content and "pg_config" not in content:
        raise InputError(f"{path} is no flight-recorder dump", hint="it has no list of entries")
    groups = _groups(content.get("pg_config"))
    status = _status(content.get("pg_status"))
    entries = tuple(_entry(item) for item in content.get("entries") or () if isinstance(item, dict))
    lost = len(content.get("entries") or ())
    if lost and not any(entry.operation or entry.state for entry in entries):
        what = "its one entry" if lost == 1 else f"none of its {lost:,} entries"
        raise InputError(
            f"{path} is a flight-recorder dump that says nothing",
            hint=f"{what} can{'not' if lost == 1 else ''} be read as a call",
        )
    rank = _rank(path, content, groups)
    groups = _named(groups, entries)
    return RankDump(
        rank=rank,
        path=str(path),
        version=_text(content.get("version")),
        library=_text(content.get("nccl_version") or content.get("comm_lib_version")),
        groups=groups,
        status=status,
        entries=entries,
        written_ns=path.stat().st_mtime_ns,
    )


def _rank(path: Path, content: dict[Any, Any], groups: Mapping[str, Group]) -> int:
    named = re.search(r"(\d{1,7})(?:\.json)?(?:\.gz)?$", path.name)
    if named is not None:
        return int(named[1])
    if type(content.get("rank")) is int:
        return int(content["rank"])
    members = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*members) if members else set()
    if len(common) == 1:
        return common.pop()
    raise InputError(
        f"cannot tell which rank {path} is of", hint="its name should end in the rank's number"
    )


def _text(value: object) -> str:
    return value[:500] if isinstance(value, str) else ""


def _int(value: object, default: int = -1) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return default


def _groups(config: object) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    if isinstance(config, dict):
        for key, value in config.items():
            if not isinstance(value, dict):
                continue
            ranks = value.get("ranks")
            listed = (
                [int(n) for n in re.findall(r"\d{1,7}", ranks)]
                if isinstance(ranks, str)
                else [n for n in ranks if type(n) is int]
                if isinstance(ranks, (list, tuple))
                else []
            )
            name = _text(value.get("name")) or str(key)[:500]
            groups[name] = Group(name, _text(value.get("desc")), tuple(listed))
    return groups


def _named(groups: dict[str, Group], entries: tuple[Entry, ...]) -> dict[str, Group]:
    """Gives the one group that a dump leaves without a name (gloo's default group) the name that
    its calls carry."""
    unnamed = groups.get("")
    foreign = {(entry.group, entry.description) for entry in entries} - {
        (entry.group, entry.description) for entry in entries if entry.group in groups
    }
    if unnamed is None or len({name for name, _ in foreign}) != 1:
        return groups
    name, description = next(iter(foreign))
    named = {key: group for key, group in groups.items() if key}
    named[name] = Group(name, unnamed.description or description, unnamed.ranks)
    return named


def _status(status: object) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    if isinstance(status, dict):
        for key, value in status.items():
            if isinstance(value, dict):
                found[_int(key)] = (
                    _int(value.get("last_enqueued_collective")),
                    _int(value.get("last_completed_collective")),
                )
    return found


def _entry(item: dict[Any, Any]) -> Entry:
    group = item.get("process_group")
    name, description = (
        (_text(group[0]), _text(group[1]))
        if isinstance(group, (list, tuple)) and len(group) == 2
        else (str(item.get("pg_name", item.get("pg_id", "")))[:500], "")
    )
    sizes = item.get("input_sizes")
    dtypes = item.get("input_dtypes")
    frames = item.get("frames")
    created = _int(item.get("time_created_ns"))
    return Entry(
        group=name,
        description=description,
        group_id=_int(item.get("pg_id")),
        sequence=_int(item.get("collective_seq_id", item.get("seq_id"))),
        p2p_sequence=_int(item.get("p2p_seq_id")),
        is_p2p=bool(item.get("is_p2p")),
        operation=_text(item.get("profiling_name")),
        sizes=tuple(
            tuple(n for n in size if type(n) is int)
            for size in (sizes if isinstance(sizes, (list, tuple)) else ())
            if isinstance(size, (list, tuple))
        )[:64],
        dtypes=tuple(_text(d) for d in (dtypes if isinstance(dtypes, (list, tuple)) else ()))[:64],
        state=_text(item.get("state")),
        retired=bool(item.get("retired")),
        created_ns=created if created > 0 else None,
        frames=tuple(
            Frame(_text(f.get("name")), _text(f.get("filename")), _int(f.get("line"), 0))
            for f in (frames if isinstance(frames, (list, tuple)) else ())[:MAX_FRAMES]
            if isinstance(f, dict)
        ),
        timeout_ms=_int(item.get("timeout_ms")) if "timeout_ms" in item else None,
    )
