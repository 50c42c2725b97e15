"""What a finding promises is what the same run saves with that cause repaired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.simulator import Run, draw_run, plant, simulate, write_traces
from fixtures.simulator.plan import Fetch, Kernel, Launch, Loader, Save
from gpuprof.api import analyze
from gpuprof.diagnosis import Diagnosis, Finding

LAUNCH = Launch("aten::mm", (Kernel("gemm", 100_000),), 5_000, 5_000, 5_000, 5_000)


def diagnosed(run: Run, folder: Path) -> Diagnosis:
    write_traces(simulate(run), folder)
    return analyze(folder)


def promised(diagnosis: Diagnosis, cause: str) -> float:
    found: dict[str, Finding] = {f.cause: f for f in diagnosis.findings}
    gain = found[cause].gain if cause in found else None
    return gain.reduction if gain is not None else 0.0


def true_gain(run: Run, cause: str) -> float:
    return 1.0 - simulate(run, {cause}).step_ns / simulate(run).step_ns


@pytest.mark.parametrize("other", ["sync-points", "memcpy"])
def test_a_loader_that_sets_the_pace_sets_it_after_another_repair(
    other: str, tmp_path: Path
) -> None:
    """Worker processes deliver when they do; a host that comes sooner waits the longer."""
    run = plant(plant(draw_run("cnn", 3), other, 0.2), "dataloader", 0.55)
    diagnosis = diagnosed(run, tmp_path)
    assert diagnosis.findings[0].cause == "dataloader"
    assert promised(diagnosis, "dataloader") == pytest.approx(
        true_gain(run, "dataloader"), abs=0.03
    )
    assert true_gain(run, other) < 0.05
    assert promised(diagnosis, other) < 0.08


def test_what_keeps_loading_from_being_hidden_is_named_beside_it(tmp_path: Path) -> None:
    """Loading in the training process costs nothing while the device has work queued."""
    loading = plant(draw_run("cnn", 3), "dataloader", 0.15, "main-thread")
    run = plant(loading, "sync-points", 0.6)
    diagnosis = diagnosed(run, tmp_path)
    assert {f.cause for f in diagnosis.findings} >= {"dataloader", "sync-points"}
    for cause in ("dataloader", "sync-points"):
        assert promised(diagnosis, cause) == pytest.approx(true_gain(run, cause), abs=0.1)


def test_copies_to_the_host_and_back_are_copies(tmp_path: Path) -> None:
    """Also those of some 100 KB: none of the waiting is taken for a read of a result."""
    run = plant(draw_run("transformer", 3, graphs=False), "memcpy", 0.03, "round-trip")
    diagnosis = diagnosed(run, tmp_path)
    assert [f.cause for f in diagnosis.findings if f.cause != "host-overhead"] == ["memcpy"]
    assert promised(diagnosis, "memcpy") == pytest.approx(true_gain(run, "memcpy"), abs=0.03)


def test_a_save_before_the_window_is_not_of_it() -> None:
    """A step ends when its host is done with it, too."""
    plain = (LAUNCH,) * 20
    saving = (*plain, Save((), 50_000_000))
    steps = (plain, saving, plain, plain)
    run = Run(0, "cnn", 0.0, (steps,), warm_up=2)
    assert simulate(run).step_ns == pytest.approx(20 * 100_000, rel=0.02)


def test_workers_have_been_at_work_when_the_run_begins() -> None:
    """Batches come evenly from the first on, as they do in a job that has run for long."""
    step = (Fetch(8_000_000, 50_000), *(LAUNCH,) * 10)
    run = replace(Run(0, "cnn", 0.0, ((step,) * 7,), warm_up=3), loader=Loader(workers=4))
    result = simulate(run)
    waits = [r.end_ns - r.start_ns for r in result.ranks[0].host if "DataLoader" in r.name]
    assert result.step_ns == pytest.approx(8_000_000 / 4, rel=0.02)
    assert max(waits) < 1.2 * min(waits)


def test_the_copies_of_a_save_are_no_gain_of_the_copies_of_the_step(tmp_path: Path) -> None:
    run = plant(plant(draw_run("cnn", 3), "memcpy", 0.1), "checkpoint", 0.2)
    diagnosis = diagnosed(run, tmp_path)
    assert promised(diagnosis, "memcpy") == pytest.approx(true_gain(run, "memcpy"), abs=0.03)
