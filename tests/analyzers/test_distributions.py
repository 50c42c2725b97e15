"""Tails agree with printed tables."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.distributions import incomplete_beta


@pytest.mark.parametrize(("df", "t", "p"), [(1, 6.314, 0.05), (3, 5.841, 0.005), (10, 2.764, 0.01)])
def test_students_tail_agrees_with_printed_tables(df: int, t: float, p: float) -> None:
    assert 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t)) == pytest.approx(p, rel=2e-3)
