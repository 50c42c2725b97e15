"""Part of the agent's text: samples of the program's stacks, on the clock of the trace.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

MOST_STACKS = 20000
MOST_SAMPLES = 200000
MOST_FRAMES = 128


class Stacks:
    """Stacks that were seen, each once, and when. A sample costs some 20 µs of the GIL."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}  # (thread, frames innermost first) -> its number
        self.samples: list[tuple[int, int]] = []  # ns since the epoch, number of the stack

    def sample(self, me: int) -> None:
        """Takes every thread's stack but the caller's."""
        now = time.time_ns()
        for thread, top in sys._current_frames().items():
            if thread == me:
                continue
            stack: list[Any] = []
            frame: Any = top
            while frame is not None and len(stack) < MOST_FRAMES:
                stack.append((frame.f_code, frame.f_lineno))
                frame = frame.f_back
            key = (thread, tuple(stack))
            number = self.known.get(key)
            if number is None:
                if len(self.known) >= MOST_STACKS:
                    continue
                number = self.known[key] = len(self.known)
            if len(self.samples) < MOST_SAMPLES:
                self.samples.append((now, number))

    def listed(self) -> list[Any]:
        """The stacks by number, each a thread and its frames as file, function and line."""
        return [
            [thread, [(code.co_filename, code.co_name, line) for code, line in stack]]
            for thread, stack in self.known
        ]
