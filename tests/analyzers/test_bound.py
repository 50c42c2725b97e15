"""The bound class: each one from a small run that has it for certain."""

from __future__ import annotations

import pytest

from fixtures.runs import ELEMENTWISE, GEMM, Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.bound import find_bound
from gpuprof.diagnosis import Bound


def bound_of(job: Job) -> Bound:
    return find_bound([job.account()])


@pytest.mark.parametrize(
    ("class_", "job"),
    [
        ("compute", training(6, kernels=(500, 500))),
        ("bandwidth", training(6, kernels=(500, 500), kernel=ELEMENTWISE)),
        ("input", training(6, load_us=3_000)),
        ("communication", training(6, kernels=(300,), collective_us=900)),
        ("host", training(6, kernels=(10,) * 10, work_us=100)),
        ("host", training(6, kernels=(50,), items=12)),
        ("input", cpu_training(5, load_us=3_000)),
        ("compute", cpu_training(5)),
        ("communication", cpu_training(5, gloo_us=3_000)),
        ("host", cpu_training(5, python_us=3_000)),
    ],
)
def test_each_class(class_: str, job: Job) -> None:
    bound = bound_of(job)
    assert bound.class_ == class_
    assert bound.confidence > 0.7
    assert bound.also == ()
    assert max(bound.reductions, key=lambda r: bound.reductions[r]) == class_


def test_two_that_save_the_same_are_mixed_and_both_named() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 500)
            job.kernel(ELEMENTWISE, 480)
    bound = bound_of(job)
    assert bound.class_ == "mixed"
    assert set(bound.also) == {"compute", "bandwidth"}
    assert bound.confidence <= 0.75
    assert "too near to each other" in bound.why


def test_what_nothing_recorded_explains_is_nobodys_bound() -> None:
    """The device had work queued and ran none of it for most of the step."""
    trace = TraceBuilder()
    for i in range(6):
        trace.step(i, start_us=50 * i, dur_us=50)
        trace.launch_kernel(GEMM, launch_us=50 * i, start_us=1_000 * i + 10, dur_us=100)
        trace.launch_kernel(GEMM, launch_us=50 * i + 20, start_us=1_000 * i + 800, dur_us=210)
    bound = find_bound([account_rank(trace.trace(), 0)])
    assert bound.class_ == "unknown"
    assert "not in this recording" in bound.why


def test_of_two_rivals_the_one_that_holds_clearly_more_is_the_bound() -> None:
    """Arithmetic for 700 µs, memory for 440: the second would save over 60 %, not over 70 %."""
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel(GEMM, 700)
            job.kernel(ELEMENTWISE, 440)
    assert bound_of(job).class_ == "compute"


def test_a_run_that_nothing_shortens_is_unknown() -> None:
    """The device and the host take the same time side by side: neither alone saves 5 %."""
    bound = bound_of(training(8, kernels=(1_000,), work_us=995))
    assert bound.class_ == "unknown"
    assert bound.confidence == 0
    assert "5 % shorter" in bound.why.replace("\u00a0", " ")


def test_copies_alone_are_no_bound_class() -> None:
    job = Job()
    for number in range(5):
        with job.step(number):
            job.copy("HtoD (Pinned -> Device)", 10**7, 1_000, blocking=False)
            job.kernel(GEMM, 20)
    assert bound_of(job).class_ == "unknown"


def test_an_empty_run_is_unknown() -> None:
    job = Job(gpu="")
    job.trace.op("aten::mm", start_us=0, dur_us=0)
    bound = bound_of(job)
    assert bound.class_ == "unknown"
    assert "No step with any activity" in bound.why


def test_without_launches_the_shares_decide_with_less_confidence() -> None:
    trace = TraceBuilder()
    for i in range(5):
        trace.launch_kernel(GEMM, start_us=100 * i, dur_us=95)
    bound = bound_of(Job(trace))
    assert bound.class_ == "compute"
    assert bound.confidence <= 0.6
    assert "can't be replayed" in bound.why


def test_without_steps_the_reason_speaks_of_the_recording() -> None:
    trace = TraceBuilder()
    for i in range(5):
        trace.launch_kernel(GEMM, start_us=100 * i, dur_us=95)
    job = Job(trace)
    assert job.account().main.steps.source == "none"
    assert "of the recording" in bound_of(job).why
    marked = Job()
    for number in range(5):
        with marked.step(number):
            marked.kernel(GEMM, 500)
    assert "of the step" in bound_of(marked).why


def test_one_step_is_less_sure_than_many() -> None:
    assert bound_of(training(1)).confidence <= 0.75 < bound_of(training(6)).confidence


def test_the_profilers_cost_is_not_the_hosts() -> None:
    """Kernels of 100 µs, 101 µs of host work each, of which some 50 are the profiler's records:
    without it the host keeps up, and arithmetic is the limit."""
    job = Job()
    for number in range(6):
        with job.step(number):
            for _ in range(6):
                for _ in range(32):
                    with job.op("aten::view"):
                        job.work(3)
                job.kernel(GEMM, 95)
    assert bound_of(job).class_ == "compute"


def test_ranks_are_averaged() -> None:
    """One of four ranks waits for input; the run as a whole is compute."""
    ranks = [training(6).account(rank) for rank in range(3)]
    ranks.append(training(6, load_us=1_500).account(3))
    bound = find_bound(ranks)
    assert bound.class_ == "compute"
    assert bound.reductions["input"] == pytest.approx(0.33 / 4, abs=0.02)


def test_on_a_cpu_nothing_is_thought_infinitely_fast() -> None:
    """What goes saves just what it holds: "100 % shorter" would tell nobody anything."""
    why = bound_of(cpu_training(5, compute_us=20_000)).why
    assert why.startswith("Time inside operators holds")
    assert "of the step, more than anything else does" in why
    assert "infinitely" not in why
