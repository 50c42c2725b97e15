"""`distinct` stands for `numpy.unique` in every analyzer."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.distinct import distinct, is_in, quantile


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_it_says_what_numpy_says(values: list[int]) -> None:
    array = np.array(values * 2, np.int64)
    found = distinct(array)
    assert found.dtype == array.dtype
    assert found.tolist() == np.unique(array).tolist()


def test_a_table_is_taken_as_one_row() -> None:
    assert distinct(np.array([[3, 1], [1, 2]])).tolist() == [1, 2, 3]


@settings(deadline=None)
@given(
    st.lists(st.integers(-50, 50), max_size=40),
    st.lists(st.one_of(st.integers(-60, 60), st.integers(-(10**9), 10**9)), max_size=30),
)
def test_membership_is_what_numpy_says(values: list[int], wanted: list[int]) -> None:
    array, these = np.array(values, np.int64), np.array(wanted, np.int64)
    assert is_in(array, these).tolist() == np.isin(array, these).tolist()
    assert is_in(array, list(wanted)).tolist() == np.isin(array, these).tolist()


@settings(deadline=None)
@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.01, 0.05, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_a_quantile_is_what_numpy_says(values: list[int], share: float) -> None:
    array = np.array(values, np.int64)
    expected = float(np.quantile(array, share))
    assert abs(quantile(array, share) - expected) <= 1e-9 * max(1.0, abs(expected))
