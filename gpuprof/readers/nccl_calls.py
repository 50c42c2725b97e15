"""The last API calls of every communicator (subsystem COLL), from chunks that hold thousands.

A call is one line a rank: in a busy log they are most of the bytes. What they tell (who is behind,
who calls something else) is in the last ones, so a busy chunk is read from its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuprof.commlog import CallTail
from gpuprof.readers.nccl_grammar import COLLECTIVE

RECENT_CALLS = 32
"""Calls per communicator handle that are kept to compare ranks."""

HEAVY_CALLS = 4_000
TAIL_BYTES = 1 << 19
"""In a chunk with more calls than this, only those in its last 512 KiB are read one by one; of a
communicator of the chunk before that is not among them, the last call is looked for."""

MAX_SILENT = 64
"""Up to so many are looked for backwards one by one, more in one pass over the chunk."""

LAST_CALLS = re.compile(
    rb"opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ count \d+ datatype \d+ op \d+ root \d+ "
    rb"comm (\S+)"
)


class CallKeeper:
    """Collects the tails. `process_of` names the process that wrote what stands before a line."""

    def __init__(self, process_of: Callable[[bytes], int | None]) -> None:
        self.tails: dict[bytes, CallTail] = {}
        self.count = 0
        self._active: set[bytes] = set()
        self._process_of = process_of

    def read(self, data: bytes, end_line: int) -> None:
        """Takes the calls of a chunk; `end_line` is the number of the line after it."""
        count = data.count(b"opCount ")
        self.count += count
        start = max(0, len(data) - TAIL_BYTES) if count > HEAVY_CALLS else 0
        places: dict[bytes, int] = {}
        for match in COLLECTIVE.finditer(data, start):
            places[match.group(6)] = match.start()
            self._call(match, data)
        found: set[bytes] = set()
        if start:
            found = self._silent(data, start, self._active - places.keys(), places)
        self._active = found | places.keys()
        line, at = end_line, len(data)
        for handle, place in sorted(places.items(), key=lambda item: -item[1]):
            line -= data.count(b"\n", place, at)
            at = place
            self._tail(handle, data).line = line

    def _silent(
        self, data: bytes, start: int, silent: set[bytes], places: dict[bytes, int]
    ) -> set[bytes]:
        """Finds the last call of communicators that the end of a busy chunk does not name."""
        if len(silent) > MAX_SILENT:
            last = {handle: text for text, handle in LAST_CALLS.findall(data, 0, start)}
            for handle, text in last.items():
                tail = self._tail(handle, data)
                tail.last = max(tail.last, int(text, 16))
            return set(last)
        for handle in silent:
            end = data.rfind(b" comm " + handle + b" ", 0, start)
            if end < 0:
                continue
            match = COLLECTIVE.search(data, data.rfind(b"\n", 0, end) + 1)
            if match is not None and match.group(6) == handle:
                places[handle] = match.start()
                self._call(match, data)
        return set()

    def _call(self, match: re.Match[bytes], data: bytes) -> None:
        text, size, datatype, op, root, handle = match.groups()
        tail = self._tail(handle, data)
        number = int(text, 16)
        tail.last = max(tail.last, number)
        tail.calls += 1
        at = match.start() - 2  # the name of the function stands before ": opCount"
        function = data[data.rfind(b" ", 0, at) + 1 : at].decode("utf-8", "replace")
        tail.recent[number] = (function, int(size), int(datatype), int(op), int(root))
        if len(tail.recent) > RECENT_CALLS:
            del tail.recent[next(iter(tail.recent))]

    def _tail(self, handle: bytes, data: bytes) -> CallTail:
        tail = self.tails.get(handle)
        if tail is None:
            at = data.find(b"comm " + handle)
            start = data.rfind(b"\n", 0, at) + 1
            mark = data.find(b"NCCL INFO ", start, at)
            process = self._process_of(data[start:mark]) if mark >= 0 else None
            tail = self.tails[handle] = CallTail(process, handle.decode("utf-8", "replace"))
        return tail
