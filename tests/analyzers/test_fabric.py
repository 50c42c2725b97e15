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
        ("H100", 5, 0, 420.0),  # NVIDIA/nccl issue 1455: with the switches' sums
        ("H100", 4, 0, 370.0),  # and as a ring, which is as fast there
        ("H100", 2, 0, 370.0),
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


def test_a_scatter_uses_all_cards_of_the_roots_node() -> None:
    """Half of the message leaves the node over them: twice their rate as bus bandwidth, nearly; and
    a small one takes one hop, as long as the network's plugin says."""
    fabric = fabric_of(
        find("A100-SXM4-40GB"), 16, 8, network_bytes_per_s=50e9, hop_ns=75_000.0
    )  # fmt: skip
    small = estimate(CollectiveKind.SCATTER, 1024, fabric)
    assert small.regime == "latency-bound" and small.time_ns == pytest.approx(86_800, rel=0.01)
    large = estimate(CollectiveKind.SCATTER, 4 * GIB, fabric).busbw_bytes_per_s
    assert large == pytest.approx(50e9 * 0.93 * 15 / 8, rel=0.01)
    assert estimate(CollectiveKind.GATHER, 4 * GIB, fabric).busbw_bytes_per_s == large


def test_a_measured_ring_is_no_all_to_all() -> None:
    """Between nodes each rank has its share of the cards that all rings use together."""
    fabric = Fabric(16, 8, measured_bytes_per_s=80e9)
    ring = estimate(CollectiveKind.ALL_GATHER, GIB, fabric).busbw_bytes_per_s
    direct = estimate(CollectiveKind.ALL_TO_ALL, GIB, fabric).busbw_bytes_per_s
    assert ring is not None and direct is not None
    assert direct == pytest.approx(80e9 * 15 / 8 / 8, rel=0.05) and direct < ring / 3
    inside = Fabric(8, 8, measured_bytes_per_s=80e9)
    assert estimate(CollectiveKind.ALL_TO_ALL, GIB, inside).busbw_bytes_per_s == pytest.approx(
        80e9, rel=0.05
    )


def test_a_bridge_connects_few_cards() -> None:
    """More of them than it can connect have no links that are known; modules are all connected."""
    card, module = find("A100 80GB PCIe"), find("A100")
    assert card is not None and module is not None and not module.link_devices
    assert fabric_of(card, 2, 2).link_bytes_per_s == 300e9
    assert fabric_of(card, 8, 8).link_bytes_per_s == 0
    assert fabric_of(module, 8, 8).link_bytes_per_s == 300e9


LABELLED = pytest.mark.skipif(
    not CASES.is_dir(), reason="the labelled cases are not beside the repository"
)


@LABELLED
def test_a_labelled_scatter_between_nodes() -> None:
    """Small and large messages within 20 %; between 2 and 64 MiB the network adds what nobody
    states."""
    from gpuprof.analyzers.nccl.measured import operation
    from gpuprof.analyzers.nccl.networks import network_of
    from gpuprof.readers.nccl_log import read_nccl_log

    log = read_nccl_log(next(Path(CASES).rglob("a100-2-nodes-efa.log.gz")))
    network = network_of(log)
    assert network is not None and network.name == "p4d.24xlarge"
    fabric = fabric_of(
        find("A100-SXM4-40GB"), 16, 8,
        network_bytes_per_s=network.gbps * 1e9 / 8, hop_ns=network.hop_us * 1e3,
    )  # fmt: skip
    rows = [row for row in log.bandwidths if row.size_bytes and not row.in_place]
    assert {operation(row, 16) for row in rows} == {CollectiveKind.SCATTER}
    for row in rows:
        found = estimate(CollectiveKind.SCATTER, row.size_bytes, fabric).time_ns
        if not 2 << 20 <= row.size_bytes <= 64 << 20:
            assert found is not None and found / 1e3 == pytest.approx(row.time_us, rel=0.2)


@LABELLED
def test_the_plan_of_a_labelled_log_agrees_with_what_it_measured() -> None:
    """Two A100s: planned by the log's own graph, measured by nccl-tests in the same log; whole, and
    with a topology that leaves one link of twelve."""
    from gpuprof.analyzers.nccl.bandwidth import planned_busbw_gbps
    from gpuprof.readers.nccl_log import read_nccl_log

    for name in ("a100-nvlink-healthy", "a100-nvlink-one-brick"):
        log = read_nccl_log(next(Path(CASES).rglob(f"{name}.log.gz")))
        planned = planned_busbw_gbps(log)
        assert planned == pytest.approx(max(row.bus_gbps for row in log.bandwidths), rel=0.2)
