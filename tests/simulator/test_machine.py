"""The simulator itself: the same seed gives the same run, repairs repair, the machine is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.simulator import KINDS, Run, draw_run, plant, simulate
from fixtures.simulator.faults import FITS
from fixtures.simulator.plan import COMPUTE, Collective, Kernel, Launch, Python, Read

LAUNCH = Launch("aten::mm", (Kernel("gemm", 100_000),), 5_000, 5_000, 5_000, 5_000)


def _run(*ranks: tuple[object, ...], n_steps: int = 4) -> Run:
    steps = tuple(tuple(ops for _ in range(n_steps)) for ops in ranks)
    return Run(0, "cnn", 0.0, steps, warm_up=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_everything(kind: str) -> None:
    assert simulate(draw_run(kind, 3)).step_ns == simulate(draw_run(kind, 3)).step_ns
    assert simulate(draw_run(kind, 3)).step_ns != simulate(draw_run(kind, 4)).step_ns


@pytest.mark.parametrize("kind", KINDS)
def test_device_events_of_a_stream_follow_each_other_and_their_launches(kind: str) -> None:
    for rank in simulate(draw_run(kind, 1)).ranks:
        calls = {row.correlation: row for row in rank.host if row.category == "cuda_runtime"}
        free: dict[int, int] = {}
        for event in rank.device:
            assert event.end_ns >= event.start_ns >= free.get(event.stream, 0)
            free[event.stream] = event.end_ns
            if event.launch in calls:
                assert event.start_ns >= calls[event.launch].start_ns


def test_a_device_bound_step_lasts_as_long_as_its_kernels() -> None:
    assert simulate(_run((LAUNCH,) * 50)).step_ns == pytest.approx(50 * 100_000, rel=0.01)


def test_a_host_bound_step_lasts_as_long_as_its_host() -> None:
    short = replace(LAUNCH, kernels=(Kernel("k", 2_000),))
    assert simulate(_run((short,) * 50)).step_ns == pytest.approx(50 * 15_625, rel=0.02)


def test_the_launch_queue_is_bounded() -> None:
    """A host that launches without end waits for the device; it is never over 1024 events ahead."""
    rank = simulate(_run((LAUNCH,) * 800, n_steps=5)).ranks[0]
    calls = {row.correlation: row.end_ns for row in rank.host if row.category == "cuda_runtime"}
    ends = [event.end_ns for event in rank.device]
    for i, event in enumerate(rank.device):
        if i >= 1024 and event.launch in calls:
            assert calls[event.launch] >= ends[i - 1024]


def test_a_read_waits_for_all_that_was_launched() -> None:
    rank = simulate(_run((*(LAUNCH,) * 10, Read(5_000)))).ranks[0]
    copies = [e for e in rank.device if e.category == "gpu_memcpy"]
    returns = [r.end_ns for r in rank.host if r.name == "cudaStreamSynchronize"]
    assert len(copies) == len(returns) == 2
    assert all(end >= copy.end_ns for end, copy in zip(returns, copies, strict=True))


def test_ranks_leave_a_collective_together_after_the_last_has_come() -> None:
    meet = Collective("a", "allreduce", (0, 1), 4096, 50_000, 5_000, 5_000, 5_000)
    early, late = (LAUNCH, meet), (LAUNCH, Python(900_000), LAUNCH, meet)
    ranks = simulate(_run(early, late)).ranks
    common = ([e for e in r.device if e.stream != COMPUTE and e.step >= 2] for r in ranks)
    pairs = zip(*common, strict=True)
    for a, b in pairs:
        assert a.end_ns == b.end_ns == max(a.start_ns, b.start_ns) + 50_000


@pytest.mark.parametrize("cause", sorted(FITS))
def test_a_planted_cause_costs_and_its_repair_gives_it_back(cause: str) -> None:
    kind = FITS[cause][0]
    healthy = draw_run(kind, 5)
    before = simulate(healthy).step_ns
    planted = plant(healthy, cause, 0.7, step_ns=before)
    repaired = {"host-overhead"} if cause == "small-batch" else {cause}
    worse, after = simulate(planted).step_ns, simulate(planted, repaired).step_ns
    assert after < 0.9 * worse
    if cause not in ("small-batch", "imbalance"):  # there the work itself is another
        assert after == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("cause", ["dataloader", "checkpoint", "nccl-wait"])
def test_repairing_what_is_not_there_changes_nothing(cause: str) -> None:
    run = draw_run("cnn", 6)
    assert simulate(run, {cause}).step_ns == pytest.approx(simulate(run).step_ns, rel=0.01)
