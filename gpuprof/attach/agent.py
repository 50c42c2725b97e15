"""What runs inside the target. Not imported there by name: its text is run by the boot line, with
that of the other parts (`enter.PARTS`) before it.

Standard library only, Python 3.8 and newer, and nothing of gpuprof: the target's environment is
its own. torch is taken from `sys.modules` and never imported first. Everything put into place is
taken back: hooks only where nobody has put another one on top since.

`Agent.install` and all starting and stopping of the profiler happen on the main thread. One daemon
thread samples stacks, exports, and watches the mailbox; it ends itself when the attaching side
goes silent.

Files in the mailbox, all JSON and renamed into place: from gpuprof `config` (read once), `lease`,
`start`, `stop`; from here `status`, `progress`, `observed`, `done`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

from gpuprof.attach.agent_door import Mail, Refused, unmark, welcome, who
from gpuprof.attach.agent_hooks import MOST_EVENTS, Hooks
from gpuprof.attach.agent_stacks import Stacks
from gpuprof.attach.agent_windows import Windows

LEASE_S = 6.0
"""So long may the attaching side be silent: it renews several times a second."""
POLL_S = 0.02
"""Rate of the stack samples, 50 Hz."""
LISTEN_S = 0.1
STEPLESS_S = 15.0
"""Without any step for so long, a window is opened between two bytecodes instead. A large model's
step takes seconds."""
STEPLESS_TIMED_S = 3.0
"""The same where the user has asked for seconds, not for steps."""
IMPORTING_S = 30.0
"""A main thread that imports something is only starting; one that does so for longer trains in
there."""
STUCK_S = 60.0
ROOM_S = 2.0
"""A profiler that the program starts on another thread waits so long for the main one."""
CLOSE_S = 5.0


class Agent:
    """One attachment to this process. box: the mailbox, as seen from here."""

    def __init__(self, box: str) -> None:
        self.mail = Mail(box)
        self.error = self.mail.error
        self.pid = os.getpid()
        self.main = threading.main_thread().ident
        self.status: dict[str, Any] = {
            "state": "armed",
            "pid": self.pid,
            "python": sys.version.split()[0],
        }
        plan = self.mail.get("config")["windows"]
        self.hooks = Hooks(self)
        self.windows = Windows(plan, self.error, self.hooks.syncs, self.hooks.loader)
        self.beats: list[int] = []  # ends of steps, ns since the epoch
        self.start_at: int | None = None
        self.asked_s = self.began_s = time.monotonic()
        self.stop_ns = 0
        self.leaving = False
        self.left = threading.Event()
        self.stacks = Stacks()
        self.keep: list[Any] = []  # callbacks that the interpreter may still call

    # ---- in -----------------------------------------------------------------------------

    def install(self) -> None:
        """On the main thread, once. Ends within milliseconds, and raises nothing."""
        try:
            torch = welcome(self.mail.box)
            self.hooks.undo.append(lambda: unmark(self.mail.box))
            self.status.update(who(torch))
            self.hooks.put(torch)
            if "KINETO_LOG_LEVEL" not in os.environ:  # Kineto talks on standard error otherwise
                os.environ["KINETO_LOG_LEVEL"] = "6"
                self.hooks.undo.append(lambda: os.environ.pop("KINETO_LOG_LEVEL", None))
            atexit.register(self.at_exit)
            self.hooks.undo.append(lambda: atexit.unregister(self.at_exit))
            threading.Thread(target=self.watch, name="gpuprof-attach", daemon=True).start()
        except Refused as reason:
            self.status["state"] = str(reason)
        except Exception as error:
            self.status["state"] = "failed"
            self.status["why"] = f"{type(error).__name__}: {error}"
            self.hooks.take_out()
        except BaseException:  # the program's own Ctrl-C: it gets it, and gpuprof goes
            self.left.set()
            self.hooks.take_out()
            raise
        self.mail.put("status", self.status)

    # ---- the loop, on the main thread ----------------------------------------------------

    def is_recording(self) -> bool:
        return self.windows.profile is not None

    def is_recording_steps(self) -> bool:
        return self.is_recording() and not self.windows.timed

    def beat(self) -> None:
        """A step has ended. What fails here ends the recording, never the loop."""
        windows = self.windows
        try:
            if len(self.beats) < MOST_EVENTS:
                self.beats.append(time.time_ns())
            with windows.alone():
                if windows.profile is None:
                    due = self.start_at is not None and len(self.beats) >= self.start_at
                    if due and not self.leaving and windows.may_open():
                        windows.open(len(self.beats))
                elif self.leaving:
                    windows.close()
                elif windows.timed:  # so there are steps: the program was only starting
                    windows.close(drop=True, again=True)
                else:
                    windows.step()
        except Exception as error:
            windows.fail(error)

    def steps_change(self) -> None:
        """Another optimizer sets the pace: an open window must not mix its steps with others."""
        windows = self.windows
        if not self.is_recording_steps() or self.leaving:
            return
        try:
            with windows.alone():
                windows.close(drop=True, again=True)
        except Exception as error:
            windows.fail(error)

    def make_room(self) -> None:
        """The program starts a profiler of its own: ours ends before it does."""
        windows = self.windows
        if windows.ours:
            return
        if windows.profile is None:
            if windows.plan:
                windows.plan = []
                self.error("the program started a profiler of its own: no window beside it")
            return
        self.error("the program started a profiler of its own: the window was dropped")
        windows.plan = windows.plan[:1]
        if threading.get_ident() == self.main:
            try:
                with windows.alone():
                    windows.close(drop=True)
            except Exception as error:
                windows.fail(error)
            return
        self.on_main(lambda: windows.close(drop=True))
        self._until_closed(ROOM_S)

    def _until_closed(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while not self.windows.is_closed and time.monotonic() < until:
            time.sleep(0.01)
        return self.windows.is_closed

    # ---- the thread beside ---------------------------------------------------------------

    def watch(self) -> None:
        """Samples, exports and listens until told to stop, or until nobody listens any more."""
        me = threading.get_ident()
        lease, renewed_s = 0, time.monotonic()
        looked_s = 0.0
        why = "asked"
        while not self.left.wait(POLL_S):
            try:
                self.stacks.sample(me)
                self.windows.export(self.mail.box)
                now_s = time.monotonic()
                if now_s - looked_s < LISTEN_S:
                    continue
                looked_s = now_s
                fresh = self.mail.lease()
                if fresh != lease:
                    lease, renewed_s = fresh, now_s
                if now_s - renewed_s > LEASE_S or not os.path.isdir(self.mail.box):
                    why = "abandoned"
                    break
                if self.mail.has("stop"):
                    break
                self._listen(now_s)
            except Exception as error:
                self.error(f"{type(error).__name__}: {error}")
        if not self.left.is_set():
            try:
                self.leave(why)
            except Exception as error:  # never on the program's standard error
                self.error(f"{type(error).__name__}: {error}")
                self.hooks.take_out()

    def _listen(self, now_s: float) -> None:
        windows = self.windows
        self.hooks.name_saves()
        if self.start_at is None:
            try:
                self.start_at = int(self.mail.get("start")["step"])
                self.asked_s = now_s
            except (OSError, ValueError):
                pass
        elif windows.timed and time.time_ns() > self.stop_ns:
            self.on_main(windows.end_timed)
        elif windows.may_open() and not self.beats:
            patience_s = STEPLESS_TIMED_S if windows.plan[0]["seconds"] else STEPLESS_S
            if self.is_importing() and now_s - self.began_s < IMPORTING_S:
                self.asked_s = now_s
            elif now_s - self.asked_s > patience_s and time.time_ns() > self.stop_ns:
                self.stop_ns = time.time_ns() + int(STUCK_S * 1e9)  # asked once, then again
                self.on_main(self._open_timed)
        self.mail.put(
            "progress",
            {
                "steps": len(self.beats),
                "beats": self.beats[-12:],
                "open": windows.window.get("kind", ""),
                "in_window": windows.done_steps,
                "left": windows.left,
                "errors": self.mail.errors,
            },
        )

    def is_importing(self) -> bool:
        """Whether the main thread imports something: the program is only starting."""
        frame: Any = sys._current_frames().get(self.main or 0)
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return True
            frame = frame.f_back
        return False

    def _open_timed(self) -> None:
        if self.windows.may_open() and not self.leaving:
            wanted_s = self.windows.timed_s()
            self.windows.open(0, timed=True)
            self.stop_ns = time.time_ns() + int(wanted_s * 1e9)

    def on_main(self, what: Any) -> None:
        """Has the main thread call something at its next safe point."""
        import ctypes

        def guarded() -> None:
            try:
                what()
            except KeyboardInterrupt:
                interrupt_later()
            except BaseException as error:
                self.windows.fail(error)

        def call(_: Any) -> int:
            if os.getpid() == self.pid:
                self.windows.ask(guarded)
            return 0

        pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
        self.keep.append(pointer)  # the call may come late
        ctypes.pythonapi.Py_AddPendingCall(pointer, None)

    # ---- out ----------------------------------------------------------------------------

    def leave(self, why: str) -> None:
        """Takes everything back. An open window is closed by the main thread first."""
        self.leaving = True
        is_lost = why == "abandoned"  # nobody will read what was recorded
        if is_lost:
            self.windows.finished.clear()
        if not self.windows.is_closed:
            self.on_main(lambda: self.windows.close(drop=is_lost))
            if not self._until_closed(CLOSE_S):  # it is closed when the native call returns
                self.error("the window could not be closed: the main thread runs no Python")
        self.windows.export(self.mail.box)
        self.hooks.take_out()
        self.left.set()
        if is_lost:
            self.mail.clear()
        else:
            self.report(why)
            self.mail.put("done", {})

    def report(self, why: str) -> None:
        """Everything that was seen."""
        hooks = self.hooks
        self.mail.put(
            "observed",
            {
                "why": why,
                "source": hooks.source,
                "beats": self.beats,
                "events": hooks.events,
                "calls": hooks.callers.listed(),
                "windows": self.windows.recorded,
                "errors": self.mail.errors,
                "main": self.main,
                "threads": {str(each.ident): each.name for each in threading.enumerate()},
                "stacks": self.stacks.listed(),
                "samples": self.stacks.samples,
            },
        )

    def at_exit(self) -> None:
        """The program ends: never with a profiler running, which would crash it."""
        if os.getpid() != self.pid or self.left.is_set():
            return
        try:
            self.leaving = True
            self.left.set()
            if threading.get_ident() == self.main:
                with self.windows.alone():
                    self.windows.close()
            self.windows.export(self.mail.box)
            self.report("exit")
            self.mail.put("done", {})
        except Exception:
            return


def interrupt_later() -> None:
    """Raises the program's Ctrl-C again in its own code; at once would be in the agent's."""
    import _thread

    threading.Timer(0.05, _thread.interrupt_main).start()


if __name__ == "_gpuprof_agent":
    Agent(os.path.dirname(__file__)).install()
