"""A run that lasts: the same work, and every batch to every worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fixtures.simulator import Run, draw_run, simulate
from fixtures.simulator.lasting import last_lap, lasting
from fixtures.simulator.plan import Fetch, Loader


def makes_ns(run: Run) -> list[int]:
    steps = run.steps[0][run.warm_up :]
    return [op.make_ns for step in steps for op in step if isinstance(op, Fetch)]


def test_every_batch_comes_as_often_as_in_the_recording() -> None:
    run = draw_run("cnn", 2)
    assert Counter(makes_ns(lasting(run, 6))) == Counter(makes_ns(run) * 6)


def test_no_worker_makes_the_same_batch_each_time() -> None:
    """Six workers in turn over six recorded steps."""
    run = replace(draw_run("cnn", 2), loader=Loader(workers=6))
    assert len(makes_ns(run)) == 6
    of_first = makes_ns(lasting(run, 6))[::6]
    assert set(of_first) == set(makes_ns(run))


def test_the_last_lap_is_recorded_of_the_same_run() -> None:
    run = draw_run("cnn", 2)
    lap = last_lap(run, 4)
    assert lap.steps == lasting(run, 4).steps
    assert lap.n_steps - lap.warm_up == run.n_steps - run.warm_up
    assert Counter(makes_ns(lap)) == Counter(makes_ns(run))


def test_a_steady_run_is_as_long_a_step_as_before() -> None:
    run = draw_run("cnn", 2)
    assert simulate(lasting(run, 4)).step_ns == pytest.approx(simulate(run).step_ns, rel=0.01)


def test_a_loader_that_is_the_limit_sets_its_mean_pace() -> None:
    """Two batches of three are quick; two workers deliver by the mean of all of them."""
    run = draw_run("cnn", 2)
    step_ns = int(simulate(run).step_ns)
    makes = [4 * step_ns, 2 * step_ns, 2 * step_ns]

    def slow(number: int, op: object) -> object:
        return replace(op, make_ns=makes[number % 3]) if isinstance(op, Fetch) else op

    steps = tuple(tuple(slow(n, op) for op in step) for n, step in enumerate(run.steps[0]))
    run = replace(run, steps=(steps,), loader=Loader(workers=2))  # type: ignore[arg-type]
    mean = simulate(lasting(run)).step_ns
    assert mean == pytest.approx(sum(makes) / 3 / 2, rel=0.1)
