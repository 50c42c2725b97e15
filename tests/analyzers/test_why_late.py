"""Which part of a late rank's step explains its lateness."""

from __future__ import annotations

from gpuprof.analyzers.why_late import RankParts, compare_kernels, why_late

KERNELS = {
    "gemm": (10.0, 50e6),
    "attention": (4.0, 20e6),
    "norm": (20.0, 10e6),
    "adam": (1.0, 20e6),
}
BUCKETS = {"compute": 100e6, "communication": 20e6, "host": 5e6, "input": 1e6}
PEER = RankParts(BUCKETS, KERNELS)


def rank(kernels: dict[str, tuple[float, float]] | None = None, **buckets: float) -> RankParts:
    return RankParts({**BUCKETS, **buckets}, KERNELS if kernels is None else kernels)


def causes(late: RankParts, others: list[RankParts] | None = None) -> list[str]:
    return [reason.cause for reason in why_late(late, others or [PEER] * 7)]


def test_its_loader() -> None:
    reasons = why_late(rank(input=31e6), [PEER] * 7)
    assert [(r.cause, r.excess_ns, r.share) for r in reasons] == [("loader", 30e6, 1.0)]


def test_its_host_in_several_buckets() -> None:
    assert causes(rank(host=15e6, sync=10e6, launch=2e6)) == ["host"]


def test_its_checkpoint() -> None:
    assert causes(rank(checkpoint=80e6, host=6e6)) == ["checkpoint"]


def test_a_slow_device_makes_all_kernels_longer() -> None:
    slow = {name: (n, 1.3 * ns) for name, (n, ns) in KERNELS.items()}
    assert causes(rank(slow, compute=130e6)) == ["slow device"]


def test_larger_inputs_leave_the_optimizer_alone() -> None:
    longer = {**KERNELS, "gemm": (10.0, 65e6), "attention": (4.0, 35e6), "norm": (20.0, 13e6)}
    assert causes(rank(longer, compute=133e6)) == ["larger inputs"]


def test_blocks_tell_larger_inputs_from_a_slow_device() -> None:
    """Even where nearly all kernels are longer by one factor, and the largest are persistent."""
    longer = {name: (n, 1.3 * ns) for name, (n, ns) in KERNELS.items()}
    usual = {name: 100.0 * n for name, (n, _) in KERNELS.items()}
    peers = [RankParts(BUCKETS, KERNELS, usual)] * 7
    grown = {name: 1.3 * b if name != "gemm" else b for name, b in usual.items()}
    for blocks, cause in ((usual, "slow device"), (grown, "larger inputs")):
        late = RankParts({**BUCKETS, "compute": 130e6}, longer, blocks)
        assert causes(late, peers) == [cause]


def test_more_work_is_more_launches() -> None:
    more = {**KERNELS, "gemm": (16.0, 80e6), "expert": (2.0, 10e6)}
    found = compare_kernels(rank(more), [PEER] * 3)
    assert found is not None
    assert found.more_ns == 40e6
    assert found.longer_ns == 0
    assert causes(rank(more, compute=140e6)) == ["more work"]


def test_two_causes_the_larger_first() -> None:
    assert causes(rank(input=21e6, host=15e6)) == ["loader", "host"]


def test_a_rank_like_the_others_has_no_reason() -> None:
    assert causes(rank()) == []
    assert why_late(rank(input=9e6), []) == ()


def test_communication_is_no_reason() -> None:
    """A late rank waits less than the others; that is the symptom."""
    assert causes(rank(communication=0.0, communication_host=0.0)) == []


def test_without_kernels_compute_is_work() -> None:
    assert causes(rank({}, compute=150e6)) == ["more work"]


def test_the_middle_of_the_others_counts_not_an_odd_one() -> None:
    odd = rank(host=500e6)
    assert causes(rank(host=25e6), [PEER, PEER, PEER, PEER, odd]) == ["host"]
