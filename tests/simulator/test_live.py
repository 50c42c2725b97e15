"""A simulated run as gpuprof's own recording of it: what it knows of the loader, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.simulator import Run, draw_run, plant, simulate, write_traces
from fixtures.simulator import live as live_module
from fixtures.simulator.live import watched_loader, write_run
from fixtures.simulator.plan import Fetch, Kernel, Launch, Loader, Read
from gpuprof.analyzers.causes.base import LEFT_BY_LOADER
from gpuprof.analyzers.run_view import LEAST_GAIN
from gpuprof.api import analyze
from gpuprof.diagnosis import Finding
from gpuprof.run import LoaderWork

KERNEL_NS = 100_000
LAUNCH = Launch("aten::mm", (Kernel("gemm", KERNEL_NS),), 5_000, 5_000, 5_000, 5_000)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that only compute."""
    monkeypatch.setattr(live_module, "WAITING_RUNS", 0.0)


def reading(make_ns: int) -> Run:
    """Steps that read a result after every kernel, fed by two workers."""
    step = (Fetch(make_ns, 50_000), *(LAUNCH, Read(5_000)) * 20)
    return replace(Run(0, "cnn", 0.0, ((step,) * 9,), warm_up=3), loader=Loader(workers=2))


def sync_points(folder: Path) -> Finding:
    return next(f for f in analyze(folder).findings if f.cause == "sync-points")


def true_gain(run: Run) -> float:
    return 1.0 - simulate(run, {"sync-points"}).step_ns / simulate(run).step_ns


def work_of(run: Run) -> LoaderWork:
    simulated = simulate(run)
    work = watched_loader(simulated, simulated.ranks[0])
    assert work is not None
    return work


def test_a_loader_that_is_hidden_caps_the_gain_of_a_live_recording(tmp_path: Path) -> None:
    """The workers need nine tenths of the step; the trace alone can't know."""
    step_ns = simulate(reading(1_000)).step_ns
    run = reading(int(2 * 0.9 * step_ns))
    assert simulate(run).step_ns == pytest.approx(step_ns, rel=0.01)
    write_run(simulate(run), tmp_path)
    told = sync_points(tmp_path)
    assert told.gain is not None
    assert told.gain.reduction == pytest.approx(true_gain(run), abs=0.02)
    assert "then the loader is the limit: its 2 workers" in told.gain.limit
    bare = tmp_path / "bare"
    bare.mkdir()
    write_traces(simulate(run), bare)
    stated = sync_points(bare).gain
    assert stated is not None
    assert stated.at_most
    assert stated.reduction > true_gain(run) + 0.05


def test_a_finding_that_the_loader_leaves_nothing_stays_and_is_hardly_believed(
    tmp_path: Path,
) -> None:
    """Confidence is that of a shorter step; what would be the limit next is still worth telling."""
    step_ns = simulate(reading(1_000)).step_ns
    write_run(simulate(reading(int(2 * 0.995 * step_ns))), tmp_path)
    told = sync_points(tmp_path)
    assert told.gain is not None
    assert told.gain.reduction < LEAST_GAIN
    assert told.confidence <= LEFT_BY_LOADER
    assert told.share > 0.1


def test_the_joint_saving_is_capped_as_well(tmp_path: Path) -> None:
    step_ns = simulate(reading(1_000)).step_ns
    write_run(simulate(reading(int(2 * 0.9 * step_ns))), tmp_path)
    together = analyze(tmp_path).together
    assert together is not None
    assert together.reduction == pytest.approx(0.1, abs=0.02)
    assert "then the loader is the limit" in together.limit


def test_a_loader_without_work_leaves_the_gain_alone(tmp_path: Path) -> None:
    run = reading(1_000)
    write_run(simulate(run), tmp_path)
    gain = sync_points(tmp_path).gain
    assert gain is not None
    assert gain.reduction == pytest.approx(true_gain(run), abs=0.02)
    assert "then the loader" not in gain.limit


def test_busy_workers_are_busy_for_the_share_that_they_need() -> None:
    step_ns = simulate(reading(1_000)).step_ns
    for share in (0.25, 0.5, 0.75):
        assert work_of(reading(int(2 * share * step_ns))).busy_frac == pytest.approx(
            share, abs=0.02
        )


def test_workers_that_are_the_limit_are_always_busy() -> None:
    run = plant(draw_run("cnn", 3), "dataloader", 0.6)
    assert work_of(run).busy_frac == pytest.approx(1.0, abs=0.05)


def test_waiting_for_storage_is_not_in_the_counters_but_batches_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step_ns = simulate(reading(1_000)).step_ns
    run = reading(int(2 * 0.8 * step_ns))
    computing = work_of(run)
    monkeypatch.setattr(live_module, "waiting_frac", lambda run: 0.75)
    waiting = work_of(run)
    assert waiting.busy_frac == pytest.approx(computing.busy_frac / 4, rel=0.02)
    assert waiting.in_making == computing.in_making


def test_the_run_directory_holds_only_what_a_recording_knows(tmp_path: Path) -> None:
    """No cause, no severity and no seed: the analyzer gets what a user's run would give it."""
    write_run(simulate(plant(draw_run("cnn", 3), "checkpoint", 0.3)), tmp_path)
    record = json.loads((tmp_path / "rank-00000.json").read_text())
    assert record["windows"][0]["loader"].keys() == set(LoaderWork.__struct_fields__)
    assert "planted" not in json.dumps(record)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "manifest.json",
        "rank-00000.json",
        "trace-rank00000.json.gz",
    ]
