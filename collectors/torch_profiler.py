"""Records a few steps of a running loop with torch.profiler.

    with TorchRecorder(Path("runs/mine"), PLAN) as recorder:
        for batch in loader:
            train_step(batch)
            recorder.step()

A plan is a list of windows. The timing window records times and nothing else, so that its cost
distorts them least; an attribution window after it may record stacks and shapes, and only says
where in the code something is. Each window becomes one Kineto file, untouched.

Nothing here reaches the user's loop: a failure is kept in `failure`, logged once, and ends the
recording, not the training. Memory is bounded by the length of the windows.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from gpuprof.collectors.callers import CHECKPOINT, Callers

log = logging.getLogger("gpuprof")

WARM_UP_STEPS = 1
"""Steps that the profiler runs and drops before a window: the first ones with the profiler on pay
for its own set-up (CUPTI's initialization takes seconds)."""


OURS = "_gpuprof"
"""Attribute of the profilers that are started here."""


Function = TypeVar("Function", bound=Callable[..., Any])


def hidden(function: Function) -> Function:
    """Makes a wrapper's frame known for gpuprof's own in recorded stacks, wherever gpuprof lies.

    Else the wrapper would be the innermost line that is neither torch's nor a library's, and be
    named in place of the user's.
    """
    code = function.__code__
    function.__code__ = code.replace(
        co_filename=f"gpuprof/collectors/{Path(code.co_filename).name}"
    )
    return function


class WithheldError(Exception):
    """Why no window may open now, in words for the user."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of steps to record.

    kind: the first part of the file's name. skip: steps left alone before the profiler's warm-up,
    counted from the end of the window before. steps: how many are recorded. stacks, shapes and
    memory: what is recorded beside times; each of them slows the host down.
    """

    kind: str
    skip: int
    steps: int
    stacks: bool = False
    shapes: bool = False
    memory: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.skip < 0:
            raise ValueError("a window records at least one step and skips none or more")

    @property
    def length(self) -> int:
        """Steps from the end of the window before to the end of this one."""
        return self.skip + WARM_UP_STEPS + self.steps


def timing_window(*, skip: int = 5, steps: int = 10) -> Window:
    """Times only. The skipped steps hold lazy initialization, autotuning and allocator growth."""
    return Window(kind="trace", skip=skip, steps=steps)


def attribution_window(*, skip: int = 1, steps: int = 2) -> Window:
    """Stacks and shapes, for the line of code and the size of operators; its times are not used."""
    return Window(kind="attribution", skip=skip, steps=steps, stacks=True, shapes=True)


class TorchRecorder:
    """Records the windows of a plan into `out`, one `KIND-rankNNNNN.json.gz` each.

    `traces` holds the files written so far, in order; `failure` says why the recording ended early,
    empty while all is well. Entering starts counting steps and `step()` ends one. Leaving writes
    what an unfinished window holds, if it holds a whole step.

    `before` is asked before a window opens, and answers with the window to record in its place
    (shorter, or under another name); what it raises ends the recording. `after` is told the window,
    its file and how many steps are in it.
    """

    def __init__(
        self,
        out: Path,
        plan: Sequence[Window],
        *,
        before: Callable[[Window], Window] | None = None,
        after: Callable[[Window, Path, int], None] | None = None,
    ) -> None:
        self.out = out
        self.traces: list[Path] = []
        self.failure = ""
        self._left = list(plan)
        self._before = before
        self._after = after
        self._profile: Any = None
        self._thread = 0
        self._steps_in_window = 0

    @property
    def done(self) -> bool:
        """Whether nothing is left to record."""
        return not self._left

    @property
    def open_window(self) -> Window | None:
        """The window for which the profiler runs now, its warm-up included."""
        return self._left[0] if self._left and self._profile is not None else None

    @property
    def recording(self) -> bool:
        """Whether the step that runs now is recorded: a window is open and its warm-up is over."""
        window = self.open_window
        return window is not None and self._steps_in_window >= window.skip + WARM_UP_STEPS

    @property
    def recorded_steps(self) -> int:
        """Steps of the open window that are recorded by now; 0 while none is open."""
        window = self.open_window
        return max(self._steps_in_window - window.skip - WARM_UP_STEPS, 0) if window else 0

    def abandon(self, why: str) -> None:
        """Ends the recording: what an open window holds is dropped, and `failure` says why."""
        self._left.clear()
        self.failure = self.failure or why
        with self._guard("stop torch.profiler"):
            self._close_window()

    def __enter__(self) -> TorchRecorder:
        with self._guard("create the output folder"):
            self.out.mkdir(parents=True, exist_ok=True)
        with self._guard("start torch.profiler"):
            self._start_if_due()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._guard("write the last window"):
            self._close_window()
        self._left.clear()

    def step(self) -> None:
        """Ends a step of the loop. Costs one comparison once everything is recorded."""
        if not self._left:
            return
        with self._guard("record a step"):
            self._steps_in_window += 1
            if self._profile is not None:
                self._profile.step()
            if self._steps_in_window >= self._left[0].length:
                self._close_window()
                self._left.pop(0)
                self._steps_in_window = 0
            self._start_if_due()

    def _start_if_due(self) -> None:
        if self._left and self._profile is None and self._steps_in_window == self._left[0].skip:
            self._open_window(self._left[0])

    def _open_window(self, window: Window) -> None:
        if self._before is not None:
            window = self._left[0] = self._before(window)
        import torch
        from torch import profiler

        if torch.autograd._profiler_enabled():
            raise RuntimeError("another torch profiler is already active in this process")
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        profile = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=WARM_UP_STEPS, active=window.steps, repeat=1),
            on_trace_ready=lambda finished: self._write(finished, window),
            record_shapes=window.shapes,
            profile_memory=window.memory,
            with_stack=window.stacks,
        )
        self._profile = profile  # before it starts, so that a failure half-way is stopped too
        self._thread = threading.get_ident()
        setattr(profile, OURS, True)
        profile.start()

    def _close_window(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        if self._thread != threading.get_ident():
            raise RuntimeError("the loop ended on another thread than the one that it ran on")
        profile.stop()  # calls `_write` unless the window's end has done it

    def _write(self, profile: Any, window: Window) -> None:
        recorded = self._steps_in_window - window.skip - WARM_UP_STEPS
        if recorded < 1 or not self._left:
            return  # the loop ended before one whole step was recorded, or the window is dropped
        path = self.out / f"{window.kind}-rank{_rank():05d}.json.gz"
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.json.gz")
        try:
            profile.export_chrome_trace(os.fspath(unfinished))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        self.traces.append(path)
        if self._after is not None:
            self._after(window, path, min(recorded, window.steps))

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, it must not reach the user's loop
            self._left.clear()
            profile, self._profile = self._profile, None
            if profile is not None and self._thread in (0, threading.get_ident()):
                try:
                    profile.stop()
                except Exception as second:
                    log.debug("gpuprof: the profiler did not stop either: %s", second)
            if not self.failure:
                self.failure = (
                    str(error)
                    if isinstance(error, WithheldError)
                    else f"could not {what}: {type(error).__name__}: {error}"
                )
                log.warning("gpuprof: %s; training goes on without it", self.failure)


def _rank() -> int:
    """This process's rank: torch.distributed's word, else the launcher's, else 0."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


@contextmanager
def named_calls(callers: Callers | None = None) -> Iterator[None]:
    """Draws `torch.save` and `os.fsync` as annotations of these names while it is open.

    A plain trace shows neither: writing a checkpoint runs no operator, and looks like any other
    Python. The functions do what they did; only a name is put around them.

    Args:
        callers: Told who calls them.
    """
    import torch

    with ExitStack() as stack:
        for module, name in ((torch, "save"), (os, "fsync")):
            stack.enter_context(_named(module, name, callers))
        yield


@contextmanager
def _named(module: ModuleType, name: str, callers: Callers | None) -> Iterator[None]:
    from torch.profiler import record_function

    original: Callable[..., Any] = getattr(module, name)
    label = f"{module.__name__}.{name}"

    @wraps(original)
    @hidden
    def named(*args: Any, **keywords: Any) -> Any:
        with record_function(label):
            if callers is None:
                return original(*args, **keywords)
            with callers.calling(CHECKPOINT, label, sys._getframe(1)):
                return original(*args, **keywords)

    setattr(module, name, named)
    try:
        yield
    finally:
        if getattr(module, name) is named:  # else someone has wrapped it since: leave theirs
            setattr(module, name, original)


@contextmanager
def steps_from_optimizers(on_step: Callable[[], None]) -> Iterator[None]:
    """Calls `on_step` after each optimizer step, for a loop that says nothing of its steps itself.

    The first optimizer that steps sets the beat: a loop may step several of them in one step.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    beat: list[int] = []

    def after_step(optimizer: Any, args: object, keywords: object) -> None:
        if not beat:
            beat.append(id(optimizer))
        if id(optimizer) == beat[0]:
            on_step()

    handle = register_optimizer_step_post_hook(after_step)
    try:
        yield
    finally:
        handle.remove()
