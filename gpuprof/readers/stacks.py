"""Reads stacks of ranks: gpuprof's own files, and what `py-spy dump` prints.

Both come from other machines and may be cut off; lines that make no sense are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.errors import InputError
from gpuprof.readers.files import ByteSource
from gpuprof.readers.text import text_head, text_lines
from gpuprof.stacks import FORMAT, MAIN, VERSION, Frame, Header, Pile, RankStacks, Watched

MAX_FRAMES = 256
MAX_OTHERS = 64
MAX_LINE_BYTES = 1 << 20
MAX_NAMES = 1 << 20
"""Distinct frames of one file; a whole training program has some ten thousand."""
BLOCK_BYTES = 1 << 20

_SPY_PROCESS = re.compile(r"^Process (\d+): ?(.*)$", re.MULTILINE)
_SPY_THREAD = re.compile(r"^Thread (?:0x[0-9A-Fa-f]+|\d+)(?: \(([\w+ ]+)\))?(?:: \"(.*)\")?")
_SPY_FRAME = re.compile(r"^ {4}(\S.*?) \((.+):(\d+)\)$")
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)


def is_stacks(path: Path) -> bool:
    """Whether a file holds stacks of a rank."""
    start = text_head(path)[:4096]
    if start.lstrip().startswith("{"):
        return f'"format":"{FORMAT}"' in start.split("\n", 1)[0].replace(": ", ":")
    return bool(_SPY_PROCESS.match(start)) and "\nPython v" in start


def read_stacks(path: Path) -> RankStacks:
    """The stacks in a file.

    Raises:
        InputError: it holds none, or is of a newer gpuprof.
    """
    lines = _lines(path)
    first = next(lines, b"")
    if not first.lstrip().startswith(b"{"):
        return _read_spy(path, text_lines(path))
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is no file of stacks", hint=str(error)) from error
    if header.format != FORMAT or header.version > VERSION:
        raise InputError(
            f"{path} is of version {header.version}, newer than this gpuprof reads ({VERSION})",
            hint="use the gpuprof that wrote it",
        )
    return _read_own(path, header, lines)


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file; of one that is too long, what comes first."""
    rest = b""
    with ByteSource(path, block_bytes=BLOCK_BYTES) as source:
        for block in source.blocks():
            *whole, rest = (rest + bytes(block)).split(b"\n")
            yield from whole
            rest = rest[:MAX_LINE_BYTES]
    if rest:
        yield rest


def _read_own(path: Path, header: Header, lines: Iterator[bytes]) -> RankStacks:
    frames: dict[int, Frame] = {}
    main: tuple[int, ...] | None = None
    since_ns = seen_ns = 0
    others: dict[str, tuple[int, ...]] = {}
    values: dict[str, str] = {}
    watched: Watched | None = None
    ended = ""
    for line in lines:
        word = _word(line)
        if "frame" in word:
            frame = _frame(word)
            if frame is not None and len(frames) < MAX_NAMES:
                frames[word["frame"]] = frame
        elif "stack" in word:
            at, thread = word.get("t"), word.get("thread")
            stack = _numbers(word["stack"])
            if type(at) is not int or not isinstance(thread, str) or stack is None:
                continue
            if thread == MAIN:
                if stack != main:
                    main, since_ns = stack, at
                seen_ns = at
                values = _values(word.get("values"))
            elif thread in others or len(others) < MAX_OTHERS:
                others[thread] = stack
        elif "watched" in word:
            watched = _watched(word["watched"])
        elif isinstance(word.get("ended"), str):
            ended = word["ended"][:500]

    def pile(numbers: tuple[int, ...] | None) -> Pile:
        return tuple(frames[n] for n in numbers or () if n in frames)

    return RankStacks(
        header=header,
        stack=pile(main),
        since_ns=since_ns,
        seen_ns=seen_ns,
        values=values,
        others=tuple((name, pile(stack)) for name, stack in others.items()),
        watched=watched,
        ended=ended,
        path=str(path),
    )


def _word(line: bytes) -> dict[str, Any]:
    try:
        word = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return word if isinstance(word, dict) else {}


def _frame(word: dict[str, Any]) -> Frame | None:
    at = word.get("at")
    if type(word["frame"]) is not int or not isinstance(at, list) or len(at) != 3:
        return None
    file, function, line = at
    if not isinstance(file, str) or not isinstance(function, str) or type(line) is not int:
        return None
    code = word.get("code")
    return Frame(file[:1000], function[:500], line, code[:500] if isinstance(code, str) else "")


def _numbers(stack: object) -> tuple[int, ...] | None:
    if not isinstance(stack, list) or any(type(n) is not int for n in stack):
        return None
    return tuple(stack[:MAX_FRAMES])


def _values(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {str(k)[:100]: v[:100] for k, v in list(found.items())[:20] if isinstance(v, str)}


def _watched(found: object) -> Watched | None:
    try:
        return msgspec.convert(found, type=Watched)
    except msgspec.ValidationError:
        return None


def _read_spy(path: Path, lines: Iterator[str]) -> RankStacks:
    """What `py-spy dump` prints for people. It says neither the rank nor for how long:
    the file's name may, else minus the process's number stands for the rank."""
    pid = 0
    threads: list[tuple[str, list[Frame]]] = []
    for line in lines:
        if match := _SPY_PROCESS.match(line):
            pid = int(match[1])
        elif match := _SPY_THREAD.match(line):
            threads.append((match[2] or "", []))
        elif threads and (match := _SPY_FRAME.match(line)) and len(threads[-1][1]) < MAX_FRAMES:
            threads[-1][1].append(Frame(match[2][:1000], match[1][:500], int(match[3])))
    if not pid or not threads:
        raise InputError(f"{path} is no dump of py-spy", hint="py-spy dump --pid PID prints one")
    named = _RANK_IN_NAME.search(path.name)
    rank = int(named[1]) if named else -pid
    main = next((stack for name, stack in threads if name == MAIN), threads[0][1])
    others = [(name, tuple(stack)) for name, stack in threads if stack is not main]
    return RankStacks(
        header=Header(rank=rank, pid=pid),
        stack=tuple(main),
        others=tuple(others[:MAX_OTHERS]),
        path=str(path),
    )
