"""What may be done to a process, and what would allow more.

The probes ask the kernel the very question that attaching would ask, and change nothing.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpuprof.attach import elf, ptrace
from gpuprof.attach.targets import Target, uses_torch

PENDING_CALL, REMOTE_EXEC, NONE = "pending call", "sys.remote_exec", "none"
OLDEST = (3, 8)
REMOTE_EXEC_SINCE = (3, 14)
_VERSION = re.compile(r"(?:libpython|python)(\d)\.(\d+)")
_CAP_SYS_PTRACE = 1 << 19


@dataclass(frozen=True, slots=True)
class Access:
    """How a process can be entered. way: one of the three above; why, remedy: where it can't.
    trains: False for a process that there is nothing to learn of, also from outside."""

    way: str
    python: tuple[int, int] | None = None
    why: str = ""
    remedy: str = ""
    trains: bool = True


def look(target: Target) -> Access:
    """What is allowed on a process that lives."""
    pid = target.pid
    tracer = _status(pid).get("TracerPid", "0")
    if tracer != "0":
        what = _comm(int(tracer))
        return Access(
            NONE,
            why=f"process {pid} is traced already by {what or 'process'} {tracer}",
            remedy="end that first",
        )
    try:
        maps = elf.mappings(pid)
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
        executable = os.fspath(Path(f"/proc/{pid}/exe").readlink())
    except OSError as error:
        if not target.alive() or isinstance(error, FileNotFoundError):
            return Access(
                NONE,
                why=f"process {pid} has ended",
                remedy="ps -ef lists those that run",
                trains=False,
            )
        return _forbidden(target)
    python = _python_version(executable, maps)
    if python is None:
        name = Path(executable).name
        return Access(
            NONE,
            why=f"process {pid} ({name}) is no Python",
            remedy="name the process that trains; a launcher's pid stands for the ranks below it",
            trains=False,
        )
    if not uses_torch(pid):
        return Access(
            NONE,
            python,
            why=f"process {pid} has not loaded torch: there is nothing to profile in it",
            remedy="name the process that trains, or wait until it has imported torch",
            trains=False,
        )
    if python >= REMOTE_EXEC_SINCE:
        return _remote(target, python, executable)
    if python < OLDEST:
        return Access(
            NONE,
            python,
            why=f"process {pid} runs Python {_dotted(python)}, too old to be entered",
            remedy="run the job with Python 3.8 or newer",
        )
    if not ptrace.is_supported():
        return Access(
            NONE,
            python,
            why=f"attaching to Python {_dotted(python)} works on Linux x86-64 only",
            remedy="start the job with gpuprof run",
        )
    return Access(PENDING_CALL, python)


def _remote(target: Target, python: tuple[int, int], executable: str) -> Access:
    """Python's own door. Where the target has closed it, it is not climbed over the fence."""
    off = target.environment.get("PYTHON_DISABLE_REMOTE_DEBUG")
    if off or "disable-remote-debug" in " ".join(target.command()):
        return Access(
            NONE,
            python,
            why=f"process {target.pid} was started with remote debugging off",
            remedy="start it without PYTHON_DISABLE_REMOTE_DEBUG",
        )
    apart = not same_root(target.pid) or target.inner_pid != target.pid
    if apart and (os.geteuid() != 0 or shutil.which("nsenter") is None):
        return Access(
            NONE,
            python,
            why=f"the Python of process {target.pid} is in a container, which only root can enter",
            remedy=f"sudo gpuprof attach --pid {target.pid}, or run gpuprof inside its container",
        )
    if not apart and not Path(executable).exists():
        return Access(
            NONE,
            python,
            why=f"the Python of process {target.pid} has been replaced since it started",
            remedy="start the job again",
        )
    return Access(REMOTE_EXEC, python)


def same_root(pid: int) -> bool:
    """Whether a process sees the same files as this one."""
    own, theirs = Path("/").stat(), Path(f"/proc/{pid}/root").stat()
    return (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino)


def _forbidden(target: Target) -> Access:
    """Why the kernel said no, and the exact command that makes it say yes."""
    pid = target.pid
    owner = int(_status(pid).get("Uid", "0").split()[0] or 0)
    attach = f"gpuprof attach --pid {pid}"
    if owner != os.geteuid() and os.geteuid() != 0:
        return Access(
            NONE,
            why=f"process {pid} belongs to user {_user(owner)}",
            remedy=f"sudo -u {_user(owner)} {attach}, or sudo {attach}",
        )
    scope = _ptrace_scope()
    if scope == 3:
        why, remedy = "ptrace is switched off on this machine (ptrace_scope 3)", ""
        return Access(NONE, why=why, remedy=remedy or "start the job with gpuprof run")
    if scope in (1, 2) and os.geteuid() != 0:
        return Access(
            NONE,
            why=f"this machine lets only root attach to process {pid} (ptrace_scope {scope})",
            remedy=f"sudo {attach}, or start the job with gpuprof run",
        )
    if not _can_ptrace():
        return Access(
            NONE,
            why=f"the right to attach to process {pid} is missing (CAP_SYS_PTRACE)",
            remedy="add it: docker run --cap-add SYS_PTRACE, or capabilities.add: [SYS_PTRACE] in"
            " Kubernetes",
        )
    return Access(
        NONE,
        why=f"the kernel refuses to attach to process {pid}",
        remedy="it may have made itself undumpable, or a security module forbids it",
    )


def _ptrace_scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _can_ptrace() -> bool:
    try:
        return bool(int(_status(os.getpid()).get("CapEff", "0"), 16) & _CAP_SYS_PTRACE)
    except ValueError:
        return False


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _status(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _python_version(executable: str, maps: list[elf.Mapping]) -> tuple[int, int] | None:
    names = [m.path for m in maps if "libpython" in Path(m.path).name]
    for name in (*names, executable):
        if match := _VERSION.search(Path(name).name):
            return int(match[1]), int(match[2])
    return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
