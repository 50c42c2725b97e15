"""Symbols and unused bytes of the files that a process has mapped.

Read from the process's own view of its files (`/proc/PID/root`, or `map_files` where a file was
replaced since), because a container's libpython is not the host's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
MAX_SYMBOLS_BYTES = 64 << 20
"""The symbol table of a static CPython is under one MiB; what is larger is no CPython."""
_PT_LOAD, _PF_X, _SHT_DYNSYM = 1, 1, 11


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of `/proc/PID/maps`."""

    start: int
    end: int
    flags: str
    offset: int
    path: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A loadable part of an ELF file: where it is meant to be, and how long it is, in bytes."""

    address: int
    size_bytes: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Elf:
    """What is needed of an ELF file. symbols: name -> (address, size), of those asked for."""

    base: int
    segments: tuple[Segment, ...]
    symbols: dict[str, tuple[int, int]]


def mappings(pid: int) -> list[Mapping]:
    """The memory map of a process.

    Raises:
        OSError: the process is gone, or may not be looked at.
    """
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        parts = line.split(None, 5)
        start, end = (int(part, 16) for part in parts[0].split("-"))
        path = parts[5] if len(parts) > 5 else ""
        found.append(Mapping(start, end, parts[1], int(parts[2], 16), path))
    return found


def file_of(pid: int, mapping: Mapping) -> Path:
    """The mapped file itself, however the process came to see it."""
    through_root = Path(f"/proc/{pid}/root{mapping.path}")
    if through_root.exists() and not mapping.path.endswith(" (deleted)"):
        return through_root
    return Path(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")


def read_elf(path: Path, wanted: frozenset[str] = frozenset()) -> Elf | None:
    """Segments and exported symbols of a 64-bit little-endian ELF file; None for anything else.

    Raises:
        OSError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return None
            return _parse(file.fileno(), head, wanted)
    except (struct.error, ValueError, IndexError):
        return None


def _parse(file: int, head: bytes, wanted: frozenset[str]) -> Elf | None:
    programs, sections = struct.unpack_from("<QQ", head, 32)
    program_size, programs_count, section_size, sections_count = struct.unpack_from("<4H", head, 54)
    table = os.pread(file, program_size * programs_count, programs)
    segments = []
    for index in range(programs_count):
        kind, flags, _, address, _, file_bytes, size_bytes, _ = struct.unpack_from(
            "<IIQQQQQQ", table, index * program_size
        )
        if kind == _PT_LOAD:
            is_code = bool(flags & _PF_X)
            segments.append(Segment(address, max(file_bytes, size_bytes), is_code))
    if not segments:
        return None
    base = min(segment.address for segment in segments) & ~(PAGE_BYTES - 1)
    symbols: dict[str, tuple[int, int]] = {}
    if wanted:
        table = os.pread(file, section_size * sections_count, sections)
        for index in range(sections_count):
            header = struct.unpack_from("<IIQQQQIIQQ", table, index * section_size)
            if header[1] == _SHT_DYNSYM:
                names = struct.unpack_from("<IIQQQQIIQQ", table, header[6] * section_size)
                symbols.update(_symbols(file, header, names, wanted))
    return Elf(base, tuple(segments), symbols)


def _symbols(
    file: int, header: tuple[int, ...], names: tuple[int, ...], wanted: frozenset[str]
) -> Iterator[tuple[str, tuple[int, int]]]:
    if header[5] > MAX_SYMBOLS_BYTES or names[5] > MAX_SYMBOLS_BYTES:
        return
    table, text = os.pread(file, header[5], header[4]), os.pread(file, names[5], names[4])
    sought = {name.encode() for name in wanted}
    for name, _, _, section, value, size in struct.iter_unpack(
        "<IBBHQQ", table[: len(table) // 24 * 24]
    ):
        if section and value:
            spelled = text[name : text.index(b"\0", name)]
            if spelled in sought:
                yield spelled.decode(), (value, size)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Where CPython lies in a process. functions: name -> (address, size) in its memory."""

    path: str
    functions: dict[str, tuple[int, int]]
    free_threaded: bool


NEEDED = frozenset({"Py_AddPendingCall", "PyRun_SimpleString"})
HELPFUL = frozenset({"Py_MakePendingCalls", "Py_Version"})


def find_interpreter(pid: int, maps: list[Mapping]) -> Interpreter | None:
    """CPython in a process, in a shared library or in the executable; None where there is none.

    Raises:
        OSError: the process is gone, or may not be looked at.
    """
    executable = os.fspath(Path(f"/proc/{pid}/exe").readlink())
    first: dict[str, Mapping] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.offset == 0:
            first.setdefault(mapping.path, mapping)
    names = [name for name in first if "libpython" in Path(name).name]
    names += [name for name in first if name == executable]
    for name in names:
        elf = read_elf(file_of(pid, first[name]), NEEDED | HELPFUL)
        if elf is not None and elf.symbols.keys() >= NEEDED:
            bias = first[name].start - elf.base
            functions = {key: (at + bias, size) for key, (at, size) in elf.symbols.items()}
            plain = Path(name.removesuffix(" (deleted)")).name
            return Interpreter(name, functions, plain.split(".so")[0].endswith("t"))
    return None


def unused_code(pid: int, maps: list[Mapping], size: int) -> Iterator[int]:
    """Addresses of `size` bytes that are executable and belong to nobody.

    A segment of code is mapped in whole pages, and what is left of its last page is padding that
    nothing refers to. Whether it is still zero is for the caller to see.
    """
    first: dict[str, Mapping] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.offset == 0:
            first.setdefault(mapping.path, mapping)
    for name, mapping in sorted(first.items(), key=lambda item: "libpython" not in item[0]):
        if not any(m.path == name and "x" in m.flags for m in maps):
            continue
        try:
            elf = read_elf(file_of(pid, mapping))
        except OSError:
            continue
        for segment in elf.segments if elf is not None else ():
            end = segment.address + segment.size_bytes + mapping.start - (elf.base if elf else 0)
            start = (end + 63) & ~63
            page_end = (end + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1)
            inside = any(
                m.path == name and "x" in m.flags and m.start <= start and page_end <= m.end
                for m in maps
            )
            if segment.executable and inside and start + size <= page_end:
                yield start
