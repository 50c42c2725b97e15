"""Comparing ranks: matching, waiting, late ranks, and what is passed on between communicators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.rank_sim import Job, Noise, draw_work, make_late, summaries
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.collectives import Communicator
from gpuprof.analyzers.rank_summary import RankSummary, from_bytes, summarize, to_bytes
from gpuprof.analyzers.ranks import RankComparison, compare_ranks, compare_summaries
from gpuprof.errors import InputError
from gpuprof.readers.kineto import read_trace

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "traces"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"


def rank_of(
    rank: int,
    durations: list[float],
    *,
    group: Communicator | None = None,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    starts: list[float] | None = None,
    seq: list[int] | None = None,
    steps: list[int] | None = None,
    labels: tuple[str, ...] = ("ProfilerStep#3",),
    clock_ns: float = 0.0,
    in_bytes: int = 1024,
) -> RankSummary:
    """A rank of four by its collectives, in µs; all end together at 1000 µs, 2000 µs and so on."""
    n = len(durations)
    took = np.round(np.array(durations) * 1e3).astype(np.int64)
    ends = np.round(np.arange(1, n + 1) * 1e6 + clock_ns).astype(np.int64)
    begins = ends - took if starts is None else (np.array(starts) * 1e3).astype(np.int64)
    return RankSummary(
        rank=rank,
        world_size=4,
        host="",
        device=rank,
        labels=labels,
        step_ns=np.full(len(labels), max(n, 1) * 1_000_000 // len(labels)),
        kept=np.ones(len(labels), np.int64),
        compute_ns=np.zeros(len(labels), np.int64),
        buckets={},
        kernels={},
        groups=(group or Communicator("0", (0, 1, 2, 3), 4),),
        event=np.arange(n),
        start_ns=begins,
        duration_ns=took,
        exposed_ns=took,
        kind=np.full(n, int(kind), np.int64),
        in_bytes=np.full(n, in_bytes, np.int64),
        out_bytes=np.full(n, in_bytes, np.int64),
        group=np.zeros(n, np.int64),
        seq=np.full(n, -1, np.int64) if seq is None else np.array(seq),
        step=np.zeros(n, np.int64) if steps is None else np.array(steps),
    )


def joined(*parts: RankSummary) -> RankSummary:
    """One rank with several communicators."""
    first = parts[0]
    columns = (
        "event",
        "start_ns",
        "duration_ns",
        "exposed_ns",
        "kind",
        "in_bytes",
        "out_bytes",
        "seq",
        "step",
    )
    order = np.argsort(np.concatenate([p.start_ns for p in parts]), kind="stable")
    group = np.concatenate([np.full(len(p), i, np.int64) for i, p in enumerate(parts)])
    values = {c: np.concatenate([getattr(p, c) for p in parts])[order] for c in columns}
    return replace(first, groups=tuple(p.groups[0] for p in parts), group=group[order], **values)


def test_waiting_and_transfer() -> None:
    """By hand: of 10, 40, 40, 30 µs the transfer is 10, and rank 0 came last."""
    found = compare_summaries([rank_of(r, [d]) for r, d in enumerate((10, 40, 40, 30))])
    assert found.wait_ns.tolist() == [0, 30_000, 30_000, 20_000]
    assert found.transfer_ns.tolist() == [10_000] * 4
    assert found.n_last.tolist() == [1, 0, 0, 0]
    assert (found.matched, found.unmatched) == (1, 0)
    assert found.late == ()


def test_sequence_numbers_match_windows_that_differ() -> None:
    """Only what every rank has is compared; the rest is counted."""
    found = compare_summaries(
        [
            rank_of(0, [10, 20, 30], seq=[4, 5, 6]),
            rank_of(1, [25, 35, 45], seq=[5, 6, 7]),
            rank_of(2, [20, 30], seq=[5, 6]),
            rank_of(3, [20, 30], seq=[5, 6]),
        ]
    )
    assert (found.matched, found.unmatched) == (2, 1)
    assert found.wait_ns.tolist() == [0, 10_000, 0, 0]


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_order_is_shifted_until_the_ends_agree(missing: int) -> None:
    """Without numbers: a window that begins later, on a clock that is seconds ahead."""
    rng = np.random.default_rng(1)
    gaps = rng.uniform(300, 3000, 40)
    ends = np.cumsum(gaps)
    stream = Communicator("", (), 0, 0)
    took = rng.uniform(20, 200, (2, 40))
    took[0, 7], took[1, 7] = 20, 120

    def one(rank: int, keep: slice, ahead_us: float) -> RankSummary:
        durations = took[rank][keep]
        starts = (ends[keep] - durations + ahead_us).tolist()
        labels = ("ProfilerStep#1", "ProfilerStep#2") if rank else ("a", "b")
        return rank_of(rank, durations.tolist(), group=stream, starts=starts, labels=labels)

    found = compare_summaries([one(0, slice(None), 0), one(1, slice(missing, None), 2.5e6)])
    assert (found.matched, found.unmatched) == (40 - missing, missing)
    assert found.waits[1].wait_ns[7 - missing] == pytest.approx(100e3, abs=2e3)
    assert found.clock_offset_ns[1] - found.clock_offset_ns[0] == pytest.approx(2.5e9, abs=1e5)


def test_steps_that_do_not_agree_are_left_out() -> None:
    """A last step that is cut off on one rank must not shift the others' partners."""
    labels = ("ProfilerStep#1", "ProfilerStep#2")
    stream = Communicator("", (), 0, 0)
    a = rank_of(0, [10, 20, 30, 40], group=stream, steps=[0, 0, 1, 1], labels=labels)
    b = rank_of(1, [15, 25, 35], group=stream, steps=[0, 0, 1], labels=labels)
    found = compare_summaries([a, b])
    assert found.matched == 2
    assert found.wait_ns.tolist() == [0, 10_000]


def test_different_operations_are_not_compared() -> None:
    a = rank_of(0, [10], seq=[1])
    b = rank_of(1, [90], seq=[1], kind=CollectiveKind.ALL_GATHER)
    c = rank_of(1, [90], seq=[1], in_bytes=4096)
    assert compare_summaries([a, b]).matched == 0
    assert compare_summaries([a, c]).matched == 0


@pytest.mark.parametrize(
    "kind", [CollectiveKind.SEND_RECV, CollectiveKind.BROADCAST, CollectiveKind.UNKNOWN]
)
def test_only_symmetric_operations_are_split(kind: CollectiveKind) -> None:
    """The root of a broadcast leaves first and is not late; a send waits for one peer."""
    found = compare_summaries([rank_of(r, [d] * 9, kind=kind) for r, d in enumerate((5, 90, 90))])
    assert found.matched == 0
    assert found.late == ()
    assert found.wait_fracs() == {0: 0.0, 1: 0.0, 2: 0.0}


def test_waits_side_by_side_are_one_stretch_of_time() -> None:
    """gloo runs several collectives at once: a rank that waits in two of them waits once."""
    waits = rank_of(0, [800.0, 800.0], starts=[0.0, 100.0])
    found = compare_summaries([waits, rank_of(1, [10.0, 10.0], starts=[790.0, 890.0])])
    assert found.wait_ns.tolist() == [1_580_000, 0]
    assert found.exposed_wait_ns.tolist() == [890_000, 0]
    assert found.wait_fracs() == {0: 0.445, 1: 0.0}


def test_communicators_are_compared_each_for_itself() -> None:
    """Ranks 0 and 1 wait for each other, 2 and 3 for each other."""
    left, right = Communicator("1", (0, 1), 2), Communicator("2", (2, 3), 2)
    found = compare_summaries(
        [
            rank_of(0, [10, 10], group=left),
            rank_of(1, [50, 50], group=left),
            rank_of(2, [70, 20], group=right),
            rank_of(3, [30, 60], group=right),
        ]
    )
    assert found.wait_ns.tolist() == [0, 80_000, 40_000, 40_000]


@pytest.mark.parametrize("size", [0, 2])
def test_like_groups_whose_ranks_were_not_recorded_are_told_apart_by_their_ends(size: int) -> None:
    """Two pairs, the same stream, the same operations: each waits only for its own partner."""
    rng = np.random.default_rng(2)
    n, who = 30, Communicator("", (), size, 0)
    ends = [np.cumsum(rng.uniform(1000, 3000, n)) for _ in range(2)]
    ranks = []
    for r in range(4):
        took = np.full(n, (100.0, 150.0, 400.0, 500.0)[r])
        starts = (ends[r // 2] - took + 1e6 * r).tolist()
        ranks.append(rank_of(r, took.tolist(), group=who, starts=starts))
    found = compare_summaries(ranks)
    assert found.wait_ns.tolist() == pytest.approx([0, 50e3 * n, 0, 100e3 * n], rel=1e-6)


def tensor_and_data_parallel(n_steps: int) -> list[RankSummary]:
    """Four ranks: tensor-parallel pairs (0, 1) and (2, 3), data-parallel pairs (0, 2) and (1, 3).

    In each step of 1000 µs rank 0 comes 200 µs late to its tensor-parallel collective, so rank 1
    waits there, and both come 200 µs late to the data-parallel one, where 2 and 3 wait.
    """
    tp = {r: Communicator(f"tp{r // 2}", (r - r % 2, r - r % 2 + 1), 2) for r in range(4)}
    dp = {r: Communicator(f"dp{r % 2}", (r % 2, r % 2 + 2), 2) for r in range(4)}
    tp_took, dp_took = {0: 20, 1: 220, 2: 20, 3: 20}, {0: 30, 1: 30, 2: 230, 3: 230}
    labels = tuple(f"ProfilerStep#{i}" for i in range(n_steps))
    steps, begin = list(range(n_steps)), 1000.0 * np.arange(n_steps)
    result = []
    for r in range(4):
        tp_end = 700 if r < 2 else 500
        parts = [
            rank_of(
                r, [took] * n_steps, group=group, steps=steps, labels=labels, seq=steps,
                starts=(begin + end - took).tolist(),
            )
            for group, took, end in ((tp[r], tp_took[r], tp_end), (dp[r], dp_took[r], 950))
        ]  # fmt: skip
        one = joined(*parts)
        result.append(replace(one, step_ns=np.full(n_steps, 1_000_000)))
    return result


def test_blame_is_passed_on_to_the_rank_that_waited_for_nobody() -> None:
    """Rank 1 is last in its data-parallel group, only because it waited for rank 0."""
    found = compare_summaries(tensor_and_data_parallel(10))
    assert found.late_ranks == (0,)
    assert found.blame_share[1] == pytest.approx(0.0, abs=1e-9)
    # Of the four ranks 1 waits 200 µs in its tensor-parallel group, 2 and 3 in the data-parallel
    # ones: three blocks of two ranks with a middle wait of 200 µs, so 3 x 2/4 x 20 %.
    assert found.blame_share[0] == pytest.approx(0.3, rel=1e-6)
    assert found.waits[3].left_ns.sum() == pytest.approx(10 * 200e3)


def test_what_waits_would_remain() -> None:
    """If rank 3 came with the rest, rank 0 would still wait for rank 2."""
    labels = tuple(f"ProfilerStep#{i}" for i in range(8))
    found = compare_summaries(
        [
            rank_of(r, [took] * 8, steps=list(range(8)), labels=labels, seq=list(range(8)))
            for r, took in enumerate((340, 340, 310, 10))
        ]
    )
    assert found.late_ranks == (3,)
    assert found.waits[0].left_ns.tolist() == [30_000.0] * 8
    assert found.waits[3].left_ns.tolist() == [0.0] * 8


def test_missing_ranks_are_said() -> None:
    """The late rank may be the one that was not given: then nobody is accused of its waits."""
    job, quiet = Job(8, 6, 10), Noise(stalls=0.0)
    rng = np.random.default_rng(3)
    work = make_late(draw_work(job, quiet, rng), job, 5, 0.3)
    given = compare_summaries(summaries(work, job, quiet, rng, given=[0, 1, 2, 3]))
    assert not given.complete
    assert given.world_size == 8
    assert given.late == ()
    rng = np.random.default_rng(4)
    assert compare_summaries(summaries(work, job, quiet, rng)).late_ranks == (5,)


def test_one_rank_has_nobody_to_wait_for() -> None:
    found = compare_summaries([rank_of(0, [10, 20])])
    assert (found.matched, found.unmatched) == (0, 2)
    assert found.late == ()


@pytest.mark.parametrize("only", ["all", "first"])
def test_the_right_rank_of_simulated_jobs(only: str) -> None:
    """Clocks seconds apart, jitter, heavy tails: the late rank is named, whoever it is."""
    noise = Noise(stalls=0.0)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        job = Job((8, 16)[seed % 2], 8, 10)
        guilty = int(rng.integers(job.n_ranks))
        work = make_late(draw_work(job, noise, rng), job, guilty, 0.05, only=only)
        found = compare_summaries(summaries(work, job, noise, rng))
        assert found.late_ranks == (guilty,)
        assert found.late[0].lasting


def test_balanced_jobs_have_no_late_rank() -> None:
    """Stalls, uneven batches and heavy tails accuse nobody."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        job = Job(8, 8, 10)
        noise = (Noise(), Noise(step=0.1), Noise(stalls=1.0))[seed % 3]
        found = compare_summaries(summaries(draw_work(job, noise, rng), job, noise, rng))
        assert found.late_ranks == ()


def test_a_summary_survives_the_way_to_another_machine() -> None:
    rng = np.random.default_rng(0)
    job = Job(2, 3, 5)
    one = summaries(draw_work(job, Noise(), rng), job, Noise(), rng)[1]
    again = from_bytes(to_bytes(one))
    for name in RankSummary.__slots__:
        before, after = getattr(one, name), getattr(again, name)
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after


def test_a_summary_is_small() -> None:
    """Kilobytes per rank: some 20 bytes a collective."""
    rng = np.random.default_rng(0)
    job = Job(1, 5, 200)
    assert len(to_bytes(summaries(draw_work(job, Noise(), rng), job, Noise(), rng)[0])) < 20_000


@pytest.mark.parametrize("data", [b"", b"nonsense", to_bytes(rank_of(0, [1.0]))[:-9]])
def test_foreign_bytes_are_no_summary(data: bytes) -> None:
    with pytest.raises(InputError):
        from_bytes(data)


def test_traces_are_compared_end_to_end() -> None:
    """From Kineto's JSON: exposed waits are counted, a wait beside compute is not."""
    accounts = []
    for rank, (start, took) in enumerate(((10, 90), (80, 20))):
        builder = TraceBuilder(rank=rank, world_size=2).step(0, start_us=0, dur_us=120)
        builder.launch_collective(
            "allreduce", launch_us=5, start_us=start, dur_us=took, seq=1, kernel=KERNEL
        )
        builder.launch_kernel("gemm", launch_us=2, start_us=5, dur_us=45, stream=7)
        accounts.append(account_rank(builder.trace(), rank))
    found = compare_ranks(accounts)
    assert found.wait_ns.tolist() == [70_000, 0]
    assert found.exposed_wait_ns.tolist() == [30_000, 0]
    assert found.complete
    assert isinstance(summarize(accounts[0]), RankSummary)


@pytest.fixture(scope="module")
def labelled() -> dict[str, RankComparison]:
    if not CASES.is_dir():
        pytest.skip("the labelled cases are not here")
    found = {}
    for case in ("dlrm-8-ranks", "megatron-tp8"):
        paths = sorted((CASES / case).glob("rank*.json.gz"))
        accounts = [account_rank(read_trace(path), r) for r, path in enumerate(paths)]
        found[case] = compare_ranks(accounts)
    return found


def test_labelled_cases(labelled: dict[str, RankComparison]) -> None:
    """Real jobs of eight ranks whose late ranks are known."""
    assert labelled["dlrm-8-ranks"].late_ranks == (7,)
    assert labelled["megatron-tp8"].late_ranks == (0, 6)
    assert labelled["megatron-tp8"].matched == 84
    assert labelled["megatron-tp8"].unmatched == 0
