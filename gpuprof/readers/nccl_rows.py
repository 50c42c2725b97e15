"""Turns the fields of one INFO line into a row of the right table of a `CommLog`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gpuprof.commlog import (
    CommLog,
    Communicator,
    EnvSetting,
    Graph,
    TopologyNode,
    Transport,
    VersionRow,
)
from gpuprof.readers.nccl_grammar import TRANSPORT_FIELDS

Fields = Mapping[str, str]
Row = Callable[[CommLog, int | None, int | None, Fields, int], None]

MAX_COMMUNICATORS = 5_000
"""More communicators than this are one for each of many restarts; the first ones tell the story."""

MAX_TOPOLOGY_NODES = 20_000


def version(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, line: int
) -> None:
    text = fields["version"]
    log.versions.append(VersionRow(process, fields["library"], text, fields.get("cuda", ""), line))


def env(log: CommLog, process: int | None, _device: int | None, fields: Fields, line: int) -> None:
    if process is not None:
        log.env.append(EnvSetting(process, fields["variable"], fields["value"], line))


class _Communicators:
    """Finds the communicator that a line speaks of. Before 2.16 lines carry no identity: the n-th
    communicator of this size in a process is the n-th in every process of the job."""

    @staticmethod
    def find(
        log: CommLog, process: int | None, fields: Fields, *, new: bool
    ) -> Communicator | None:
        size = int(fields["nranks"])
        rank = int(fields["rank"])
        identity = fields.get("commid")
        if identity is not None:
            for comm in reversed(log.communicators):
                if comm.identity == identity and comm.size == size:
                    return comm
        else:
            fallback = None
            for comm in log.communicators:
                if comm.size != size or not comm.identity.startswith("#"):
                    continue
                if not new and comm.processes.get(rank) == process:
                    fallback = comm
                elif new and rank not in comm.completed:
                    return comm
            if not new:
                return fallback
            identity = f"#{len(log.communicators)}"
        if len(log.communicators) >= MAX_COMMUNICATORS:
            log.truncated = True
            return None
        comm = Communicator(identity, size)
        log.communicators.append(comm)
        return comm


def _member(comm: Communicator, process: int | None, device: int | None, fields: Fields) -> int:
    rank = int(fields["rank"])
    if process is not None:
        comm.processes.setdefault(rank, process)
    comm.handles.setdefault(rank, fields["comm"])
    cuda = fields.get("cuda")
    ordinal = int(cuda) if cuda is not None else device
    if ordinal is not None:
        comm.devices.setdefault(rank, (ordinal, fields.get("bus", "")))
    return rank


def init_start(
    log: CommLog, process: int | None, device: int | None, fields: Fields, line: int
) -> None:
    comm = _Communicators.find(log, process, fields, new=True)
    if comm is not None:
        comm.has_start = True
        comm.started.setdefault(_member(comm, process, device, fields), line)


def init_complete(
    log: CommLog, process: int | None, device: int | None, fields: Fields, line: int
) -> None:
    comm = _Communicators.find(log, process, fields, new=True)
    if comm is not None:
        comm.completed.setdefault(_member(comm, process, device, fields), line)


def comm_end(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, _line: int
) -> None:
    rank = int(fields["rank"])
    size = int(fields["nranks"])
    for comm in log.communicators:
        if comm.size == size and comm.processes.get(rank) == process and rank not in comm.ended:
            comm.ended[rank] = fields["what"]
            return
    comm = Communicator(f"#{len(log.communicators)}", size)
    _member(comm, process, _device, fields)
    comm.ended[rank] = fields["what"]
    log.communicators.append(comm)


def comm_shape(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, _line: int
) -> None:
    size = int(fields["nranks"])
    rank = int(fields["rank"])
    for comm in reversed(log.communicators):
        if comm.size == size and comm.processes.get(rank) == process:
            comm.nodes = int(fields["nnodes"])
            return
    comm = Communicator(f"#{len(log.communicators)}", size)
    _member(comm, process, _device, fields)
    comm.nodes = int(fields["nnodes"])
    log.communicators.append(comm)


def collnet(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, line: int
) -> None:
    match = TRANSPORT_FIELDS.match(fields["text"])
    if match is not None:
        log.transports.append(transport(match, process, line))


def transport(fields: re.Match[str], process: int | None, line: int) -> Transport:
    """A row from a match of `TRANSPORT_FIELDS`."""
    kind = "p2p" if fields["p2p"] else "shm" if fields["shm"] else (fields["net"] or "").lower()
    options = fields["options"] or ""
    how = fields["p2p_how"] or fields["shm"] or fields["plugin"] or ""
    network = kind in ("net", "collnet")
    return Transport(
        process=process,
        source=int(fields["source"]),
        target=None if fields["target"] is None else int(fields["target"]),
        kind=kind,
        how=how,
        direction=fields["direction"] or "",
        nic=int(fields["nic"]) if fields["nic"] else None,
        gdr=("/GDRDMA" in options) if network else None,
        line=line,
    )


def pattern(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, line: int
) -> None:
    log.graphs.append(
        Graph(
            process,
            int(fields["pattern"]),
            int(fields["channels"]),
            float(fields["intra"]),
            float(fields["inter"]),
            fields["type_intra"],
            fields["type_inter"],
            line,
        )
    )


def topology_node(
    log: CommLog, process: int | None, _device: int | None, fields: Fields, line: int
) -> None:
    if len(log.topology) >= MAX_TOPOLOGY_NODES:
        return
    kind, identity = fields["node"], fields["id"]
    link = fields.get("link", "")
    parent = ""
    if link == "NVL":  # an NVLink line hangs below its GPU: the last GPU that PCI announced
        for node in reversed(log.topology):
            if node.process == process and node.kind == "GPU" and node.link != "NVL":
                parent = node.identity
                break
    bandwidth = float(fields["bandwidth"]) if "bandwidth" in fields else None
    log.topology.append(TopologyNode(process, kind, identity, link, bandwidth, parent, line))


ROWS: dict[str, Row] = {
    "version": version,
    "env": env,
    "init_start": init_start,
    "init_complete": init_complete,
    "comm_end": comm_end,
    "comm_shape": comm_shape,
    "collnet": collnet,
    "pattern": pattern,
    "topology_node": topology_node,
}
