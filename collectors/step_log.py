"""The length of every step, appended to the run directory as the job runs.

    {"format": "gpuprof-steps", "version": 1, "rank": 0}
    {"n": 0, "t": 1764438690123456789, "us": [8312, 8290, …]}

A line holds successive steps: the number of the first, when it began (ns since the Unix epoch) and
how long each took. Windows that were traced are in it too; the rank's record says where they are.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from gpuprof.collectors.segments import SegmentWriter

FORMAT = "gpuprof-steps"
VERSION = 1
FLUSH_NS = 250_000_000
"""A step is on disk at most this long after it ended, or with the step after it."""
MOST_PENDING = 512
SEGMENT_BYTES = 1 << 20
MAX_BYTES = 8 << 20
"""About ten million steps, compressed."""


class StepLog:
    """Writes one rank's steps. Never raises: what the disk refuses is counted in `lost`."""

    def __init__(self, folder: Path, rank: int) -> None:
        head = msgspec.json.encode({"format": FORMAT, "version": VERSION, "rank": rank}) + b"\n"
        self._writer = SegmentWriter(
            folder,
            f"steps-rank{rank:05d}",
            lambda _: [head],
            segment_bytes=SEGMENT_BYTES,
            max_bytes=MAX_BYTES,
        )
        self._pending: list[int] = []
        self._first = 0
        self._began_unix_ns = time.time_ns()
        self._flushed_ns = time.perf_counter_ns()

    @property
    def failed(self) -> str:
        """What is wrong with the disk, "" while it takes what is written."""
        return self._writer.failed

    def add(self, length_ns: int, now_ns: int) -> None:
        """Adds the step that ended at `now_ns` (of `time.perf_counter_ns`)."""
        if not self._pending:
            self._began_unix_ns = time.time_ns() - length_ns
        self._pending.append(length_ns // 1000)
        if now_ns - self._flushed_ns > FLUSH_NS or len(self._pending) >= MOST_PENDING:
            self.flush(now_ns)

    def flush(self, now_ns: int) -> None:
        """Hands what is pending to the kernel."""
        if self._pending:
            line = {"n": self._first, "t": self._began_unix_ns, "us": self._pending}
            self._writer.write(msgspec.json.encode(line) + b"\n")
            self._first += len(self._pending)
            self._pending = []
        self._flushed_ns = now_ns

    def close(self) -> None:
        self.flush(time.perf_counter_ns())
        self._writer.close()
