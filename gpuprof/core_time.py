"""What a thread got of a core: time on it, and time that it stood ready while others had it.

On a machine that is busy with other work a step is long without any fault of its own. Linux counts
both for every thread; elsewhere nothing is known.
"""

from __future__ import annotations

import os

COUNTERS = "/proc/thread-self/schedstat"


class CoreTime:
    """Adds up the core time of the calling thread over stretches of it, ns.

    known: whether the kernel counts it. Reading costs about 10 µs, so that it is for stretches of
    milliseconds.
    """

    def __init__(self, counters: str = COUNTERS) -> None:
        self.on_core_ns = self.ready_ns = 0
        self._counters = counters
        self._since: tuple[int, int] | None = None

    @property
    def known(self) -> bool:
        return self.on_core_ns > 0

    def begin(self) -> None:
        """A stretch begins."""
        self._since = self._read()

    def end(self) -> None:
        """The stretch ends; without a beginning nothing is added."""
        before, self._since = self._since, None
        now = self._read() if before is not None else None
        if before is not None and now is not None:
            self.on_core_ns += now[0] - before[0]
            self.ready_ns += now[1] - before[1]

    def _read(self) -> tuple[int, int] | None:
        try:
            file = os.open(self._counters, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            on_core, ready = os.read(file, 128).split()[:2]
            return int(on_core), int(ready)
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)
