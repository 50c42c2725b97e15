"""What one rank does on the CPU: its main thread, its process, and its DataLoader workers.

Counters of a worker that ended are kept in the sums, so that they never run backwards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.collectors.host import TICKS_PER_S
from gpuprof.collectors.nvml_readers import Failure, Value
from gpuprof.sample_format import Status

METRICS = (
    "cpu_s",
    "main_thread_cpu_s",
    "threads",
    "switches_voluntary",
    "switches_involuntary",
    "minor_faults",
    "major_faults",
    "rss_bytes",
    "read_bytes",
    "read_cached_bytes",
    "written_bytes",
    "workers",
    "workers_cpu_s",
    "workers_rss_bytes",
    "workers_read_bytes",
    "workers_major_faults",
)
"""CPU seconds count user and system time. `read_bytes` came from storage; `read_cached_bytes` is
what read() asked for, so what the page cache served is the difference."""

MAX_WORKERS = 512
RESCAN_TICKS = 3
"""Children are looked up every so many reads: it costs more than reading them."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(slots=True)
class Usage:
    """The counters of one process."""

    cpu_s: float = 0
    threads: int = 0
    rss_bytes: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    read_bytes: int | None = None
    read_cached_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(slots=True)
class ProcessReader:
    """Reads a rank's process and everything below it. `proc` is another /proc, for tests."""

    pid: int
    proc: Path = Path("/proc")
    _workers: list[int] = field(default_factory=list)
    _last: dict[int, Usage] = field(default_factory=dict)
    _ended: Usage = field(default_factory=lambda: Usage(read_bytes=0))
    _tick: int = 0

    def read(self) -> list[Value]:
        """The values of `METRICS`; LOST when the process is gone."""
        own = usage(self.proc / str(self.pid))
        if own is None:
            return [Failure(Status.LOST, "the process ended")] * len(METRICS)
        if self._tick % RESCAN_TICKS == 0:
            own_pids = recorder_pids(self.pid, os.getpid(), self.proc)
            self._workers = [p for p in descendants(self.pid, self.proc) if p not in own_pids]
        self._tick += 1
        workers = self._read_workers()
        switches = _switches(self.proc / str(self.pid))
        main = usage(self.proc / str(self.pid) / "task" / str(self.pid), io=False)
        refused = Failure(Status.NO_PERMISSION, "/proc/PID/io belongs to another user")
        gone = self._ended
        read_bytes = [worker.read_bytes for worker in workers]
        return [
            own.cpu_s,
            main.cpu_s if main is not None else Failure(Status.ERROR, "no main thread"),
            own.threads,
            *switches,
            own.minor_faults,
            own.major_faults,
            own.rss_bytes,
            *(
                refused if value is None else value
                for value in (own.read_bytes, own.read_cached_bytes, own.written_bytes)
            ),
            len(workers),
            gone.cpu_s + sum(worker.cpu_s for worker in workers),
            sum(worker.rss_bytes for worker in workers),
            refused
            if None in read_bytes
            else (gone.read_bytes or 0) + sum(value or 0 for value in read_bytes),
            gone.major_faults + sum(worker.major_faults for worker in workers),
        ]

    def _read_workers(self) -> list[Usage]:
        fresh: dict[int, Usage] = {}
        for pid in self._workers[:MAX_WORKERS]:
            found = usage(self.proc / str(pid))
            if found is not None:
                fresh[pid] = found
        for pid, last in self._last.items():
            if pid not in fresh:
                self._ended.cpu_s += last.cpu_s
                self._ended.major_faults += last.major_faults
                self._ended.read_bytes = (self._ended.read_bytes or 0) + (last.read_bytes or 0)
        self._last = fresh
        return list(fresh.values())


def usage(folder: Path, *, io: bool = True) -> Usage | None:
    """The counters under a /proc/PID folder; None when the process is gone or a zombie."""
    try:
        text = (folder / "stat").read_text(errors="replace")
        words = text[text.rindex(")") + 2 :].split()
        if words[0] in "ZXx":
            return None
        found = Usage(
            cpu_s=(int(words[11]) + int(words[12])) / TICKS_PER_S,
            threads=int(words[17]),
            rss_bytes=int(words[21]) * _PAGE_BYTES,
            minor_faults=int(words[7]),
            major_faults=int(words[9]),
        )
    except (OSError, ValueError, IndexError):
        return None
    if io:
        counters = _fields(folder / "io")
        found.read_bytes = counters.get("read_bytes")
        found.read_cached_bytes = counters.get("rchar")
        found.written_bytes = counters.get("write_bytes")
    return found


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Pids of all processes below this one, without it."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MAX_WORKERS:
        for child in _children(waiting.pop(), proc):
            if child not in found:
                found.append(child)
                waiting.append(child)
    return found


def recorder_pids(pid: int, sampler: int, proc: Path = Path("/proc")) -> set[int]:
    """Pids of gpuprof's own processes below a rank that started them: the branch in which the
    sampler is, with all that it started. Empty where something else started it."""
    branch, parent = sampler, _parent(sampler, proc)
    while parent not in (None, pid, 0, 1):
        branch, parent = parent, _parent(parent, proc)
    return {branch, *descendants(branch, proc)} if parent == pid else set()


def _parent(pid: int, proc: Path) -> int | None:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(text[text.rindex(")") + 2 :].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _children(pid: int, proc: Path) -> list[int]:
    try:
        tasks = list((proc / str(pid) / "task").iterdir())
        lists = [(task / "children").read_text().split() for task in tasks]
    except FileNotFoundError:
        return _children_by_scan(pid, proc)  # gone, or a kernel without these lists
    except OSError:
        return []
    return [int(word) for words in lists for word in words]


def _children_by_scan(pid: int, proc: Path) -> list[int]:
    if not (proc / str(pid)).exists():
        return []
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
            if int(text[text.rindex(")") + 2 :].split()[1]) == pid:
                found.append(int(folder.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def allowed(pid: int, proc: Path = Path("/proc")) -> tuple[str, str]:
    """The CPUs and the NUMA nodes that the process may use, as Linux lists them ("0-3,8")."""
    lists = {"Cpus_allowed_list": "", "Mems_allowed_list": ""}
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return "", ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in lists:
            lists[key] = value.strip()
    return lists["Cpus_allowed_list"], lists["Mems_allowed_list"]


def _switches(folder: Path) -> list[Value]:
    """Context switches of the main thread: of its own will (it waited), and not (preempted)."""
    counters = _fields(folder / "status")
    missing = Failure(Status.NOT_SUPPORTED, "this kernel does not report it")
    keys = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    return [counters.get(key, missing) for key in keys]


def _fields(path: Path) -> dict[str, int]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {
        key: int(rest.split()[0])
        for key, rest in pairs
        if rest.split()[:1] and rest.split()[0].isdigit()
    }
