"""`gpuprof run -- COMMAND`: a job under a session, without a change to it.

The command gets the terminal, the signals and the exit status; gpuprof stands beside it. What it
adds is environment: NCCL's log into the run directory, and a start hook (`gpuprof/startup`) that
waits in every Python process for torch and records those that train.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuprof import process, run
from gpuprof.child import RunOptions
from gpuprof.collectors import nccl_capture
from gpuprof.errors import GpuprofError
from gpuprof.leader import RUN_LEADER, identity
from gpuprof.recording import RUN_FOLDER, RUN_JOB, RUN_OPTIONS
from gpuprof.run_writer import clear_older, write_record

if TYPE_CHECKING:
    from gpuprof.collectors.sampler_client import SamplerHandle

STARTUP = Path(__file__).resolve().parent / "startup"

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
"""What others send to gpuprof is meant for the job. Stopping and continuing work on the whole
process group anyway."""

FROM_TERMINAL = 0x80
"""`si_code` of a signal that the kernel made: Ctrl-C reached the job as well as gpuprof."""


LOOK_S = 1.0
"""The child's end is told by a signal; should that get lost, it is looked for this often."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run, where to record it, and what of it."""

    command: tuple[str, ...]
    folder: Path
    options: RunOptions


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the job ended: its exit status, or minus the signal that ended it."""

    status: int
    folder: Path
    notes: tuple[str, ...] = ()
    no_samples: str = ""
    """Why samples are missing, "" where they are not."""


def run_job(job: Job) -> Ended:
    """Runs the command to its end, and completes the run directory.

    Raises:
        GpuprofError: the command can't be started, or the run directory can't be made.
    """
    _must_exist(job.command[0])
    try:
        folder = job.folder.absolute()
    except OSError as error:  # the working directory has been deleted
        raise _cannot_write(job.folder, error) from error
    name = process.job_name()
    nccl, nccl_variables = _nccl(folder)
    started = time.time()
    manifest = run.Manifest(
        job=name,
        launched_by="run",
        command=process.without_secrets(list(job.command)),
        started_unix_s=started,
        hosts=[process.host_name()],
        nccl=nccl,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_older(folder, started, process.host_name())
        (folder / "unhooked.log").unlink(missing_ok=True)
        if nccl_variables:
            (folder / run.NCCL).mkdir(exist_ok=True)
        write_record(folder / run.MANIFEST, manifest)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    environment = {**_environment(folder, name, job.options), **nccl_variables}
    forwarder = _start(job.command, environment)
    sampler = _sample(folder, forwarder.child_pid) if job.options.samples else None
    no_samples = ""
    try:
        status = forwarder.wait()
        if sampler is not None:  # a second Ctrl-C must not cost the job's exit status
            no_samples = _stop(sampler, forwarder.child_pid)
    finally:
        forwarder.restore()
    return Ended(status=status, folder=folder, notes=tuple(_notes(folder)), no_samples=no_samples)


def _must_exist(command: str) -> None:
    """Looks before anything is replaced: a mistyped command is not to cost an earlier recording."""
    if shutil.which(command) is None:
        is_there = os.sep in command and Path(command).exists()
        raise _cannot_start(command, os.strerror(errno.EACCES if is_there else errno.ENOENT))


def _cannot_start(command: str, why: str) -> GpuprofError:
    return GpuprofError(
        f"cannot start {command}: {why}",
        hint="give the command after --, as in: gpuprof run -- python train.py",
    )


def _cannot_write(folder: Path, error: OSError) -> GpuprofError:
    return GpuprofError(
        f"cannot write into {folder}: {error.strerror or error}",
        hint="name another folder with --out",
    )


def _nccl(folder: Path) -> tuple[run.NcclCapture, dict[str, str]]:
    """Whether NCCL's log will be recorded, and the variables for that."""
    if not nccl_capture.is_possible():
        return run.NcclCapture(status="not used", why="no GPU driver with NCCL here"), {}
    reason = nccl_capture.why_not(os.environ)
    if reason:
        return run.NcclCapture(status="missed", why=reason), {}
    return run.NcclCapture(status="captured"), nccl_capture.settings(folder / run.NCCL)


def _environment(folder: Path, name: str, options: RunOptions) -> dict[str, str]:
    python_path = [os.fspath(STARTUP), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6"),
        "PYTHONPATH": os.pathsep.join(part for part in python_path if part),
        RUN_FOLDER: os.fspath(folder),
        RUN_JOB: name,
        RUN_LEADER: identity(),
        RUN_OPTIONS: msgspec.json.encode(options).decode(),
    }


class _Forwarder:
    """Keeps signals from ending gpuprof before the job has ended, and hands them on."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.early: list[int] = []
        numbers = [getattr(signal, name, None) for name in FORWARDED]
        self.numbers = [number for number in numbers if number is not None]
        self.before: dict[int, Any] = {}

    @property
    def child_pid(self) -> int:
        return self.child.pid if self.child is not None else 0

    def install(self) -> None:
        """Handlers, not "ignore": the child would inherit that. What was ignored stays ignored."""
        for number in self.numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        child = self.child
        if child is None:
            self.early.append(number)
        elif number not in (signal.SIGINT, signal.SIGQUIT):
            _send(child, number)

    def wait(self) -> int:
        """Waits for the child, and hands on what others send meanwhile."""
        child = self.child
        assert child is not None
        for number in self.early:
            _send(child, number)
        if not hasattr(signal, "sigtimedwait"):
            return _wait_simply(child)
        awaited = {*self.before, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        try:
            while child.poll() is None:
                told = signal.sigtimedwait(awaited, LOOK_S)
                if told is None or told.si_signo == signal.SIGCHLD:
                    continue
                if told.si_code != FROM_TERMINAL:
                    _send(child, told.si_signo)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        return int(child.returncode)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def _wait_simply(child: subprocess.Popen[bytes]) -> int:
    """Where the sender of a signal can't be told: Ctrl-C is taken to have reached the child."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        child.send_signal(number)


def _start(command: Sequence[str], environment: dict[str, str]) -> _Forwarder:
    forwarder = _Forwarder()
    forwarder.install()
    try:
        forwarder.child = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        forwarder.restore()
        raise _cannot_start(command[0], error.strerror or str(error)) from error
    return forwarder


def _sample(folder: Path, pid: int) -> SamplerHandle | None:
    """Starts the node's sampler; the ranks join it when they start to train."""
    from gpuprof.collectors import sampler_client

    try:
        return sampler_client.start(folder / run.SAMPLES, ranks=[], parents=[pid])
    except OSError as error:
        sys.stderr.write(f"gpuprof: no samples: {error.strerror or error}\n")
        return None


def _stop(sampler: SamplerHandle, pid: int) -> str:
    """Lets the sampler go. Returns why samples are missing: the job's exit status comes first."""
    problem = sampler.problem()
    try:
        sampler.stop([pid])
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        sys.stderr.write(f"gpuprof: no samples: {problem}\n")
    return problem


def _notes(folder: Path) -> list[str]:
    """What the start hook had to say of processes that it could not enter."""
    try:
        with (folder / "unhooked.log").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return []
    return [f"not recorded: {line}" for line in dict.fromkeys(lines[:20])]


def tell_verdict(ended: Ended, *, report: bool, quiet: bool) -> None:
    """Completes the run directory and gives the verdict on standard error; one line if it can't.

    Args:
        ended: How the job ended.
        report: Whether to analyze and to write the report.
        quiet: Whether to print nothing.
    """
    from gpuprof.conclude import complete_manifest, verdict

    try:
        notes = [*ended.notes, *([f"no samples: {ended.no_samples}"] if ended.no_samples else [])]
        manifest = complete_manifest(ended.folder, exit_status=ended.status, notes=notes)
        if not report:
            return
        if not any(record.steps for record in manifest.ranks):
            sys.stderr.write(f"gpuprof: {_nothing(ended, manifest)}\n")
            return
        text = verdict(ended.folder, sys.stderr)
        if not quiet:
            sys.stderr.write(text)
    except (GpuprofError, OSError) as error:
        sys.stderr.write(f"gpuprof: no verdict: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write(
            f"gpuprof: no verdict: interrupted; gpuprof analyze {ended.folder} has it\n"
        )


def _nothing(ended: Ended, manifest: run.Manifest) -> str:
    """Why there is nothing to judge. A rank's record is written at its first step, and again with
    each window: one that says "recording" was ended by a signal, or past Python's own exit."""
    if any(record.state == "recording" for record in manifest.ranks):
        return f"no verdict: the job ended before its first window was recorded into {ended.folder}"
    why = "; ".join(ended.notes) or (
        "until the command ended, no Python process of the job that gpuprof could enter made a step"
    )
    return f"no step was recorded: {why}"


def end_like(status: int) -> None:
    """Ends this process as the job has ended: with its status, or by the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status >= 0:
        sys.exit(status)
    number = -status
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    _no_core()
    os.kill(os.getpid(), number)
    time.sleep(1)  # the signal may be blocked by whoever started us
    sys.exit(128 + number)


def _no_core() -> None:
    """The job has written its core file; gpuprof's own would only hide it."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        return
