"""`CommLog`: what the communication library said, as tables.

`gpuprof.readers.nccl_log` fills it, `gpuprof.analyzers.nccl` judges it. Rows name the process they
came from by its index in `CommLog.processes`; a field that the version does not print is None or
empty, never guessed. Line numbers start at 1; `file` is an index into `CommLog.paths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LEVELS: tuple[str, ...] = ("INFO", "WARN", "BARE")
"""BARE is a text that NCCL or PyTorch wrote and something else repeated without NCCL's prefix."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that wrote lines. `label` is the launcher's number (rank or, with srun, a node);
    `label_is_local` where it counts within a node only, as torchrun's does.

    `ranks` maps the CUDA ordinal to the rank in the largest communicator; a process with one GPU
    has one entry.
    """

    host: str
    pid: int
    label: int | None
    ranks: Mapping[int, int]
    label_is_local: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A line that can tell of a fault: WARN, failed call path, launch failure, watchdog.

    `rank` is global where it is known. `time_ns` is ns since the epoch of the host's clock, where
    the line carries a time. `count` is how often this process wrote the same text.
    """

    file: int
    line: int
    process: int | None
    rank: int | None
    level: str
    text: str
    source: str = ""
    source_line: int | None = None
    time_ns: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class EnvSetting:
    """An environment variable that this process read."""

    process: int
    variable: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class VersionRow:
    """`library` is NCCL or RCCL; `stated` is False for a version dated by the log's texts."""

    process: int | None
    library: str
    version: str
    cuda: str
    line: int
    stated: bool = True


@dataclass(slots=True)
class Communicator:
    """One communicator. `identity` joins its ranks: the commId (2.16 on) or, before, its order."""

    identity: str
    size: int
    has_start: bool = False
    started: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    devices: dict[int, tuple[int, str]] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    nodes: int | None = None

    @property
    def ranks_seen(self) -> frozenset[int]:
        """Ranks of which any line is in the log."""
        return frozenset(self.started) | frozenset(self.completed)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which no line is in the log."""
        seen = self.ranks_seen
        return tuple(rank for rank in range(self.size) if rank not in seen)


@dataclass(frozen=True, slots=True)
class Transport:
    """A connection of two ranks (numbers of their communicator); `kind`: p2p, shm, net, collnet.

    `how` is the text after the kind: IPC, CUMEM, the network plugin. `gdr` is None off the network.
    """

    process: int | None
    source: int
    target: int | None
    kind: str
    how: str
    direction: str
    nic: int | None
    gdr: bool | None
    line: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A result of the graph search. `bandwidth_*` are GB/s a channel; pattern 4 is the ring."""

    process: int | None
    pattern: int
    channels: int
    bandwidth_intra: float
    bandwidth_inter: float
    type_intra: str
    type_inter: str
    line: int


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A node of NCCL's own topology dump; `bandwidth` is the link to its parent, GB/s."""

    process: int | None
    kind: str
    identity: str
    link: str
    bandwidth: float | None
    parent: str
    line: int


@dataclass(frozen=True, slots=True)
class Fact:
    """A small fact of one process: its kind of line and the named fields of it."""

    process: int | None
    kind: str
    fields: Mapping[str, str]
    line: int


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A measurement of nccl-tests. Bandwidths are GB/s (10^9), as nccl-tests defines them.

    count: elements as the table states them, of one rank or of all. reduction: sum, max, …, "none"
    for an operation that reduces nothing, empty where the table has no such column. root: -1 for an
    operation without one, None where there is no such column. test: name of the program
    ("all_reduce"), empty where it does not say it.
    """

    line: int
    size_bytes: int
    dtype: str
    time_us: float
    algorithm_gbps: float
    bus_gbps: float
    in_place: bool
    count: int = 0
    reduction: str = ""
    root: int | None = None
    test: str = ""


@dataclass(slots=True)
class CallTail:
    """The last API calls of one communicator handle (subsystem COLL).

    `last` is the highest opCount; `recent` maps opCount to (function, count, datatype, op, root).
    """

    process: int | None
    handle: str
    last: int = -1
    calls: int = 0
    line: int = 0
    recent: dict[int, tuple[str, int, int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LineTable:
    """The kept lines: int64 `line`, int32 `process` (-1: unknown) and int16 `kind`, all (n,)."""

    line: NDArray[np.int64]
    process: NDArray[np.int32]
    kind: NDArray[np.int16]
    kinds: tuple[str, ...]
    text: tuple[str, ...]


@dataclass(slots=True)
class CommLog:
    """All tables of one or many logs of one job. `counts` has the number of lines of each kind."""

    paths: tuple[str, ...]
    processes: list[Process] = field(default_factory=list)
    lines: LineTable | None = None
    events: list[Event] = field(default_factory=list)
    versions: list[VersionRow] = field(default_factory=list)
    env: list[EnvSetting] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    transports: list[Transport] = field(default_factory=list)
    rings: dict[str, tuple[int, ...]] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    topology: list[TopologyNode] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    calls: dict[str, CallTail] = field(default_factory=dict)
    bandwidths: list[Bandwidth] = field(default_factory=list)
    progress: list[tuple[int, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    line_count: int = 0
    truncated: bool = False

    def facts_of(self, *kinds: str) -> list[Fact]:
        """Facts of these kinds, in the order of the log."""
        return [fact for fact in self.facts if fact.kind in kinds]

    def host(self, process: int | None) -> str:
        """Host name of a process, empty when unknown."""
        return "" if process is None else self.processes[process].host

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that wrote lines, in the order of the log."""
        return tuple(dict.fromkeys(p.host for p in self.processes if p.host))

    @property
    def world_size(self) -> int:
        """Size of the largest communicator, 0 when none is in the log."""
        return max((comm.size for comm in self.communicators), default=0)

    @property
    def multi_node(self) -> bool | None:
        """Whether the job spans nodes: from `nNodes`, hosts and network transports; else None."""
        nodes = {comm.size: comm.nodes for comm in self.communicators if comm.nodes is not None}
        if nodes and (max(nodes.values()) > 1 or max(nodes) == self.world_size):
            return max(nodes.values()) > 1
        members = {p for comm in self.communicators for p in comm.processes.values()}
        hosts = {self.processes[p].host for p in members} or set(self.hosts)
        if len(hosts) > 1 or any(t.kind == "net" for t in self.transports):
            return True
        if nodes or any(len(comm.completed) == comm.size for comm in self.communicators):
            return False
        return None

    def describe(self, process: int | None, rank: int | None) -> str:
        """`rank 3 (node1:1000)`, as much of it as is known."""
        where = ""
        if process is not None:
            one = self.processes[process]
            where = f"{one.host}:{one.pid}" if one.host else ""
        if rank is None:
            return where or "a rank that the line does not name"
        return f"rank {rank} ({where})" if where else f"rank {rank}"
