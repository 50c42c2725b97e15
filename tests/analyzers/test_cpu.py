"""A run whose device is the CPU: operators compute, gloo communicates, waits stay waits."""

from __future__ import annotations

import pytest

from fixtures.runs import Job, cpu_training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import CPU, account_rank
from gpuprof.analyzers.budget import StepBudget


def budget_of(job: Job | TraceBuilder) -> StepBudget:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    device = account_rank(trace, 0).main
    assert device.index == CPU
    assert device.name == "CPU"
    return device.budget


def shares(job: Job | TraceBuilder) -> dict[str, float]:
    return {bucket: share for bucket, share in budget_of(job).frac().items() if share}


def test_operators_compute_and_the_rest_is_the_hosts() -> None:
    assert shares(cpu_training(5, compute_us=900, python_us=100)) == {
        "compute": pytest.approx(0.9),
        "host": pytest.approx(0.1),
    }


def test_input_is_input_even_where_it_computes() -> None:
    """Operators inside the loader's `__next__` (decoding, collating) are loading."""
    job = Job(gpu="")
    for number in range(5):
        with job.step(number):
            begun = job.now
            job.load(400)
            job.trace.op("aten::stack", start_us=begun + 100, dur_us=200)
            with job.op("aten::mm"):
                job.work(600)
    assert shares(job) == {"compute": pytest.approx(0.6), "input": pytest.approx(0.4)}


def test_gloo_is_communication() -> None:
    assert shares(cpu_training(5, compute_us=600, gloo_us=400)) == {
        "compute": pytest.approx(0.6),
        "communication": pytest.approx(0.4),
    }


def test_gloo_beside_the_backward_pass_is_hidden() -> None:
    """The collective runs on its own thread for 500 µs, 300 of them beside operators."""
    trace = TraceBuilder(gpu="")
    for i in range(5):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.op("aten::mm", start_us=at, dur_us=800)
        trace.annotation("gloo:all_reduce", start_us=at + 500, dur_us=500, thread=4)
    assert shares(trace) == {"compute": pytest.approx(0.8), "communication": pytest.approx(0.2)}


def test_the_backward_thread_computes_and_a_worker_thread_does_not() -> None:
    trace = TraceBuilder(gpu="")
    for i in range(5):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.op("aten::mm", start_us=at, dur_us=300)
        trace.op(
            "autograd::engine::evaluate_function: MmBackward0",
            start_us=at + 300, dur_us=400, thread=2,
        )  # fmt: skip
        trace.op("aten::resize", start_us=at, dur_us=1_000, thread=7)
    assert shares(trace)["compute"] == pytest.approx(0.7)


@pytest.mark.parametrize(
    "wrapper", ["Optimizer.step#SGD.step", "DistributedDataParallel.forward", "ProfilerStep#0"]
)
def test_wrappers_are_not_computation(wrapper: str) -> None:
    trace = TraceBuilder(gpu="").step(0, start_us=0, dur_us=1_000)
    trace.op(wrapper, start_us=0, dur_us=1_000)
    trace.op("aten::mm", start_us=0, dur_us=250)
    assert shares(trace)["compute"] == pytest.approx(0.25)


def test_a_checkpoint_is_a_checkpoint() -> None:
    job = Job(gpu="")
    for number in range(5):
        with job.step(number):
            with job.op("aten::mm"):
                job.work(500)
            with job.annotation("torch.save"):
                job.work(500)
    assert shares(job) == {"compute": pytest.approx(0.5), "checkpoint": pytest.approx(0.5)}


def test_every_nanosecond_is_in_one_bucket() -> None:
    budget = budget_of(cpu_training(4, load_us=33, python_us=11, gloo_us=7))
    total = sum(budget.per_step_ns.values())
    assert total.tolist() == (budget.steps.end_ns - budget.steps.start_ns).tolist()
