"""All ranks of a job on this host, whichever of its processes was named.

Ranks that a launcher starts carry their numbers in their environment. Those that a program starts
itself (`torch.multiprocessing.spawn`) do not: there the order in which they were started counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.attach import targets
from gpuprof.attach.targets import (
    LOCAL_SIZE_VARIABLES,
    LOCAL_VARIABLES,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    Process,
    Target,
)

KEPT = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)
KEPT_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_FR_")
"""Variables that decide how ranks find and talk to each other; nothing else is kept."""
MAX_VALUE_CHARS = 200
_HERE = ("localhost", "127.0.0.1", "::1")
_SPAWNED = b"multiprocessing.spawn"


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's process. born: its start, so that its pid can't come to mean another one."""

    pid: int
    inner_pid: int
    born: int
    rank: int
    world_size: int
    environment: dict[str, str] = field(repr=False)

    def alive(self) -> bool:
        process = targets.read_process(self.pid)
        return process is not None and process.born == self.born and process.state not in "ZX"

    @property
    def folder(self) -> str:
        """Where it runs: what relative paths of its files start from."""
        try:
            return str(Path(f"/proc/{self.pid}/cwd").readlink())
        except OSError:
            return ""

    def settings(self) -> dict[str, str]:
        """Those of its variables that decide how ranks find each other."""
        return {
            name: value[:MAX_VALUE_CHARS]
            for name, value in sorted(self.environment.items())
            if name in KEPT or name.startswith(KEPT_PREFIXES)
        }


def members_of(found: Sequence[Target]) -> list[Member]:
    """The ranks of the job that these processes belong to, by rank."""
    table = targets.process_table()
    known = {target.pid: target.environment for target in found if target.has_rank()}
    if not known:  # a program that starts ranks by itself, and has loaded torch, too
        below = [p.pid for p in table.values() if p.parent in {target.pid for target in found}]
        environments = {pid: targets.environment_of(pid) for pid in below}
        known = {
            pid: values
            for pid, values in environments.items()
            if _number(values, RANK_VARIABLES) is not None
        }
    if known:
        job = _job(next(iter(known.values())))
        pids = set(known)
        pids |= {pid for pid in table if pid not in pids and _is_of(pid, job)}
        members = [_member(table[pid], targets.environment_of(pid)) for pid in pids if pid in table]
        return sorted(_topmost(members, table), key=lambda one: (one.rank, one.pid))
    spawned = [pid for target in found for pid in _spawned(target.pid, table)]
    pids_in_order = spawned or [target.pid for target in found]
    size = len(pids_in_order)
    return [
        Member(
            pid,
            targets.inner_pid(pid),
            table[pid].born,
            number,
            size,
            targets.environment_of(pid),
        )
        for number, pid in enumerate(sorted(pids_in_order, key=lambda p: (table[p].born, p)))
        if pid in table
    ]


def expected_ranks(members: Sequence[Member]) -> list[int]:
    """Ranks that belong on this host and have no process."""
    here = {one.rank for one in members}
    expected: set[int] = set()
    for one in members:
        local = _number(one.environment, LOCAL_VARIABLES)
        size = _number(one.environment, LOCAL_SIZE_VARIABLES)
        if size is not None and local is not None:
            expected |= set(range(one.rank - local, one.rank - local + size))
        elif _is_local(one.environment):
            expected |= set(range(one.world_size))
    return sorted(expected - here)


def _is_local(environment: dict[str, str]) -> bool:
    """Whether all ranks are on this host: nobody else could reach the address that they meet at."""
    address = environment.get("MASTER_ADDR", "")
    return address in _HERE and _number(environment, RANK_VARIABLES) is not None


def _job(environment: dict[str, str]) -> tuple[str, ...]:
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    return (
        *(environment.get(name, "") for name in names),
        str(_number(environment, SIZE_VARIABLES)),
    )


def _is_of(pid: int, job: tuple[str, ...]) -> bool:
    if not any(job[:-1]):
        return False
    environment = targets.environment_of(pid)
    return _number(environment, RANK_VARIABLES) is not None and _job(environment) == job


def _member(process: Process, environment: dict[str, str]) -> Member:
    return Member(
        process.pid,
        targets.inner_pid(process.pid),
        process.born,
        _number(environment, RANK_VARIABLES) or 0,
        max(1, _number(environment, SIZE_VARIABLES) or 1),
        environment,
    )


def _topmost(members: Iterable[Member], table: dict[int, Process]) -> list[Member]:
    """One process a rank: the topmost that has loaded torch, or that starts, of those that inherit
    its variables."""
    by_rank: dict[int, list[Member]] = {}
    for one in members:
        by_rank.setdefault(one.rank, []).append(one)
    chosen = []
    for those in by_rank.values():
        with_torch = [one for one in those if targets.uses_torch(one.pid)] or those
        pids = {one.pid for one in with_torch}
        chosen += [one for one in with_torch if table[one.pid].parent not in pids][:1]
    return chosen


def _spawned(pid: int, table: dict[int, Process]) -> list[int]:
    """Ranks that a program has started by torch.multiprocessing, not its DataLoaders' workers."""
    children = [p.pid for p in table.values() if p.parent == pid]
    found = []
    try:
        own = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    for child in children:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        is_worker = table[child].name.startswith(targets.WORKER_NAME)
        is_fork = command == own
        if (_SPAWNED in command or is_fork) and not is_worker and targets.uses_torch(child):
            found.append(child)
    return found


def _number(environment: dict[str, str], names: Iterable[str]) -> int | None:
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdecimal() else None
