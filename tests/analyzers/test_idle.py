"""Idle gaps: what held the next launch back, and what a blocking call really costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from fixtures.layouts import layouts
from fixtures.runs import LATENCY_US, LAUNCH_US, Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.budget import StepBudget
from gpuprof.analyzers.host import Blocking
from gpuprof.analyzers.idle import IDLE_BUCKETS, QUEUE_DEPTH


def budget_of(job: Job | TraceBuilder) -> StepBudget:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    return account_rank(trace, 0).main.budget


def us_in(budget: StepBudget, bucket: str, step: int = 1) -> float:
    """What one step (the second, which is in full swing) spent in a bucket, µs."""
    return float(budget.per_step_ns[bucket][step]) / 1e3


def idle_us(budget: StepBudget, step: int = 1) -> dict[str, float]:
    return {b: us for b in IDLE_BUCKETS if (us := us_in(budget, b, step))}


# Which bucket


def test_a_late_launch_after_host_work_is_the_hosts() -> None:
    """400 µs of Python before a kernel that is awaited: host work and the launch call, then
    latency."""
    budget = budget_of(training(4, work_us=400, settled=True))
    assert us_in(budget, "host") + us_in(budget, "sync") == 400 + LAUNCH_US
    assert us_in(budget, "launch") == LATENCY_US - LAUNCH_US


def test_time_in_the_loader_is_input() -> None:
    assert us_in(budget_of(training(4, load_us=700, settled=True)), "input") == 700


def test_a_loader_that_hides_behind_the_device_costs_nothing() -> None:
    """A fetch of 700 µs beside 1 ms of queued kernels: no idle, so no input."""
    budget = budget_of(training(5, load_us=700))
    assert us_in(budget, "input", step=3) == 0
    assert us_in(budget, "compute", step=3) == 1_000


def test_only_the_part_of_a_fetch_during_which_the_device_is_idle_counts() -> None:
    """Fetch 1.5 ms, kernel 1 ms on a host that runs beside it: about 0.5 ms of idle a step."""
    budget = budget_of(training(6, load_us=1_500))
    assert us_in(budget, "input", step=3) == pytest.approx(500, abs=LAUNCH_US + LATENCY_US)


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        ("torch.save", "checkpoint"),
        ("gpuprof.checkpoint", "checkpoint"),
        ("input", "input"),
        ("gloo:all_reduce", "communication_host"),
        ("anything else", "host"),
    ],
)
def test_annotations_name_the_bucket(name: str, bucket: str) -> None:
    job = Job()
    for number in range(4):
        with job.step(number):
            job.kernel("k", 100)
            with job.annotation(name):
                job.work(600)
    assert us_in(budget_of(job), bucket) == pytest.approx(500, abs=20)


def test_asking_the_driver_for_memory_is_the_allocators() -> None:
    job = Job()
    for number in range(4):
        with job.step(number):
            job.kernel("k", 100)
            job.trace.runtime("cudaMalloc", start_us=job.now, dur_us=500)
            job.work(500)
    assert us_in(budget_of(job), "allocator") == pytest.approx(400, abs=20)


def test_work_that_was_queued_and_did_not_run_is_launch_or_communication() -> None:
    """Launched long before the gap: the device waited on itself; for a collective that is its
    peers."""
    trace = TraceBuilder().step(0, start_us=0, dur_us=1_000)
    trace.launch_kernel("k", launch_us=10, start_us=20, dur_us=100)
    trace.launch_kernel("k", launch_us=20, start_us=170, dur_us=100)
    trace.launch_collective("allreduce", launch_us=30, start_us=300, dur_us=100)
    budget = budget_of(trace)
    assert us_in(budget, "launch", step=0) == 50 + 5
    assert us_in(budget, "communication", step=0) == 100 + 30


def test_an_idle_device_without_a_recorded_launch_is_unknown_unless_something_names_it() -> None:
    trace = TraceBuilder().step(0, start_us=0, dur_us=1_000)
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=99)
    trace.annotation("input", start_us=200, dur_us=100)
    trace.launch_kernel("k", start_us=500, dur_us=500)
    budget = budget_of(trace)
    assert us_in(budget, "input", step=0) == 100
    assert us_in(budget, "unknown", step=0) == 300


def test_device_rows_alone_leave_all_idle_time_unknown() -> None:
    trace = TraceBuilder()
    for i in range(4):
        trace.launch_kernel("k", start_us=100 * i, dur_us=60)
    assert idle_us(budget_of(trace), step=0) == {"unknown": 120.0}


def test_the_hosts_tail_after_the_last_kernel_is_charged_by_what_it_did() -> None:
    job = training(3, settled=True)
    with job.step(3):
        job.kernel("k", 1_000)
        job.synchronize()
        with job.annotation("torch.save"):
            job.work(300)
    assert us_in(budget_of(job), "checkpoint", step=3) == 300


# Blocking calls


def test_a_long_item_while_the_device_is_busy_costs_only_the_refill() -> None:
    """The host waits 10 ms for work that has to be done anyway. What is lost is the time from the
    copy's end to the next launch: the call's return, the synchronize and the launch call."""
    budget = budget_of(training(5, kernels=(2_000,) * 5, items=1))
    assert us_in(budget, "compute") == 10_000
    assert us_in(budget, "sync") == 2 + 2 + LAUNCH_US
    assert us_in(budget, "host") == 0


def test_the_refill_of_a_drained_queue_is_charged_to_sync() -> None:
    """80 µs of host work before each 100 µs kernel: the host would run ahead, were it not for the
    `.item()` that drains the queue. The idle before the first kernel is the call's doing."""
    budget = budget_of(training(5, kernels=(100,) * 10, work_us=80, items=1))
    assert us_in(budget, "host") == 0
    assert us_in(budget, "sync") == pytest.approx(80 + 4 + LAUNCH_US, abs=1)


def test_a_call_is_charged_with_no_more_than_it_took_away() -> None:
    """It waited 100 µs on a busy device, the host then works for 1000 µs: 100 µs are the call's,
    the rest the host's own."""
    job = Job()
    for number in range(4):
        with job.step(number):
            job.kernel("k", 100 - LATENCY_US + LAUNCH_US)
            job.synchronize()
            job.work(1_000)
    budget = budget_of(job)
    waited = 100.0
    assert us_in(budget, "sync") == pytest.approx(waited + 0, abs=6)
    assert us_in(budget, "host") == pytest.approx(1_000 - waited, abs=12)


def test_a_synchronize_of_an_idle_device_lends_nothing() -> None:
    job = Job()
    for number in range(4):
        with job.step(number):
            job.kernel("k", 100)
            job.work(500)
            job.stream_synchronize()
            job.work(500)
    budget = budget_of(job)
    assert us_in(budget, "sync") == 2
    assert us_in(budget, "host") == pytest.approx(900, abs=10)


def test_the_head_start_is_no_longer_than_the_queue_is_deep() -> None:
    """The host waits 12.5 ms for 2500 kernels of 10 µs, but only 1024 fit in a stream's queue."""
    job = Job()
    with job.step(0):
        for _ in range(2_500):
            job.kernel("k", 10)
        job.synchronize()
        job.work(30_000)
    assert us_in(budget_of(job), "sync", step=0) == pytest.approx(QUEUE_DEPTH * 10, abs=1)


def test_the_profilers_trailing_synchronize_is_not_the_users() -> None:
    """Stopping the profiler synchronizes the device, after the last step."""
    job = training(5)
    job.synchronize()
    job.trace.runtime("cudaDeviceSynchronize", start_us=job.now, dur_us=5_000)
    with_it, without = budget_of(job), budget_of(training(5))
    assert with_it.per_step_ns["sync"].sum() == 0
    assert {b: ns.tolist() for b, ns in with_it.per_step_ns.items()} == {
        b: ns.tolist() for b, ns in without.per_step_ns.items()
    }


def test_without_marks_the_trailing_synchronize_costs_nothing_either() -> None:
    job = training(5, marks=False)
    job.synchronize()
    job.trace.runtime("cudaDeviceSynchronize", start_us=job.now, dur_us=5_000)
    assert us_in(budget_of(job), "sync", step=0) == 0


def test_each_kind_of_blocking_call_gets_its_own_idle() -> None:
    job = Job()
    for number in range(5):
        with job.step(number):
            job.kernel("k", 1_000)
            job.item()
            job.work(200)
            job.kernel("k", 1_000)
            job.copy("HtoD (Pageable -> Device)", 10**6, 50, blocking=True)
            job.work(100)
            job.kernel("k", 1_000)
            job.synchronize()
            job.work(50)
    gaps = budget_of(job).gaps
    held = {kind: int(ns.sum()) / 1e3 / 5 for kind, ns in gaps.sync_by_kind.items()}
    assert held[int(Blocking.TO_HOST)] == pytest.approx(200, abs=12)
    assert held[int(Blocking.TO_DEVICE)] == pytest.approx(100, abs=12)
    assert held[int(Blocking.SYNCHRONIZE)] == pytest.approx(50, abs=15)


@settings(max_examples=80, deadline=None)
@given(layouts())
def test_the_parts_of_every_gap_add_up_to_the_gap(trace: TraceBuilder) -> None:
    gaps = budget_of(trace).gaps
    parts = np.array([gaps.parts[bucket] for bucket in IDLE_BUCKETS])
    assert (parts >= 0).all()
    assert parts.sum(axis=0).tolist() == (gaps.end_ns - gaps.start_ns).tolist()
    by_kind = np.array(list(gaps.sync_by_kind.values()))
    assert (by_kind >= 0).all()
    assert by_kind.sum(axis=0).tolist() == gaps.parts["sync"].tolist()
