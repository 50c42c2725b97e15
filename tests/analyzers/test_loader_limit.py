"""A gain is no larger than the loader's workers allow, and says on what it depends."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.loader_limit import NOT_RECORDED, LoaderLimit, limit_of, loader_limit
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.diagnosis import Gain
from gpuprof.run import LoaderWork

STEP_MS = 100.0


def gain(reduction: float) -> Gain:
    return Gain(step_ms=STEP_MS * (1 - reduction), reduction=reduction, low=0.3, high=0.5)


def window(work: LoaderWork | None) -> RecordedWindow:
    return RecordedWindow(
        0, STEP_MS, None, None, None, None, windows_ms=0.0, run_ms=0.0, loader=work, steps=10
    )


def test_busy_workers_cap_a_gain() -> None:
    """At work 83 % of the time they can't deliver a step in less than 83 % of it."""
    capped = LoaderLimit(4, least_frac=0.83).apply(gain(0.4), STEP_MS)
    assert capped.reduction == pytest.approx(0.17)
    assert capped.step_ms == pytest.approx(83.0)
    assert capped.low <= capped.reduction <= capped.high
    assert capped.at_most
    assert "then the loader is the limit: its 4 workers" in capped.limit
    assert "83 %" in capped.limit


def test_workers_that_keep_up_whatever_they_wait_for_leave_a_gain_as_it_is() -> None:
    """One batch at most in the making of eight workers: they are good for a step of a quarter."""
    limit = limit_of(LoaderWork(workers=8, span_ms=1, busy_frac=0.05, fetches=10, in_making=1.0))
    assert limit.apply(gain(0.4), STEP_MS) == gain(0.4)


def test_what_workers_may_wait_for_makes_a_gain_a_bound() -> None:
    limited = limit_of(LoaderWork(workers=2, span_ms=1, busy_frac=0.1)).apply(gain(0.4), STEP_MS)
    assert limited.reduction == pytest.approx(0.4)
    assert limited.at_most
    assert "what they wait for, such as storage, may come on top" in limited.limit


def test_waiting_workers_are_seen_in_the_batches_that_are_missing() -> None:
    """Four of five are asked for and not there, though none of them computes."""
    limit = limit_of(LoaderWork(workers=5, span_ms=1, busy_frac=0.02, fetches=10, in_making=4.0))
    assert limit.least_frac == pytest.approx(0.8)
    assert limit.most_frac == pytest.approx(1.0)


def test_workers_that_fill_the_stock_are_not_at_their_limit() -> None:
    """Ten batches were fetched and ten more were made: half of the work was for later."""
    work = LoaderWork(
        workers=4, span_ms=1, busy_frac=1.0, fetches=10, in_making=4.0, filled=10.0
    )  # fmt: skip
    assert limit_of(work).least_frac == pytest.approx(0.5)


def test_a_host_that_runs_ahead_does_not_make_workers_slower() -> None:
    """It asked for ten batches in a third of the time that ten steps take."""
    work = LoaderWork(workers=2, span_ms=1_000 / 3, busy_frac=0.6)
    limit = loader_limit({0: window(work)}, 1, STEP_MS)
    assert limit is not None
    assert limit.least_frac == pytest.approx(0.2)


def test_the_rank_whose_loader_has_most_to_do_sets_the_limit() -> None:
    works = [LoaderWork(workers=2, span_ms=1_000, busy_frac=busy) for busy in (0.2, 0.7, 0.4)]
    limit = loader_limit({i: window(work) for i, work in enumerate(works)}, 1, STEP_MS)
    assert limit is not None
    assert limit.least_frac == pytest.approx(0.7)


@pytest.mark.parametrize("told", [{}, {0: window(None)}])
def test_a_trace_alone_states_a_bound(told: dict[int, RecordedWindow]) -> None:
    limit = loader_limit(told, 1, STEP_MS)
    assert limit is not None
    stated = limit.apply(gain(0.4), STEP_MS)
    assert (stated.reduction, stated.at_most, stated.limit) == (0.4, True, NOT_RECORDED)


@pytest.mark.parametrize("loader_workers", [None, 0])
def test_without_worker_processes_there_is_no_limit(loader_workers: int | None) -> None:
    assert loader_limit({}, loader_workers, STEP_MS) is None
