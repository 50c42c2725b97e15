"""Reads the table of nccl-tests (and rccl-tests), also where NCCL's own lines tear its rows apart.

A row holds size, count, type, operation and root, then time, algorithm and bus bandwidth and the
number of wrong values, out of place and in place. Releases before 2022 have only those of the
columns operation and root that the test uses, and an error instead of a number. With
NCCL_DEBUG=INFO the program prints the three parts of a row at different moments, each in front of
whatever NCCL writes next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprof.commlog import Bandwidth

HEADER = b"algbw"
"""A word of the table's header that no other output of a training job holds."""

_PREFIX = rb"^(?:\[\d+,\d+\]<stdout>: ?|\s*\d+: )?[ \t]{2,}"
_TIMES = rb"([\d.]+)[ \t]+([\d.]+)[ \t]+([\d.]+)[ \t]+(\d[\d.]*(?:e[+-]?\d+)?|N/A)"
_TESTS = rb"^(?:\[\d+,\d+\]<stdout>: ?|\s*\d+: )?# Collective test starting: (\w+?)_perf\b"
_COLUMNS = rb"^(?:\[\d+,\d+\]<stdout>: ?|\s*\d+: )?#[ \t]+size[ \t]+count[ \t]+type\b(.*)"
_ROWS = {
    (True, True): rb"[ \t]+(\w+)[ \t]+(-?\d+)",
    (True, False): rb"(?:[ \t]+([a-z]+))?()",
    (False, True): rb"()[ \t]+(-?\d+)",
    (False, False): rb"()()",
}
"""Operation and root of a row, by whether the header has them. Old programs that reduce nothing
have the column, and leave it empty."""


def _pattern(reduces: bool, rooted: bool) -> re.Pattern[bytes]:
    """Tests, headers and rows of a table with these columns."""
    named = _ROWS[reduces, rooted]
    return re.compile(
        rb"(?:" + _TESTS + rb"|" + _COLUMNS + rb"|" + _PREFIX
        + rb"(?:(\d+)[ \t]+(\d+)[ \t]+([a-z]\w+)" + named
        + rb"(?:[ \t]+" + _TIMES + rb"(?:[ \t]+" + _TIMES + rb")?)?|" + _TIMES + rb"))",
        re.MULTILINE,
    )  # fmt: skip


_PATTERNS = {columns: _pattern(*columns) for columns in _ROWS}


class TableReader:
    """Rows of all tables of a log, chunk by chunk; a chunk ends with a whole line."""

    def __init__(self) -> None:
        self.columns = (True, True)
        self.test = ""

    def read(self, data: bytes, first_line: int) -> Iterator[Bandwidth]:
        """Rows of a chunk; sizes in bytes, times in µs, bandwidths in GB/s (10^9)."""
        row: tuple[int, int, str, str, int | None] | None = None
        done = 0
        line, at, position = first_line, 0, 0
        while True:
            match = _PATTERNS[self.columns].search(data, position)
            if match is None:
                return
            position = match.end()
            line += data.count(b"\n", at, match.start())
            at = match.start()
            groups = match.groups()
            if groups[0] is not None:
                self.test = groups[0].decode("ascii", "replace")
            elif groups[1] is not None:
                self.columns = (b"redop" in groups[1], b"root" in groups[1])
            else:
                if groups[2] is not None:
                    row, done = _named(groups[2:7]), 0
                for part in (groups[7:11], groups[11:15], groups[15:19]):
                    if part[0] is None or row is None or done > 1:
                        continue
                    one = self._row(part, row, in_place=done == 1, line=line)
                    done += 1
                    if one is not None:
                        yield one

    def _row(
        self,
        part: tuple[bytes, ...],
        row: tuple[int, int, str, str, int | None],
        *,
        in_place: bool,
        line: int,
    ) -> Bandwidth | None:
        try:
            time_us, algorithm, bus = (float(text) for text in part[:3])
        except ValueError:
            return None
        size, count, kind, reduction, root = row
        return Bandwidth(
            line, size, kind, time_us, algorithm, bus, in_place, count, reduction, root, self.test
        )


def _named(parts: tuple[bytes | None, ...]) -> tuple[int, int, str, str, int | None]:
    size, count, kind, reduction, root = (part or b"" for part in parts)
    return (
        int(size),
        int(count),
        kind.decode("ascii", "replace"),
        reduction.decode("ascii", "replace"),
        int(root) if root else None,
    )
