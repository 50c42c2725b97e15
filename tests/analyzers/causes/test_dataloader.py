"""Cause 1: waiting for data, and when a slow loader costs nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fixtures.runs import (
    GEMM,
    LOADER,
    WORKERS_LOADER,
    FixedPricing,
    Job,
    cpu_training,
    plain,
    priced,
    training,
    view,
)
from fixtures.traces import TraceBuilder
from fixtures.views import texts
from gpuprof.analyzers.causes import dataloader
from gpuprof.analyzers.causes.base import Verdict
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.diagnosis import Finding, NotJudged, RuledOut
from gpuprof.run import LoaderWork


def judged(job: Job | TraceBuilder, cores: int | None = None) -> Verdict:
    return dataloader.judge(view(job, cores=cores))


def found(job: Job | TraceBuilder, cores: int | None = None) -> Finding:
    verdict = judged(job, cores)
    assert isinstance(verdict, Finding), verdict
    return verdict


def waiting(load_us: float = 4_000, **more: object) -> Job:
    """Loading and 1.008 ms of everything else, one after the other."""
    return training(6, load_us=load_us, settled=True, **more)  # type: ignore[arg-type]


def test_a_loader_in_the_training_process_is_found_with_share_and_gain() -> None:
    finding = found(waiting())
    assert (finding.cause, finding.number, finding.severity) == ("dataloader", 1, "critical")
    assert finding.share == pytest.approx(4_000 / 5_008, abs=1e-4)
    assert finding.gain is not None
    assert finding.gain.step_ms == pytest.approx(1.008)
    assert finding.gain.reduction == pytest.approx(4_000 / 5_008)
    assert finding.ranks == (0,)
    assert finding.confidence > 0.9
    said = plain(texts(finding.evidence))
    assert "4.00 ms of each 5.01 ms step" in said
    assert "Fetching a batch takes 4.00 ms on average over 6 fetches" in said
    assert "num_workers=0" in said
    windows = finding.evidence[0].windows
    assert len(windows) == 3
    assert all(w.end_ns - w.start_ns >= 4_000_000 for w in windows)


@pytest.mark.parametrize("load_us", [300, 1_000, 4_000, 9_000])
def test_the_number_of_workers_is_what_keeps_up(load_us: float) -> None:
    """1.3 times the batch's time over the step without the wait, at least two."""
    needed = max(2, math.ceil(1.3 * load_us / 1_008))
    fix = found(waiting(load_us)).fixes[0]
    assert fix.title == f"Load with {needed} worker processes"
    assert f"num_workers={needed}," in fix.code


def test_no_more_workers_are_advised_than_there_are_cores() -> None:
    fix = found(waiting(), cores=4).fixes[0]
    assert "num_workers=4," in fix.code
    assert "may use 4 cores" in plain(fix.detail)
    assert "num_workers=6," in found(waiting(), cores=6).fixes[0].code


def test_a_loader_with_workers_is_not_told_to_use_workers() -> None:
    finding = found(waiting(loader=WORKERS_LOADER))
    assert "num_workers=0" not in texts(finding.evidence)
    assert "has worker processes" in texts(finding.evidence)
    assert finding.fixes[0].title == "Use 5 times as many workers, if the cores are there"


@pytest.mark.parametrize(
    ("cores", "title", "number", "is_limit"),
    [
        (1, "Give the workers more cores", "# no more than there are cores", True),
        (2, "Use more workers, up to 2", "num_workers=2,", True),
        (8, "Use more workers, up to 8", "# 5 times as many, up to 8", False),
    ],
)
def test_more_workers_than_cores_are_not_advised(
    cores: int, title: str, number: str, is_limit: bool
) -> None:
    """Five times as many would keep up; two cores carry two at most."""
    fix = found(waiting(loader=WORKERS_LOADER), cores=cores).fixes[0]
    assert fix.title == title
    assert number in fix.code
    assert ("the cores are the limit" in fix.detail) is is_limit


@pytest.mark.parametrize(
    ("now", "cores", "title"),
    [
        (1, 2, "Use more workers, up to 2"),
        (2, 2, "Give the workers more cores"),
        (2, 16, "Use 10 workers"),
        (2, None, "Use 10 workers, if the cores are there"),
    ],
)
def test_of_a_known_number_of_workers_a_whole_number_is_advised(
    now: int, cores: int | None, title: str
) -> None:
    told = RecordedWindow(
        0, 1.0, None, None, None, None, windows_ms=0.0, run_ms=0.0, steps=5,
        loader=LoaderWork(workers=now, span_ms=1.0, busy_frac=1.0),
    )  # fmt: skip
    run = replace(view(waiting(loader=WORKERS_LOADER), cores=cores), told={0: told})
    verdict = dataloader.judge(run)
    assert isinstance(verdict, Finding)
    assert verdict.fixes[0].title == title


def test_pinned_memory_is_advised_only_where_it_is_not_in_use() -> None:
    def with_copy(kind: str) -> Job:
        job = Job()
        for number in range(5):
            with job.step(number):
                job.load(2_000)
                job.copy(kind, 10**6, 20, blocking=False)
                job.kernel(GEMM, 500)
                job.synchronize()
        return job

    pinned, pageable = (
        found(with_copy(f"HtoD ({kind} -> Device)")) for kind in ("Pinned", "Pageable")
    )
    assert "pin_memory" not in texts(pinned.fixes)
    assert "pin_memory=True" in texts(pageable.fixes)
    assert "pageable memory" in texts(pageable.evidence)


def test_uneven_waits_are_said() -> None:
    """One batch in ten takes twenty times as long: a slow sample or worker, not too few."""
    job = Job()
    for number in range(20):
        with job.step(number):
            job.load(6_000 if number % 10 == 5 else 300, loader=WORKERS_LOADER)
            job.kernel(GEMM, 1_000)
            job.synchronize()
    finding = found(job)
    assert "Waits are uneven" in texts(finding.evidence)
    assert "uneven" in finding.fixes[0].detail


def test_the_line_of_the_loop_is_named() -> None:
    job = Job()
    for number in range(5):
        with job.step(number), job.python("train.py(44): main"):
            job.load(2_000)
            job.kernel(GEMM, 500)
            job.synchronize()
    finding = found(job)
    assert [(p.file, p.line) for p in finding.where] == [("train.py", 44)]
    assert finding.where[0].share == pytest.approx(finding.share, abs=0.01)


# Ruled out


def test_a_slow_loader_that_the_device_hides_is_ruled_out_with_its_time() -> None:
    verdict = judged(training(8, load_us=900))
    assert isinstance(verdict, RuledOut)
    assert "0.0 % of the step, named from 5.0 %" in plain(verdict.why)
    assert "900 µs a batch" in plain(verdict.why)


@pytest.mark.parametrize(("load_us", "is_named"), [(53.0, False), (54.0, True)])
def test_the_band_begins_at_5_percent(load_us: float, is_named: bool) -> None:
    """53 of 1061 µs is 4.995 %, 54 of 1062 µs is 5.08 %."""
    assert isinstance(judged(waiting(load_us)), Finding) is is_named


@pytest.mark.parametrize(("load_us", "severity"), [(251.0, "warning"), (253.0, "critical")])
def test_a_fifth_of_the_step_is_critical(load_us: float, severity: str) -> None:
    assert found(waiting(load_us)).severity == severity


@pytest.mark.parametrize(("load_us", "is_named"), [(160.0, False), (175.0, True)])
def test_without_steps_the_band_is_doubled(load_us: float, is_named: bool) -> None:
    """9.6 % and 10.4 % of a recording that no marks divide; it begins with the first kernel, so
    that two of the three fetches are in it."""
    job = Job()
    for _ in range(2):
        job.load(load_us)
        job.kernel(GEMM, 1_000)
        job.synchronize()
    job.load(load_us, loader="input")
    job.kernel(GEMM, 1_000)
    job.synchronize()
    run = view(job)
    assert not run.has_steps
    assert run.named_from == 0.10
    verdict = dataloader.judge(run)
    assert isinstance(verdict, Finding) is is_named
    if isinstance(verdict, Finding):
        assert verdict.confidence <= 0.7
        said = plain(verdict.title + texts(verdict.evidence))
        assert "of the recording" in said
        assert "of the recorded 3.3" in said
        assert "each" not in said.partition("\n\n")[0]


@pytest.mark.parametrize(("reduction", "is_named"), [(0.0199, False), (0.02, True)])
def test_gains_under_2_percent_are_suppressed(reduction: float, is_named: bool) -> None:
    verdict = dataloader.judge(priced(view(waiting(200)), FixedPricing(reduction)))
    assert isinstance(verdict, Finding) is is_named
    if isinstance(verdict, RuledOut):
        assert "other work comes out" in verdict.why


def test_a_run_without_a_loader_that_hardly_waits_is_ruled_out() -> None:
    verdict = judged(training(6))
    assert isinstance(verdict, RuledOut)
    assert "holds the device up" in verdict.why


# Not judged


def test_device_rows_alone_can_not_tell() -> None:
    trace = TraceBuilder()
    for i in range(4):
        trace.launch_kernel(GEMM, start_us=1_000 * i, dur_us=300)
    verdict = judged(trace)
    assert isinstance(verdict, NotJudged)
    assert "ProfilerActivity.CPU" in verdict.command


def test_data_that_comes_without_a_loader_may_hide_in_host_work() -> None:
    job = training(6, kernels=(100,), work_us=900)
    with job.op("autograd::engine::evaluate_function: MmBackward0"):
        job.work(5)
    verdict = judged(job)
    assert isinstance(verdict, NotJudged)
    assert 'gpuprof.annotate("input")' in verdict.command


# Confidence, gains, the CPU


def test_an_untrusted_replay_quotes_no_gain_and_is_less_sure() -> None:
    finding = dataloader.judge(priced(view(waiting()), FixedPricing(error=0.05)))
    assert isinstance(finding, Finding)
    assert finding.gain is None
    assert finding.confidence <= 0.6
    assert finding.share > 0.7


def test_on_a_cpu_the_wait_is_found_as_well() -> None:
    finding = found(cpu_training(5, compute_us=600, load_us=400))
    assert finding.share == pytest.approx(0.4)
    assert finding.gain is not None
    assert finding.gain.reduction == pytest.approx(0.4)
    assert "pin_memory" not in texts(finding.fixes)
    assert "device" not in finding.title


def test_an_annotated_input_is_a_loader() -> None:
    assert found(training(6, load_us=3_000, loader="gpuprof.input")).cause == "dataloader"
    assert LOADER.startswith("enumerate(DataLoader)")


@pytest.mark.parametrize(
    ("core_ms", "ready_ms", "expected"),
    [
        (4.0, 1.0, Finding),  # it sleeps half of the step
        (4.0, 5.7, NotJudged),  # 3 % of the step, but of one alone on its core more
        (4.0, 5.99, RuledOut),
    ],
)
def test_a_thread_that_hardly_sleeps_does_not_wait_for_workers(
    core_ms: float, ready_ms: float, expected: type
) -> None:
    """On a busy machine it stands ready for a core, inside the loader as anywhere else."""
    told = RecordedWindow(0, 10.0, None, core_ms, ready_ms, None, windows_ms=0.0, run_ms=0.0)
    run = replace(view(waiting(loader=WORKERS_LOADER)), told={0: told})
    assert isinstance(dataloader.judge(run), expected)
    in_process = replace(view(waiting()), told={0: told})  # there the batch itself needs the core
    assert isinstance(dataloader.judge(in_process), Finding)
