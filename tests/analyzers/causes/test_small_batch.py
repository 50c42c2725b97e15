"""Cause 2: launches with too little to do, and when a larger batch is no answer."""

from __future__ import annotations

import pytest

from fixtures.runs import FixedPricing, Job, cpu_training, plain, priced, training, view
from fixtures.traces import TraceBuilder
from fixtures.views import texts
from gpuprof.analyzers.causes import small_batch
from gpuprof.analyzers.causes.base import Verdict
from gpuprof.diagnosis import Finding, NotJudged, RuledOut

GB = 10**9


def judged(job: Job | TraceBuilder) -> Verdict:
    return small_batch.judge(view(job))


def found(job: Job | TraceBuilder) -> Finding:
    verdict = judged(job)
    assert isinstance(verdict, Finding), verdict
    return verdict


def tiny(grid: int = 13, **more: object) -> Job:
    """Ten 10 µs kernels of `grid` blocks on 108 multiprocessors, 40 µs of host work each."""
    return training(6, kernels=(10,) * 10, work_us=40, grid=grid, **more)  # type: ignore[arg-type]


def with_memory(job: Job, peak_bytes: int) -> Job:
    job.trace.memory(time_us=1, size_bytes=1, allocated_bytes=peak_bytes, reserved_bytes=peak_bytes)
    return job


def test_underfilled_kernels_behind_a_late_host_are_found_with_a_number() -> None:
    """13 of 108 multiprocessors have work: eight times the batch costs the device nothing more."""
    finding = found(tiny())
    assert (finding.cause, finding.number, finding.severity) == ("small-batch", 2, "critical")
    assert finding.share == pytest.approx(35 / 45, abs=0.02)
    assert finding.fixes[0].title == "Raise the batch 8 times"
    assert finding.gain is not None
    assert finding.gain.reduction == pytest.approx(1 - 1 / 8, abs=0.01)
    assert finding.gain.low == pytest.approx(finding.gain.reduction / 2, abs=0.01)
    assert "100 % of the kernels' time" in plain(texts(finding.evidence))


@pytest.mark.parametrize(
    ("grid", "us", "times"), [(54, 38, 2), (50, 20, 4), (27, 38, 4), (27, 5, 8), (13, 38, 8)]
)
def test_the_batch_is_doubled_while_that_pays(grid: int, us: float, times: int) -> None:
    """Until kernels are filled, and beyond as long as the host (45 µs a kernel) sets the pace."""
    job = training(6, kernels=(us,) * 20, work_us=40, grid=grid)
    assert found(job).fixes[0].title == f"Raise the batch {times} times"


def test_no_more_than_memory_allows() -> None:
    """30 of 85 GB are in use: twice that fits under 80 %, four times does not."""
    finding = found(with_memory(tiny(), 30 * GB))
    assert finding.fixes[0].title == "Raise the batch 2 times"
    assert "35 % of the device's memory now, that fits" in plain(finding.fixes[0].detail)


def test_unknown_memory_is_said() -> None:
    assert "Memory use was not recorded" in texts(found(tiny()).evidence)


# Ruled out


def test_full_memory_leaves_no_room() -> None:
    verdict = judged(with_memory(tiny(), 70 * GB))
    assert isinstance(verdict, RuledOut)
    assert "memory is full (82 %)" in plain(verdict.why)


@pytest.mark.parametrize(("peak", "is_named"), [(67 * GB, True), (69 * GB, False)])
def test_memory_is_full_from_80_percent(peak: int, is_named: bool) -> None:
    """Of 85.17 GB."""
    assert isinstance(judged(with_memory(tiny(), peak)), Finding) is is_named


def test_kernels_that_fill_the_device_need_no_larger_batch() -> None:
    verdict = judged(tiny(grid=108))
    assert isinstance(verdict, RuledOut)
    assert "kernels fill the device" in verdict.why


def test_a_device_that_does_not_wait_needs_no_larger_batch() -> None:
    verdict = judged(training(6, kernels=(1_000,) * 3, grid=8))
    assert isinstance(verdict, RuledOut)
    assert "hardly waits for launches" in verdict.why


def test_a_run_that_waits_for_input_would_wait_longer() -> None:
    verdict = judged(tiny(load_us=500))
    assert isinstance(verdict, RuledOut)
    assert "input" in verdict.why


def test_half_of_the_kernels_time_must_be_underfilled() -> None:
    """A full kernel of 60 µs beside 40 µs of small ones."""
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("k", 60, grid=(200, 1, 1))
            for _ in range(4):
                job.work(60)
                job.kernel("k", 10, grid=(4, 1, 1))
    verdict = judged(job)
    assert isinstance(verdict, RuledOut)
    assert "60 % of their time" in plain(verdict.why)


# Not judged


def test_a_cpu_does_not_show_how_full_a_kernel_is() -> None:
    verdict = judged(cpu_training(5, python_us=500))
    assert isinstance(verdict, NotJudged)
    assert "on its GPU" in verdict.command


def test_without_grid_sizes_it_is_not_judged() -> None:
    job = Job(sm_count=0, gpu="Unknown GPU")
    verdict = judged(training(6, kernels=(10,) * 10, work_us=40, job=job))
    assert isinstance(verdict, NotJudged)
    assert "grid sizes" in verdict.missing


def test_without_grid_sizes_a_busy_device_is_ruled_out_all_the_same() -> None:
    job = Job(sm_count=0, gpu="Unknown GPU")
    assert isinstance(judged(training(6, job=job)), RuledOut)


# Advice


def test_an_untrusted_replay_quotes_no_gain() -> None:
    finding = small_batch.judge(priced(view(tiny()), FixedPricing(error=0.05)))
    assert isinstance(finding, Finding)
    assert finding.gain is None
    assert finding.confidence <= 0.6


def test_a_run_with_graphs_is_not_told_to_launch_less_often() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.work(300)
            job.graph((10, 10, 10))
    assert "launch less often" not in texts(found(job).fixes)


def test_accumulation_is_for_training_only() -> None:
    inference, training_run = tiny(), tiny()
    with training_run.op("autograd::engine::evaluate_function: MmBackward0"):
        training_run.work(1)
    assert "accumulate" not in texts(found(inference).fixes)
    assert "accumulate" in texts(found(training_run).fixes)


def test_communication_does_not_shrink_with_the_batch() -> None:
    """A collective of 300 µs a step is paid once, whatever the batch."""
    finding = found(tiny(collective_us=300))
    assert finding.gain is not None
    assert finding.gain.reduction < 1 - 1 / 8 + 0.01
