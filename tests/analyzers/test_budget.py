"""The step budget: every nanosecond of a step in exactly one bucket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from fixtures.layouts import Action, layouts, programs, run
from fixtures.runs import Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import DeviceAccount, account_rank
from gpuprof.analyzers.budget import StepBudget
from gpuprof.diagnosis import BUCKETS


def device_of(job: Job | TraceBuilder) -> DeviceAccount:
    return account_rank((job.trace if isinstance(job, Job) else job).trace(), 0).main


def budget_of(job: Job | TraceBuilder) -> StepBudget:
    return device_of(job).budget


def one_step() -> TraceBuilder:
    return TraceBuilder().step(0, start_us=0, dur_us=400)


def parts_us(trace: TraceBuilder) -> dict[str, float]:
    per_step = budget_of(trace).per_step_ns
    return {bucket: ns[0] / 1e3 for bucket, ns in per_step.items() if ns[0]}


def test_kernels_of_all_streams_count_once() -> None:
    trace = one_step()
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=200)
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=101, dur_us=299, stream=13)
    assert parts_us(trace) == {"compute": 399.0, "host": 1.0}


def test_communication_is_what_no_kernel_hides() -> None:
    """A collective of 200 µs of which a kernel hides 150."""
    trace = one_step()
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=249)
    trace.launch_collective("allreduce", launch_us=5, start_us=100, dur_us=200)
    trace.launch_kernel("k", launch_us=10, start_us=300, dur_us=100)
    assert parts_us(trace) == {"compute": 349.0, "communication": 50.0, "host": 1.0}


def test_copies_come_last() -> None:
    """A copy that runs from 100 to 400, beside a kernel until 200 and a collective until 250."""
    trace = one_step()
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=199)
    trace.launch_collective("allreduce", launch_us=5, start_us=150, dur_us=100)
    trace.memcpy(size_bytes=8, launch_us=10, start_us=100, dur_us=300, stream=30)
    assert parts_us(trace) == {"compute": 199.0, "communication": 50.0, "copy": 150.0, "host": 1.0}


def test_memsets_are_copies() -> None:
    trace = one_step()
    trace.memset(size_bytes=8, launch_us=0, launch_dur_us=1, start_us=1, dur_us=399)
    assert parts_us(trace) == {"copy": 399.0, "host": 1.0}


def test_annotations_and_sync_records_on_a_stream_are_no_work() -> None:
    trace = one_step()
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=99)
    trace.gpu_annotation("forward", start_us=0, dur_us=400)
    trace.sync_record(start_us=0, dur_us=400)
    assert parts_us(trace)["compute"] == 99.0


def test_shares_are_of_the_accounted_steps_only() -> None:
    """A warm-up step with 5 ms of compilation is in no share."""
    job = Job()
    with job.step(0):
        job.work(5_000)
        job.kernel("k", 1_000)
        job.synchronize()
    for number in range(1, 6):
        with job.step(number):
            job.kernel("k", 1_000)
            job.synchronize()
    budget = budget_of(job)
    assert not budget.steps.keep[0]
    assert budget.frac()["host"] < 0.01
    assert budget.total_ns == int((budget.steps.end_ns - budget.steps.start_ns)[1:].sum())


def test_busy_and_idle_are_the_whole() -> None:
    budget = budget_of(training(5, load_us=3_000, collective_us=200, items=1))
    share = budget.frac()
    assert sum(share.values()) == pytest.approx(1.0, abs=1e-12)
    device = share["compute"] + share["copy"]
    assert budget.busy_frac == pytest.approx(device + 200_000 * 5 / budget.total_ns, abs=1e-6)


def test_shares_of_each_step() -> None:
    budget = budget_of(training(5, load_us=1_000, settled=True))
    shares = budget.per_step_ns["input"] / (budget.steps.end_ns - budget.steps.start_ns)
    assert shares.shape == (5,)
    assert shares[2] == pytest.approx(1_000 / 2_008, abs=1e-6)


def test_a_gap_over_the_end_of_a_step_is_cut_there() -> None:
    """The host works 100 µs before and 300 µs after the mark: each step pays its own part."""
    trace = TraceBuilder()
    for i in range(2):
        trace.step(i, start_us=1_000 * i, dur_us=1_000)
    trace.launch_kernel("k", launch_us=0, launch_dur_us=1, start_us=1, dur_us=500)
    trace.launch_kernel("k", launch_us=1_300, launch_dur_us=10, start_us=1_310, dur_us=690)
    budget = budget_of(trace)
    total = budget.steps.end_ns - budget.steps.start_ns
    assert sum(budget.per_step_ns.values()).tolist() == total.tolist()


def everything_adds_up(device: DeviceAccount) -> None:
    budget = device.budget
    parts = np.array([budget.per_step_ns[bucket] for bucket in BUCKETS])
    assert set(budget.per_step_ns) == set(BUCKETS)
    assert (parts >= 0).all()
    assert parts.dtype == np.int64
    assert parts.sum(axis=0).tolist() == (budget.steps.end_ns - budget.steps.start_ns).tolist()
    if budget.total_ns:
        assert sum(budget.frac().values()) == pytest.approx(1.0, abs=1e-9)
        assert -1e-12 <= budget.busy_frac <= 1 + 1e-12


@settings(max_examples=120, deadline=None)
@given(layouts())
def test_the_buckets_of_every_step_add_up_to_the_step(trace: TraceBuilder) -> None:
    """Integers, exactly, for any layout of events, possible or not."""
    everything_adds_up(device_of(trace))


@settings(max_examples=60, deadline=None)
@given(programs)
def test_they_add_up_for_programs_as_well(program: list[Action]) -> None:
    everything_adds_up(device_of(run(program, 4)))


@pytest.mark.parametrize("kind", ["load", "item", "copy", "work"])
def test_a_longer_wait_never_holds_a_smaller_share(kind: str) -> None:
    """Scaling a planted wait up never lowers its share."""
    bucket = {"load": "input", "item": "sync", "copy": "copy", "work": "host"}[kind]
    shares = []
    for us in (10, 50, 200, 400, 1_000, 4_000):
        job = Job()
        for number in range(4):
            with job.step(number):
                job.kernel("k", 300)
                if kind == "load":
                    job.load(us)
                elif kind == "copy":
                    job.copy("HtoD (Pinned -> Device)", 10**6, us, blocking=False)
                elif kind == "item":
                    job.item()
                    job.work(min(us, 300))
                else:
                    job.work(us)
        shares.append(budget_of(job).frac()[bucket])
    assert shares == sorted(shares)
    assert shares[-1] > 0.4
