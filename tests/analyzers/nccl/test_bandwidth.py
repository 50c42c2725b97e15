"""Measured bus bandwidth against the planned ring."""

from __future__ import annotations

from gpuprof.analyzers.nccl.bandwidth import findings_from_bandwidth, ring_ceiling_gbps
from gpuprof.commlog import Bandwidth, CommLog, Graph


def log_of(bus_gbps: float, size_bytes: int = 1 << 30) -> CommLog:
    log = CommLog(paths=("nccl.log",))
    log.graphs = [
        Graph(0, 4, 12, 20.0, 20.0, "NVL", "PIX", 1),
        Graph(0, 1, 12, 40.0, 40.0, "NVL", "PIX", 2),
    ]
    log.bandwidths = [Bandwidth(9, size_bytes, "float", 1.0, bus_gbps, bus_gbps, False)]
    return log


def test_ceiling_is_channels_times_bandwidth_of_the_ring() -> None:
    assert ring_ceiling_gbps(log_of(1.0)) == 240.0


def test_half_of_the_plan_is_the_border() -> None:
    assert findings_from_bandwidth(log_of(216.0)) == []
    (found,) = findings_from_bandwidth(log_of(100.0))
    assert "42% of the 240 GB/s" in found.evidence[0].text


def test_small_messages_are_not_judged() -> None:
    """They are bound by latency."""
    assert findings_from_bandwidth(log_of(1.0, size_bytes=1 << 20)) == []
