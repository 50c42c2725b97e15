"""Interval algebra against a naive model: a set of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.analyzers import intervals
from gpuprof.analyzers.intervals import Spans

POINTS = st.integers(min_value=-15, max_value=25)
PAIRS = st.lists(st.tuples(POINTS, POINTS), max_size=12)


def spans_of(pairs: list[tuple[int, int]]) -> Spans:
    return intervals.union([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def held_by(pairs: list[tuple[int, int]]) -> set[int]:
    return {point for start, end in pairs for point in range(start, end)}


def points(spans: Spans) -> set[int]:
    return held_by(list(zip(spans.start.tolist(), spans.end.tolist(), strict=True)))


def check_canonical(spans: Spans) -> None:
    assert spans.start.dtype == spans.end.dtype == np.int64
    assert (spans.start < spans.end).all()
    assert (spans.end[:-1] < spans.start[1:]).all()


@given(PAIRS)
def test_union_holds_the_same_points_in_canonical_form(pairs: list[tuple[int, int]]) -> None:
    spans = spans_of(pairs)
    check_canonical(spans)
    assert points(spans) == held_by(pairs)
    assert intervals.total(spans) == len(held_by(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_python_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    a, b = spans_of(left), spans_of(right)
    expected = {
        "merge": (intervals.merge(a, b), held_by(left) | held_by(right)),
        "intersect": (intervals.intersect(a, b), held_by(left) & held_by(right)),
        "subtract": (intervals.subtract(a, b), held_by(left) - held_by(right)),
    }
    for result, model in expected.values():
        check_canonical(result)
        assert points(result) == model


@given(PAIRS, POINTS, POINTS)
def test_window_operations_agree_with_python_sets(
    pairs: list[tuple[int, int]], lo: int, hi: int
) -> None:
    spans, window = spans_of(pairs), set(range(lo, hi))
    clipped, gaps = intervals.clip(spans, lo, hi), intervals.complement(spans, lo, hi)
    check_canonical(clipped)
    check_canonical(gaps)
    assert points(clipped) == held_by(pairs) & window
    assert points(gaps) == window - held_by(pairs)


@given(PAIRS, PAIRS)
def test_coverage_counts_each_window_on_its_own(
    pairs: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    counted = intervals.covered(
        spans_of(pairs), [window[0] for window in windows], [window[1] for window in windows]
    )
    assert counted.dtype == np.int64
    assert counted.tolist() == [len(held_by(pairs) & set(range(*window))) for window in windows]


@given(PAIRS, st.lists(POINTS, max_size=20))
def test_contains_agrees_with_python_sets(pairs: list[tuple[int, int]], times: list[int]) -> None:
    inside = intervals.contains(spans_of(pairs), times)
    assert inside.tolist() == [time in held_by(pairs) for time in times]


def test_epoch_nanoseconds_are_exact() -> None:
    """Nanoseconds since the epoch do not fit a double; nothing on the way may become one."""
    now = 1_790_000_000_123_456_789
    spans = intervals.union([now, now + 2], [now + 1, now + 3])
    assert len(spans) == 2
    assert intervals.covered(spans, [now], [now + 3]).tolist() == [2]


def test_spans_compare_by_value_and_have_no_hash() -> None:
    assert spans_of([(0, 3)]) == spans_of([(2, 3), (0, 2)])
    assert spans_of([(0, 3)]) != spans_of([(0, 2)])
    with pytest.raises(TypeError):
        hash(spans_of([]))
