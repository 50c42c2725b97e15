"""Which lines of the user's code call what a step may wait in: saves, and the next batch.

A window with stacks is two steps long, and a save every hundredth step is in none; a function that
runs since before a window opened has no line in it. So the calls themselves keep their callers, all
through the run.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpuprof.collectors.line_counts import LineCounts
from gpuprof.run import CallLine

CHECKPOINT, INPUT = "checkpoint", "input"

Key = tuple[str, str, str, int, str]


class Callers(LineCounts[Key]):
    """Calls by (kind, what was called, file, line, function): how many, and ns inside them.

    Only the outermost call on the loop's thread counts: a save calls others, and one on a thread of
    its own keeps nobody waiting. thread: which that is, 0 while no step has been seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.thread = 0
        self._inside = False
        self._libraries: tuple[str, ...] = ()

    @contextmanager
    def calling(self, kind: str, what: str, frame: FrameType | None) -> Iterator[None]:
        """Counts what runs inside as a call from this frame, or the nearest of the user's own."""
        if self._inside or threading.get_ident() != self.thread:
            yield
            return
        self._inside = True
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            self._inside = False
            self._add(kind, what, frame, time.perf_counter_ns() - begun)

    def as_lines(self) -> list[CallLine]:
        """The lines for the record, those that took longest first."""
        lines = [
            CallLine(
                kind=kind,
                call=what,
                file=file,
                line=line,
                function=function,
                count=count,
                total_ms=round(spent_ns / 1e6, 3),
            )
            for (kind, what, file, line, function), (count, spent_ns) in self.lines.items()
        ]
        return sorted(lines, key=lambda line: -line.total_ms)

    def _add(self, kind: str, what: str, frame: FrameType | None, spent_ns: int) -> None:
        caller = self._user(frame)
        if caller is None:
            return
        code = caller.f_code
        self.add((kind, what, code.co_filename, caller.f_lineno, code.co_name), spent_ns)

    def _user(self, frame: FrameType | None) -> FrameType | None:
        """The nearest frame outside of installed packages and gpuprof, else the nearest at all."""
        if not self._libraries:
            self._libraries = _library_folders()
        nearest = frame
        while frame is not None and frame.f_code.co_filename.startswith(self._libraries):
            frame = frame.f_back
        return frame or nearest


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    known = {
        paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths
    }
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        known.add(str(Path(torch).parent))
    own = Path(__file__).resolve().parents[1]
    known |= {str(own / "gpuprof"), str(Path(__file__).parent)}
    hidden = "gpuprof/collectors/"  # how frames of wrappers are called, see `hidden`
    return (*(folder.rstrip("/\\") + ("\\" if "\\" in folder else "/") for folder in known), hidden)
