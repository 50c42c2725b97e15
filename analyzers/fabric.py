"""What a collective takes on a given set of GPUs, links and networks: α–β, link by link.

The bus bandwidth of a group is that of its narrowest part. Inside a node that is the link between
GPUs; between nodes it is the sum of the node's network cards, since all rings of a node together
pass through all of them:

    inside a node     ring: what rings reach of one direction of the link (`busbw.RING_EFFICIENCY`);
                      all-reduce on switches that add up (NVLink SHARP): `NVLS_EFFICIENCY`, or the
                      ring where that is faster
    between nodes     the cards' rate times `NETWORK_EFFICIENCY`
    two nodes         an all-reduce as a tree sends each byte once over the network, a ring nearly
                      twice: its bus bandwidth may be 2 (n - 1) / n times the cards' rate
    all-to-all        each rank sends what is for other nodes through its share of the cards
    scatter, gather   the root's node passes what is for other nodes, or comes from them, through
                      all its cards (NCCL hands it to the GPU next to each, "PXN"); nothing
                      overlaps with the first chunk of each rank

Latencies are `busbw.latency_ns`, and one hop where ranks send to each other directly. Figures that
were measured (nccl-tests, an NCCL log) go before all of these. The model is good to some 20 % for
large messages and to a factor of two for small ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from gpuprof.analyzers.busbw import (
    BANDWIDTH_COUNTS_FROM,
    RING_EFFICIENCY,
    Link,
    bus_factor,
    expected_ns,
    fill_of,
    latency_ns,
)
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.peaks import Peaks

NVLS_EFFICIENCY = 0.6
"""Algorithm bandwidth of an all-reduce over one direction's NVLink bandwidth where the switches add
up, whatever the number of ranks: on H100s of 450 GB/s 258 to 273 GB/s with five to eight ranks
(with eight a bus bandwidth of 480), and not above a ring's with four and fewer (NVIDIA/nccl issue
1455, and NCCL's author in NVIDIA/nccl-tests issue 212)."""
NVLS_DEVICES = ("H100", "H200", "H800", "B200", "B300", "GB200", "GB300")

NODES_FILL = 2
"""Between nodes two pipelines fill one after the other: the node's, and the network's."""

NETWORK_EFFICIENCY = 0.93
"""Of the line rate: nccl-tests reach 370 to 390 of 400 GB/s with eight 400 Gb/s cards, and 11 to 12
of 12.5 GB/s with one of 100 Gb/s."""

PCIE_EFFICIENCY = 0.8
"""Direct access over PCIe under one switch: 18 to 22 GB/s of 25 to 32 on Gen4 x16, 9 to 11 of 12.5
to 16 on Gen3."""
PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}
"""What NCCL takes x16 of each generation for, one direction."""

POINT_TO_POINT = frozenset(
    {
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.GATHER,
        CollectiveKind.SCATTER,
        CollectiveKind.SEND_RECV,
    }
)
"""What NCCL does with sends and receives: ranks are one hop apart, on any number of nodes."""

SEND_NS = 8_400.0 + 3_400.0
NETWORK_HOP_NS = 14_000.0
"""A send: what NCCL's table has of its protocol for large messages for the start and a step over
NVLink, and for a step over a network (`tuning.cc`, ring, "Simple", versions 2.19 to 2.30). A
network whose plugin states its own latency takes that instead of the last."""

CHUNK_BYTES = 128 << 10
"""What a send passes at a time between nodes ("P2P Chunksize set to 131072"). A scatter can't fill
the cards before each rank's first chunk is copied out, nor end before the last one is copied in."""

Regime = Literal["latency-bound", "between", "at bandwidth", "unknown"]


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects the ranks.

    ranks: of the group; per_node: of them on each node. link_bytes_per_s: between GPUs of a node,
    one direction, 0 where not known. network_bytes_per_s: of all cards of a node together, one
    direction, 0 where not known. adds_up: whether the switches reduce. measured_bytes_per_s: a bus
    bandwidth that was measured on this group, 0 for none. source: of the figures. hop_ns: latency
    of one message between nodes, 0 where not known.
    """

    ranks: int
    per_node: int
    link_bytes_per_s: float = 0.0
    link_efficiency: float = RING_EFFICIENCY
    network_bytes_per_s: float = 0.0
    adds_up: bool = False
    measured_bytes_per_s: float = 0.0
    source: str = ""
    hop_ns: float = 0.0

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / max(self.per_node, 1))

    def group(self, ranks: int, per_node: int) -> Fabric:
        """The same links for a smaller group. All groups of a node communicate at one time, so each
        has the part of the network that falls to its ranks."""
        per_node = max(1, min(per_node, ranks))
        share = min(1.0, per_node / max(self.per_node, 1))
        network = self.network_bytes_per_s * share
        return replace(self, ranks=ranks, per_node=per_node, network_bytes_per_s=network)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One call. time_ns and busbw are None where the link is not known.

    latency_ns: its fixed part. half_bytes: the size at which half of the bandwidth is reached.
    """

    kind: CollectiveKind
    ranks: int
    size_bytes: float
    time_ns: float | None
    latency_ns: float
    busbw_bytes_per_s: float | None
    half_bytes: float | None
    regime: Regime


def fabric_of(
    peaks: Peaks | None,
    ranks: int,
    per_node: int,
    *,
    network_bytes_per_s: float = 0.0,
    pcie_generation: int = 0,
    measured_bytes_per_s: float = 0.0,
    hop_ns: float = 0.0,
) -> Fabric:
    """The fabric of a device that is known. Cards have links only to those on the same bridge: more
    of them on a node have none that connects all.

    Args:
        peaks: Of the device, None where unknown.
        ranks, per_node: Of the group, and how many of them share a node.
        network_bytes_per_s: Of all cards of a node, one direction.
        pcie_generation: 3 to 5 where GPUs are connected by PCIe alone, else 0.
        measured_bytes_per_s: A measured bus bandwidth, which goes before all else.
        hop_ns: Latency of a message between nodes, 0 where not known.
    """
    link, efficiency, adds_up, source = 0.0, RING_EFFICIENCY, False, ""
    if pcie_generation:
        link, efficiency = PCIE_BYTES_PER_S.get(pcie_generation, 0.0), PCIE_EFFICIENCY
        source = f"PCIe Gen{pcie_generation} x16"
    elif peaks is not None and peaks.links_all(min(per_node, ranks)):
        link, source = peaks.link_bytes_per_s / 2, f"links of {peaks.name}"
        adds_up = any(name in peaks.name for name in NVLS_DEVICES)
    return Fabric(
        ranks=ranks,
        per_node=min(per_node, ranks),
        link_bytes_per_s=link,
        link_efficiency=efficiency,
        network_bytes_per_s=network_bytes_per_s,
        adds_up=adds_up,
        measured_bytes_per_s=measured_bytes_per_s,
        source="measured" if measured_bytes_per_s else source,
        hop_ns=hop_ns,
    )


def link_for(kind: int, fabric: Fabric) -> Link:
    """Latency and bus bandwidth of one kind of collective on a fabric."""
    latency = _latency_ns(kind, fabric)
    measured = fabric.measured_bytes_per_s
    direct = fabric.nodes > 1 and kind in POINT_TO_POINT
    if measured and not direct:
        return Link(latency, measured, "measured", fill_of(measured))
    inside = fabric.link_bytes_per_s * fabric.link_efficiency
    is_reduce = kind == CollectiveKind.ALL_REDUCE
    if is_reduce and fabric.adds_up and fabric.per_node > 1:
        summed = fabric.link_bytes_per_s * NVLS_EFFICIENCY
        inside = max(inside, summed * (bus_factor(kind, fabric.per_node) or 0.0))
    if fabric.nodes <= 1:
        return Link(latency, inside, fabric.source, fill_of(inside))
    # What a ring reaches over several nodes is what all cards of a node carry together.
    network = measured or fabric.network_bytes_per_s * NETWORK_EFFICIENCY
    if not network:
        return Link(latency)
    n, p = fabric.ranks, fabric.per_node
    fill = NODES_FILL * fill_of(inside) if p > 1 else 0.0
    if is_reduce and fabric.nodes == 2 and p > 1:
        network *= bus_factor(kind, n) or 1.0
    elif kind == CollectiveKind.ALL_TO_ALL:
        network *= (n - 1) / (n - p) / p
    elif kind in (CollectiveKind.SCATTER, CollectiveKind.GATHER):
        network *= (n - 1) / (n - p)
        fill = float(n * CHUNK_BYTES)
    elif kind == CollectiveKind.SEND_RECV:
        network /= p
    narrow = min(network, inside) if inside and p > 1 else network
    source = fabric.source if measured else ", ".join(filter(None, (fabric.source, "network")))
    return Link(latency, narrow, source, fill)


def _latency_ns(kind: int, fabric: Fabric) -> float:
    """Of a small message."""
    if fabric.nodes > 1 and kind in POINT_TO_POINT:
        return SEND_NS + (fabric.hop_ns or NETWORK_HOP_NS)
    return latency_ns(fabric.ranks, fabric.nodes, fabric.hop_ns)


def estimate(kind: int, size_bytes: float, fabric: Fabric) -> Estimate:
    """What one call takes.

    Args:
        kind: A `CollectiveKind`.
        size_bytes: As nccl-tests counts it (see `gpuprof.analyzers.busbw`).
        fabric: Of the ranks that take part.
    """
    link = link_for(kind, fabric)
    factor = bus_factor(kind, fabric.ranks)
    time_ns = expected_ns(kind, fabric.ranks, size_bytes, link)
    if fabric.ranks < 2 or factor is None:
        return Estimate(
            CollectiveKind(kind), fabric.ranks, size_bytes, 0.0, 0.0, None, None, "unknown"
        )
    if time_ns is None:
        return Estimate(
            CollectiveKind(kind), fabric.ranks, size_bytes, None, link.latency_ns, None, None,
            "unknown",
        )  # fmt: skip
    passing_ns = time_ns - link.latency_ns
    regime: Regime = "between"
    if passing_ns < link.latency_ns:
        regime = "latency-bound"
    elif passing_ns >= BANDWIDTH_COUNTS_FROM * link.latency_ns:
        regime = "at bandwidth"
    return Estimate(
        kind=CollectiveKind(kind),
        ranks=fabric.ranks,
        size_bytes=size_bytes,
        time_ns=time_ns,
        latency_ns=link.latency_ns,
        busbw_bytes_per_s=factor * size_bytes / time_ns * 1e9 if time_ns else None,
        half_bytes=_half_bytes(link, factor),
        regime=regime,
    )


def _half_bytes(link: Link, factor: float) -> float:
    """The size at which half of the bandwidth is reached."""
    fixed = link.latency_ns * link.busbw_bytes_per_s / 1e9 / factor
    return fixed + link.fill_bytes
