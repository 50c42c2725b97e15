"""Load skew inside groups: what kind of group, which rank, and in which of the ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.collectives import Communicator
from gpuprof.analyzers.group_skew import group_skews
from gpuprof.analyzers.rank_summary import RankSummary
from gpuprof.analyzers.why_late import RankParts

N_STEPS = 8
STEP_NS = 100_000_000


def summary(
    rank: int, compute_ms: Sequence[float], group: tuple[int, ...], kind: CollectiveKind, name: str
) -> RankSummary:
    """A rank of a job of eight, with twenty collectives of one group in each step."""
    n = 20 * N_STEPS
    column = np.zeros(n, np.int64)
    return RankSummary(
        rank=rank, world_size=8, host="", device=rank, labels=(),
        step_ns=np.full(N_STEPS, STEP_NS), kept=np.ones(N_STEPS, np.int64),
        compute_ns=(np.asarray(compute_ms) * 1e6).astype(np.int64), buckets={}, kernels={},
        groups=(Communicator(name, group, len(group)),), event=column, start_ns=column,
        duration_ns=column, exposed_ns=column, kind=column + int(kind), in_bytes=column,
        out_bytes=column, group=column, seq=column, step=column,
    )  # fmt: skip


def job(
    compute_ms: dict[int, Sequence[float]],
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    name: str = "7",
) -> list[RankSummary]:
    """Two groups of four ranks; compute_ms: of the ranks that differ from 60 ms."""
    rng = np.random.default_rng(1)
    ranks = []
    for rank in range(8):
        group = tuple(range(4)) if rank < 4 else tuple(range(4, 8))
        usual = 60 + 0.2 * rng.standard_normal(N_STEPS)
        times = compute_ms.get(rank, usual)
        ranks.append(summary(rank, times, group, kind, f"{name}-{group[0]}"))
    return ranks


def constant(ms: float) -> list[float]:
    return [ms + 0.1 * (step % 3) for step in range(N_STEPS)]


def test_one_rank_of_one_group_has_more_to_do() -> None:
    """The other group is even, and is not named."""
    (found,) = group_skews(job({2: constant(80)}), {})
    assert (found.ranks, found.heaviest) == ((0, 1, 2, 3), 2)
    assert found.what == "tensor parallel"
    assert abs(found.lost_frac - 0.15) < 0.01


def test_experts_that_get_more_tokens_from_step_to_step() -> None:
    """All-to-all names the group; the heavy rank moves."""
    heavy = {r: [80.0 if step % 4 == r else 60.0 for step in range(N_STEPS)] for r in range(4)}
    (found,) = group_skews(job(heavy, CollectiveKind.ALL_TO_ALL), {})
    assert (found.what, found.pattern) == ("expert parallel", "data")
    assert "tokens an expert gets" in found.sentence()


def test_a_slow_device_runs_the_kernels_of_the_others() -> None:
    """As many launches, all of them longer."""
    parts = {r: RankParts({}, {"gemm": (10.0, 60e6 if r != 1 else 80e6)}) for r in range(8)}
    (found,) = group_skews(job({1: constant(80)}), parts)
    assert found.pattern == "slow worker"
    more = {r: RankParts({}, {"gemm": (10.0 if r != 1 else 14.0, 6e6 * (10 if r != 1 else 14))})
            for r in range(8)}  # fmt: skip
    (found,) = group_skews(job({1: constant(80)}), more)
    assert found.pattern == "more work"


def test_stages_of_a_pipeline() -> None:
    """A stage may have more layers than the others: that is its partition, not its rank's fault."""
    (found,) = group_skews(job({3: constant(85)}, CollectiveKind.SEND_RECV), {})
    assert (found.what, found.pattern) == ("pipeline", "stages")


def test_the_frameworks_own_name_counts() -> None:
    """Megatron describes its groups."""
    named = {"7-0": "CONTEXT_PARALLEL_GROUP", "7-4": "CONTEXT_PARALLEL_GROUP"}
    (found,) = group_skews(job({0: constant(80)}), {}, named)
    assert found.what == "sequence parallel"


def test_even_groups_are_not_named() -> None:
    """Nor is the group of all ranks, which the job's own skew covers."""
    assert group_skews(job({}), {}) == ()
    everybody = [summary(r, constant(60 + 20 * (r == 3)), tuple(range(8)),
                         CollectiveKind.ALL_REDUCE, "0") for r in range(8)]  # fmt: skip
    assert group_skews(everybody, {}) == ()
