"""The program that is replayed: what it takes from a trace."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.runs import LATENCY_US, LAUNCH_US, Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers import distil as module
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.host import Blocking
from gpuprof.analyzers.program import NO_EVENT, NOT_BLOCKING, Program, Region
from gpuprof.analyzers.replay import Change, replay


def program_of(job: Job | TraceBuilder) -> Program:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    program = account_rank(trace, 0).main.program
    assert program is not None
    return program


def test_host_work_before_each_launch_is_kept_by_label() -> None:
    program = program_of(training(3, kernels=(100, 100), work_us=30, load_us=500))
    assert program.n_steps == 3
    assert program.work_ns["input"].tolist() == [500_000, 0] * 3 + [0]
    assert program.work_ns["host"][:-1].tolist() == [30_000] * 6
    assert program.call_ns[:-1].tolist() == [LAUNCH_US * 1e3] * 6
    assert program.dur_ns.tolist() == [100_000] * 6


def test_the_last_item_is_the_hosts_end_and_launches_nothing() -> None:
    job = training(3)
    with job.step(3):
        job.kernel("k", 10)
        job.work(777)
    program = program_of(job)
    assert program.n_events[-1] == 0
    assert program.work_ns["host"][-1] == 777_000
    assert program.ends_with_host


def test_a_graph_launch_is_one_item_with_many_events() -> None:
    job = Job()
    for number in range(3):
        with job.step(number):
            job.graph((10, 20, 30))
    program = program_of(job)
    assert program.n_events.tolist() == [3, 3, 3, 0]
    assert program.first_event[:-1].tolist() == [0, 3, 6]


def test_the_latency_is_that_of_a_free_device() -> None:
    """Behind a full queue the offset from launch to start is waiting, not latency."""
    job = training(4, kernels=(500,) * 4, settled=True)
    assert int(program_of(job).latency_ns.max()) == LATENCY_US * 1e3


def test_an_unexplained_delay_stays_as_lag() -> None:
    trace = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.launch_kernel("k", launch_us=at, start_us=at + 10, dur_us=100)
        trace.launch_kernel("k", launch_us=at + 20, start_us=at + 400, dur_us=100)
    lag = program_of(trace).lag_ns
    assert lag[1::2].tolist() == [290_000] * 4


def test_the_usual_turnaround_between_queued_events_is_no_lag() -> None:
    """A device takes 1 to 3 µs from one queued kernel to the next: a constant of the model."""
    trace = TraceBuilder()
    for i in range(4):
        trace.step(i, start_us=100 * i, dur_us=100)
        for k in range(6):
            start = 20 + 102 * (6 * i + k)
            trace.launch_kernel("k", launch_us=100 * i + 10 * k, start_us=start, dur_us=100)
    program = program_of(trace)
    assert program.turnaround_ns == 2_000
    assert not program.lag_ns.any()
    measured = program.measured_ns.sum()
    assert replay(program, Change(lags=False)).total_ns == pytest.approx(measured, rel=1e-3)


def test_a_wait_between_streams_is_kept_as_observed() -> None:
    """A collective after a kernel, a kernel after the collective."""
    program = program_of(training(2, collective_us=50))
    kernel, collective, following = 0, 1, 2
    other = program.stream[kernel]
    assert program.after[collective, other] == kernel
    assert program.after[following, program.stream[collective]] == collective
    assert program.after[kernel].tolist() == [NO_EVENT, NO_EVENT]


def test_blocking_calls_wait_for_what_was_launched_before_and_done() -> None:
    job = Job()
    for number in range(2):
        with job.step(number):
            job.kernel("k", 500)
            job.synchronize()
    program = program_of(job)
    assert program.waits.tolist() == [False, True, False, True, False]
    assert program.wait_events == {1: (0,), 3: (1,)}
    assert program.kind[1] == Blocking.SYNCHRONIZE
    assert program.kind[0] == NOT_BLOCKING


def test_a_launch_that_took_long_waited_for_a_place_in_the_queue() -> None:
    """The queue is full: the call returns when an earlier kernel is done. No fix removes that."""
    job = Job()
    for number in range(3):
        with job.step(number):
            for _ in range(8):
                job.kernel("k", 100)
            done = job.free[7] - 600
            job.trace.launch_kernel(
                "k", launch_us=job.now, launch_dur_us=done + 1 - job.now,
                start_us=job.free[7], dur_us=100,
            )  # fmt: skip
            job.free[7] += 100
            job.now = done + 1
    program = program_of(job)
    assert int(program.is_queue_wait.sum()) >= 2
    assert not (program.is_queue_wait & (program.kind != NOT_BLOCKING)).any()


def test_regions_say_what_a_call_is_part_of() -> None:
    job = Job()
    for number in range(2):
        with job.step(number):
            with job.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                job.kernel("augment", 50)
            job.kernel("k", 50)
            with job.annotation("torch.save"):
                job.copy("DtoH (Device -> Pageable)", 10**6, 40, blocking=True)
    region = program_of(job).region
    per_step = [int(Region.INPUT), int(Region.STEP), int(Region.CHECKPOINT)]
    assert region.tolist() == per_step * 2 + [int(Region.STEP)]


def test_work_from_before_the_window_only_occupies_its_stream() -> None:
    job = Job()
    job.trace.launch_kernel("backlog", start_us=0, dur_us=3_000)
    job.free[7] = 3_000
    training(4, job=job)
    program = program_of(job)
    assert len(program.dur_ns) == 4
    assert program.stream_ready_ns.tolist() == [job.trace.ns(3_000)]


def test_a_host_that_is_many_steps_ahead_is_replayed_all_the_same() -> None:
    """Most kernels in its window were launched before it: only their launches are not recorded."""
    job = Job()
    for number in range(20):
        job.trace.launch_kernel("backlog", start_us=1_000 * number, dur_us=1_000)
    job.free[7] = 20_000
    training(4, job=job)
    program = program_of(job)
    assert len(program.dur_ns) == 4
    assert program.measured_ns.tolist() == [1_000_000] * 4


def test_a_wait_for_a_place_behind_older_work_is_no_work_of_the_host() -> None:
    """The launch queue is full of work from before the window: the first launch of each step
    returns when a millisecond of that is done. Quicker kernels would have made room sooner."""
    trace = TraceBuilder()
    for number in range(20):
        trace.launch_kernel("older", start_us=1_000 * number, dur_us=1_000)
    for number in range(6):
        begun, runs = 1_000.0 * number + 10, 20_000.0 + 1_000 * number
        trace.step(number, start_us=begun, dur_us=1_000)
        trace.launch_kernel("k", launch_us=begun + 5, launch_dur_us=986, start_us=runs, dur_us=250)
        for i in range(1, 4):
            trace.launch_kernel(
                "k",
                launch_us=begun + 990 + 2.5 * i,
                launch_dur_us=2,
                start_us=runs + 250 * i,
                dur_us=250,
            )
    program = program_of(trace)
    assert replay(program).mean_ns == pytest.approx(1_000_000, rel=0.01)
    halved = Change(device_ns=program.dur_ns // 2)
    assert replay(program, halved).mean_ns == pytest.approx(500_000, rel=0.01)


def test_an_event_without_its_launch_goes_with_the_one_before() -> None:
    job = training(4, settled=True)
    job.trace.launch_kernel("lost", start_us=500, dur_us=0.5, stream=99)
    assert len(program_of(job).dur_ns) == 5


def test_a_long_window_is_stood_for_by_whole_steps_of_usual_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 40)
    job = Job()
    for number in range(30):
        with job.step(number):
            for _ in range(4):
                job.kernel("k", 100 if number >= 10 else 120)
            job.synchronize()
    program = program_of(job)
    assert program.n_steps == 8
    assert program.steps_used[0] >= 10
    assert len(program.dur_ns) == 32
    assert not program.ends_with_host or program.steps_used[1] == 29
    assert replay(program).mean_ns == pytest.approx(program.measured_ns.mean(), rel=0.03)


def test_steps_that_are_left_out_are_not_replayed() -> None:
    job = Job()
    with job.step(0):
        job.work(9_000)
        job.kernel("k", 1_000)
        job.synchronize()
    for number in range(1, 6):
        with job.step(number):
            job.kernel("k", 1_000)
            job.synchronize()
    program = program_of(job)
    assert program.steps_used == (1, 5)
    assert int(program.measured_ns.max()) < 1_100_000


def test_two_threads_are_one_line_of_work() -> None:
    """Forward on one thread, backward on another, handing over to each other: time that they
    overlap counts once."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.launch_kernel("f", launch_us=at + 100, start_us=at + 110, dur_us=100)
        trace.launch_kernel("b", launch_us=at + 500, start_us=at + 510, dur_us=100, thread=2)
        trace.op("autograd::engine::evaluate_function: X", start_us=at + 400, dur_us=200, thread=2)
    program = program_of(trace)
    total = sum(work for work in program.work_ns.values()) + program.call_ns
    assert int(total.sum()) == 4_000_000
    assert np.all(total >= 0)


def test_a_stream_waits_for_another_only_where_it_was_told_to() -> None:
    """DDP's backward runs beside its collectives. That a kernel began after one had ended proves no
    order where nothing told the kernel's stream to wait: a faster host would start it earlier."""
    trace = TraceBuilder().step(0, start_us=0, dur_us=1000)
    trace.launch_kernel("first", launch_us=10, start_us=20, dur_us=50)
    trace.runtime("cudaStreamWaitEvent", start_us=20, dur_us=2)
    trace.launch_collective("allreduce", launch_us=25, start_us=70, dur_us=100)
    trace.launch_kernel("beside", launch_us=300, start_us=310, dur_us=50)
    trace.runtime("cudaStreamWaitEvent", start_us=350, dur_us=2)
    trace.launch_kernel("behind", launch_us=400, start_us=410, dur_us=50)
    program = program_of(trace)
    kernel, collective = int(program.stream[0]), int(program.stream[1])
    assert program.after[1, kernel] == 0
    assert program.after[2, collective] == NO_EVENT
    assert program.after[3, collective] == 1
