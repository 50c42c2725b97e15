"""Which processes a pid stands for, and that they stay the same ones.

A launcher's pid stands for the ranks below it. A rank, or a job of one process, stands for itself;
its DataLoader workers are told apart. Everything is read from `/proc`; what another user's
processes hide is taken as absent.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.errors import GpuprofError

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCAL_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
TORCH = ("libtorch_cpu.so", "libtorch_python.so")
WORKER_NAME = "pt_data_worker"
"""How torch 2.6 and newer name the main thread of a DataLoader's worker."""
MAX_ENVIRONMENT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table. born: start in clock ticks since boot."""

    pid: int
    parent: int
    name: str
    state: str
    born: int


@dataclass(slots=True)
class Target:
    """A process to be attached to, held by a pidfd so that its pid can't come to mean another.

    memory: its `/proc/PID/maps`, held open, -1 where that may not be read. A process that replaces
    its program (exec) keeps pid, start time and pidfd; the memory that is held then reads as empty.
    """

    process: Process
    pidfd: int
    inner_pid: int
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    memory: int = -1

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """Whether it still runs, is still the same one, and still runs the same program."""
        return not self._has_ended() and not self._has_lost_memory()

    def how_gone(self) -> str:
        """What became of one that is gone, in words that follow on its pid. One that is just ending
        has no memory before it is seen to have ended; another program has some."""
        now = _memory_of(self.pid)
        try:
            is_another = now >= 0 and _has_mappings(now) and self._has_lost_memory()
        finally:
            if now >= 0:
                os.close(now)
        if is_another and not self._has_ended():
            return "replaced itself by another program (exec)"
        return "ended"

    def _has_ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def _has_lost_memory(self) -> bool:
        return self.memory >= 0 and not _has_mappings(self.memory)

    def number(self, names: Iterable[str], default: int) -> int:
        """The first of these variables that is a number."""
        for name in names:
            text = self.environment.get(name, "")
            if text.isdecimal():
                return int(text)
        return default

    def has_rank(self) -> bool:
        return self.number(RANK_VARIABLES, -1) >= 0

    def command(self) -> list[str]:
        try:
            data = Path(f"/proc/{self.pid}/cmdline").read_bytes()[:1000000]
        except OSError:
            return []
        return [part.decode(errors="replace") for part in data.split(b"\0") if part]

    def close(self) -> None:
        os.close(self.pidfd)
        if self.memory >= 0:
            os.close(self.memory)


def read_process(pid: int) -> Process | None:
    """A process as it is now; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(pid, int(fields[1]), name, fields[0], int(fields[19]))


def _memory_of(pid: int) -> int:
    """A process's table of mappings as a file that stays that of its program; -1 where it may not
    be read."""
    try:
        return os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _has_mappings(memory: int) -> bool:
    try:
        return bool(os.pread(memory, 1, 0))
    except OSError:
        return False


def processor_ticks(pid: int) -> tuple[int, int]:
    """What the main thread and all others have used of processors, in clock ticks; 0 where that
    can't be read."""
    used = []
    for where in (f"/proc/{pid}/task/{pid}/stat", f"/proc/{pid}/stat"):
        try:
            text = Path(where).read_text(errors="replace")
        except OSError:
            return 0, 0
        fields = text.rpartition(")")[2].split()
        used.append(int(fields[11]) + int(fields[12]))
    return used[0], max(0, used[1] - used[0])


def process_table() -> dict[int, Process]:
    """All processes that can be seen, by pid."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (process := read_process(int(entry.name))) is not None:
            table[process.pid] = process
    return table


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; none where they may not be read."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            data = file.read(MAX_ENVIRONMENT_BYTES)
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").partition("=") for part in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def uses_torch(pid: int) -> bool:
    """Whether torch's libraries are mapped."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(library in text for library in TORCH)


def inner_pid(pid: int) -> int:
    """What the process calls itself: its pid in its own namespace."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except OSError:
        return pid
    return pid


def hold(pid: int, born: int | None = None) -> Target:
    """Takes hold of a process.

    Args:
        pid: The process.
        born: Its start, where it is known from before; another one means another process.

    Raises:
        GpuprofError: there is no such process, or it is another one by now.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise GpuprofError(f"there is no process {pid}", hint="ps -ef lists them") from error
    process = read_process(pid)
    if process is None or process.state in "ZX" or (born is not None and process.born != born):
        os.close(pidfd)
        raise GpuprofError(f"process {pid} has ended", hint="ps -ef lists those that run")
    return Target(process, pidfd, inner_pid(pid), environment_of(pid), _memory_of(pid))


def find(pid: int) -> list[Target]:
    """The processes that a pid stands for, by rank.

    Raises:
        GpuprofError: there is none, or it is a DataLoader's worker.
    """
    table = process_table()
    if pid not in table:
        raise GpuprofError(f"there is no process {pid}", hint="ps -ef lists them")
    if table[pid].state in "ZX":
        raise GpuprofError(f"process {pid} has ended", hint="ps -ef lists those that run")
    if _is_worker(table[pid], table):
        raise GpuprofError(
            f"process {pid} is a DataLoader's worker",
            hint=f"attach to the process that trains: --pid {table[pid].parent}",
        )
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = _ranks_below(pid, children) or ([pid] if uses_torch(pid) else [])
    if not found:
        found = _torch_below(pid, children, table) or [pid]
    targets = [hold(one, table[one].born) for one in found]
    return sorted(targets, key=lambda t: (t.number(RANK_VARIABLES, 0), t.pid))


def _below(pid: int, children: dict[int, list[int]]) -> list[int]:
    """All descendants, parents before their children."""
    found, seen = list(children.get(pid, ())), {pid}
    for one in found:
        if one not in seen:
            seen.add(one)
            found += children.get(one, ())
    return found


def _ranks_below(pid: int, children: dict[int, list[int]]) -> list[int]:
    """The topmost processes with a rank of their own: their parents have none."""
    if _local_rank(pid) is not None:
        return []
    ranks: list[int] = []
    inside: set[int] = set()
    parents = {child: parent for parent, below in children.items() for child in below}
    for one in _below(pid, children):
        if parents[one] in inside or parents[one] in ranks:
            inside.add(one)
        elif _local_rank(one) is not None and uses_torch(one):
            ranks.append(one)
    return ranks


def _local_rank(pid: int) -> str | None:
    environment = environment_of(pid)
    return next((environment[name] for name in LOCAL_VARIABLES if name in environment), None)


def _torch_below(pid: int, children: dict[int, list[int]], table: dict[int, Process]) -> list[int]:
    """Below a shell or another starter: the topmost processes that use torch."""
    found: list[int] = []
    level = children.get(pid, [])
    while level and not found:
        found = [one for one in level if uses_torch(one) and not _is_worker(table[one], table)]
        level = [child for one in level for child in children.get(one, ())]
    return found


def _is_worker(process: Process, table: dict[int, Process]) -> bool:
    """Whether it is a DataLoader's worker: so named, or a fork of a process with torch."""
    if process.name.startswith(WORKER_NAME):
        return True
    parent = table.get(process.parent)
    if parent is None or not uses_torch(process.pid) or not uses_torch(parent.pid):
        return False
    own, theirs = _command(process.pid), _command(parent.pid)
    return bool(own) and own == theirs and _same_rank(process.pid, parent.pid)


def _same_rank(one: int, other: int) -> bool:
    return _local_rank(one) == _local_rank(other)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
