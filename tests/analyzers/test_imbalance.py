"""Pipeline bubbles and load skew."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.analyzers.imbalance import bubble_frac, judge_skew


def loads(means: list[float], n_steps: int = 8, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = np.array(means)[:, None] * 1e6
    return base * (1 + noise * rng.standard_normal((len(means), n_steps)))


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks", "frac"),
    [(4, 8, 1, 3 / 11), (4, 32, 1, 3 / 35), (4, 8, 2, 3 / 19), (1, 8, 1, 0.0), (8, 1, 1, 7 / 8)],
)
def test_bubbles_of_the_papers(stages: int, micro_batches: int, chunks: int, frac: float) -> None:
    assert bubble_frac(stages, micro_batches, chunks) == pytest.approx(frac)


def test_counts_start_at_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        bubble_frac(0, 4)


def test_equal_ranks_are_balanced() -> None:
    assert judge_skew(loads([100] * 8)).pattern == "balanced"


def test_one_slow_worker_and_one_with_more_work() -> None:
    """The same numbers; the kernels tell which it is."""
    load = loads([100, 101, 100, 135, 99, 100, 100, 100])
    found = judge_skew(load, same_kernels=True)
    assert (found.pattern, found.ranks) == ("slow worker", (3,))
    assert found.p_value is not None
    assert found.p_value < 1e-6
    assert judge_skew(load, same_kernels=False).pattern == "more work"
    assert judge_skew(load).pattern == "unknown"


def test_uneven_data_move_from_rank_to_rank() -> None:
    found = judge_skew(loads([100] * 8, n_steps=10, noise=0.15))
    assert found.pattern == "data"
    assert found.ranks == ()
    assert found.cost > 0.1


def test_uneven_stages() -> None:
    load = loads([100, 101, 99, 100, 130, 131, 129, 130])
    assert judge_skew(load, stage=[0, 0, 0, 0, 1, 1, 1, 1]).pattern == "stages"
    assert judge_skew(load, stage=[0, 1, 0, 1, 0, 1, 0, 1]).pattern == "partition"


def test_a_lasting_partition() -> None:
    assert judge_skew(loads([100, 110, 120, 130, 140, 150, 160, 170])).pattern == "partition"


def test_a_single_step_does_not_tell_data_from_partition() -> None:
    found = judge_skew(loads([100, 130, 128, 131], n_steps=1))
    assert (found.pattern, found.p_value) == ("unknown", None)


def test_skew_is_the_usual_one() -> None:
    """(max - mean) / max by hand: 100, 100, 100, 140."""
    found = judge_skew(loads([100, 100, 100, 140], noise=0.0))
    assert found.skew == pytest.approx((140 - 110) / 140)
    assert found.cost == pytest.approx(found.skew)
    assert found.lasting_frac == 1.0


def test_chance_seldom_makes_a_lasting_difference() -> None:
    wrong = sum(
        judge_skew(loads([100] * 8, n_steps=5, noise=0.1, seed=seed)).pattern != "data"
        for seed in range(100)
    )
    assert wrong <= 4


def test_nothing_to_compare() -> None:
    assert judge_skew(np.zeros((4, 3))).pattern == "balanced"
    assert judge_skew(np.ones((1, 3))).pattern == "balanced"
