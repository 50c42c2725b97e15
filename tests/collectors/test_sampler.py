"""The sampler as a process, through the stand-in: what it records, and what cannot stop it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures.nvml.scenario import GPU_IS_LOST, Scenario
from fixtures.nvml.testing import for_programs, needs_stand_in
from gpuprof.collectors.sampler_client import SamplerHandle, start, tell_rank
from gpuprof.readers.samples import read_samples
from gpuprof.sample_format import Status
from gpuprof.samples import Samples

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")

PATIENCE_S = 30.0


def saw(t: float, _gpu: int) -> float:
    return 98 if t % 2 < 1.2 else 0


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process to be watched."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of tests must not meet those of others."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.05)


def recording(out: Path) -> Samples:
    (found,) = read_samples(out)
    return found


def has(out: Path, test: Callable[[Samples], object]) -> bool:
    """Whether the recording, as far as it is written, passes a test."""
    return bool(list(out.glob("*.jsonl"))) and bool(test(recording(out)))


def is_full(s: Samples) -> bool:
    gpus = series_of(s, "util_frac", 2, 15) and s.windows and s.processes and s.events
    return bool(gpus and s.get("cpu_s", "rank:3") and s.gpu_of_rank(3))


def series_of(samples: Samples, metric: str, gpus: int, least: int) -> bool:
    found = [samples.get(metric, f"gpu:{i}") for i in range(gpus)]
    return all(one is not None and len(one) >= least for one in found)


def ended(handle: SamplerHandle) -> bool:
    return handle.process.poll() is not None


@needs_stand_in
def test_everything_is_recorded_and_the_end_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: subprocess.Popen[bytes]
) -> None:
    """GPUs, host, ranks joined to GPUs, rings with their window, events and processes."""
    scenario = Scenario(2).curve(saw, until_s=60).process(1, job.pid, mem_mib=100)
    for k in range(60):
        scenario.event(1, 1.0 + 0.5 * k, xid=31)  # however late the reader is, one comes after
    for_programs(monkeypatch, scenario, tmp_path)
    out = tmp_path / "out"
    handle = start(out, ranks=[(job.pid, 3)], uuids=["GPU-57a4d000-0000-4000-8000-000000000001"])
    try:
        wait_for(lambda: has(out, is_full), "a full recording")
    finally:
        handle.stop([job.pid])
    wait_for(lambda: ended(handle), "the sampler's end")
    found = recording(out)
    assert not found.truncated
    assert found.gpu_of_rank(3) == "gpu:1"
    assert found.windows["gpu:0"] == pytest.approx(1e9 / 6, rel=0.01)
    assert {(event.type, event.data, event.scope) for event in found.events} == {
        ("xid", 31, "gpu:1")
    }
    assert any(p.pid == job.pid and p.scope == "gpu:1" for p in found.processes)
    util = found.get("util_frac", "gpu:0")
    assert util is not None
    assert set(np.unique(util.value)) <= {0.0, 0.2, 0.98}
    assert found.get("mem_available_bytes", "host") is not None
    assert abs(found.series["util_frac", "gpu:0"].time_ns[-1] - time.time_ns()) < 60e9


@needs_stand_in
def test_lost_hung_and_crashing_gpus_leave_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: subprocess.Popen[bytes]
) -> None:
    """GPU 1 is lost, GPU 2 hangs for ever, GPU 3 crashes the library; GPU 0 goes on.

    Hang and crash count calls, so that there is something before each on a busy machine too; the
    crash comes last, and as far from the start as there is something after it.
    """
    scenario = (
        Scenario(4)
        .curve(saw, until_s=60)
        .fault("nvmlDeviceGetFieldValues", gpu=1, ret=GPU_IS_LOST, since=3)
        .fault("nvmlDeviceGetUtilizationRates", gpu=2, hang=1, nth=20)
        .fault("nvmlDeviceGetUtilizationRates", gpu=3, crash=1, nth=60)
    )
    for_programs(monkeypatch, scenario, tmp_path)
    out = tmp_path / "out"
    handle = start(out, ranks=[(job.pid, 0)])
    try:
        wait_for(
            lambda: has(
                out,
                lambda s: any("signal 11" in note for note in s.notes)
                and any("no answer" in note for note in s.notes)
                and (s.series["util_frac", "gpu:3"].time_ns[-1]
                     > s.series["util_frac", "gpu:3"].time_ns[0] + 9e9),
            ),
            "a hang, a crash and a restart",
        )  # fmt: skip
        assert handle.process.poll() is None
    finally:
        handle.stop([job.pid])  # with a thread that hangs in the driver
    wait_for(lambda: ended(handle), "the sampler's end")
    found = recording(out)
    lost, hung, good = (
        found.series[metric, scope]
        for metric, scope in (("power_w", "gpu:1"), ("util_frac", "gpu:2"), ("util_frac", "gpu:0"))
    )
    assert Status.LOST in lost.status
    assert Status.ERROR in hung.status
    assert np.isnan(lost.value[lost.status == Status.LOST]).all()
    assert good.ok.all()
    assert len(good) > 2 * len(hung)


def test_without_a_driver_the_host_is_recorded(
    tmp_path: Path, job: subprocess.Popen[bytes]
) -> None:
    out = tmp_path / "out"
    handle = start(out, ranks=[(job.pid, 0)])
    wait_for(
        lambda: has(out, lambda s: s.notes and s.get("cpu_s", "rank:0")), "host samples and a note"
    )
    job.kill()
    job.wait()
    wait_for(lambda: ended(handle), "the sampler to notice that its job is gone")
    found = recording(out)
    assert not found.truncated
    assert any("NVML cannot be used" in note for note in found.notes)
    assert found.scopes("gpu") == []


def test_a_second_sampler_hands_over_and_the_first_stays_for_it(
    tmp_path: Path, job: subprocess.Popen[bytes]
) -> None:
    """One per node however many ranks; and it ends only with the last one."""
    out = tmp_path / "out"
    ranks = [(os.getpid(), 0), (job.pid, 1)]
    handles = [start(out, ranks=[rank], options=["--no-gpu"]) for rank in ranks]
    wait_for(lambda: sum(ended(handle) for handle in handles) == 1, "one to step back")
    wait_for(lambda: has(out, lambda s: s.get("cpu_s", "rank:1")), "both ranks in one recording")
    tell_rank(out, job.pid, 1, ["GPU-x"])
    wait_for(lambda: has(out, lambda s: ("GPU-x",) in [r.uuids for r in s.ranks]), "the news")
    first = next(handle for handle in handles if not ended(handle))
    first.leave([os.getpid()])
    time.sleep(0.5)
    assert not ended(first)
    first.stop([job.pid])
    wait_for(lambda: ended(first), "the end")
    assert len(list(out.glob("*.jsonl"))) == 1
    assert {rank.rank for rank in recording(out).ranks} == {0, 1}


@needs_stand_in
def test_a_kill_leaves_a_readable_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: subprocess.Popen[bytes]
) -> None:
    """SIGKILL at a random moment: what was sampled until just before is there.

    `benchmarks/sampler.py` does this fifty times.
    """
    scenario = Scenario(4).curve(saw, until_s=60)
    for_programs(monkeypatch, scenario, tmp_path)
    out = tmp_path / "out"
    handle = start(out, ranks=[(job.pid, 0)])
    wait_for(lambda: has(out, lambda s: series_of(s, "util_frac", 4, 3)), "samples of all GPUs")
    time.sleep(random.Random().uniform(0, 0.5))
    killed_ns = time.time_ns()
    os.kill(handle.process.pid, signal.SIGKILL)
    handle.process.wait()
    found = recording(out)
    assert found.truncated
    assert found.span_ns is not None
    assert found.span_ns[1] > killed_ns - 5e9  # one second, and patience for a busy machine


def test_a_deleted_folder_does_not_stop_it(tmp_path: Path, job: subprocess.Popen[bytes]) -> None:
    out = tmp_path / "out"
    handle = start(out, ranks=[(job.pid, 0)], options=["--no-gpu"])
    wait_for(lambda: has(out, lambda s: s.series), "samples")
    shutil.rmtree(out)
    time.sleep(1.0)
    assert not ended(handle)
    handle.stop([job.pid])
    wait_for(lambda: ended(handle), "the end")
    assert not out.exists()
    assert "could not be written" in handle.problem()


def test_a_folder_that_cannot_be_made_is_a_problem_in_one_line(
    tmp_path: Path, job: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "file").write_text("")
    handle = start(tmp_path / "file/out", ranks=[(job.pid, 0)])
    wait_for(lambda: ended(handle), "the end")
    assert "could not be written" in handle.problem()


def test_wrong_arguments_are_told_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof.collectors.sampler", "--out", tmp_path, "--pids", "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'x' is not PID" in done.stderr
