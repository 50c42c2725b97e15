"""Part of the agent's text: windows of torch.profiler. All of it runs on the main thread, but
`export`: torch.profiler crashes when one thread starts it and another one stops it.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuprof.attach.agent_callers import core_time
from gpuprof.attach.agent_export import save_trace
from gpuprof.attach.agent_loader import LoaderWatch

LONGEST_WINDOW_S = 60.0
"""A window is cut here: its events fill memory, and stopping it stalls the loop."""
WARM_UP_STEPS = 1
DENSE_NS = 20_000_000
"""Stopping took so long a step recorded without stacks. With stacks and shapes it takes three
times that, so such a loop gets one step of them, and no shapes."""
DENSE_TIMES = 3
DENSE_STOP_NS = 2 * DENSE_TIMES * DENSE_NS
"""The longest that stopping two steps with stacks takes; a window without steps may take that."""
STEPLESS_WINDOW_S = 2.0
PROBE_S = 0.1
"""A window without steps holds as many operators as the loop has. So a short one goes before it,
which shows what stopping costs; what it holds is dropped."""
PLAIN_STOP_NS = 250_000_000
"""The plain window may take so long to stop: a quarter of a second with some 100,000 operators in
it, more than a verdict needs."""


class Windows:
    """The windows of a plan, one after the other.

    plan: those to come, the open one first; each a dictionary with kind, file, steps, seconds,
    stacks, shapes and apart (seconds after the one before). recorded: those that are written.
    syncs: put in and taken out with the windows that have stacks. loader: read at both ends
    of each.
    """

    def __init__(
        self, plan: list[dict[str, Any]], error: Any, syncs: Any, loader: LoaderWatch
    ) -> None:
        self.plan = plan
        self.error = error
        self.syncs = syncs
        self.loader = loader
        self.recorded: list[dict[str, Any]] = []
        self.finished: list[tuple[Any, dict[str, Any]]] = []
        self.exporting = threading.Lock()
        self.profile: Any = None
        self.window: dict[str, Any] = {}
        self.ours = False
        self.timed = False
        self.steps = 0
        self.from_ns = 0
        self.core = (0, 0)
        self.counts_steps = False  # only this window does, in torch's own table
        self.stop_ns_per_step = 0  # of a core's time: others may have it meanwhile
        # Length of the window without steps that stopping was last measured on, less the time in
        # which the thread stood ready while others had its core: the next may have it to itself.
        self.timed_ns = 0
        self.is_probe = False
        self.ready_s = time.monotonic()
        self.busy = False
        self.later: list[Any] = []

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the main thread is in here, what is asked of it waits until it is done.

        A pending call may come between any two lines, those of torch.profiler included. Stopped in
        the middle of its own step, that raises and stays active, or ends the program.
        """
        if self.busy:
            yield
            return
        self.busy = True
        try:
            yield
        finally:
            try:
                while self.later:
                    self.later.pop(0)()
            finally:
                self.busy = False
        if self.later:  # it came between the last look and the last line
            self.ask(self.later.pop(0))

    def ask(self, what: Any) -> None:
        """Calls what opens or closes a window and never raises: now, or when nothing else does."""
        if self.busy:
            self.later.append(what)
        else:
            with self.alone():
                what()

    @property
    def is_closed(self) -> bool:
        """Whether no window is open, nor about to be."""
        return self.profile is None and not self.busy

    @property
    def done_steps(self) -> int:
        """Whole steps in the open window."""
        return max(0, self.steps - WARM_UP_STEPS) if self.profile is not None else 0

    @property
    def left(self) -> int:
        """Windows that are not on disk yet."""
        return len(self.plan) + len(self.finished)

    def may_open(self) -> bool:
        return bool(self.plan) and self.profile is None and time.monotonic() >= self.ready_s

    def timed_s(self) -> float:
        """How long the next window without steps may be. Seconds that the user has asked for are
        kept; else stopping is to stall the loop no longer than `PLAIN_STOP_NS`, and with stacks no
        longer than it did without them. Where that is not known yet, the window is a probe."""
        window = self.plan[0]
        self.is_probe = not (window["seconds"] or window["stacks"] or self.timed_ns)
        if window["seconds"]:
            return float(window["seconds"])
        if self.is_probe:
            return PROBE_S
        if not (self.timed_ns and self.stop_ns_per_step):
            return STEPLESS_WINDOW_S
        stop_ns, allowed_ns = self.stop_ns_per_step, PLAIN_STOP_NS
        if window["stacks"]:
            allowed_ns = max(stop_ns, DENSE_STOP_NS)
            stop_ns *= DENSE_TIMES  # of one as long as the plain one
        fits_s = self.timed_ns / 1e9 * allowed_ns / stop_ns
        return min(STEPLESS_WINDOW_S, max(fits_s, PROBE_S))

    def end_timed(self) -> None:
        """The time of the open window is over."""
        self.close(drop=self.is_probe, again=self.is_probe)

    def open(self, step: int, timed: bool = False) -> None:
        """Starts the profiler. timed: without steps, in the middle of something."""
        torch = sys.modules["torch"]
        window = self.plan[0]
        reason = in_the_way(torch)
        if reason:
            self.plan.clear()
            self.error(reason)
            return
        if window["stacks"] and (sys.getprofile() is not None or sys.gettrace() is not None):
            self.plan.pop(0)
            self.error("no window with stacks: a tracer or profiler of Python's own is set")
            return
        if window["stacks"] and self.stop_ns_per_step > DENSE_NS:
            window.update(steps=1, shapes=False)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        action = torch.profiler.ProfilerAction
        began = time.time_ns()
        self.counts_steps = not has_counted_steps(torch)
        profile = torch.profiler.profile(
            activities=activities,
            schedule=lambda number: action.RECORD if number or timed else action.WARMUP,
            on_trace_ready=lambda finished: None,
            record_shapes=window["shapes"],
            with_stack=window["stacks"],
            experimental_config=None if window["stacks"] else lean(torch),
        )
        if timed:
            profile.record_steps = False
        self.profile, self.window, self.timed = profile, window, timed
        self.steps = self.from_ns = 0
        self._as_ours(profile.start)
        if timed:
            self.from_ns = time.time_ns()
            self._begin()
        window["open_ns"], window["start_ns"] = began, time.time_ns() - began
        window["first_step"] = step + WARM_UP_STEPS

    def step(self) -> None:
        """A step has ended: the next one is recorded, or the window is complete."""
        if self.timed:
            return
        self.steps += 1
        done = self.steps - WARM_UP_STEPS
        length_s = (time.time_ns() - self.from_ns) / 1e9 if self.from_ns else 0.0
        wanted = self.window["steps"]
        is_over = done >= wanted if wanted else length_s >= self.window["seconds"]
        if is_over or length_s >= LONGEST_WINDOW_S:
            self.close()
            return
        self._as_ours(self.profile.step)
        if not self.from_ns:
            self.from_ns = time.time_ns()
            self._begin()

    def _begin(self) -> None:
        """From here on it is recorded."""
        if self.window["stacks"]:
            self.syncs.put_in(sys.modules["torch"])
        self.loader.begin()
        self.core = core_time()

    def _as_ours(self, what: Any) -> None:
        self.ours = True
        try:
            with without_inductor():
                what()
        finally:
            self.ours = False

    def close(self, drop: bool = False, again: bool = False) -> None:
        """Stops the profiler; what it holds is exported later, or dropped. again: the same window
        is still to come."""
        profile, window, timed, done = self.profile, self.window, self.timed, self.done_steps
        if profile is None:
            return
        began, on_core_ns = time.time_ns(), time.thread_time_ns()
        on_core, ready = (now - before for before, now in zip(self.core, core_time()))  # noqa: B905
        self.loader.end()
        self.syncs.take_out()
        try:
            profile.stop()
        finally:
            self.profile, self.window, self.timed = None, {}, False
            self.plan = self.plan if again else self.plan[1:]
            if self.counts_steps:
                forget_steps(sys.modules["torch"])
        window.update(
            from_ns=self.from_ns,
            until_ns=began,
            stop_ns=time.time_ns() - began,
            recorded=0 if timed else done,
            core_ns=on_core,
            ready_ns=ready,
            loader=self.loader.work,
            timed=timed,
        )
        self.stop_ns_per_step = (time.thread_time_ns() - on_core_ns) // max(1, done)
        self.timed_ns = max(1, began - self.from_ns - ready) if timed else 0
        self.ready_s = time.monotonic() + (self.plan[0]["apart"] if self.plan else 0)
        if not drop and (timed or done):
            self.finished.append((profile, window))

    def fail(self, failure: BaseException) -> None:
        """Something in torch.profiler went wrong: no further window."""
        self.error(f"torch.profiler failed: {type(failure).__name__}: {failure}")
        self.plan, self.profile, self.window, self.timed = [], None, {}, False
        self.syncs.take_out()

    def export(self, box: str) -> None:
        """Writes what is finished; on any thread. One waits for the other: a trace that is written
        twice at once, because the program ends just then, would crash it."""
        with self.exporting:
            while self.finished:
                profile, window = self.finished[0]
                path = os.path.join(box, window["file"])
                try:
                    save_trace(profile, path + ".part.json")
                    os.rename(path + ".part.json", path)
                    self.recorded.append(window)
                except Exception as failure:
                    self.error(f"the trace could not be written: {failure}")
                    try:
                        os.unlink(path + ".part.json")
                    except OSError:
                        pass
                if self.finished:  # else it was cleared meanwhile: nobody will read it
                    self.finished.pop(0)


@contextmanager
def without_inductor() -> Iterator[None]:
    """Hides torch's compiler from torch.profiler on this thread where the program has not loaded
    it: to ask whether it is there imports 800 modules, for seconds and for good."""
    torch: Any = sys.modules["torch"]
    original = vars(torch).get("__getattr__")
    if original is None or "torch._inductor" in sys.modules:
        yield
        return
    thread = threading.get_ident()

    def hidden(name: str) -> Any:
        if name == "_inductor" and threading.get_ident() == thread:
            raise AttributeError(name)
        return original(name)

    torch.__getattr__ = hidden
    try:
        yield
    finally:
        if vars(torch).get("__getattr__") is hidden:
            torch.__getattr__ = original


def lean(torch: Any) -> Any:
    """Leaves out what only the events in Python are for, a third of what stopping costs; older
    torch knows no such option."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return None


def has_counted_steps(torch: Any) -> bool:
    """Whether a profiler with a schedule has run in this process, or may have."""
    tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
    return tracker is None or "ProfilerStep" in getattr(tracker, "_step_dict", ["ProfilerStep"])


def forget_steps(torch: Any) -> None:
    """Takes the window's steps out of torch's table, as leaving a `with profile()` does: else the
    next window would have to look for a profiler of the program's own among all objects."""
    try:
        torch.autograd.profiler.KinetoStepTracker.erase_step_count("ProfilerStep")
    except AttributeError:
        return


def in_the_way(torch: Any) -> str:
    """Another profiler that runs or is about to, "" for none."""
    if torch._C._autograd._profiler_enabled():
        return "a torch profiler of the program's own is active"
    if os.environ.get("NSYS_PROFILING_SESSION_ID"):
        return "Nsight Systems profiles this process"
    if has_counted_steps(torch):
        # Only now is a look at all objects worth its milliseconds.
        import gc

        kind = torch.profiler.profile
        for candidate in gc.get_objects():
            inner: Any = candidate.profiler if type(candidate) is kind else None
            if inner is not None and inner.entered and inner.kineto_results is None:
                return "a torch profiler of the program's own is in its warm-up"
    return ""
