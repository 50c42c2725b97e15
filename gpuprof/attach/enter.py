"""Gets the agent into one process, and back out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.attach import access, mailbox, targets
from gpuprof.attach.inject import boot_line
from gpuprof.attach.mailbox import Mailbox
from gpuprof.attach.targets import Target
from gpuprof.attach.trampoline import Injection, wipe
from gpuprof.errors import GpuprofError
from gpuprof.recording import RUN_FOLDER

HELPER_S = 20.0
ANSWER_S = 15.0
"""The main thread runs the agent at its next bytecode; a long native call keeps it from that."""
FEWEST_TICKS = 5
"""Of the processor's time, some 50 ms: threads that only wait use less of it meanwhile."""
DONE_S = 8.0
"""The agent waits up to 5 s for the main thread to close a window."""
WIPE_S = 1.0


class SilentError(GpuprofError):
    """The main thread runs no Python: it is busy in native code, or stands there."""


REFUSALS = {
    "busy": ("gpuprof is attached to process {pid} already", "wait until that ends"),
    "no-torch": (
        "process {pid} has not imported torch: there is nothing to profile in it",
        "name the process that trains",
    ),
    "importing": ("process {pid} is still importing torch", "try again in a moment"),
    "session": (
        "process {pid} records itself with gpuprof already",
        "its verdict comes at its end; gpuprof analyze reads its run directory",
    ),
}


class RecordsItselfError(GpuprofError):
    """A job under `gpuprof run`: nothing has to be put into it. folder: its run directory."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message, hint=f"gpuprof analyze {folder} shows what it has recorded")
        self.folder = folder


@dataclass(slots=True)
class Entered:
    """A process with an agent in it. status: what the agent said of itself."""

    target: Target
    box: Mailbox
    injection: Injection | None
    status: dict[str, Any]
    seconds: float


PARTS = (
    "agent_door",
    "agent_callers",
    "agent_loader",
    "agent_pace",
    "agent_hooks",
    "agent_stacks",
    "agent_export",
    "agent_windows",
    "agent",
)


def agent_text() -> str:
    """The agent's source as one text, which is how it travels to the target."""
    text = "from __future__ import annotations\n"
    for part in PARTS:
        source = (Path(__file__).parent / f"{part}.py").read_text(encoding="utf-8")
        lines = source.splitlines(keepends=True)
        text += "".join(x for x in lines if not x.startswith(("from __future__", "from gpuprof.")))
    return text


def enter(target: Target, way: str, config: dict[str, object]) -> Entered:
    """Puts the agent into a process and waits for its answer.

    Args:
        target: The process.
        way: How, from `access.look`.
        config: For the agent; see there.

    Raises:
        GpuprofError: it could not get in, or the agent has refused. Nothing of it stays.
    """
    began = time.monotonic()
    _refuse_stopped(target)
    box = mailbox.make(target.pid, agent_text())
    try:
        box.put("config", config)
        line = boot_line(f"{box.there}/agent.py", target.inner_pid)
        if not target.alive():
            raise GpuprofError(f"process {target.pid} has {target.how_gone()}")
        injection = None
        if way == access.REMOTE_EXEC:
            _remote_exec(target, box, line)
        else:
            injection = _inject(target.pid, line)
        before = targets.processor_ticks(target.pid)
        status = box.wait("status", ANSWER_S, target.alive)
        if not isinstance(status, dict):
            raise _silent(target, before)
        if status.get("state") != "armed":
            raise _refusal(target, status)
    except BaseException as error:
        _forget(box, error)
        raise
    return Entered(target, box, injection, status, time.monotonic() - began)


def _refuse_stopped(target: Target) -> None:
    process = targets.read_process(target.pid)
    if process is not None and process.state == "T":
        raise GpuprofError(
            f"process {target.pid} is stopped, as by Ctrl-Z: it runs nothing",
            hint=f"kill -CONT {target.pid} lets it go on",
        )


def _forget(box: Mailbox, error: BaseException) -> None:
    box.cancel()
    if isinstance(error, KeyboardInterrupt):
        box.put("stop", {})  # the agent may be in: it clears up by itself, for want of a lease
        return
    box.remove()


def _inject(pid: int, line: str) -> Injection:
    """In a process of its own: Ctrl-C does not reach it, and its end lets every thread go."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpuprof.attach.inject", str(pid)],
            input=line.encode(),
            capture_output=True,
            timeout=HELPER_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise GpuprofError(f"process {pid} could not be entered in {HELPER_S:.0f} s") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"the injector failed: {''.join(last)}") from error
    if "error" in answer:
        raise GpuprofError(answer["error"], hint=answer["hint"])
    return Injection(**answer)


def _remote_exec(target: Target, box: Mailbox, line: str) -> None:
    """By the target's own interpreter: `sys.remote_exec` works between equal versions only."""
    box.write("boot.py", line.encode())
    executable = os.fspath(Path(f"/proc/{target.pid}/exe").readlink())
    root = os.fspath(Path(f"/proc/{target.pid}/root").readlink())
    inside: list[str] = []
    if not access.same_root(target.pid) or target.inner_pid != target.pid:
        # A container's interpreter sees its own files, and its own numbers of processes.
        inside = ["nsenter", "--target", str(target.pid), "--mount", "--pid", "--root", "--wd=/"]
        executable = executable.removeprefix(root.rstrip("/"))
    program = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    script_there = f"{box.there}/boot.py"
    done = subprocess.run(
        [*inside, executable, "-I", "-c", program, str(target.inner_pid), script_there],
        capture_output=True,
        timeout=HELPER_S,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise GpuprofError(f"process {target.pid} refused sys.remote_exec: {''.join(last)}")


def _silent(target: Target, before: tuple[int, int]) -> GpuprofError:
    """before: what `targets.processor_ticks` said when the wait began."""
    if not target.alive():
        gone = target.how_gone()
        return GpuprofError(f"process {target.pid} has {gone} while gpuprof attached to it")
    silence = (
        f"the main thread of process {target.pid} has run no Python for {ANSWER_S:.0f} s"
        f"{_kernel_function(target.pid)}"
    )
    main, others = (
        now - then for then, now in zip(before, targets.processor_ticks(target.pid), strict=True)
    )
    if others >= FEWEST_TICKS and main * 10 <= others:
        return SilentError(
            f"{silence}, while other threads of it compute: a loop on another thread than the main"
            " one can't be recorded from inside",
            hint="--no-inject samples it",
        )
    return SilentError(
        f"{silence}: it is stuck in native code",
        hint=f"py-spy dump --native --pid {target.pid} shows where; --no-inject samples it",
    )


def _kernel_function(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return ""
    return f" (it waits in {name})" if name and name != "0" else ""


def _refusal(target: Target, status: dict[str, Any]) -> GpuprofError:
    state = str(status.get("state"))
    if state in REFUSALS:
        message, hint = REFUSALS[state]
        folder = target.environment.get(RUN_FOLDER, "")
        if state == "session" and folder and access.same_root(target.pid):
            return RecordsItselfError(message.format(pid=target.pid), Path(folder))
        return GpuprofError(message.format(pid=target.pid), hint=hint)
    why = str(status.get("why", state))[:300]
    return GpuprofError(f"the agent could not start in process {target.pid}: {why}")


def ask_to_leave(entered: Entered) -> None:
    """Tells the agent to take everything back."""
    if entered.target.alive():
        try:
            entered.box.put("stop", {})
        except OSError:
            return  # without a lease it leaves by itself


def see_off(entered: Entered) -> tuple[dict[str, Any], bool]:
    """Waits until the agent has left; returns what it observed, and whether it has left."""
    found = entered.box.wait("done", DONE_S, entered.target.alive)
    observed = entered.box.get("observed")
    until = time.monotonic() + WIPE_S
    while entered.injection is not None and entered.target.alive():
        if wipe(entered.target.pid, entered.injection, has_run=True) or time.monotonic() > until:
            break
        time.sleep(0.02)
    left = found is not None or not entered.target.alive()
    return (observed if isinstance(observed, dict) else {}), left


def clear(entered: Entered) -> None:
    """Removes the mailbox; an agent that has not left keeps it until it has."""
    if entered.box.has("done") or not entered.target.alive():
        entered.box.remove()
    else:
        entered.box.close()
