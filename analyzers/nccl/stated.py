"""What a log states of the links of its job, for a plan of the same machines.

A bandwidth holds for the group that it was planned or measured for. Of one node it is that of the
node's links, also where the plan spans several; of several nodes it is that of the network, and
says nothing of one node alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuprof.analyzers.fabric import Fabric
from gpuprof.analyzers.nccl.bandwidth import LARGE_BYTES, expected_busbw_gbps
from gpuprof.analyzers.nccl.measured import RING_KINDS, rows_of
from gpuprof.analyzers.nccl.networks import Network, network_of
from gpuprof.commlog import CommLog


@dataclass(frozen=True, slots=True)
class Stated:
    """busbw_gbps: of large messages in a ring, GB/s, 0 for none. multi_node: of a job on several
    nodes. source: where it is from, for the reader. network: of the machines, None if not named."""

    busbw_gbps: float
    multi_node: bool
    source: str
    network: Network | None

    def applied_to(self, fabric: Fabric) -> Fabric:
        """The fabric with what the log says of it."""
        bytes_per_s = self.busbw_gbps * 1e9
        if not bytes_per_s:
            return fabric
        if self.multi_node == (fabric.nodes > 1):
            return replace(fabric, measured_bytes_per_s=bytes_per_s, source=self.source)
        if self.multi_node:
            return fabric
        return replace(
            fabric, link_bytes_per_s=bytes_per_s, link_efficiency=1.0, adds_up=False,
            source=f"{self.source} inside a node",
        )  # fmt: skip


def stated_by(log: CommLog) -> Stated | None:
    """What a log states; None where that is nothing."""
    busbw, network = expected_busbw_gbps(log), network_of(log)
    if busbw is None and network is None:
        return None
    measured = bool(rows_of(log, RING_KINDS, LARGE_BYTES))
    source = "measured" if measured else "as NCCL planned it"
    return Stated(busbw or 0.0, log.multi_node is True, source, network)
