"""Splitting, blame and the tests for chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gpuprof.analyzers.lateness import (
    at_least,
    blame,
    by_size,
    find_late,
    middle_wait,
    split,
)

STEP = 100e6


def late(blame_ns: np.ndarray, step_ns: float = STEP, **more: np.ndarray) -> list[int]:
    n, s = blame_ns.shape
    found = find_late(
        tuple(range(n)),
        blame_ns,
        np.full(s, step_ns),
        more.get("last", np.zeros(n)),
        more.get("chance", np.zeros((n, 2))),
        more.get("worst", np.zeros(n)),
    )
    return sorted(one.rank for one in found if one.proven)


def test_the_shortest_duration_is_the_transfer() -> None:
    wait, transfer = split(np.array([[5.0, 9.0], [7.0, 4.0]]))
    assert transfer.tolist() == [5.0, 4.0]
    assert wait.tolist() == [[0.0, 5.0], [2.0, 0.0]]


def test_uneven_sizes_are_not_called_waiting() -> None:
    """Where the largest message is three times the smallest, so may be the time."""
    wait, transfer = split(np.array([[10.0], [25.0], [90.0]]), np.array([3.0]))
    assert transfer.tolist() == [30.0]
    assert wait.reshape(-1).tolist() == [0.0, 0.0, 60.0]


def test_two_late_ranks_bear_half_each() -> None:
    """The runway rule, worked by hand: waits 0, 0, 10, 12; the middle rank waits 10."""
    assert blame(np.array([[0.0], [0.0], [10.0], [12.0]])).reshape(-1).tolist() == [5, 5, 0, 0]


def test_stretches_are_shared_by_those_that_had_not_arrived() -> None:
    waits = np.array([[0.0], [4.0], [10.0], [11.0]])
    assert blame(waits).reshape(-1).tolist() == [4 + 3, 3, 0, 0]


@given(
    arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=9),
        elements=st.floats(0, 1e9),
    )
)
def test_blame_adds_up_to_the_wait_of_the_middle_rank(durations: np.ndarray) -> None:
    wait, _ = split(durations)
    shares = blame(wait)
    assert np.all(shares >= 0)
    np.testing.assert_allclose(shares.sum(axis=0), middle_wait(wait), rtol=1e-9, atol=1e-3)


def test_binomial_tail() -> None:
    exact = sum(math.comb(8, k) * 0.125**k * 0.875 ** (8 - k) for k in range(5, 9))
    assert at_least(5, 8, 0.125) == pytest.approx(exact)
    assert at_least(8, 8, 0.5) == pytest.approx(2.0**-8)
    assert at_least(0, 5, 0.1) == 1.0
    assert at_least(6, 5, 0.1) == 0.0
    assert 0 < at_least(40_000, 50_000, 0.125) < 1e-300 or at_least(40_000, 50_000, 0.125) == 0.0


def test_a_rank_that_is_late_in_every_step_is_named() -> None:
    bears = np.full((8, 6), 0.1e6)
    bears[5] = 6e6
    assert late(bears) == [5]


def test_two_late_ranks_are_named() -> None:
    bears = np.full((8, 6), 0.1e6)
    bears[0], bears[6] = 20e6, 15e6
    assert late(bears) == [0, 6]


def test_one_hiccup_however_long_makes_no_late_rank() -> None:
    bears = np.full((8, 6), 0.1e6)
    bears[3, 2] = 90e6
    assert late(bears) == []


def test_always_late_by_nothing_worth_naming() -> None:
    """Significant, and without effect: 1 % of the step."""
    bears = np.zeros((8, 20))
    bears[2] = 1e6
    assert late(bears) == []


def test_lateness_that_moves_accuses_nobody() -> None:
    """Uneven batches: somebody is always late, and always somebody else."""
    bears = np.zeros((8, 8))
    bears[np.arange(8), np.arange(8)] = 20e6
    assert late(bears) == []


def test_a_stall_of_another_rank_does_not_hide_the_late_one() -> None:
    bears = np.full((64, 6), 0.1e6)
    bears[5] = 6e6
    bears[9, 3] = 60e6
    assert late(bears) == [5]


def test_two_ranks_are_told_apart_by_size_where_counting_cannot() -> None:
    """One of two is late in five of five: 1 in 16 by chance; always by the same: not by chance."""
    bears = np.zeros((2, 5))
    bears[1] = [9.5e6, 10e6, 10.2e6, 9.9e6, 10.1e6]
    assert late(bears) == [1]
    bears[1] = [1e6, 30e6, 2e6, 15e6, 3e6]
    assert late(bears) == []


def test_steps_in_which_nobody_waited_are_no_evidence() -> None:
    """Nine times out of nine is as rare whether or not there were quiet steps between them."""
    bears = np.zeros((2, 12))
    bears[1, :9] = [1e6, 40e6, 2e6, 15e6, 1e6, 50e6, 2e6, 35e6, 1e6]
    assert late(bears[:, :9]) == [1]
    assert late(bears) == [1]


def test_a_single_step_is_judged_by_its_collectives_and_claims_no_more() -> None:
    bears = np.zeros((8, 1))
    bears[7] = 10e6
    found = find_late(
        tuple(range(8)), bears, np.full(1, STEP), np.array([0, 0, 0, 0, 0, 0, 1, 20.0]),
        np.tile([21 / 8, 21.0], (8, 1)), np.full(8, 1e6),
    )  # fmt: skip
    assert [(one.rank, one.samples, one.times, one.of) for one in found] == [
        (7, "collectives", 20, 21)
    ]
    assert found[0].proven
    assert not found[0].lasting


def test_one_long_collective_of_a_single_step_proves_nothing() -> None:
    bears = np.zeros((8, 1))
    bears[7] = 10e6
    assert (
        late(bears, last=np.eye(8)[7], chance=np.tile([1 / 8, 1.0], (8, 1)), worst=bears[:, 0])
        == []
    )


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 2**31))
def test_chances_are_chances(n_ranks: int, n_steps: int, seed: int) -> None:
    above = np.random.default_rng(seed).standard_normal((n_ranks, n_steps))
    p = by_size(above - above.mean(axis=0), int(0.2 * n_steps))
    assert np.all((p >= 0) & (p <= 1))


def test_nothing_to_compare() -> None:
    assert late(np.zeros((1, 3))) == []
    assert late(np.zeros((4, 0))) == []
    assert late(np.zeros((4, 3))) == []
