"""How long the steps of a recorded loop took, and what recording them cost."""

from __future__ import annotations

import statistics
from collections import deque

from gpuprof.attach.agent_loader import LoaderWatch
from gpuprof.core_time import CoreTime
from gpuprof.run import Overhead

RECENT_STEPS = 2000
"""Steps outside the windows whose length is kept: enough for a median, bounded in a long run."""


class StepTimes:
    """Lengths in ns, gpuprof's own work at the end of a step not included.

    outside_ns: recent steps without a profiler. window_ns: steps of the latest window. core: what
    the loop's thread got of a core in these. loader: what the worker processes of its loader did.
    """

    def __init__(self) -> None:
        self.outside_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self.window_ns: list[int] = []
        self.core = CoreTime()
        self.loader = LoaderWatch()
        self._timing_ns = self._timing_steps = 0
        self._windows_ns = self._calls_ns = self._calls = 0

    def new_window(self) -> None:
        self.window_ns = []
        self.core = CoreTime()
        self.loader.work = None

    @property
    def typical_ns(self) -> float:
        """Median outside the windows, 0 without any."""
        return statistics.median(self.outside_ns) if self.outside_ns else 0.0

    def begin_step(self, *, is_first: bool) -> None:
        """A step that is recorded begins; is_first: of its window."""
        if is_first:
            self.loader.begin()
        self.core.begin()

    def in_window(self, length_ns: int, *, counts: bool, is_last: bool) -> None:
        """Adds a recorded step; counts: whether the window's times are used; is_last: of its
        window."""
        if is_last:
            self.loader.end()
        self.window_ns.append(length_ns)
        self.core.end()
        if counts:
            self._timing_ns += length_ns
            self._timing_steps += 1

    def spent(self, own_ns: int, *, on_windows: bool) -> None:
        """Adds what gpuprof did at the end of a step."""
        if on_windows:
            self._windows_ns += own_ns
        else:
            self._calls += 1
            self._calls_ns += own_ns

    def overhead(self, run_ns: int) -> Overhead:
        """What the recording cost, in a run of this length."""
        steps, calls = self._timing_steps, self._calls
        return Overhead(
            step_ms=round(self.typical_ns / 1e6, 4) if self.outside_ns else None,
            window_step_ms=round(self._timing_ns / steps / 1e6, 4) if steps else None,
            step_call_us=round(self._calls_ns / calls / 1e3, 3) if calls else None,
            windows_ms=round(self._windows_ns / 1e6, 3),
            run_ms=round(run_ns / 1e6, 3),
        )
