"""Which rank reaches which by what: the transports as a matrix, beside the physical links."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.commlog import CommLog
from gpuprof.topology import Topology

SLOWNESS = ("p2p", "shm", "net", "collnet")
"""Transports from fast to slow; a pair that uses several is as fast as its slowest channel."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What two ranks use. `gdr`: GPUDirect RDMA on every network connection of the pair; None off
    the network. `link`: the physical link where a topology is at hand, else empty."""

    source: int
    target: int
    kind: str
    how: str
    gdr: bool | None
    link: str


def transport_matrix(log: CommLog, topology: Topology | None = None) -> list[Connection]:
    """One row for each connected pair, by source and target.

    Ranks are those that the transport lines print: of the communicator the line belongs to. With
    communicators of one size they are ranks of the job.
    """
    devices = {
        rank: f"GPU{ordinal}"
        for comm in sorted(log.communicators, key=lambda comm: comm.size)
        for rank, (ordinal, _bus) in comm.devices.items()
    }
    pairs: dict[tuple[int, int], Connection] = {}
    for row in log.transports:
        if row.target is None:
            continue
        key = (row.source, row.target)
        known = pairs.get(key)
        link = ""
        if topology is not None and row.kind in ("p2p", "shm"):
            names = devices.get(row.source, ""), devices.get(row.target, "")
            link = topology.link(*names) or ""
        gdr = row.gdr
        if known is not None:
            if known.gdr is not None and gdr is not None:
                gdr = gdr and known.gdr
            if SLOWNESS.index(row.kind) < SLOWNESS.index(known.kind):
                continue
        pairs[key] = Connection(row.source, row.target, row.kind, row.how, gdr, link)
    return [pairs[key] for key in sorted(pairs)]
