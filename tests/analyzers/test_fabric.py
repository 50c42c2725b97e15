"""The model of collectives: published figures within its error, and what must always hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.nccl_cases import CASES
from gpuprof.analyzers.busbw import RING_EFFICIENCY
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.communication_plan import Layout, Model, plan
from gpuprof.analyzers.fabric import Fabric, estimate, fabric_of
from gpuprof.peaks import find

GIB = 1 << 30


@pytest.mark.parametrize(
    ("device", "ranks", "network_gbps", "measured_gb_per_s"),
    [
        ("A100-SXM4-80GB", 8, 0, 235.0),  # nccl-tests, as published
        ("H100", 8, 0, 480.0),  # with the switches' sums
        ("A100-SXM4-40GB", 16, 400, 81.0),  # a labelled log: two nodes, four cards of 100 Gb/s
        ("H100", 64, 3200, 380.0),  # eight cards of 400 Gb/s a node
        ("A100-SXM4-80GB", 64, 1600, 185.0),  # eight cards of 200 Gb/s a node
    ],
)
def test_published_bandwidths_of_large_messages(
    device: str, ranks: int, network_gbps: float, measured_gb_per_s: float
) -> None:
    """Within the 20 % that the model claims."""
    fabric = fabric_of(find(device), ranks, 8, network_bytes_per_s=network_gbps * 1e9 / 8)
    found = estimate(CollectiveKind.ALL_REDUCE, 4 * GIB, fabric).busbw_bytes_per_s
    assert found is not None
    assert found / 1e9 == pytest.approx(measured_gb_per_s, rel=0.2)


@given(
    kind=st.sampled_from([k for k in CollectiveKind if k not in (0, 5)]),
    nodes=st.integers(1, 64),
    per_node=st.integers(1, 8),
    size=st.integers(1, 1 << 34),
)
def test_larger_takes_longer_and_never_beats_its_links(
    kind: CollectiveKind, nodes: int, per_node: int, size: int
) -> None:
    """Whatever the group."""
    fabric = Fabric(nodes * per_node, per_node, 300e9, network_bytes_per_s=100e9)
    one, two = estimate(kind, size, fabric), estimate(kind, 2 * size, fabric)
    if fabric.ranks < 2:
        assert one.time_ns == 0.0
        return
    assert one.time_ns is not None and two.time_ns is not None
    assert 0 < one.time_ns < two.time_ns <= 2 * one.time_ns
    assert one.busbw_bytes_per_s is not None and one.busbw_bytes_per_s < 300e9


def test_an_unknown_link_gives_no_time() -> None:
    """Never a guess."""
    assert estimate(CollectiveKind.ALL_REDUCE, GIB, Fabric(16, 8, 300e9)).time_ns is None
    assert estimate(CollectiveKind.ALL_REDUCE, GIB, Fabric(8, 8)).time_ns is None


def test_small_messages_are_bound_by_latency() -> None:
    """And half of the bandwidth is reached where it says."""
    fabric = Fabric(8, 8, 300e9)
    assert estimate(CollectiveKind.ALL_REDUCE, 1024, fabric).regime == "latency-bound"
    large = estimate(CollectiveKind.ALL_REDUCE, GIB, fabric)
    assert large.regime == "at bandwidth" and large.half_bytes is not None
    half = estimate(CollectiveKind.ALL_REDUCE, large.half_bytes, fabric)
    assert half.busbw_bytes_per_s == pytest.approx(300e9 * RING_EFFICIENCY / 2)


def volume(strategy: str, ranks: int = 8) -> float:
    """Bytes through the link of each rank in a step."""
    model = Model(parameters=1e9, layers=10)
    items = plan(model, Layout(strategy=strategy), Fabric(ranks, 8, 300e9))  # type: ignore[arg-type]
    factor = {CollectiveKind.ALL_REDUCE: 2.0}
    return sum(i.bytes * factor.get(i.call.kind, 1.0) * (ranks - 1) / ranks for i in items)


def test_volumes_of_the_strategies() -> None:
    """2 S (N - 1) / N for all-reduce and ZeRO 1 and 2, 3 S (N - 1) / N for full shards."""
    share = 2e9 * 7 / 8
    assert volume("ddp") == pytest.approx(2 * share)
    assert volume("zero1") == pytest.approx(2 * share)
    assert volume("fsdp") == pytest.approx(3 * share)


def test_groups_of_one_node_share_its_network() -> None:
    """Eight tensor-parallel groups reduce their gradients between nodes at one time."""
    model = Model(parameters=8e9, hidden=4096, sequence=4096)
    fabric = Fabric(16, 8, 300e9, network_bytes_per_s=100e9)
    (gradients, activations) = plan(model, Layout(tensor=8), fabric)
    assert (gradients.call.ranks, activations.call.ranks) == (2, 8)
    assert gradients.call.busbw_bytes_per_s is not None
    assert gradients.call.busbw_bytes_per_s < 100e9 / 8
    assert activations.calls == 4 * model.layers


def test_hybrid_shards_send_a_nodes_share_between_nodes() -> None:
    """Full shards inside the node; between nodes only an eighth of each layer."""
    model = Model(parameters=8e9)
    fabric = Fabric(32, 8, 300e9, network_bytes_per_s=100e9)
    items = plan(model, Layout(strategy="hsdp"), fabric)
    assert [item.call.ranks for item in items] == [8, 8, 4]
    assert items[2].bytes == pytest.approx(2 * 8e9 / 8)
    flat = plan(model, Layout(strategy="fsdp"), fabric)
    assert sum(i.total_ns or 0 for i in items) < sum(i.total_ns or 0 for i in flat)


def test_ranks_that_do_not_divide() -> None:
    """Said, not rounded."""
    with pytest.raises(ValueError, match="can't be divided"):
        plan(Model(parameters=1e9), Layout(tensor=3), Fabric(16, 8, 300e9))


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled cases are not beside the repository")
def test_the_plan_of_a_labelled_log_agrees_with_what_it_measured() -> None:
    """Two A100s: planned by the log's own graph, measured by nccl-tests in the same log."""
    from gpuprof.analyzers.nccl.bandwidth import planned_busbw_gbps
    from gpuprof.readers.nccl_log import read_nccl_log

    path = next(Path(CASES).rglob("a100-nvlink-healthy.log.gz"))
    log = read_nccl_log(path)
    planned = planned_busbw_gbps(log)
    assert planned == pytest.approx(max(row.bus_gbps for row in log.bandwidths), rel=0.2)
