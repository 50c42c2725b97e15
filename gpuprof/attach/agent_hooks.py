"""Part of the agent's text: hooks in the target's libraries, and how they come out again.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from gpuprof.attach.agent_callers import Callers, Syncs
from gpuprof.attach.agent_loader import LoaderWatch
from gpuprof.attach.agent_pace import STEP_OF_ANOTHER, Pace

LOADER_PATIENCE = 8
"""So many batches without an optimizer step, and batches are the steps: an inference loop. Fewer
would take the first micro-batches of a loop that accumulates gradients for steps."""
SAVES = (
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint", "save_state_dict"),
    ("torch.distributed.checkpoint", "async_save"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save"),
    ("safetensors.torch", "save_file"),
    ("safetensors.torch", "save_model"),
)
"""Functions that write checkpoints, beside torch.save."""
SAVES_IN = sorted({module for module, _ in SAVES})
CHECKPOINT = "gpuprof.checkpoint"
KNOWN = ("torch.save", "os.fsync")
"""Drawn by their own names; other saves are drawn as CHECKPOINT, which analyzers know."""
MOST_EVENTS = 200000
STARTS = (
    ("profile", "__enter__"),
    ("profile", "_prepare_trace"),
    ("profile", "_start_trace"),
    ("emit_nvtx", "__enter__"),
    ("emit_itt", "__enter__"),
)
"""Where the profilers of torch.autograd.profiler start."""


class Hooks:
    """Sees steps, waits and writes. `agent` is told: `beat()` at a step's end, `steps_change()`
    where steps are others than before, `make_room()` before a profiler of the program's own
    starts."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.pid = os.getpid()
        self.main = threading.main_thread().ident
        self.off = False
        self.undo: list[Any] = []
        self.events: list[tuple[str, int, int]] = []  # what, start and length in ns
        self.source = "none"
        self.pace = Pace()
        self.fetches = 0
        self.named: set[str] = set()  # of SAVES
        self.callers = Callers()
        self.loader = LoaderWatch()
        self.syncs = Syncs(self.callers, self.patch)

    def put(self, torch: Any) -> None:
        """Puts all hooks in."""
        optimizers = sys.modules.get("torch.optim.optimizer")
        if hasattr(optimizers, "_global_optimizer_post_hooks"):
            self._hook_optimizers(optimizers)
        loaders: Any = sys.modules.get("torch.utils.data.dataloader")
        if hasattr(loaders, "_BaseDataLoaderIter"):
            self._put(loaders._BaseDataLoaderIter, "__next__", self._timed_fetch)
        self._put(torch, "save", lambda original: self._named(original, "torch.save"))
        self._put(os, "fsync", lambda original: self._named(original, "os.fsync"))
        self.name_saves()
        profilers = sys.modules.get("torch.autograd.profiler")
        for kind, name in STARTS:
            owner = getattr(profilers, kind, None)
            if owner is not None and name in vars(owner):
                self._put(owner, name, self._giving_way)

    def name_saves(self) -> None:
        """Names what the program has imported since the last look; nothing is imported for it.

        On any thread. Not while one of these libraries is being imported: a name that is handed on
        from one module to the next would be named twice, and stay so.
        """
        if self.off:
            return
        try:
            modules = {name: sys.modules.get(name) for name in SAVES_IN}
            if any(is_being_imported(module) for module in modules.values()):
                return
            for where, name in SAVES:
                module, label = modules[where], where + "." + name
                # A lazy module is of another type: to look into it would import it.
                if label in self.named or type(module) is not type(sys):
                    continue
                if callable(vars(module).get(name)):
                    self.named.add(label)
                    self._put(module, name, lambda save, label=label: self._named(save, label))
        except Exception as error:
            self.agent.error(f"saves could not be named: {error}")

    def take_out(self) -> None:
        """Takes everything back, the last first."""
        self.off = True
        self.syncs.take_out()
        while self.undo:
            try:
                self.undo.pop()()
            except Exception as error:
                self.agent.error(f"could not undo a hook: {error}")

    def patch(self, owner: Any, name: str, make: Any) -> Any:
        """Replaces an attribute by `make(original)`, and returns what takes it back: that is only
        done while it is still on top."""
        had = name in vars(owner)
        original = getattr(owner, name)
        replacement = make(original)
        for what in ("__name__", "__qualname__", "__doc__", "__module__"):
            try:
                setattr(replacement, what, getattr(original, what))
            except (AttributeError, TypeError):
                pass
        replacement.__wrapped__ = original

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if had:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        setattr(owner, name, replacement)
        return undo

    def _put(self, owner: Any, name: str, make: Any) -> None:
        self.undo.append(self.patch(owner, name, make))

    def _hook_optimizers(self, optimizers: Any) -> None:
        """Adds a hook for all optimizers without touching the table that may be iterated right
        now: a copy takes its place, and the first table comes back at the end."""
        before = optimizers._global_optimizer_post_hooks
        table = type(before)(before)
        key = -self.pid  # torch counts its own from 0 up
        table[key] = self.optimizer_stepped
        known = set(table)
        optimizers._global_optimizer_post_hooks = table

        def undo() -> None:
            table[key] = nothing  # a value in place: no iteration minds
            is_on_top = optimizers._global_optimizer_post_hooks is table
            if is_on_top and known.issuperset(
                table
            ):  # else the program has put hooks of its own in
                optimizers._global_optimizer_post_hooks = before

        self.undo.append(undo)

    def _timed_fetch(self, original: Any) -> Any:
        def fetched(iterator: Any) -> Any:
            if self.off or os.getpid() != self.pid:
                return original(iterator)
            self.loader.fetching(iterator)
            began = time.time_ns()
            counts = self.callers.enter()
            try:
                batch = original(iterator)
            finally:
                spent_ns = self._note("input", began)
                if counts:
                    self.callers.leave("input", "next(DataLoader)", sys._getframe(1), spent_ns)
            self.batch_fetched()
            return batch

        return fetched

    def _named(self, original: Any, label: str) -> Any:
        def named(*arguments: Any, **keywords: Any) -> Any:
            if self.off or os.getpid() != self.pid:
                return original(*arguments, **keywords)
            began = time.time_ns()
            counts = self.callers.enter()
            span = None
            if self.agent.is_recording() and threading.get_ident() == self.main:
                drawn = label if label in KNOWN else CHECKPOINT
                span = sys.modules["torch"].profiler.record_function(drawn)
                span.__enter__()
            try:
                return original(*arguments, **keywords)
            finally:
                if span is not None:
                    span.__exit__(None, None, None)
                spent_ns = self._note("checkpoint", began)
                if counts:
                    self.callers.leave("checkpoint", label, sys._getframe(1), spent_ns)

        return named

    def _giving_way(self, original: Any) -> Any:
        def start(*arguments: Any, **keywords: Any) -> Any:
            if not self.off and os.getpid() == self.pid:
                self.agent.make_room()
            return original(*arguments, **keywords)

        return start

    def _note(self, what: str, began: int) -> int:
        spent_ns = time.time_ns() - began
        if len(self.events) < MOST_EVENTS:
            self.events.append((what, began, spent_ns))
        return spent_ns

    def optimizer_stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """Told by torch after each step of any optimizer."""
        if os.getpid() != self.pid or threading.get_ident() != self.main:
            return
        if self.source != "optimizer":
            if self.agent.is_recording_steps():
                return
            self.source = "optimizer"
        told = self.pace.told(optimizer)
        if told == STEP_OF_ANOTHER:
            self.agent.steps_change()
        if told:
            self.agent.beat()

    def batch_fetched(self) -> None:
        """Told after each batch: without any optimizer, batches are the steps."""
        if self.source == "optimizer" or threading.get_ident() != self.main:
            return
        self.fetches += 1
        if self.fetches > LOADER_PATIENCE:
            self.source = "loader"
            self.agent.beat()


def is_being_imported(module: Any) -> bool:
    spec = vars(module).get("__spec__") if type(module) is type(sys) else None
    return bool(getattr(spec, "_initializing", False))


def nothing(*arguments: Any, **keywords: Any) -> None:
    """Takes the place of a hook that can't be taken out."""
