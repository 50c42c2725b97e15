"""Which processes of a log belong to one job: a log may hold several, one after another.

Benchmarks that try one setting after the other, and jobs that are started again, write into one
file. What they differ in is no fault: only ranks of one job must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuprof.commlog import CommLog, Communicator

Rows = dict[str, list[tuple[int, int]]]
"""Value to (process, line)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Values that ranks of one job have. together: whether the log shows ranks with different ones
    in one communicator; if not, they may be of two jobs."""

    rows: Rows
    together: bool


@dataclass(slots=True)
class _Group:
    """Processes that communicators tie, directly or through others.

    ranks: (size, rank) of each communicator's members. whole: all ranks of all communicators came
    up, and one of them joins more than one rank. labels: those of the launcher.
    """

    processes: set[int] = field(default_factory=set)
    gpus: set[tuple[str, str]] = field(default_factory=set)
    ranks: set[tuple[int, int]] = field(default_factory=set)
    labels: list[int] = field(default_factory=list)
    whole: bool = False

    def is_another_job(self, other: _Group) -> bool:
        """Whether these two cannot be parts of one job that never met.

        Ranks of one job hold each their own GPU and have each their own label. Of two groups that
        are whole, nothing would be known of a communicator that joins them: what they differ in
        has done no harm yet, and is none between two jobs.
        """
        if self.gpus & other.gpus or self.whole or other.whole:
            return True
        mine, theirs = set(self.labels), set(other.labels)
        unique = len(mine) == len(self.labels) and len(theirs) == len(other.labels)
        return unique and bool(mine & theirs)


@dataclass(slots=True)
class _Job:
    """Groups that may be parts of one job. parts: processes of which the log shows that they are
    of one: by a communicator, or as ranks that complete each other in two of one size."""

    groups: list[_Group]
    parts: list[set[int]]

    @property
    def processes(self) -> set[int]:
        return set().union(*self.parts)

    def takes(self, group: _Group) -> bool:
        return not any(one.is_another_job(group) for one in self.groups)

    def add(self, group: _Group) -> None:
        for one, part in zip(self.groups, self.parts, strict=False):
            sizes = {size for size, _ in one.ranks} | {size for size, _ in group.ranks}
            if len(sizes) == 1 and not one.ranks & group.ranks:
                part.update(group.processes)
                return
        self.groups.append(group)
        self.parts.append(set(group.processes))


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


def _group(log: CommLog, comms: list[Communicator]) -> _Group:
    group = _Group()
    for comm in comms:
        group.processes |= set(comm.processes.values())
        group.ranks |= {(comm.size, rank) for rank in comm.processes}
        group.gpus |= {
            (log.processes[comm.processes[rank]].host, bus)
            for rank, (_ordinal, bus) in comm.devices.items()
            if bus and rank in comm.processes
        }
    named = (log.processes[process] for process in group.processes)
    group.labels = [p.label for p in named if p.label is not None and not p.label_is_local]
    group.whole = all(len(comm.completed) == comm.size for comm in comms) and any(
        comm.size > 1 for comm in comms
    )
    return group


def _jobs(log: CommLog) -> list[_Job]:
    """The jobs of a log. Groups that no communicator ties are of one job if nothing speaks against
    it: a job whose nodes never met looks like this."""
    jobs: list[_Job] = []
    for comms in _tied(log):
        group = _group(log, comms)
        if jobs and jobs[-1].takes(group):
            jobs[-1].add(group)
        else:
            jobs.append(_Job([group], [set(group.processes)]))
    return jobs


def differing(log: CommLog, groups: Mapping[str, list[tuple[int, int]]]) -> Difference | None:
    """The values of the first job whose ranks differ; None where the ranks of each agree.

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
    if len(_within(groups, set(first))) < 2:
        return None
    jobs = _jobs(log)
    loose = set(range(len(log.processes))).difference(*(job.processes for job in jobs))
    for job in [*jobs, None]:
        parts = [set[int]()] if job is None else job.parts
        apart = job is not None and any(group.whole for group in job.groups)
        others = set[int]() if apart else loose
        inside = _within(groups, others.union(*parts))
        if len(inside) > 1:
            together = any(len(_within(groups, part | others)) > 1 for part in parts)
            return Difference(inside, together)
    return None


def _within(groups: Mapping[str, list[tuple[int, int]]], members: set[int]) -> Rows:
    """The values that these processes have."""
    inside = {value: [row for row in rows if row[0] in members] for value, rows in groups.items()}
    return {value: rows for value, rows in inside.items() if rows}
