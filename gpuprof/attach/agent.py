"""What runs inside the target. Not imported there by name: its text is run by the boot line.

Standard library only, Python 3.8 and newer, and nothing of gpuprof: the target's environment is
its own. torch is taken from `sys.modules` and never imported first. Everything put into place is
taken back: hooks only where nobody has put another one on top since.

Threads: `Agent.install` and all starting and stopping of the profiler happen on the main thread,
because torch.profiler is bound to it. One daemon thread samples stacks, exports, and watches the
mailbox; it ends itself when the attaching side goes silent.

Files in the mailbox, all JSON and renamed into place: `config` (read once); from gpuprof `lease`,
`start`, `stop`; from here `status`, `progress`, `observed`, `done`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time

MARK = "_gpuprof_attached"
LEASE_S = 6.0
"""So long may the attaching side be silent: it renews twice a second."""
POLL_S = 0.02
"""Rate of the stack samples, 50 Hz: a stack costs some 20 µs of the GIL."""
LOADER_PATIENCE = 8
"""So many batches without an optimizer step, and batches are the steps (as in a session)."""
STEPLESS_S = 15.0
"""Without any step for so long, a window is opened between two bytecodes instead. A large model's
step takes seconds."""
STEPLESS_TIMED_S = 3.0
"""The same where the user has asked for seconds, not for steps."""
STEPLESS_WINDOW_S = 2.0
LONGEST_WINDOW_S = 60.0
"""A window is cut here: its events fill memory, and stopping it stalls the loop."""
WARM_UP_STEPS = 1
ROOM_S = 2.0
"""A profiler that the program starts on another thread waits so long for the main one."""
MOST_STACKS = 20000
MOST_SAMPLES = 200000
MOST_EVENTS = 200000
MOST_FRAMES = 128
SETTLE_S = 1.0
"""Between windows, that the stall of the one before is not in the next."""


class _Refused(Exception):  # noqa: N818  (no error: an answer)
    pass


class Agent:
    """One attachment to this process."""

    def __init__(self, box):
        self.box = box
        self.pid = os.getpid()
        self.config = json.load(open(self._path("config")))  # noqa: SIM115
        self.windows = list(self.config["windows"])
        self.status = {"state": "armed", "pid": self.pid, "python": sys.version.split()[0]}
        self.main = threading.main_thread().ident
        self.undo = []
        self.errors = []
        self.recorded = []  # windows that are written
        self.events = []  # (what, start_ns, length_ns)
        self.beats = []  # ends of steps, epoch ns
        self.steps = 0
        self.source = "none"
        self.beat_of = 0
        self.fetches = 0
        self.profile = None
        self.ours = False
        self.window = None
        self.window_from = 0
        self.window_steps = 0
        self.began_ns = 0
        self.timed = False
        self.stop_ns = 0
        self.finished = []  # profiles to be exported
        self.start_at = None
        self.asked_s = self.ready_s = time.monotonic()
        self.leaving = False
        self.left = threading.Event()
        self.stacks = {}
        self.samples = []
        self.keep = []  # callbacks that the interpreter may still call

    # ---- files --------------------------------------------------------------------------

    def _path(self, name):
        return os.path.join(self.box, name)

    def put(self, name, value):
        path = self._path(name)
        try:
            with open(path + ".part", "w") as file:
                json.dump(value, file)
            os.rename(path + ".part", path)
        except (OSError, ValueError) as error:
            self.error("could not write %s: %s" % (name, getattr(error, "strerror", error)))

    def error(self, text):
        if text not in self.errors and len(self.errors) < 20:
            self.errors.append(text)

    # ---- in -----------------------------------------------------------------------------

    def install(self):
        """On the main thread, once. Ends within milliseconds, and raises nothing."""
        try:
            other = getattr(sys, MARK, None)
            if other is not None and other[0] == self.pid:
                raise _Refused("busy")
            torch = sys.modules.get("torch")
            if torch is None:
                raise _Refused("no-torch")
            if "torch.profiler" not in sys.modules or not hasattr(torch, "__version__"):
                raise _Refused("importing")
            own = sys.modules.get("gpuprof.recording")
            if own is not None and own.Session.current is not None:
                raise _Refused("session")
            setattr(sys, MARK, (self.pid, self.box))
            self.undo.append(self._unmark)
            self.status.update(self._who(torch))
            self._observe(torch)
            if "KINETO_LOG_LEVEL" not in os.environ:  # Kineto talks on standard error otherwise
                os.environ["KINETO_LOG_LEVEL"] = "6"
                self.undo.append(lambda: os.environ.pop("KINETO_LOG_LEVEL", None))
            atexit.register(self.at_exit)
            self.undo.append(lambda: atexit.unregister(self.at_exit))
            threading.Thread(target=self.watch, name="gpuprof-attach", daemon=True).start()
        except _Refused as reason:
            self.status["state"] = str(reason)
        except Exception as error:
            self.status["state"] = "failed"
            self.status["why"] = "%s: %s" % (type(error).__name__, error)
            self._undo_all()
        self.put("status", self.status)

    def _unmark(self):
        if getattr(sys, MARK, (0, 0))[1] == self.box:
            delattr(sys, MARK)

    def _who(self, torch):
        who = {"torch": str(torch.__version__), "gpus": [], "rank": None, "world_size": None}
        version = torch.version
        who["cuda"] = str(getattr(version, "cuda", None) or getattr(version, "hip", None) or "")
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            who["rank"] = int(distributed.get_rank())
            who["world_size"] = int(distributed.get_world_size())
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            device = int(cuda.current_device())
            facts = cuda.get_device_properties(device)
            uuid = str(getattr(facts, "uuid", "") or "")
            if uuid and not uuid.startswith(("GPU-", "MIG-")):
                uuid = "GPU-" + uuid
            who["gpus"] = [{"index": device, "name": str(facts.name), "uuid": uuid}]
        return who

    def patch(self, owner, name, make):
        """Replaces an attribute by `make(original)`; undone only while it is still on top."""
        had = name in vars(owner)
        original = getattr(owner, name)
        replacement = make(original)
        try:
            replacement.__name__ = original.__name__
            replacement.__doc__ = original.__doc__
            replacement.__module__ = original.__module__
            replacement.__wrapped__ = original
        except (AttributeError, TypeError):
            pass

        def undo():
            if vars(owner).get(name) is replacement:
                if had:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        setattr(owner, name, replacement)
        self.undo.append(undo)

    def _observe(self, torch):
        optimizers = sys.modules.get("torch.optim.optimizer")
        if hasattr(optimizers, "_global_optimizer_post_hooks"):
            self._hook_optimizers(optimizers)
        loaders = sys.modules.get("torch.utils.data.dataloader")
        if hasattr(loaders, "_BaseDataLoaderIter"):
            self.patch(loaders._BaseDataLoaderIter, "__next__", self._timed_fetch)
        for owner, name, label in ((torch, "save", "torch.save"), (os, "fsync", "os.fsync")):
            self.patch(owner, name, lambda original, label=label: self._named(original, label))
        profilers = sys.modules.get("torch.autograd.profiler")
        for kind, name in (
            ("profile", "__enter__"),
            ("profile", "_prepare_trace"),
            ("profile", "_start_trace"),
            ("emit_nvtx", "__enter__"),
            ("emit_itt", "__enter__"),
        ):
            owner = getattr(profilers, kind, None)
            if owner is not None and name in vars(owner):
                self.patch(owner, name, self._giving_way)

    def _hook_optimizers(self, optimizers):
        """Adds a hook for all optimizers without touching the table that may be iterated right
        now: a copy takes its place, and the first table comes back at the end."""
        before = optimizers._global_optimizer_post_hooks
        table = type(before)(before)
        key = -self.pid  # torch counts its own from 0 up
        table[key] = self.optimizer_stepped
        optimizers._global_optimizer_post_hooks = table

        def undo():
            table[key] = _nothing  # a value in place: no iteration minds
            mine = optimizers._global_optimizer_post_hooks is table
            if mine and list(table) == [*before, key]:
                optimizers._global_optimizer_post_hooks = before

        self.undo.append(undo)

    def _timed_fetch(self, original):
        def __next__(iterator):
            if os.getpid() != self.pid or self.leaving:
                return original(iterator)
            began = time.time_ns()
            batch = original(iterator)
            self.note("input", began)
            self.batch_fetched()
            return batch

        return __next__

    def _named(self, original, label):
        def named(*arguments, **keywords):
            if os.getpid() != self.pid or self.leaving:
                return original(*arguments, **keywords)
            began = time.time_ns()
            span = None
            if self.profile is not None and threading.get_ident() == self.main:
                span = sys.modules["torch"].profiler.record_function(label)
                span.__enter__()
            try:
                return original(*arguments, **keywords)
            finally:
                if span is not None:
                    span.__exit__(None, None, None)
                self.note("checkpoint", began)

        return named

    def _giving_way(self, original):
        def start(*arguments, **keywords):
            if not self.ours and os.getpid() == self.pid:
                self.make_room()
            return original(*arguments, **keywords)

        return start

    def note(self, what, began):
        if len(self.events) < MOST_EVENTS:
            self.events.append((what, began, time.time_ns() - began))

    # ---- steps, on the thread that trains ------------------------------------------------

    def optimizer_stepped(self, optimizer, arguments, keywords):
        if os.getpid() != self.pid or threading.get_ident() != self.main:
            return
        if self.source != "optimizer" and not self.profile:
            self.source, self.beat_of = "optimizer", id(optimizer)
        if id(optimizer) == self.beat_of and self.source == "optimizer":
            self.beat()

    def batch_fetched(self):
        if self.source == "optimizer" or threading.get_ident() != self.main:
            return
        self.fetches += 1
        if self.fetches > LOADER_PATIENCE:
            self.source = "loader"
            self.beat()

    def beat(self):
        """A step has ended. What fails here ends the recording, never the loop."""
        try:
            self.steps += 1
            if len(self.beats) < MOST_EVENTS:
                self.beats.append(time.time_ns())
            if self.profile is None:
                if self.windows and not self.leaving and not self.timed and self._is_due():
                    self.open()
            elif self.leaving:
                self.close()
            elif not self.timed:
                self._next_step()
        except Exception as error:
            self._fail(error)

    def _is_due(self):
        if self.start_at is None or time.monotonic() < self.ready_s:
            return False
        return self.steps >= self.start_at

    def _next_step(self):
        self.window_steps += 1
        done = self.window_steps - WARM_UP_STEPS
        length_s = (time.time_ns() - self.window_from) / 1e9 if self.window_from else 0.0
        wanted = self.window["steps"]
        over = done >= wanted if wanted else length_s >= self.window["seconds"]
        if not over and length_s < LONGEST_WINDOW_S:
            self.ours = True
            try:
                self.profile.step()
            finally:
                self.ours = False
            if not self.window_from:
                self.window_from = time.time_ns()
            return
        self.close()

    # ---- the profiler, on the main thread only -------------------------------------------

    def open(self, timed=False):
        torch = sys.modules["torch"]
        window = self.windows[0]
        reason = self.in_the_way(torch)
        if window["stacks"] and (sys.getprofile() is not None or sys.gettrace() is not None):
            self.windows.pop(0)
            self.error("no window with stacks: a tracer or profiler of Python's own is set")
            return
        if reason:
            self.windows.clear()
            self.error(reason)
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        action = torch.profiler.ProfilerAction

        def schedule(step):
            return action.RECORD if step or timed else action.WARMUP

        self.window, self.timed = window, timed
        self.window_steps, self.window_from = 0, time.time_ns() if timed else 0
        began = time.time_ns()
        profile = torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=_nothing,
            record_shapes=window["shapes"],
            with_stack=window["stacks"],
        )
        if timed:
            profile.record_steps = False
        self.ours = True
        try:
            self.profile = profile
            profile.start()
        finally:
            self.ours = False
        window["start_ns"] = time.time_ns() - began
        window["first_step"] = self.steps + WARM_UP_STEPS

    def close(self, drop=False):
        """Stops the profiler; a step has just ended."""
        profile, window, timed = self.profile, self.window, self.timed
        if profile is None:
            return
        began = time.time_ns()
        window["until_ns"] = began
        window["from_ns"] = self.window_from
        try:
            profile.stop()
        finally:
            self.profile, self.window, self.timed = None, None, False
            self.windows = self.windows[1:]
        window["stop_ns"] = time.time_ns() - began
        window["recorded"] = max(0, self.window_steps - WARM_UP_STEPS) if not timed else 0
        window["timed"] = timed
        self.ready_s = time.monotonic() + (self.windows[0]["apart"] if self.windows else 0)
        if not drop and (timed or window["recorded"]):
            self.finished.append((profile, window))

    def in_the_way(self, torch):
        """Another profiler that runs or is about to, "" for none."""
        if torch._C._autograd._profiler_enabled():
            return "a torch profiler of the program's own is active"
        if os.environ.get("NSYS_PROFILING_SESSION_ID"):
            return "Nsight Systems profiles this process"
        tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
        if tracker is None or "ProfilerStep" in getattr(tracker, "_step_dict", ["ProfilerStep"]):
            # Only now is a look at all objects worth its milliseconds.
            import gc

            kind = torch.profiler.profile
            for candidate in gc.get_objects():
                if type(candidate) is kind and candidate.profiler is not None:
                    inner = candidate.profiler
                    if getattr(inner, "entered", False) and inner.kineto_results is None:
                        return "a torch profiler of the program's own is in its warm-up"
        return ""

    def make_room(self):
        """The program starts a profiler of its own: ours ends before it does."""
        self.windows = []
        if self.profile is None:
            return
        self.error("the program started a profiler of its own: the window was dropped")
        if threading.get_ident() != self.main:
            self.on_main(lambda: self.close(drop=True))
            until = time.monotonic() + ROOM_S
            while self.profile is not None and time.monotonic() < until:
                time.sleep(0.01)
            return
        try:
            self.close(drop=True)
        except Exception as error:
            self._fail(error)

    def _fail(self, error):
        self.error("torch.profiler failed: %s: %s" % (type(error).__name__, error))
        self.windows, self.profile, self.window, self.timed = [], None, None, False

    # ---- the thread beside ---------------------------------------------------------------

    def watch(self):
        """Samples, exports and listens until told to stop, or until nobody listens any more."""
        me = threading.get_ident()
        lease, renewed = None, time.monotonic()
        looked = 0.0
        why = "asked"
        while not self.left.wait(POLL_S):
            try:
                self.sample(me)
                self.export()
                now = time.monotonic()
                if now - looked < 0.1:
                    continue
                looked = now
                fresh = self._lease()
                if fresh != lease:
                    lease, renewed = fresh, now
                if now - renewed > LEASE_S:
                    why = "abandoned"
                    break
                self._listen(now)
                if os.path.exists(self._path("stop")):
                    break
            except Exception as error:
                self.error("%s: %s" % (type(error).__name__, error))
        if not self.left.is_set():
            self.leave(why)

    def _lease(self):
        try:
            return os.stat(self._path("lease")).st_mtime_ns
        except OSError:
            return None

    def _listen(self, now):
        if self.start_at is None:
            try:
                with open(self._path("start")) as file:
                    self.start_at = int(json.load(file)["step"])
                    self.ready_s = self.asked_s = now
            except (OSError, ValueError):
                pass
        elif self.windows and not self.leaving:
            patience = STEPLESS_TIMED_S if self.windows[0]["seconds"] else STEPLESS_S
            quiet = now - self.asked_s > patience and not self.steps
            if self.profile is None and quiet and now >= self.ready_s and not self.stop_ns:
                wanted = self.windows[0]["seconds"] or STEPLESS_WINDOW_S
                self.stop_ns = time.time_ns() + int(wanted * 1e9)
                self.on_main(self.open_timed)
            elif self.timed and time.time_ns() > self.stop_ns:
                self.stop_ns = 0
                self.on_main(self.close)
        self.put(
            "progress",
            {
                "steps": self.steps,
                "beats": self.beats[-12:],
                "open": self.window["kind"] if self.window else "",
                "in_window": max(0, self.window_steps - WARM_UP_STEPS) if self.window else 0,
                "left": len(self.windows) + len(self.finished),
                "recorded": [w["file"] for w in self.recorded],
                "errors": self.errors,
            },
        )

    def open_timed(self):
        if self.profile is None and self.windows and not self.leaving:
            self.source = self.source if self.steps else "none"
            self.open(timed=True)

    def on_main(self, what):
        """Has the main thread call something at its next safe point."""
        import ctypes

        def call(_):
            if os.getpid() == self.pid:
                try:
                    what()
                except KeyboardInterrupt:
                    import _thread

                    _thread.interrupt_main()
                except BaseException as error:
                    self._fail(error)
            return 0

        pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
        self.keep.append(pointer)  # the call may come late
        ctypes.pythonapi.Py_AddPendingCall(pointer, None)

    def sample(self, me):
        now = time.time_ns()
        for thread, frame in sys._current_frames().items():
            if thread == me:
                continue
            stack = []
            while frame is not None and len(stack) < MOST_FRAMES:
                stack.append((frame.f_code, frame.f_lineno))
                frame = frame.f_back
            key = (thread, tuple(stack))
            number = self.stacks.get(key)
            if number is None:
                if len(self.stacks) >= MOST_STACKS:
                    continue
                number = self.stacks[key] = len(self.stacks)
            if len(self.samples) < MOST_SAMPLES:
                self.samples.append((now, number))
        frame = None

    def export(self):
        while self.finished:
            profile, window = self.finished[0]
            path = self._path(window["file"])
            try:
                profile.export_chrome_trace(path + ".part.json")
                os.rename(path + ".part.json", path)
                self.recorded.append(window)
            except Exception as error:
                self.error("could not write the trace: %s" % (error,))
                try:
                    os.unlink(path + ".part.json")
                except OSError:
                    pass
            self.finished.pop(0)

    # ---- out ----------------------------------------------------------------------------

    def leave(self, why):
        """Takes everything back. An open window is closed by the main thread first."""
        self.leaving = True
        if self.profile is not None:
            self.on_main(self.close)
            until = time.monotonic() + 5.0
            while self.profile is not None and time.monotonic() < until:
                time.sleep(0.01)
            if self.profile is not None:  # stuck in a native call: it is closed when it returns
                self.error("the window could not be closed: the main thread runs no Python")
        self.export()
        self._undo_all()
        self.left.set()
        self.report(why)
        if why == "abandoned":
            self._clear()
        else:
            self.put("done", {})

    def _undo_all(self):
        while self.undo:
            try:
                self.undo.pop()()
            except Exception as error:
                self.error("could not undo a hook: %s" % (error,))

    def report(self, why):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        self.put(
            "observed",
            {
                "why": why,
                "steps": self.steps,
                "source": self.source,
                "beats": self.beats,
                "events": self.events,
                "windows": self.recorded,
                "errors": self.errors,
                "main": self.main,
                "threads": {str(ident): name for ident, name in names.items()},
                "stacks": [
                    [thread, [(code.co_filename, code.co_name, line) for code, line in stack]]
                    for thread, stack in self.stacks
                ],
                "samples": self.samples,
            },
        )

    def _clear(self):
        for name in os.listdir(self.box):
            os.unlink(self._path(name))
        os.rmdir(self.box)

    def at_exit(self):
        """The program ends: never with a profiler running, which would crash it."""
        if os.getpid() != self.pid or self.left.is_set():
            return
        try:
            self.leaving = True
            self.left.set()
            if threading.get_ident() == self.main:
                self.close()
            self.export()
            self.report("exit")
            self.put("done", {})
        except Exception:
            return


def _nothing(*arguments, **keywords):
    pass


if __name__ == "_gpuprof_agent":
    Agent(os.path.dirname(__file__)).install()
