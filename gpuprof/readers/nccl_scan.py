"""Finds the few lines of a log that matter, on raw bytes, chunk by chunk.

A job of hundreds of ranks writes gigabytes, most of it one line a channel or a call. A chunk is
split at NCCL's own mark, so that each piece starts with a message and ends with the prefix of the
next one; pieces of the two bulky kinds are passed over at once, others are looked up by their head,
and what stands between two prefixed lines is searched for warnings and for texts that frameworks
repeat. Only what is found is cut into lines.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from gpuprof.readers.nccl_grammar import BARE_HINT, INFO_KINDS


class Chunk(NamedTuple):
    """Whole lines of one file. `first_line` is the number of the first one."""

    data: bytes
    first_line: int


class Found(NamedTuple):
    """A line to look at. `kinds` are the INFO kinds its head can be; none for another line.

    `before` is what stands before the message (INFO) or nothing, `text` the message or the line.
    """

    line: int
    before: bytes
    text: bytes
    kinds: tuple[int, ...]
    after: bytes = b""


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
    return re.compile("|".join(parts).encode()), groups


HEADS, HEAD_KINDS = _heads()
KIND_PATTERNS: tuple[re.Pattern[str], ...] = tuple(re.compile(kind.pattern) for kind in INFO_KINDS)
MARK = b"NCCL INFO "
BULK: tuple[bytes, ...] = (
    b"Channel ",
    b"Ring ",
    b"AllReduce: op",
    b"AllGather: op",
    b"ReduceScatter: op",
    b"Broadcast: op",
    b"Reduce: op",
    b"Send: op",
    b"Recv: op",
    b"AlltoAll: op",
    b"threadThresholds",
    b"P2P Chunksize",
    b"channel.cc",
    b"Setting affinity",
)
"""Messages by the thousand that other searches cover, or that say nothing."""


def scan(chunk: Chunk) -> Iterator[Found]:
    """The lines of a chunk that may matter: first those with NCCL's INFO prefix, then the rest."""
    pieces = chunk.data.split(MARK)
    newlines = [piece.count(b"\n") for piece in pieces]
    starts = [0, *accumulate(newlines)]
    kept = [index for index, piece in enumerate(pieces) if not piece.startswith(BULK)]
    for index in kept:
        if index == 0:
            continue
        piece = pieces[index]
        match = HEADS.match(piece)
        if match is None:
            continue
        end = piece.find(b"\n")
        before = pieces[index - 1]
        yield Found(
            chunk.first_line + starts[index],
            before[before.rfind(b"\n") + 1 :],
            piece if end < 0 else piece[:end],
            HEAD_KINDS[match.lastgroup or ""],
        )
    yield from _between(chunk, pieces, newlines, starts)


def _between(
    chunk: Chunk, pieces: list[bytes], newlines: list[int], starts: list[int]
) -> Iterator[Found]:
    """Lines without the INFO prefix: all but the first and the last part of a piece."""
    last = len(pieces) - 1
    inner = [index for index, count in enumerate(newlines) if count > 1 and 0 < index < last]
    rest = [
        piece[piece.find(b"\n") + 1 : piece.rfind(b"\n")]
        for piece in map(pieces.__getitem__, inner)
    ]
    firsts = [chunk.first_line + starts[index] + 1 for index in inner]
    head = pieces[0] if last == 0 else pieces[0][: max(0, pieces[0].rfind(b"\n"))]
    tail = pieces[last].partition(b"\n")[2] if last else b""
    text = b"\n".join((head, *rest, tail))
    if BARE_HINT.search(text) is None:
        return
    lengths = [part.count(b"\n") + 1 for part in (head, *rest)]
    heads = [0, *accumulate(lengths)]
    firsts = [chunk.first_line, *firsts, chunk.first_line + starts[last] + (1 if last else 0)]
    number = at = 0
    seen = -1
    for match in BARE_HINT.finditer(text):
        number += text.count(b"\n", at, match.start())
        at = match.start()
        if number == seen:
            continue
        seen = number
        start = text.rfind(b"\n", 0, at) + 1
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        following = text.find(b"\n", end + 1)
        after = text[end + 1 : following if following >= 0 else len(text)]
        part = bisect_right(heads, number) - 1
        yield Found(firsts[part] + number - heads[part], b"", text[start:end], (), after)
