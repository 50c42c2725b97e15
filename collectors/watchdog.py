"""Notices driver calls that do not come back. Threads say which call they are in; one looks on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.collectors.tier_output import TierOutput

HUNG_AFTER_S = 2.0
"""A driver call that takes longer is reported: the slowest ordinary one takes 20 ms."""
GIVE_UP_S = 30.0
"""A call on a GPU that takes this long will not come back: the driver's own timeouts are shorter.
Starting the driver is no such call: without persistence mode it can take as long."""


@dataclass(frozen=True, slots=True)
class Hung:
    """A call without an answer. `gpu` is None for one that concerns no single GPU."""

    gpu: int | None
    label: str
    since_s: float
    waited_s: float
    output: TierOutput | None

    @property
    def lost(self) -> bool:
        """Whether there is no use in waiting on."""
        return self.gpu is not None and self.waited_s >= GIVE_UP_S


class Watchdog:
    """Who is in which call since when. `clock` is for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, tuple[str, float, int | None, TierOutput | None]] = {}
        self._told: set[tuple[str, float]] = set()

    def watch(
        self, name: str, gpu: int | None = None, output: TierOutput | None = None
    ) -> Callable[[str], None]:
        """A callback for one thread: the label of a call before it is made, "" after it."""
        key = name if gpu is None else f"{gpu}:{name}"

        def on_call(label: str) -> None:
            if label:
                self._calls[key] = (label, self._clock(), gpu, output)
            else:
                self._calls.pop(key, None)

        return on_call

    def hung(self) -> list[tuple[Hung, bool]]:
        """Calls that have not come back, and whether each is told of for the first time."""
        now_s, found = self._clock(), []
        for key, (label, since_s, gpu, output) in list(self._calls.items()):
            if now_s - since_s < HUNG_AFTER_S:
                continue
            fresh = (key, since_s) not in self._told
            self._told.add((key, since_s))
            found.append((Hung(gpu, label, since_s, now_s - since_s, output), fresh))
        return found
