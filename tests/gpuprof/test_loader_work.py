"""What was counted of a loader's workers, as the run directory keeps it."""

from __future__ import annotations

import pytest

from gpuprof.loader_work import loader_work

COUNTED: dict[str, object] = {"workers": 4, "span_ns": 1_000_000, "busy_ns": 1_000_000}


def test_the_busy_share_is_of_one_worker() -> None:
    work = loader_work({**COUNTED, "missing": [1, 2, 1, 2], "read_bytes": 9})
    assert work is not None
    assert (work.workers, work.span_ms, work.busy_frac) == (4, 1.0, 0.25)
    assert (work.fetches, work.in_making, work.filled, work.read_bytes) == (4, 1.5, 0.0, 9)


def test_batches_that_wait_for_a_busy_worker_keep_no_more_workers_busy() -> None:
    work = loader_work({**COUNTED, "missing": [9, 9]})
    assert work is not None
    assert work.in_making == 4.0


def test_a_stock_that_grows_all_along_is_told_from_chance() -> None:
    growing = loader_work({**COUNTED, "missing": [8, 7, 6, 5, 4, 3]})
    chance = loader_work({**COUNTED, "missing": [8, 3, 3, 4, 3, 8]})
    assert growing is not None
    assert chance is not None
    assert growing.filled == pytest.approx(5.0)
    assert chance.filled == 0.0


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        {},
        [],
        {**COUNTED, "workers": 0},
        {**COUNTED, "span_ns": 0},
        {**COUNTED, "busy_ns": "x"},
        {**COUNTED, "busy_ns": -1},
    ],
)
def test_what_cannot_be_true_is_nothing(damaged: object) -> None:
    """It comes from another process, which may send anything."""
    assert loader_work(damaged) is None  # type: ignore[arg-type]


def test_damaged_lists_are_left_out() -> None:
    work = loader_work({**COUNTED, "missing": ["x", -3, None, 2], "read_bytes": "y"})
    assert work is not None
    assert (work.fetches, work.in_making, work.read_bytes) == (1, 2.0, None)
