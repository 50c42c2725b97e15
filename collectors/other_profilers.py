"""Keeps out of the way of a profiler of the user's own.

A second torch.profiler in a process steals the first one's events, breaks it, or ends the process.
So gpuprof never starts one beside another, and stops its own before another starts:

    with others_watched(on_start) as others:
        others.active()          # "" or what runs

`on_start` is told just before a profiler that is not gpuprof's starts. It has to have stopped
gpuprof's own when it returns.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from gpuprof.collectors.hooks import patching
from gpuprof.collectors.torch_profiler import OURS

STARTS = (
    ("profile", "_prepare_trace"),
    ("profile", "_start_trace"),
    ("emit_nvtx", "__enter__"),
    ("emit_itt", "__enter__"),
)
"""Where each profiler of torch.autograd.profiler starts; torch.profiler goes through the first."""


class Others:
    """What is known of profilers that are not gpuprof's."""

    def __init__(self) -> None:
        self.ours = False
        """Set while gpuprof starts its own."""
        self.seen = ""
        self._looked = False

    def active(self) -> str:
        """What other profiler runs or is about to, "" for none. Cheap after the first call."""
        import torch

        if not self.seen and torch.autograd._profiler_enabled():
            self.seen = "a torch profiler is already active"
        if not self.seen and os.environ.get("NSYS_PROFILING_SESSION_ID"):
            self.seen = "Nsight Systems profiles this process"
        if not self.seen and not self._looked:
            self._looked = True
            self.seen = _prepared()
        return self.seen


def _prepared() -> str:
    """A torch.profiler in its warm-up does not say that it is on: its object is looked for."""
    module = sys.modules.get("torch.profiler.profiler")
    kind = getattr(module, "_KinetoProfile", None)
    if kind is None:
        return ""
    for candidate in gc.get_objects():
        if kind in getattr(type(candidate), "__mro__", ()) and not getattr(candidate, OURS, False):
            action = getattr(candidate, "current_action", None)
            if getattr(candidate, "profiler", None) is not None and _name(action) == "WARMUP":
                return "a torch profiler is in its warm-up"
    return ""


def _name(action: Any) -> str:
    return str(getattr(action, "name", ""))


@contextmanager
def others_watched(on_start: Callable[[str], None]) -> Iterator[Others]:
    """Watches for other profilers while it is open. Imports torch."""
    from torch.autograd import profiler

    others = Others()
    pid = os.getpid()

    def watched(original: Callable[..., Any], what: str) -> Callable[..., Any]:
        @wraps(original)
        def start(*args: Any, **keywords: Any) -> Any:
            if not others.ours and os.getpid() == pid:
                others.seen = others.seen or f"{what} has been started"
                on_start(others.seen)
            return original(*args, **keywords)

        return start

    with patching() as patches:
        for name, method in STARTS:
            owner = getattr(profiler, name, None)
            original = vars(owner).get(method) if owner is not None else None
            if original is not None:
                what = "another torch profiler" if name == "profile" else f"torch's {name}"
                patches.put(owner, method, watched(original, what))
        yield others
