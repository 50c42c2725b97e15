"""Reads the table of nccl-tests (and rccl-tests), also where NCCL's own lines tear its rows apart.

A row holds size, count, type, operation and root, then time, algorithm and bus bandwidth and the
number of wrong values, out of place and in place. With NCCL_DEBUG=INFO the program prints the three
parts of a row at different moments, each in front of whatever NCCL writes next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprof.commlog import Bandwidth

HEADER = b"redop"
"""A word of the table's header that no other output of a training job holds."""

_PREFIX = rb"^(?:\[\d+,\d+\]<stdout>: ?|\s*\d+: )?[ \t]{2,}"
_TIMES = rb"([\d.]+)[ \t]+([\d.]+)[ \t]+([\d.]+)[ \t]+(\d+|N/A)"
_PART = re.compile(
    _PREFIX + rb"(?:(\d+)[ \t]+(\d+)[ \t]+([a-z]\w+)[ \t]+(\w+)[ \t]+(-?\d+)"
    rb"(?:[ \t]+" + _TIMES + rb"(?:[ \t]+" + _TIMES + rb")?)?|" + _TIMES + rb")",
    re.MULTILINE,
)


def bandwidths(data: bytes, first_line: int) -> Iterator[Bandwidth]:
    """Rows of the table in a chunk; sizes in bytes, times in µs, bandwidths in GB/s (10^9)."""
    size: int | None = None
    kind = ""
    done = 0
    line, at = first_line, 0
    for match in _PART.finditer(data):
        line += data.count(b"\n", at, match.start())
        at = match.start()
        groups = match.groups()
        if groups[0] is not None:
            size, kind, done = int(groups[0]), groups[2].decode("ascii", "replace"), 0
        for part in (groups[5:9], groups[9:13], groups[13:17]):
            if part[0] is None or size is None or done > 1:
                continue
            row = _row(part, size, kind, in_place=done == 1, line=line)
            done += 1
            if row is not None:
                yield row


def _row(
    part: tuple[bytes, ...], size: int, kind: str, *, in_place: bool, line: int
) -> Bandwidth | None:
    try:
        time_us, algorithm, bus = (float(text) for text in part[:3])
    except ValueError:
        return None
    return Bandwidth(line, size, kind, time_us, algorithm, bus, in_place)
