"""Observes a training loop from inside its process, and leaves no trace of itself when it goes.

    with steps_found(on_step) as finder:      # optimizer steps, else loader iterations
        …
    with named_parts():                       # checkpoints, foreign loaders: drawn by name
        …

Everything here wraps functions of libraries that are already imported. A wrapper does what the
wrapped function did, is inert in a forked child (a DataLoader worker inherits it), and is taken
off only where nobody has put another one on top since.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from gpuprof.attach import agent_hooks
from gpuprof.attach.agent_pace import Pace
from gpuprof.collectors.callers import CHECKPOINT as CHECKPOINT_LINE
from gpuprof.collectors.callers import INPUT as INPUT_LINE
from gpuprof.collectors.callers import Callers
from gpuprof.collectors.torch_profiler import hidden, named_calls

# A session takes the same steps and names the same saves as an attached job does.
LOADER_PATIENCE = agent_hooks.LOADER_PATIENCE
SAVES = agent_hooks.SAVES
CHECKPOINT = agent_hooks.CHECKPOINT

LOADERS = (
    ("nvidia.dali.plugin.base_iterator", "_DaliBaseIterator"),
    ("nvidia.dali.plugin.pytorch", "DALIGenericIterator"),
    ("ffcv.loader.epoch_iterator", "EpochIterator"),
)
"""Loaders that are no DataLoader: their `__next__` draws nothing in a trace. torch's own draws
`enumerate(DataLoader)#…`, and whatever is built on it does too."""

INPUT = "gpuprof.input"


class Patches:
    """Replaced attributes, and how to put the originals back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces `owner.name`. An inherited attribute is shadowed, and uncovered again."""
        own = vars(owner)
        original, had = own.get(name), name in own

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return  # somebody has wrapped it since: theirs stays, and ours only passes on
            if had:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        setattr(owner, name, replacement)
        self._undo.append(undo)

    def undo(self) -> None:
        """Puts the originals back, the last first."""
        while self._undo:
            self._undo.pop()()


@contextmanager
def patching() -> Iterator[Patches]:
    """Patches that are undone at the end."""
    patches = Patches()
    try:
        yield patches
    finally:
        patches.undo()


class StepFinder:
    """Finds the steps of a loop that does not say them itself.

    The first optimizer that steps sets the beat: a loop may step several in one step; once it is
    gone, or steps no more, another one does. A loop without any has the batches that it takes as
    its steps. `source` says which it is: "optimizer", "loader", or "none" so far. Beats count on
    the thread of the first one only, because a profiler starts and stops on one thread.
    """

    def __init__(self, on_step: Callable[[], None]) -> None:
        self.source = "none"
        self._on_step = on_step
        self._pid = os.getpid()
        self._pace = Pace()
        self._thread = 0
        self._fetches = 0

    def optimizer_stepped(self, optimizer: Any, *_: object) -> None:
        """Told after each optimizer step."""
        if self.source != "optimizer" and os.getpid() == self._pid:
            self.source, self._thread = "optimizer", threading.get_ident()
        if self._is_ours() and self._pace.told(optimizer):
            self._on_step()

    def batch_fetched(self) -> None:
        """Told after each batch that a loader has handed out."""
        if self.source == "optimizer" or not self._is_ours(first=True):
            return
        self._fetches += 1
        if self._fetches > LOADER_PATIENCE:
            self.source = "loader"
            self._on_step()

    def _is_ours(self, *, first: bool = False) -> bool:
        if os.getpid() != self._pid:
            return False
        if first and not self._thread:
            self._thread = threading.get_ident()
        return threading.get_ident() == self._thread


@contextmanager
def steps_found(
    on_step: Callable[[], None],
    callers: Callers | None = None,
    fetching: Callable[[Any], None] | None = None,
) -> Iterator[StepFinder]:
    """Calls `on_step` after each step that can be seen from outside. Imports torch.

    Args:
        on_step: What to call.
        callers: Told who asks loaders for batches.
        fetching: Told the loader's iterator before each batch.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import dataloader, get_worker_info

    finder = StepFinder(on_step)
    iterator = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @wraps(original)
    @hidden
    def counted(self: Any) -> Any:
        if fetching is not None:
            fetching(self)
        if callers is None:
            batch = original(self)
        else:
            with callers.calling(INPUT_LINE, "next(DataLoader)", sys._getframe(1)):
                batch = original(self)
        if get_worker_info() is None:  # else a loader inside a loader's worker: no step of a loop
            finder.batch_fetched()
        return batch

    handle = register_optimizer_step_post_hook(finder.optimizer_stepped)
    try:
        with patching() as patches:
            patches.put(iterator, "__next__", counted)
            yield finder
    finally:
        handle.remove()


class NamedParts:
    """Draws saves and foreign loaders under names that analyzers know."""

    def __init__(self, patches: Patches, callers: Callers | None = None) -> None:
        self._patches, self._callers = patches, callers
        self._named: set[tuple[str, str]] = set()
        self._modules = 0

    def has_news(self) -> bool:
        """Whether modules have been imported since the last look; asked at every step."""
        return len(sys.modules) != self._modules

    def look(self) -> None:
        """Names what has been imported since the last look; nothing is imported for it, and what
        another thread is importing right now is named at the next look."""
        modules = [sys.modules.get(module) for module, _ in (*SAVES, *LOADERS)]
        if any(agent_hooks.is_being_imported(module) for module in modules):
            return
        self._modules = len(sys.modules)
        for module, name in SAVES:
            self._name(module, sys.modules.get(module), name, (CHECKPOINT, CHECKPOINT_LINE))
        for module, class_name in LOADERS:
            owner = getattr(sys.modules.get(module), class_name, None)
            self._name(f"{module}.{class_name}", owner, "__next__", (INPUT, INPUT_LINE))

    def _name(self, where: str, owner: Any, name: str, label: tuple[str, str]) -> None:
        original = vars(owner).get(name) if owner is not None else None
        if not callable(original) or (where, name) in self._named:
            return
        self._named.add((where, name))
        what = f"{where}.{name}" if label[0] == CHECKPOINT else f"next({where})"
        self._patches.put(owner, name, _drawn(original, label, what, self._callers))


@contextmanager
def named_parts(callers: Callers | None = None) -> Iterator[NamedParts]:
    """Names torch.save, os.fsync and what `NamedParts` knows while it is open. Imports torch.

    Args:
        callers: Told who calls them.
    """
    with named_calls(callers), patching() as patches:
        parts = NamedParts(patches, callers)
        parts.look()
        yield parts


def _drawn(
    original: Callable[..., Any], label: tuple[str, str], what: str, callers: Callers | None
) -> Callable[..., Any]:
    from torch.profiler import record_function

    name, kind = label

    @wraps(original)
    @hidden
    def drawn(*args: Any, **keywords: Any) -> Any:
        with record_function(name):
            if callers is None:
                return original(*args, **keywords)
            with callers.calling(kind, what, sys._getframe(1)):
                return original(*args, **keywords)

    return drawn
