"""Cause 5: a host that can't keep up, and advice that fits what the run already does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.runs import FixedPricing, Job, cpu_training, plain, priced, training, view
from fixtures.traces import TraceBuilder
from fixtures.views import texts
from gpuprof.analyzers.causes import host_overhead, sync_points
from gpuprof.analyzers.causes.base import Verdict
from gpuprof.analyzers.causes.host_overhead import _ahead
from gpuprof.analyzers.host_fixes import FUSED_ON_CPU, FUSED_ON_GPU
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.diagnosis import Finding, NotJudged, RuledOut


def judged(job: Job | TraceBuilder) -> Verdict:
    return host_overhead.judge(view(job))


def found(job: Job | TraceBuilder) -> Finding:
    verdict = judged(job)
    assert isinstance(verdict, Finding), verdict
    return verdict


def late(**more: object) -> Job:
    """Ten kernels of 10 µs behind 50 µs of host work each: the step is the host's 550 µs."""
    return training(6, kernels=(10,) * 10, work_us=50, **more)  # type: ignore[arg-type]


def test_a_late_host_is_found_with_share_and_gain() -> None:
    finding = found(late())
    assert (finding.cause, finding.number, finding.severity) == ("host-overhead", 5, "critical")
    assert finding.share == pytest.approx((55 - 10 - 3) / 55, abs=0.01)
    assert finding.gain is not None
    assert finding.gain.step_ms == pytest.approx(0.1, abs=0.005)
    assert finding.gain.low <= finding.gain.reduction <= finding.gain.high
    said = plain(texts(finding.evidence))
    assert "10 device events a step with a median length of 10.0 µs" in said
    assert "not ahead of the device" in said


def test_a_host_that_keeps_ahead_is_ruled_out_with_its_share() -> None:
    verdict = judged(training(6, kernels=(1_000,) * 3, work_us=500))
    assert isinstance(verdict, RuledOut)
    assert "named from 5.0 %" in plain(verdict.why)


@pytest.mark.parametrize(("work_us", "is_named"), [(1_045.0, False), (1_060.0, True)])
def test_the_band_begins_at_5_percent(work_us: float, is_named: bool) -> None:
    """The device works 1 ms, the host 1050 or 1065 µs a step."""
    assert isinstance(judged(training(30, work_us=work_us)), Finding) is is_named


def refilled(work_us: float) -> Job:
    """19 kernels of 100 µs and one of 1.6 ms, host work before each, and a read of the result that
    empties the queue: all gaps come after a blocking call, and grow with the host's work."""
    job = Job()
    for number in range(6):
        with job.step(number):
            for us in (*(100,) * 19, 1_600):
                job.work(work_us)
                job.kernel("gemm", us)
            job.item()
    return job


def test_what_calls_that_do_not_wait_would_not_save_is_the_hosts() -> None:
    """Under 5 % of the step is charged to the host, and more is saved by it than by the calls."""
    run = view(refilled(150))
    assert run.share("host") < 0.05
    finding = host_overhead.judge(run)
    assert isinstance(finding, Finding)
    assert finding.title.endswith("most of it after blocking calls")
    assert finding.gain is not None
    assert finding.gain.reduction == pytest.approx(0.25, abs=0.01)
    calls = sync_points.judge(run)
    assert isinstance(calls, Finding)
    assert calls.gain is not None
    assert calls.gain.reduction < finding.gain.reduction
    assert "with both repairs" in plain(texts(calls.evidence))


def test_more_work_after_a_call_never_lowers_the_hosts_share() -> None:
    shares = [host_overhead.judge(view(refilled(us))).share for us in (100, 140, 150, 170, 190)]
    assert shares == sorted(shares)


def test_late_hosts_are_told_of_ranks_that_wait_for_each_other_only() -> None:
    """Here half of it is charged to the host and half to the calls before it, of one rank."""
    for work_us in range(100, 400, 20):
        verdict = host_overhead.judge(view(refilled(work_us)))
        assert not (isinstance(verdict, Finding) and "Late hosts" in verdict.title)


def test_a_host_that_only_refills_what_a_call_drained_is_ruled_out_with_its_gain() -> None:
    """Either repair is enough: the call's it is."""
    run = view(refilled(110))
    verdict = host_overhead.judge(run)
    assert isinstance(verdict, RuledOut)
    assert "would get ahead sooner" in verdict.why


@pytest.mark.parametrize(("reduction", "is_named"), [(0.0199, False), (0.021, True)])
def test_gains_under_2_percent_are_suppressed(reduction: float, is_named: bool) -> None:
    verdict = host_overhead.judge(priced(view(late()), FixedPricing(reduction)))
    assert isinstance(verdict, Finding) is is_named


def test_a_run_that_is_late_only_under_the_profiler_is_not_named() -> None:
    """100 µs of host work before each 93 µs kernel, more than half of it recording operators."""
    job = Job()
    for number in range(6):
        with job.step(number):
            for _ in range(6):
                for _ in range(30):
                    with job.op("aten::view"):
                        job.work(3.2)
                job.kernel("ampere_sgemm_128x128_nn", 93)
    run = view(job)
    assert run.share("host") > 0.05
    verdict = host_overhead.judge(run)
    assert isinstance(verdict, RuledOut)
    assert "profiler's own records" in verdict.why


def test_an_untrusted_replay_quotes_no_gain() -> None:
    finding = host_overhead.judge(priced(view(late()), FixedPricing(error=0.04)))
    assert isinstance(finding, Finding)
    assert finding.gain is None
    assert finding.confidence <= 0.6


def test_no_more_is_promised_than_the_cause_itself_holds() -> None:
    """A host without any cost would hide the loader's wait as well; that is not its gain."""
    job = training(8, load_us=500, kernels=(20,) * 10, work_us=40)
    finding = found(job)
    assert finding.gain is not None
    assert finding.gain.reduction <= finding.share + view(job).share("launch") + 1e-4


def test_idle_time_that_nothing_explains_may_hide_it() -> None:
    """Where most launches were lost, nothing says whose the idle time between kernels is."""
    trace = TraceBuilder()
    for i in range(6):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.op("aten::mm", start_us=at, dur_us=20)
        launched = at + 10 if i % 3 == 0 else None
        trace.launch_kernel("k", launch_us=launched, start_us=at + 20, dur_us=400)
        trace.launch_kernel("k", start_us=at + 600, dur_us=390)
    verdict = judged(trace)
    assert isinstance(verdict, NotJudged)
    assert "nothing explains" in verdict.missing


def test_device_rows_alone_can_not_tell() -> None:
    verdict = judged(TraceBuilder().launch_kernel("k", start_us=0, dur_us=10))
    assert isinstance(verdict, NotJudged)
    assert "ProfilerActivity" in verdict.command


def test_on_a_cpu_it_is_the_time_outside_of_operators() -> None:
    finding = found(cpu_training(5, compute_us=600, python_us=400))
    assert finding.share == pytest.approx(0.4)
    assert finding.gain is not None
    assert finding.gain.reduction == pytest.approx(0.4)
    said = texts(finding.fixes)
    assert "torch.compile" not in said
    assert "CUDA" not in said
    assert "outside of operators" in finding.title


# Advice


def test_a_plain_run_is_told_to_compile_or_capture() -> None:
    said = texts(found(late()).fixes)
    assert "torch.compile" in said
    assert "torch.cuda.CUDAGraph" in said


def test_a_compiled_run_is_not_told_to_compile() -> None:
    said = texts(found(late(kernel="triton_poi_fused_add_relu_0")).fixes)
    assert "Compile the model" not in said
    assert "torch.cuda.CUDAGraph()" not in said
    assert "reduce-overhead" in said


def test_a_run_with_graphs_is_not_told_to_capture() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.work(500)
            job.graph((10, 10, 10))
    said = texts(found(job).fixes)
    assert "Capture" not in said
    assert "CUDAGraph()" not in said
    assert "Give each launch more to do" not in said
    assert "reduce-overhead" not in said


def test_a_larger_batch_is_not_offered_to_a_run_that_waits_for_input() -> None:
    """The cost of a batch grows with it."""
    assert "Give each launch more to do" in texts(found(late(grid=8)).fixes)
    assert "Give each launch more to do" not in texts(found(late(grid=8, load_us=300)).fixes)


def test_a_larger_batch_is_not_offered_where_kernels_fill_the_device() -> None:
    assert "Give each launch more to do" not in texts(found(late(grid=108)).fixes)


def test_only_optimizers_that_have_a_fused_form_are_told_to_fuse() -> None:
    assert "RMSprop" not in (*FUSED_ON_GPU, *FUSED_ON_CPU)
    assert "Adagrad" not in FUSED_ON_GPU


def test_a_host_that_is_mostly_ahead_is_not_said_to_be_behind() -> None:
    assert "not ahead" in _ahead(5.0)
    assert "not ahead" not in _ahead(9_488.0)


@pytest.mark.parametrize(
    ("op", "advised"), [("aten::_fused_adamw_", False), ("aten::_foreach_add_", True)]
)
def test_a_slow_optimizer_is_fused_unless_it_is(op: str, advised: bool) -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            for _ in range(5):
                job.work(30)
                job.kernel("k", 5)
            begun = job.now
            job.optimizer(100, "AdamW")
            job.trace.op(op, start_us=begun, dur_us=10)
    said = texts(found(job).fixes)
    assert ("torch.optim.AdamW(model.parameters(), …, fused=True)" in said) is advised


def test_a_quick_optimizer_is_left_alone() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.work(500)
            job.kernel("k", 5)
            job.optimizer(10)
    assert "fused=True" not in texts(found(job).fixes)


def test_driver_allocations_are_named_and_told_how_to_avoid() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("k", 100)
            job.trace.runtime("cudaFree", start_us=job.now, dur_us=400)
            job.work(400)
    finding = found(job)
    assert "expandable_segments" in finding.fixes[0].code
    assert "asking the driver for memory" in texts(finding.evidence)


def test_the_late_time_is_split_by_what_the_host_did() -> None:
    """Of 85 µs a kernel: 40 inside an operator, a launch call of 5 outside of it, and the 32 of
    40 µs of Python that the kernel before does not hide."""
    job = Job()
    for number in range(6):
        with job.step(number):
            for _ in range(10):
                job.work(40)
                with job.op("aten::add"):
                    job.work(40)
                job.kernel("k", 5)
    said = plain(texts(found(job).evidence))
    assert "47 % inside operators" in said
    assert "38 % between operators" in said
    assert "5.9 % launch calls" in said


def test_compilation_during_the_window_is_said() -> None:
    job = late()
    with job.op("CachingAutotuner.synchronize"):
        job.work(1)
    assert "compiled during the recorded steps" in texts(found(job).evidence)


def test_the_lines_of_the_loop_are_named() -> None:
    job = Job()
    for number in range(6):
        with job.step(number), job.python("train.py(12): preprocess"):
            for _ in range(10):
                job.work(50)
                job.kernel("k", 10)
    assert [(p.file, p.line) for p in found(job).where] == [("train.py", 12)]


def on_a_cpu(steps: int, stops_us: tuple[float, ...], *, python_us: float = 0.0) -> Job:
    """Steps of two operators. Python takes `python_us` between them; each step stops once more, at
    an operator that is another one in each step, for one of `stops_us` by turns."""
    job = Job(gpu="", backend="gloo")
    for number in range(steps):
        begun = job.now
        for part in range(8):
            with job.op(f"aten::op{part}"):
                job.work(100)
            if part == 3:
                job.work(python_us)
            if part == number % 7:
                job.work(stops_us[number % len(stops_us)])
        job.trace.step(number, start_us=begun, dur_us=job.now - begun)
    return job


def busy(job: Job, ready_ms: float) -> Verdict:
    """As judged on a machine whose other work had the core for so long of each step."""
    seen = view(job)
    window = RecordedWindow(
        *(0, seen.step_ms(), None, 1.0, ready_ms, None), windows_ms=0.0, run_ms=0.0
    )
    return host_overhead.judge(replace(seen, told={0: window}))


def test_a_thread_put_off_its_core_is_no_host_overhead() -> None:
    """On a busy CPU it stops between operators too, but never at the same place twice."""
    job = on_a_cpu(7, (150, 90))
    assert isinstance(busy(job, 0.0), Finding)  # nothing is known of others: it is the code's
    verdict = busy(job, 0.1)
    assert isinstance(verdict, RuledOut)
    assert "at the same places in each step" in verdict.why


def test_where_a_busy_cpu_hides_the_band_nothing_is_said() -> None:
    """4 % of a step that is three times as long as on a quiet machine may be 4 % or 12 %."""
    verdict = busy(on_a_cpu(7, (150, 90), python_us=36), 0.6)
    assert isinstance(verdict, NotJudged)
    assert "at the same places" in verdict.missing


def test_slow_code_is_found_on_a_busy_cpu_too() -> None:
    """It comes back at the same place in every step."""
    assert isinstance(busy(on_a_cpu(7, (150, 90), python_us=200), 0.1), Finding)


def test_on_a_cpu_the_profilers_own_records_are_not_the_codes() -> None:
    """Hundreds of short operators, and between them no more than it takes to record them."""
    job = Job(gpu="", backend="gloo")
    for number in range(6):
        begun = job.now
        for _ in range(200):
            with job.op("aten::add"):
                job.work(18)
            job.work(1.5)
        job.trace.step(number, start_us=begun, dur_us=job.now - begun)
    verdict = judged(job)
    assert isinstance(verdict, RuledOut)
    assert "without the profiler's own records" in verdict.why


def test_long_pauses_may_be_garbage_collection() -> None:
    def loop(pause_us: float, every_us: float) -> Job:
        job = Job()
        for number in range(6):
            with job.step(number):
                for _ in range(20):
                    job.work(every_us)
                    job.kernel("k", 5)
                job.work(pause_us)
        return job

    assert "gc.freeze()" in texts(found(loop(3_000, 10)).fixes)
    assert "gc.freeze()" not in texts(found(loop(0, 100)).fixes)


def test_on_a_cpu_many_small_operators_are_to_be_compiled_and_slow_python_is_not() -> None:
    def loop(between_us: float, operators: int) -> Job:
        job = Job(gpu="", backend="gloo")
        for number in range(6):
            begun = job.now
            for _ in range(operators):
                job.work(between_us)
                with job.op("aten::add"):
                    job.work(30)
            job.trace.step(number, start_us=begun, dur_us=job.now - begun)
        return job

    assert "torch.compile(model)" in texts(found(loop(40, 50)).fixes)
    assert "torch.compile" not in texts(found(loop(3_000, 2)).fixes)
