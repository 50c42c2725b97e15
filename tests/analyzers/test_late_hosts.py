"""Late hosts: a rank that holds the others up is named though arrivals prove nothing, no other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.simulator import draw_run, simulate, write_traces
from fixtures.simulator.plan import Launch, Op, Python, Run
from gpuprof.analyzers.diagnose import Recorded, diagnose, view_of
from gpuprof.analyzers.run_view import RunView
from gpuprof.diagnosis import Finding
from gpuprof.readers.kineto import read_trace

SEED = 13011
"""Two ranks whose hosts are far ahead: a delay is seen in some steps and not in others."""

FOUR_RANKS = 13001
"""Four ranks that read a result in each step, and wait there instead of in collectives."""

STEPS = range(3, 9)
"""The recorded ones of a simulated run."""


def with_python(
    run: Run, ms: float, ranks: Collection[int], steps: Collection[int] = STEPS, times: int = 2
) -> Run:
    """The same run with so much Python in some steps of some ranks, in so many pieces."""

    def delayed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        launches = [i for i, op in enumerate(ops) if isinstance(op, Launch)]
        at = {launches[len(launches) * (k + 1) // (2 * times)] for k in range(times)}
        changed: list[Op] = []
        for i, op in enumerate(ops):
            if i in at:
                changed.append(Python(int(1e6 * ms / times), "late"))
            changed.append(op)
        return tuple(changed)

    return replace(
        run,
        steps=tuple(
            tuple(
                delayed(ops) if rank in ranks and step in steps else ops
                for step, ops in enumerate(of_rank)
            )
            for rank, of_rank in enumerate(run.steps)
        ),
    )


def seen(run: Run, folder: Path) -> RunView:
    return view_of(_recorded(run, folder))[0]


def _recorded(run: Run, folder: Path) -> Recorded:
    return Recorded(tuple(read_trace(path) for path in write_traces(simulate(run), folder)))


def found(run: Run, folder: Path) -> list[Finding]:
    return list(diagnose(_recorded(run, folder), "test")[0].findings)


@pytest.mark.parametrize(("seed", "late"), [(SEED, 1), (FOUR_RANKS, 2)])
def test_a_rank_whose_host_holds_the_others_up_comes_first(
    seed: int, late: int, tmp_path: Path
) -> None:
    """The lateness before the host overhead, which is its reason and of the same rank; with the
    gain that the repaired run shows."""
    healthy = draw_run("ddp", seed, 0.2)
    run = with_python(healthy, 24, [late])
    first, second = found(run, tmp_path)[:2]
    assert (first.cause, first.late_ranks) == ("nccl-wait", (late,))
    assert (second.cause, second.ranks) == ("host-overhead", (late,))
    assert second.fixes[0].title == f"Take from rank {late} what only it does on the host"
    assert first.gain is not None
    true = 1 - simulate(healthy).step_ns / simulate(run).step_ns
    assert true > 0.1
    assert first.gain.reduction == pytest.approx(true, abs=0.02)


def test_arrivals_alone_do_not_tell(tmp_path: Path) -> None:
    """What makes the module worth having: here no test of the order is passed."""
    view = seen(with_python(draw_run("ddp", FOUR_RANKS, 0.05), 12, [2]), tmp_path)
    assert view.comparison is not None
    assert view.comparison.late == ()
    assert view.late_ranks == (2,)
    assert view.late_hosts is not None
    assert view.late_hosts.own_frac > 0.08
    assert view.late_hosts.others_frac < 0.01


def test_of_slow_hosts_everywhere_none_is_late(tmp_path: Path) -> None:
    view = seen(with_python(draw_run("ddp", SEED, 0.2), 24, [0, 1]), tmp_path)
    assert view.late_hosts is None


def test_a_host_that_works_longer_and_holds_nobody_up_is_not_late(tmp_path: Path) -> None:
    """It is still ahead of its device."""
    view = seen(with_python(draw_run("ddp", SEED, 0.2), 14, [1]), tmp_path)
    assert view.late_hosts is None


def test_one_stall_makes_no_late_host(tmp_path: Path) -> None:
    view = seen(with_python(draw_run("ddp", SEED, 0.2), 60, [1], steps=[5]), tmp_path)
    assert view.late_hosts is None


def test_two_ranks_that_are_late_together_are_both_named(tmp_path: Path) -> None:
    """Neither alone would save anything."""
    run = with_python(draw_run("ddp", 12001, 0.05), 30, [0, 2])
    assert run.n_ranks > 4
    late = seen(run, tmp_path).late_hosts
    assert late is not None
    assert sorted(late.ranks) == [0, 2]


@pytest.mark.parametrize("seed", [3, 13001, 13011])
def test_healthy_jobs_have_no_late_host(seed: int, tmp_path: Path) -> None:
    assert seen(draw_run("ddp", seed, 0.4), tmp_path).late_hosts is None
