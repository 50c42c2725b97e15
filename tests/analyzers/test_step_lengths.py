"""All steps of a run beside the few that were traced."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.runs import plain
from gpuprof.analyzers.step_lengths import WARM_UP_STEPS, long_steps, steps_of_the_run


def run(usual_ms: float, long_ms: float, every: int, n: int = 400) -> dict[int, np.ndarray]:
    lengths = np.full(n + WARM_UP_STEPS, usual_ms * 1e3)
    lengths[:WARM_UP_STEPS] = 1e7
    lengths[WARM_UP_STEPS + every - 1 :: every] = long_ms * 1e3
    return {0: lengths.astype(np.int64), 1: np.ones(3, np.int64)}


def test_steps_of_a_run_are_a_fact() -> None:
    """Of the first rank; the first steps are warm-up."""
    assert plain(steps_of_the_run(run(20, 400, 50))["all steps of the run"]) == (
        "400: 20.0 ms usually, 1 % over 400.0 ms"
    )


def test_long_steps_that_hold_much_of_the_time_are_told() -> None:
    """A save every fiftieth step is in hardly any window."""
    (line,) = long_steps(run(20, 400, 50))
    assert "8 of 400 steps" in line
    assert "28 % of all time" in plain(line)


@pytest.mark.parametrize("lengths", [run(20, 39, 2), run(20, 90, 100), {}, run(20, 400, 5, n=40)])
def test_ordinary_runs_say_nothing(lengths: dict[int, np.ndarray]) -> None:
    """Steps that vary, rare long ones, no log, and a run that is hardly longer than a window."""
    assert long_steps(lengths) == []


def test_a_short_run_has_no_such_fact() -> None:
    assert steps_of_the_run(run(20, 400, 5, n=40)) == {}
    assert steps_of_the_run({}) == {}
