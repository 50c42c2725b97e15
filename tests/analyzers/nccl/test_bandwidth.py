"""Measured bus bandwidth against the planned ring."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.nccl.bandwidth import (
    CHANNEL_GBPS,
    PLAN_EFFICIENCY,
    expected_busbw_gbps,
    findings_from_bandwidth,
    planned_busbw_gbps,
    ring_ceiling_gbps,
)
from gpuprof.commlog import Bandwidth, CommLog, Fact, Graph, TopologyNode


def log_of(
    bus_gbps: float, size_bytes: int = 1 << 30, reduction: str = "sum", root: int = -1
) -> CommLog:
    log = CommLog(paths=("nccl.log",))
    log.graphs = [
        Graph(0, 4, 12, 20.0, 20.0, "NVL", "PIX", 1),
        Graph(0, 1, 12, 40.0, 40.0, "NVL", "PIX", 2),
    ]
    log.bandwidths = [
        Bandwidth(
            9, size_bytes, "float", 1.0, bus_gbps, bus_gbps, False, size_bytes // 4, reduction, root
        )
    ]
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


def test_only_rings_are_held_against_the_ring() -> None:
    """A sendrecv uses one link of many, and its bandwidth is no ring's."""
    log = log_of(100.0, reduction="none")
    assert findings_from_bandwidth(log) == []
    assert expected_busbw_gbps(log) == pytest.approx(PLAN_EFFICIENCY * 240)
    assert expected_busbw_gbps(log_of(100.0)) == 100.0


def uneven(channels: int, there_gbps: float = 20.0) -> CommLog:
    """Two devices whose topology cuts NVLink short in one direction."""
    log = CommLog(paths=("nccl.log",))
    log.graphs = [Graph(0, 4, 1, 20.0, 20.0, "NVL", "PIX", 1)]
    log.topology = [
        TopologyNode(0, "GPU", "b", "NVL", there_gbps, "a", 2),
        TopologyNode(0, "GPU", "a", "NVL", 240.0, "b", 3),
    ]
    log.facts = [Fact(0, "channels", {"coll": str(channels)}, 4)]
    return log


def test_a_plan_over_a_link_that_is_wider_than_it_says() -> None:
    """Its channels move what their thread blocks can, and never more than the link."""
    assert planned_busbw_gbps(uneven(2)) == pytest.approx(2 * CHANNEL_GBPS)
    assert planned_busbw_gbps(uneven(1)) == pytest.approx(PLAN_EFFICIENCY * 20)
    assert planned_busbw_gbps(uneven(24)) == pytest.approx(PLAN_EFFICIENCY * 240)
    even = uneven(2, there_gbps=240.0)
    assert planned_busbw_gbps(even) == pytest.approx(PLAN_EFFICIENCY * 20)
