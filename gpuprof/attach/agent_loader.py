"""Part of the agent's text, and of a session: how busy a DataLoader's worker processes are.

A trace shows when batches were fetched, and nothing of how fast they could have come. At both ends
of a window the counters of the workers are read: their main threads make the batches, one after
the other. And at each fetch in between, how many batches have been asked for and aren't there yet.

Like all parts: standard library only, Python 3.8 and newer; see `agent`. Whatever fails yields no
number, and nothing of it reaches the loop.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Any

MOST_LOADER_WORKERS = 512
MOST_FETCHES = 10000


class LoaderWatch:
    """Follows the loader whose batches are fetched.

    work: of the last window that was whole, None where nothing is known of it: workers, span_ns
    between the readings, busy_ns (of all workers together: their main threads on a core, or ready
    for one while others had it), read_bytes (from storage, None where that may not be read), and
    missing: at each fetch, how many batches had been asked for and were not there yet.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self.proc = proc
        self.pid = os.getpid()
        self.work: dict[str, Any] | None = None
        self._iterator: Any = None
        self._counting = False
        self._missing: list[int] = []
        self._since: tuple[int, dict[int, int], int | None] | None = None

    def fetching(self, iterator: Any) -> None:
        """Told before each batch that a loader is asked for."""
        if os.getpid() != self.pid:
            return
        try:
            if self._iterator is None or self._iterator() is not iterator:
                self._iterator = weakref.ref(iterator)
            if self._counting:
                missing = batches_not_there(iterator)
                if missing is not None and len(self._missing) < MOST_FETCHES:
                    self._missing.append(missing)
        except Exception:
            self._counting = False

    def begin(self) -> None:
        """A window begins."""
        self.work = None
        self._missing = []
        self._since = self._read()
        self._counting = self._since is not None

    def end(self) -> None:
        """The window is whole."""
        before, self._since, self._counting = self._since, None, False
        now = self._read() if before is not None else None
        if before is None or now is None or before[1].keys() != now[1].keys():
            return  # workers came or went: what they did in between is not known
        both_read = before[2] is not None and now[2] is not None
        self.work = {
            "workers": len(now[1]),
            "span_ns": now[0] - before[0],
            "busy_ns": sum(now[1].values()) - sum(before[1].values()),
            "read_bytes": (now[2] or 0) - (before[2] or 0) if both_read else None,
            "missing": self._missing,
        }

    def _read(self) -> tuple[int, dict[int, int], int | None] | None:
        """The time, pid -> ns that its main thread has been at work, and bytes read by all."""
        try:
            iterator = self._iterator() if self._iterator is not None else None
            workers = getattr(iterator, "_workers", None)
            if not workers or len(workers) > MOST_LOADER_WORKERS:
                return None
            busy: dict[int, int] = {}
            read: int | None = 0
            for worker in workers:
                folder = "%s/%d" % (self.proc, worker.pid)
                with open(folder + "/schedstat") as file:
                    on_core, ready = file.read().split()[:2]
                busy[worker.pid] = int(on_core) + int(ready)
                more = bytes_read(folder + "/io")
                read = None if read is None or more is None else read + more
            return time.monotonic_ns(), busy, read
        except Exception:
            return None


def batches_not_there(iterator: Any) -> int | None:
    """Batches that worker processes have been asked for and have not delivered; None where this
    version of torch keeps its books otherwise. What came out of turn is counted as delivered."""
    outstanding = getattr(iterator, "_tasks_outstanding", None)
    if outstanding is None:
        return None
    return max(int(outstanding) - int(iterator._data_queue.qsize()), 0)


def bytes_read(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                if line.startswith("read_bytes:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
