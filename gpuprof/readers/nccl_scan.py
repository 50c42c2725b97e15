"""Finds the few NCCL lines of a log that matter, on raw bytes, chunk by chunk.

A job of hundreds of ranks writes gigabytes, most of it one line a channel or a call. Patterns with
a literal start run at about 1 GB/s, so each chunk is searched as a whole: for the heads of the
kinds in `nccl_grammar`, for the distinct transport texts, for the last call of each communicator,
and, in the lines without NCCL's prefix, for texts that frameworks repeat. Only what is found is
cut into lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpuprof.readers.files import GZIP_MAGIC, ByteSource, open_file
from gpuprof.readers.nccl_grammar import BARE_HINT, INFO_KINDS

CHUNK_BYTES = 8 << 20
"""Large enough that the cost per chunk vanishes, small enough that its lines fit in 50 MB."""

BLOCK_BYTES = 1 << 16
"""Lines without NCCL's prefix are looked for in blocks of this size: one of INFO lines only, known
by two counts, is passed over."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is no log line (NCCL cuts its own at 1 KiB); it is cut so that memory is bounded."""


class Chunk(NamedTuple):
    """Whole lines of one file. `first_line` is the number of the first one."""

    data: bytes
    first_line: int


class Found(NamedTuple):
    """A line with NCCL's prefix: where the word NCCL starts, and the kinds its head can be."""

    start: int
    level: str
    message: int
    kinds: tuple[int, ...]


def _blocks(path: Path) -> Iterator[bytes]:
    with open_file(path) as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            stream.seek(0)
            while block := stream.read(CHUNK_BYTES):
                yield block
            return
    with ByteSource(path, block_bytes=CHUNK_BYTES) as source:
        yield from source.blocks()


def chunks(path: Path) -> Iterator[Chunk]:
    """Chunks of whole lines, carriage returns of Windows and of progress bars left in.

    Raises:
        InputError: the file cannot be read.
    """
    line = 1
    rest: list[bytes] = []
    held = 0
    for block in _blocks(path):
        end = block.rfind(b"\n") + 1
        if end == 0 and held < MAX_LINE_BYTES or held + len(block) < CHUNK_BYTES // 2:
            rest.append(block)
            held += len(block)
            continue
        end = end or len(block)
        data = b"".join((*rest, block[:end]))
        yield Chunk(data, line)
        line += data.count(b"\n")
        rest = [block[end:]]
        held = len(rest[0])
    if held:
        yield Chunk(b"".join(rest), line)


def _heads() -> tuple[re.Pattern[bytes], dict[str, tuple[int, ...]]]:
    """One pattern over the heads of all kinds, and the kinds of each of its groups."""
    owners: dict[str, list[int]] = {}
    for index, kind in enumerate(INFO_KINDS):
        for head in kind.heads:
            owners.setdefault(head, []).append(index)
    # A shorter head that starts a longer one must come later, and must own its kinds too.
    ordered = sorted(owners, key=lambda head: -len(head))
    groups: dict[str, tuple[int, ...]] = {}
    parts: list[str] = []
    for number, head in enumerate(ordered):
        kinds = sorted({k for other in ordered if head.startswith(other) for k in owners[other]})
        groups[f"h{number}"] = tuple(kinds)
        parts.append(f"(?P<h{number}>{head})")
    pattern = (
        r"NCCL (?:INFO (?!(?:Channel|Ring) \d+(?:/\d+)? : \d+[\[ ][\w-]|\w+: opCount )"
        r"(?=" + "|".join(parts) + r")|(?P<warn>WARN ))"
    )
    return re.compile(pattern.encode()), groups


WANTED, HEAD_KINDS = _heads()
KIND_PATTERNS: tuple[re.Pattern[str], ...] = tuple(re.compile(kind.pattern) for kind in INFO_KINDS)
INFO_OFFSET = len("NCCL INFO ")
WARN_OFFSET = len("NCCL WARN ")


def prefixed(data: bytes) -> Iterator[Found]:
    """Lines with NCCL's prefix whose kind matters, in order."""
    for match in WANTED.finditer(data):
        start = match.start()
        group = match.lastgroup or "warn"
        if group == "warn":
            yield Found(start, "WARN", start + WARN_OFFSET, ())
        else:
            yield Found(start, "INFO", start + INFO_OFFSET, HEAD_KINDS[group])


def bare(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Lines without NCCL's prefix that may matter: (its index in `data`, the line, the next one)."""
    index = 0
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + BLOCK_BYTES) + 1 or len(data)
        newlines = data.count(b"\n", start, end)
        if newlines != data.count(b"NCCL INFO ", start, end):
            yield from _bare_block(data[start:end], index)
        index += newlines
        start = end


def _bare_block(data: bytes, first: int) -> Iterator[tuple[int, bytes, bytes]]:
    lines = data.split(b"\n")
    rest = [index for index, line in enumerate(lines) if b"NCCL INFO " not in line]
    joined = b"\n".join([lines[index] for index in rest])
    position = 0
    at = 0
    last = -1
    for match in BARE_HINT.finditer(joined):
        position += joined.count(b"\n", at, match.start())
        at = match.start()
        if position == last:
            continue
        last = position
        line = lines[rest[position]]
        if b"NCCL WARN " not in line:
            after = lines[rest[position + 1]] if position + 1 < len(rest) else b""
            yield first + rest[position], line, after
