"""The collector is paused inside, nested or not, and as it was afterwards, whatever happened."""

from __future__ import annotations

import gc

import pytest

from gpuprof.pause import without_gc


@pytest.fixture(autouse=True)
def _collector_on() -> None:
    gc.enable()


def test_an_inner_pause_does_not_end_the_outer_one() -> None:
    with without_gc():
        with without_gc():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    @without_gc()
    def fails() -> None:
        assert not gc.isenabled()
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert gc.isenabled()


def test_a_collector_that_the_caller_turned_off_stays_off() -> None:
    gc.disable()
    try:
        with without_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
