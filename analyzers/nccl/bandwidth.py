"""Bus bandwidth that nccl-tests measured against what NCCL planned in the same log."""

from __future__ import annotations

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, row_evidence
from gpuprof.analyzers.nccl.graph import uneven_link
from gpuprof.analyzers.nccl.measured import RING_KINDS, rows_of
from gpuprof.commlog import CommLog
from gpuprof.diagnosis import Evidence, Finding, Fix

LARGE_BYTES = 64 << 20
"""From here on latency is below a tenth of the time on every link that NCCL knows (half-performance
sizes lie between 22 kB and 6.5 MB), so the bandwidth may be judged."""

SLOW_FRAC = 0.5
"""Below half of the plan something is wrong: one NIC of two, ACS, a missing GPUDirect. Between 0.5
and 0.75 contention or the protocol can be the reason, which a log does not tell."""


PLAN_EFFICIENCY = 0.93
"""What large messages reach of the plan: 216 of 240 GB/s on two A100s (a labelled log), 230 to 240
of 240 on eight."""

CHANNEL_GBPS = 10 * 2**0.5
"""What one channel of NCCL, a thread block on one SM, moves over NVLink. The hardware spreads every
block's traffic over all links to the peer, and it takes two blocks a link of 20 GB/s to fill them
(NCCL's authors, NVIDIA/nccl issues 655 and 1703): so more than 10 GB/s and less than 20. This is
the middle of the two, and at most 41 % off."""


def ring_ceiling_gbps(log: CommLog) -> float | None:
    """Channels times bandwidth of the ring that the graph search found (pattern 4), GB/s.

    The bus bandwidth of a ring cannot exceed it; with several communicators the largest counts.
    """
    rings = [
        graph.channels * min(graph.bandwidth_intra, graph.bandwidth_inter)
        for graph in log.graphs
        if graph.pattern == 4
    ]
    return max(rings, default=None)


def expected_busbw_gbps(log: CommLog) -> float | None:
    """The bus bandwidth of large messages in a ring, GB/s: measured in the log, else as its graph
    plans it; None where it states neither."""
    large = [row.bus_gbps for row in rows_of(log, RING_KINDS, LARGE_BYTES)]
    if large:
        return max(large)
    return planned_busbw_gbps(log)


def planned_busbw_gbps(log: CommLog) -> float | None:
    """What NCCL's plan comes to on large messages, GB/s; None without a plan.

    A plan made with a topology that cuts a link short in one direction has too few channels, and
    they move what their thread blocks can: links are as wide as the other direction says.
    """
    ceiling = ring_ceiling_gbps(log)
    if ceiling is None:
        return None
    planned = PLAN_EFFICIENCY * ceiling
    link, channels = uneven_link(log), _channels(log)
    if link is None or not channels:
        return planned
    return max(planned, min(PLAN_EFFICIENCY * link.back_gbps, channels * CHANNEL_GBPS))


def _channels(log: CommLog) -> int:
    """Channels for collectives of the ring that `ring_ceiling_gbps` counts; 0 where not stated."""
    return max((int(fact.fields["coll"]) for fact in log.facts_of("channels")), default=0)


def findings_from_bandwidth(log: CommLog) -> list[Finding]:
    """A measured bus bandwidth below half of the planned one."""
    ceiling = ring_ceiling_gbps(log)
    large = rows_of(log, RING_KINDS, LARGE_BYTES)
    if ceiling is None or not large:
        return []
    best = max(large, key=lambda row: row.bus_gbps)
    if best.bus_gbps >= SLOW_FRAC * ceiling:
        return []
    text = (
        f"The best bus bandwidth from {LARGE_BYTES >> 20} MiB on is {best.bus_gbps:g} GB/s, "
        f"{best.bus_gbps / ceiling:.0%} of the {ceiling:g} GB/s that NCCL's ring was planned for"
    )
    return [
        finding(
            cause="nccl-wait",
            title="Collectives run at less than half of what the links should carry",
            severity="critical",
            confidence=0.8,
            evidence=[
                row_evidence(log, best.line, None, text),
                Evidence(
                    text=f"Bus bandwidth {best.bus_gbps:g} GB/s.",
                    value=best.bus_gbps,
                    unit="GB/s",
                    source="nccl-log",
                ),
                class_evidence(["slow_link"]),
            ],
            fixes=[
                Fix(
                    title="Measure the links one by one",
                    detail="Exactly half points at one NIC of two, a tenth at GPUDirect RDMA off.",
                    code="nvidia-smi nvlink --status; ib_write_bw; p2pBandwidthLatencyTest",
                )
            ],
        )
    ]
