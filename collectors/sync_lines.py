"""Names the lines that make the host wait for the device, while a window with stacks is open.

`.item()`, `.cpu()`, `.tolist()`, `bool(tensor)`, `print(tensor)` and their like are wrapped for the
window and unwrapped after it. Each call is drawn in the trace as `gpuprof.sync: CALL at FILE:LINE`
and counted by line. Only the outermost call counts: printing a tensor reads it many times.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from gpuprof.collectors.hooks import patching
from gpuprof.collectors.line_counts import LineCounts
from gpuprof.collectors.torch_profiler import hidden

CALLS = {
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
"""Methods of a tensor that hand its values to the host, and how a user writes them."""

Key = tuple[str, str, int, str]


class SyncCounts(LineCounts[Key]):
    """Calls by (spelling, file, line, device of the tensor): how many, and ns inside them."""


@contextmanager
def sync_lines(counts: SyncCounts) -> Iterator[None]:
    """Wraps the calls while it is open. Does nothing where frames are compiled: a compiler that
    met the wrappers would compile them, and drop them later with a recompilation."""
    import torch
    from torch.profiler import record_function

    if _compiles():
        yield
        return
    inside = threading.local()
    pid = os.getpid()
    libraries = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))

    def wrapped(original: Callable[..., Any], spelling: str) -> Callable[..., Any]:
        @wraps(original)
        @hidden
        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            if getattr(inside, "busy", False) or os.getpid() != pid:
                return original(self, *args, **keywords)
            inside.busy = True
            try:
                file, line = _caller(libraries)
                begun = time.perf_counter_ns()
                with record_function(f"gpuprof.sync: {spelling} at {file}:{line}"):
                    result = original(self, *args, **keywords)
                spent = time.perf_counter_ns() - begun
            finally:
                inside.busy = False
            counts.add((spelling, file, line, _device(self)), spent)
            return result

        return call

    with patching() as patches:
        for name, spelling in CALLS.items():
            original = getattr(torch.Tensor, name, None)
            if original is not None:
                patches.put(torch.Tensor, name, wrapped(original, spelling))
        yield


def _device(tensor: Any) -> str:
    try:
        return str(tensor.device.type)
    except Exception:  # a subclass may answer as it likes
        return ""


def _caller(libraries: tuple[str, ...]) -> tuple[str, int]:
    """File and line of the nearest frame outside torch and gpuprof."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _compiles() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    utilities = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utilities, "counters", None)
    try:
        return bool(counters and counters["frames"]["total"])
    except (KeyError, TypeError):
        return False
