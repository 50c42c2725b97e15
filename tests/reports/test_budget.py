"""The step budget that a reader sees adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.diagnoses import sample_diagnosis
from gpuprof.diagnosis import BUCKETS
from gpuprof.reports import budget, charts
from gpuprof.reports.words import catalog

budgets = st.lists(st.floats(0, 1), min_size=len(BUCKETS), max_size=len(BUCKETS)).filter(
    lambda shares: sum(shares) > 0.01
)


@given(budgets, st.floats(0.05, 1e5))
def test_rows_add_up_to_the_step_and_to_one_hundred_percent(
    shares: list[float], step_ms: float
) -> None:
    total = sum(shares)
    rows = budget.rows({b: s / total for b, s in zip(BUCKETS, shares, strict=True)}, step_ms)
    digits = 2 if step_ms < 10 else 1
    assert sum(round(1000 * row.share) for row in rows) == 1000
    assert round(sum(row.ms or 0.0 for row in rows), digits) == pytest.approx(
        round(step_ms, digits), abs=1e-6
    )
    assert rows[-1].offset + rows[-1].exact == pytest.approx(1)


def test_zero_buckets_are_left_out_and_the_order_is_fixed() -> None:
    rows = budget.rows(sample_diagnosis().budget, 175.2)
    assert [row.bucket for row in rows] == [
        "compute", "copy", "input", "host", "launch", "unknown",
    ]  # fmt: skip
    assert [row.idle for row in rows] == [False, False, True, True, True, True]


def test_no_account_means_no_rows() -> None:
    assert budget.rows({}, None) == []
    assert budget.rows(dict.fromkeys(BUCKETS, 0.0), 10.0) == []


def test_bars_cover_the_whole_width_once() -> None:
    """A stacked bar with a hole or an overlap would show another budget than the table."""
    import re

    rows = budget.rows(sample_diagnosis().budget, None)
    svg = charts.stacked_bar(rows, catalog())
    widths = [float(w) for w in re.findall(r'width="([\d.]+)%" height="28"', svg)]
    assert sum(widths[1:]) == pytest.approx(100, abs=0.1)
    assert 'role="img"' in svg
    assert "style=" not in svg
