"""Columns of unsigned integers as a few bytes each, decoded by the page's own script.

A column is written in planes: the low seven bits of every value, then the next seven bits of those
that have more, and so on; the eighth bit says "more follows". That is LEB128 turned on its side:
the same size, but each plane is one vectorized pass here and bytes of the same weight lie together,
which deflates better. A plane's length follows from the one before, so no lengths are stored.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

MAX_VALUE = 2**53 - 1
"""The largest integer that a double holds exactly, and so the largest a page can read back."""

DEFLATE_LEVEL = 3
"""isal's level: files 7 to 8 % larger than zlib's level 6 makes, at an eighth of its CPU time."""


def encode_column(values: NDArray[np.integer]) -> Iterator[bytes]:
    """The planes of a column.

    Args:
        values: integers, shape (n,); below 0 counts as 0, above `MAX_VALUE` as `MAX_VALUE`.
    """
    if values.dtype in (np.uint16, np.uint32):
        rest: NDArray[np.integer] = values
    else:
        least, most = int(values.min(initial=0)), int(values.max(initial=0))
        if least < 0 or most > MAX_VALUE:
            values = np.clip(values, 0, MAX_VALUE)
        rest = values.astype(np.uint32 if most < 2**32 else np.uint64)
    seven = rest.dtype.type(7)
    while len(rest):
        more = rest > 127
        low = (rest & rest.dtype.type(127)).astype(np.uint8)
        low |= more.view(np.uint8) << np.uint8(7)
        yield low.tobytes()
        rest = rest[more] >> seven


def zigzag(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Signed integers as unsigned ones of about twice their size: 0, -1, 1, -2, … → 0, 1, 2, 3."""
    folded: NDArray[np.int64] = (values << 1) ^ (values >> 63)
    return folded


def decode_column(data: bytes, offset: int, count: int) -> tuple[NDArray[np.uint64], int]:
    """Reads a column of `count` values at `offset`; returns it and the offset behind it.

    Raises:
        ValueError: the data ends inside the column, or a value has more than nine planes.
    """
    values = np.zeros(count, dtype=np.uint64)
    where = np.arange(count)
    for shift in range(0, 63, 7):
        if not len(where):
            return values, offset
        plane = np.frombuffer(data, dtype=np.uint8, count=len(where), offset=offset)
        offset += len(where)
        values[where] |= (plane & 127).astype(np.uint64) << np.uint64(shift)
        where = where[plane > 127]
    if len(where):
        raise ValueError("a packed value has more than nine planes")
    return values, offset


def deflate(parts: Iterable[bytes]) -> bytes:
    """The parts as one zlib stream (what `DecompressionStream("deflate")` reads)."""
    from isal import isal_zlib

    squeeze = isal_zlib.compressobj(DEFLATE_LEVEL)
    out = [squeeze.compress(part) for part in parts]
    out.append(squeeze.flush())
    return b"".join(out)


def base64(data: bytes) -> str:
    """Base64 on one line."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")
