"""Reads the step log of a run directory: the length of every step of a rank.

It is appended to while the job runs, so its end may be cut off anywhere; a line that can't be read
is left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.files import GZIP_MAGIC

I64 = NDArray[np.int64]

MAX_SEGMENT_BYTES = 64 << 20
"""The recorder's own segments hold a megabyte; what is far larger is not one of them."""

MAX_STEP_US = 1 << 53
"""Longer than any step: a number that is none."""


class _Line(msgspec.Struct):
    n: int
    us: list[int]


def read_step_log(paths: Sequence[Path]) -> I64:
    """Lengths of all steps in µs, in order, (n,); empty where nothing can be read.

    Args:
        paths: The segments of one rank, oldest first.
    """
    found: dict[int, list[int]] = {}
    decoder = msgspec.json.Decoder(_Line)
    for path in paths:
        for line in _plain(path).split(b"\n"):
            try:
                read = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue  # the head of a segment, or a line that was cut off
            if all(0 <= us < MAX_STEP_US for us in read.us):
                found[read.n] = read.us
    lengths = [us for _, part in sorted(found.items()) for us in part]
    return np.array(lengths, np.int64)


def _plain(path: Path) -> bytes:
    """What a segment holds, up to where it is damaged; b"" where it can't be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            if not packed:
                return file.read(MAX_SEGMENT_BYTES)
            return _unpacked(file.read(MAX_SEGMENT_BYTES))
    except OSError:
        return b""


def _unpacked(data: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        return stream.decompress(data, MAX_SEGMENT_BYTES)
    except zlib.error:
        return b""
