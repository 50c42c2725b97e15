"""Cause 3: blocking calls: what they cost, and that waiting itself costs nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.runs import GEMM, FixedPricing, Job, cpu_training, plain, priced, training, view
from fixtures.traces import TraceBuilder
from fixtures.views import texts
from gpuprof.analyzers.causes import sync_points
from gpuprof.analyzers.causes.base import Verdict
from gpuprof.diagnosis import Finding, NotJudged, RuledOut


def judged(job: Job | TraceBuilder) -> Verdict:
    return sync_points.judge(view(job))


def found(job: Job | TraceBuilder) -> Finding:
    verdict = judged(job)
    assert isinstance(verdict, Finding), verdict
    return verdict


def draining(items: int = 1, work_us: float = 200, steps: int = 6) -> Job:
    """Four kernels of 500 µs; the host works `work_us` before the first one, having waited."""
    job = Job()
    for number in range(steps):
        with job.step(number), job.python("train.py(10): main"):
            job.work(work_us)
            for _ in range(4):
                job.kernel(GEMM, 500)
            with job.python("train.py(20): log"):
                for _ in range(items):
                    job.item()
    return job


def test_a_refill_after_item_is_found_with_share_gain_and_line() -> None:
    """200 µs of host work that would hide behind 2 ms of kernels, were it not for the wait
    (no step comes before the first one, so that it loses nothing)."""
    finding = found(draining())
    assert (finding.cause, finding.number) == ("sync-points", 3)
    assert finding.share == pytest.approx(5 * 209 / (6 * 2_210), abs=0.002)
    assert finding.gain is not None
    assert finding.gain.step_ms == pytest.approx(2.001, rel=0.03)
    assert [(p.file, p.line) for p in finding.where] == [("train.py", 20)]
    said = plain(texts(finding.evidence))
    assert "1 blocking call a step; it waits" in said
    assert "1 × `.item()`" in said
    assert "running_loss" in finding.fixes[0].code


def test_without_steps_calls_are_counted_over_the_recording() -> None:
    """The whole count "a step" would be many times what any step makes."""
    job = Job()
    for _ in range(2):
        job.kernel(GEMM, 500)
        job.item()
    run = view(job)
    assert not run.has_steps
    said = plain(texts(sync_points._evidence(run, run.first, 0.2)))
    assert "2 blocking calls in the recording; they wait" in said
    assert "They are made as: 2 × `.item()`" in said
    assert "a step" not in said.lower()


def test_a_wait_that_nothing_follows_costs_nothing() -> None:
    """The other real trace: sixty calls that wait 10 ms a step and lose nothing."""
    verdict = judged(training(6, kernels=(2_000,) * 5, items=1))
    assert isinstance(verdict, RuledOut)
    why = plain(verdict.why)
    assert "named from 5.0 %" in why
    assert "the device is busy meanwhile" in why


def test_without_a_blocking_call_it_is_ruled_out() -> None:
    verdict = judged(training(6, work_us=2_000))
    assert isinstance(verdict, RuledOut)
    assert verdict.why == "no call in the recorded steps waits for the device"


def test_the_profilers_trailing_synchronize_is_no_call_of_the_users() -> None:
    job = training(6)
    job.synchronize()
    job.trace.runtime("cudaDeviceSynchronize", start_us=job.now, dur_us=9_000)
    verdict = judged(job)
    assert isinstance(verdict, RuledOut)
    assert "no call" in verdict.why


@pytest.mark.parametrize(("work_us", "is_named"), [(104.0, False), (112.0, True)])
def test_the_band_begins_at_5_percent(work_us: float, is_named: bool) -> None:
    verdict = judged(draining(work_us=work_us, steps=12))
    assert isinstance(verdict, Finding) is is_named


@pytest.mark.parametrize(("reduction", "is_named"), [(0.0199, False), (0.021, True)])
def test_gains_under_2_percent_are_suppressed(reduction: float, is_named: bool) -> None:
    verdict = sync_points.judge(priced(view(draining()), FixedPricing(reduction)))
    assert isinstance(verdict, Finding) is is_named


def test_an_untrusted_replay_quotes_no_gain() -> None:
    finding = sync_points.judge(priced(view(draining()), FixedPricing(error=0.2)))
    assert isinstance(finding, Finding)
    assert finding.gain is None
    assert finding.confidence <= 0.6


def test_on_a_cpu_there_is_nothing_to_wait_for() -> None:
    assert isinstance(judged(cpu_training(5)), RuledOut)


def test_device_rows_alone_can_not_tell() -> None:
    verdict = judged(TraceBuilder().launch_kernel(GEMM, start_us=0, dur_us=10))
    assert isinstance(verdict, NotJudged)
    assert "ProfilerActivity" in verdict.command


def test_many_single_values_are_to_be_read_at_once() -> None:
    finding = found(draining(items=25))
    assert finding.fixes[0].title == "Read many values at once, not one by one"
    assert "25 single values" in finding.fixes[0].detail


@pytest.mark.parametrize(("fused", "advised"), [(False, True), (True, False)])
def test_a_fused_optimizer_spares_the_gradient_scaler_its_item(fused: bool, advised: bool) -> None:
    job = draining()
    job.trace.op("Optimizer.step#AdamW.step", start_us=1, dur_us=2)
    job.trace.op("aten::_amp_foreach_non_finite_check_and_unscale_", start_us=1, dur_us=1)
    job.trace.op("aten::_fused_adamw_" if fused else "aten::_foreach_add_", start_us=2, dur_us=1)
    assert ("AdamW(model.parameters(), …, fused=True)" in texts(found(job).fixes)) is advised
    assert "fused=True" not in texts(found(draining()).fixes)


def test_explicit_synchronizes_are_to_be_dropped() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.work(200)
            job.kernel(GEMM, 1_000)
            job.synchronize()
    finding = found(job)
    assert "cudaDeviceSynchronize" in texts(finding.evidence)
    assert finding.fixes[0].title == "Drop explicit synchronizes from the loop"


def test_small_copies_to_the_device_wait_as_well() -> None:
    """A constant made on the host each step: its copy waits for the 1 ms before it."""
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 1_000)
            job.copy("HtoD (Pageable -> Device)", 256, 1, blocking=True)
            job.work(200)
    finding = found(job)
    assert "Make small tensors on the device, once" in texts(finding.fixes)


def test_large_copies_are_another_cause() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 1_000)
            job.copy("HtoD (Pageable -> Device)", 10**8, 500, blocking=True)
            job.work(200)
    verdict = judged(job)
    assert isinstance(verdict, RuledOut)


def test_shapes_that_depend_on_data_are_named() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 1_000)
            with job.op("aten::nonzero"):
                job.copy("DtoH (Device -> Pageable)", 8, 1, blocking=True)
            job.work(200)
    assert "torch.where" in texts(found(job).fixes)


def test_waits_inside_the_loader_or_a_save_are_theirs() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 1_000)
            with job.annotation("torch.save"):
                job.item()
                job.work(300)
    assert isinstance(judged(job), RuledOut)


def test_ranks_that_are_not_held_are_not_accused() -> None:
    """Rank 0 loses a fifth of its steps, rank 1 nothing: the mean is named, rank 0 alone."""
    run = view(draining(work_us=700))
    both = replace(run, ranks=(*run.ranks, training(6).account(1)))
    finding = sync_points.judge(both)
    assert isinstance(finding, Finding)
    assert finding.ranks == (0,)
    assert finding.share == pytest.approx(5 * 709 / (6 * 2_720) / 2, abs=0.002)
