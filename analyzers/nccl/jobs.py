"""Which processes of a log belong to one job: a log may hold several, one after another.

Benchmarks that try one setting after the other, and jobs that are started again, write into one
file. What they differ in is no fault: only ranks of one job must agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.commlog import CommLog, Communicator

Rows = dict[str, list[tuple[int, int]]]
"""Value to (process, line)."""


class _Job:
    """Processes of one job, and the GPUs (host, PCI bus id) that they hold."""

    def __init__(self) -> None:
        self.processes: set[int] = set()
        self.gpus: set[tuple[str, str]] = set()
        self.whole = True


def _tied(log: CommLog) -> list[list[Communicator]]:
    """Communicators that share processes, directly or through others, in the order of the log."""
    parent = list(range(len(log.processes)))

    def root(process: int) -> int:
        while parent[process] != process:
            parent[process] = parent[parent[process]]
            process = parent[process]
        return process

    for comm in log.communicators:
        members = list(comm.processes.values())
        for other in members[1:]:
            parent[root(other)] = root(members[0])
    tied: dict[int, list[Communicator]] = {}
    for comm in log.communicators:
        if comm.processes:
            tied.setdefault(root(next(iter(comm.processes.values()))), []).append(comm)
    return list(tied.values())


def _jobs(log: CommLog) -> list[_Job]:
    """Two groups of processes that no communicator ties are two jobs if they hold the same GPU:
    ranks of one job hold each their own. Else they may be parts of one, whose nodes never met."""
    jobs: list[_Job] = []
    for comms in _tied(log):
        group = _Job()
        for comm in comms:
            group.processes |= set(comm.processes.values())
            group.whole = group.whole and len(comm.completed) == comm.size
            group.gpus |= {
                (log.processes[comm.processes[rank]].host, bus)
                for rank, (_ordinal, bus) in comm.devices.items()
                if bus and rank in comm.processes
            }
        if not jobs or jobs[-1].gpus & group.gpus:
            jobs.append(group)
            continue
        jobs[-1].processes |= group.processes
        jobs[-1].gpus |= group.gpus
        jobs[-1].whole = jobs[-1].whole and group.whole
    return jobs


def differing(log: CommLog, groups: Mapping[str, list[tuple[int, int]]]) -> Rows:
    """The values of the first job whose ranks differ; nothing where the ranks of each agree.

    Processes of no communicator are compared with each other, and with jobs of which ranks are
    missing. A process is one of each host and pid; one that shows several values is of several
    jobs, in containers that count from 1 each time, and its first value counts.
    """
    first: dict[int, tuple[int, str]] = {}
    for value, rows in groups.items():
        for process, line in rows:
            first[process] = min(first.get(process, (line, value)), (line, value))
    groups = {
        value: [row for row in rows if first[row[0]] == (row[1], value)]
        for value, rows in groups.items()
    }
    groups = {value: rows for value, rows in groups.items() if rows}
    if len(groups) < 2:
        return {}
    jobs = _jobs(log)
    if len(jobs) < 2:
        return groups
    held = set().union(*(job.processes for job in jobs))
    loose = set(range(len(log.processes))) - held
    for members in [*(j.processes if j.whole else j.processes | loose for j in jobs), loose]:
        inside = {
            value: [row for row in rows if row[0] in members] for value, rows in groups.items()
        }
        inside = {value: rows for value, rows in inside.items() if rows}
        if len(inside) > 1:
            return inside
    return {}
