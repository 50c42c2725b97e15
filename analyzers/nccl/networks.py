"""Networks whose figures a log names only by the machine's type.

A plugin for a cloud's own network prints the type of the machine. Its cards and the latency of a
message are in public tables: the line rate in the description of the type (Amazon EC2, accelerated
computing instances), the latency in the plugin's own (aws-ofi-nccl, `src/platform-aws.cpp`: what it
gives NCCL as the network's latency, for NCCL's choice of algorithms).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.commlog import CommLog


@dataclass(frozen=True, slots=True)
class Network:
    """gbps: all cards of a machine together, Gbit/s, one direction. hop_us: latency of a message
    between two machines, µs."""

    name: str
    gbps: float
    hop_us: float


NETWORKS = {
    one.name: one
    for one in (
        Network("p3dn.24xlarge", 100, 150),
        Network("p4d.24xlarge", 400, 75),
        Network("p4de.24xlarge", 400, 75),
        Network("p5.48xlarge", 3200, 75),
        Network("p5e.48xlarge", 3200, 75),
        Network("p5en.48xlarge", 3200, 35),
        Network("g5.48xlarge", 100, 75),
    )
}


def network_of(log: CommLog) -> Network | None:
    """The network of the machines that a log names; None where it names none, or unlike ones."""
    names = {
        fact.fields["platform"] for fact in log.facts_of("plugin") if "platform" in fact.fields
    }
    return NETWORKS.get(names.pop()) if len(names) == 1 else None
