"""Part of the agent's text: which lines of the program call what a step may wait in.

Saves and the next batch are counted all through the attachment; calls that hand a tensor's values
to the host while the window with stacks is open. So a save every hundredth step has a line, too.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

MOST_LINES = 1000
MOST_DEPTH = 200
SYNCS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "nonzero": ".nonzero()",
    "__bool__": "bool(tensor)",
    "__int__": "int(tensor)",
    "__float__": "float(tensor)",
    "__index__": "tensor as an index",
    "__repr__": "print(tensor)",
    "__format__": "a tensor in an f-string",
    "__array__": "np.asarray(tensor)",
}
"""As in a session (`gpuprof.collectors.sync_lines`)."""
LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__) + os.sep, "<")


class Callers:
    """Calls by (kind, what, file, line, function, device): how many, and ns inside them. Only the
    outermost call on the main thread counts."""

    def __init__(self) -> None:
        self.lines: dict[Any, list[int]] = {}
        self.main = threading.main_thread().ident
        self.inside = False

    def enter(self) -> bool:
        """Whether this call is one to count; then `leave` must follow."""
        if self.inside or threading.get_ident() != self.main:
            return False
        self.inside = True
        return True

    def leave(self, kind: str, what: str, frame: Any, spent_ns: int, device: str = "") -> None:
        """Counts a call from this frame, or the nearest of the user's own."""
        self.inside = False
        caller = frame
        for _ in range(MOST_DEPTH):
            if caller is None or not is_library(caller.f_code.co_filename):
                break
            caller = caller.f_back
        if caller is None:
            return
        code = caller.f_code
        key = (kind, what, code.co_filename, caller.f_lineno, code.co_name, device)
        entry = self.lines.get(key)
        if entry is None:
            if len(self.lines) >= MOST_LINES:
                return
            entry = self.lines[key] = [0, 0]
        entry[0] += 1
        entry[1] += spent_ns

    def listed(self) -> list[Any]:
        return [[*key, *counts] for key, counts in list(self.lines.items())]


def is_library(file: str) -> bool:
    return any(part in file if part != "<" else file.startswith(part) for part in LIBRARIES)


class Syncs:
    """Wraps the calls of `SYNCS` between `put_in` and `take_out`. patch: replaces an attribute
    and returns what takes it back."""

    def __init__(self, callers: Callers, patch: Any) -> None:
        self.callers = callers
        self.patch = patch
        self.undo: list[Any] = []

    def put_in(self, torch: Any) -> None:
        """Not where torch.compile has compiled anything: it would compile the wrappers, too."""
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        if counters and counters.get("frames", {}).get("total"):
            return
        for name, spelling in SYNCS.items():
            if hasattr(torch.Tensor, name):
                self.undo.append(self.patch(torch.Tensor, name, self._wrapping(spelling)))

    def take_out(self) -> None:
        while self.undo:
            self.undo.pop()()

    def _wrapping(self, spelling: str) -> Any:
        callers, pid = self.callers, os.getpid()

        def wrap(original: Any) -> Any:
            def called(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
                if os.getpid() != pid or not callers.enter():
                    return original(tensor, *arguments, **keywords)
                began = time.perf_counter_ns()
                try:
                    return original(tensor, *arguments, **keywords)
                finally:
                    spent_ns = time.perf_counter_ns() - began
                    callers.leave("sync", spelling, sys._getframe(1), spent_ns, device_of(tensor))

            return called

        return wrap


def device_of(tensor: Any) -> str:
    try:
        return str(tensor.device.type)
    except Exception:  # a subclass may answer as it likes
        return ""


def core_time() -> tuple[int, int]:
    """How long the calling thread has been on a core, and ready for one, in ns; zeros where the
    kernel does not count."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            on_core, ready = file.read().split()[:2]
        return int(on_core), int(ready)
    except (OSError, ValueError):
        return 0, 0
