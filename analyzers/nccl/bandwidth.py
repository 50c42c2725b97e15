"""Bus bandwidth that nccl-tests measured against what NCCL planned in the same log."""

from __future__ import annotations

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, row_evidence
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
    """The bus bandwidth of large messages, GB/s: measured in the log, else as its graph plans it;
    None where it states neither."""
    large = [row.bus_gbps for row in log.bandwidths if row.size_bytes >= LARGE_BYTES]
    if large:
        return max(large)
    return planned_busbw_gbps(log)


def planned_busbw_gbps(log: CommLog) -> float | None:
    """What NCCL's plan comes to on large messages, GB/s; None without a plan."""
    ceiling = ring_ceiling_gbps(log)
    return None if ceiling is None else PLAN_EFFICIENCY * ceiling


def findings_from_bandwidth(log: CommLog) -> list[Finding]:
    """A measured bus bandwidth below half of the planned one."""
    ceiling = ring_ceiling_gbps(log)
    large = [row for row in log.bandwidths if row.size_bytes >= LARGE_BYTES]
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
