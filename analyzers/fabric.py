"""What a collective takes on a given set of GPUs, links and networks: α–β, link by link.

The bus bandwidth of a group is that of its narrowest part. Inside a node that is the link between
GPUs; between nodes it is the sum of the node's network cards, since all rings of a node together
pass through all of them:

    inside a node     ring: what rings reach of one direction of the link (`busbw.RING_EFFICIENCY`);
                      all-reduce on switches that add up (NVLink SHARP): `NVLS_EFFICIENCY`
    between nodes     the cards' rate times `NETWORK_EFFICIENCY`
    two nodes         an all-reduce as a tree sends each byte once over the network, a ring nearly
                      twice: its bus bandwidth may be 2 (n - 1) / n times the cards' rate
    all-to-all        each rank sends what is for other nodes through its share of the cards

Latencies are `busbw.latency_ns`. Figures that were measured (nccl-tests, an NCCL log) go before all
of these. The model is good to some 20 % for large messages and to a factor of two for small ones.
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

NVLS_EFFICIENCY = 1.06
"""Bus bandwidth of an all-reduce over one direction's NVLink bandwidth where the switches add up:
475 to 485 of 450 GB/s on eight H100s, as NVIDIA's own tools show (NCCL's Inspector)."""
NVLS_FEWEST = 4
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

Regime = Literal["latency-bound", "between", "at bandwidth", "unknown"]


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects the ranks.

    ranks: of the group; per_node: of them on each node. link_bytes_per_s: between GPUs of a node,
    one direction, 0 where not known. network_bytes_per_s: of all cards of a node together, one
    direction, 0 where not known. adds_up: whether the switches reduce. measured_bytes_per_s: a bus
    bandwidth that was measured on this group, 0 for none. source: of the figures.
    """

    ranks: int
    per_node: int
    link_bytes_per_s: float = 0.0
    link_efficiency: float = RING_EFFICIENCY
    network_bytes_per_s: float = 0.0
    adds_up: bool = False
    measured_bytes_per_s: float = 0.0
    source: str = ""

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
) -> Fabric:
    """The fabric of a device that is known.

    Args:
        peaks: Of the device, None where unknown.
        ranks, per_node: Of the group, and how many of them share a node.
        network_bytes_per_s: Of all cards of a node, one direction.
        pcie_generation: 3 to 5 where GPUs are connected by PCIe alone, else 0.
        measured_bytes_per_s: A measured bus bandwidth, which goes before all else.
    """
    link, efficiency, adds_up, source = 0.0, RING_EFFICIENCY, False, ""
    if pcie_generation:
        link, efficiency = PCIE_BYTES_PER_S.get(pcie_generation, 0.0), PCIE_EFFICIENCY
        source = f"PCIe Gen{pcie_generation} x16"
    elif peaks is not None and peaks.link_bytes_per_s:
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
    )


def link_for(kind: int, fabric: Fabric) -> Link:
    """Latency and bus bandwidth of one kind of collective on a fabric."""
    latency = latency_ns(fabric.ranks, fabric.nodes)
    measured = fabric.measured_bytes_per_s
    if measured:
        return Link(latency, measured, "measured", fill_of(measured))
    inside = fabric.link_bytes_per_s * fabric.link_efficiency
    is_reduce = kind == CollectiveKind.ALL_REDUCE
    if is_reduce and fabric.adds_up and fabric.per_node >= NVLS_FEWEST:
        inside = fabric.link_bytes_per_s * NVLS_EFFICIENCY
    if fabric.nodes <= 1:
        return Link(latency, inside, fabric.source, fill_of(inside))
    network = fabric.network_bytes_per_s * NETWORK_EFFICIENCY
    if not network:
        return Link(latency)
    n, p = fabric.ranks, fabric.per_node
    if is_reduce and fabric.nodes == 2 and p > 1:
        network *= bus_factor(kind, n) or 1.0
    elif kind == CollectiveKind.ALL_TO_ALL:
        network *= (n - 1) / (n - p) / p
    elif kind == CollectiveKind.SEND_RECV:
        network /= p
    narrow = min(network, inside) if inside and p > 1 else network
    source = f"{fabric.source}, network" if fabric.source else "network"
    return Link(latency, narrow, source, NODES_FILL * fill_of(inside) if p > 1 else 0.0)


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
