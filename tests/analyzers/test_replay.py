"""The replay: unchanged it reproduces the step; changed it obeys the machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.layouts import Action, programs, run
from fixtures.runs import GEMM, LATENCY_US, Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.host import Blocking
from gpuprof.analyzers.pricing import DevicePricing
from gpuprof.analyzers.program import Program
from gpuprof.analyzers.replay import TRUSTED_ERROR, Change, replay

ALL_BLOCKING = tuple(int(kind) for kind in Blocking)


def pricing_of(job: Job | TraceBuilder) -> DevicePricing:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    pricing = account_rank(trace, 0).main.pricing
    assert isinstance(pricing, DevicePricing)
    return pricing


def program_of(job: Job | TraceBuilder) -> Program:
    return pricing_of(job).program


@pytest.mark.parametrize(
    "job",
    [
        training(6),
        training(6, kernels=(300,) * 4, work_us=80, items=1),
        training(6, load_us=2_500),
        training(6, load_us=700, collective_us=300, items=2),
        training(6, work_us=50, kernels=(10,) * 20),
        training(6, settled=True),
        training(1, kernels=(100, 200)),
        training(6, marks=False),
    ],
    ids=["ahead", "items", "loader", "all", "host", "settled", "one step", "no marks"],
)
def test_unchanged_it_reproduces_the_step(job: Job) -> None:
    """Traces that follow the machine model are reproduced to the microsecond."""
    pricing = pricing_of(job)
    assert pricing.base.step_ns == pytest.approx(pricing.program.measured_ns, abs=1_000)
    assert pricing.error < 1e-3


@settings(max_examples=120, deadline=None)
@given(programs, st.integers(1, 5))
def test_any_simple_program_is_reproduced_within_3_percent(
    program: list[Action], steps: int
) -> None:
    assert pricing_of(run(program, steps)).error <= TRUSTED_ERROR


def test_a_run_ahead_host_with_backlog_is_reproduced() -> None:
    """The host issues 1 ms steps, the device takes 3 ms for each and starts with a backlog."""
    trace = TraceBuilder()
    trace.launch_kernel("backlog", start_us=0, dur_us=4_000)
    for i in range(6):
        trace.step(i, start_us=1_000 * i + 1, dur_us=1_000)
        trace.launch_kernel("k", launch_us=1_000 * i + 10, start_us=4_000 + 3_000 * i, dur_us=3_000)
    pricing = pricing_of(trace)
    assert pricing.measured_ns == pytest.approx(3_000_000, rel=0.01)
    assert pricing.error < 0.01


def test_a_skewed_clock_is_reproduced_as_well() -> None:
    """30 µs too early on the device: the shift is taken out before the replay."""
    trace = TraceBuilder()
    for i in range(8):
        trace.step(i, start_us=1_000 * i, dur_us=1_000)
        for k in range(5):
            at = 1_000 * i + 200 * k
            trace.launch_kernel("k", launch_us=at, start_us=at - 30, dur_us=100)
    assert pricing_of(trace).error < 0.01


# What changes do


def test_longer_kernels_lengthen_a_bound_step() -> None:
    program = program_of(training(5, kernels=(1_000,)))
    twice = replay(program, Change(device_ns=program.dur_ns * 2))
    assert twice.step_ns[2] == 2_000_000


def test_a_free_host_leaves_the_device_its_work() -> None:
    program = program_of(training(5, kernels=(100,) * 4, work_us=200))
    free = replay(program, Change(host_scale=0.0, launch_scale=0.0))
    assert free.step_ns[2] == 400_000


def test_a_host_at_half_cost_is_half_as_late() -> None:
    program = program_of(training(5, kernels=(10,), work_us=500))
    half = replay(program, Change(host_scale=0.5))
    assert half.step_ns[2] == 255_000


def test_calls_that_do_not_wait_let_the_host_run_ahead() -> None:
    """Five kernels of 200 µs behind 100 µs of host work each, one synchronize a step: without it
    the step is the device's 1000 µs."""
    job = training(6, kernels=(200,) * 5, work_us=100, settled=True)
    program = program_of(job)
    base = replay(program)
    freed = replay(program, Change(free=(int(Blocking.SYNCHRONIZE),)))
    assert base.step_ns[3] == (1_000 + 100 + LATENCY_US) * 1e3
    assert freed.step_ns[3] == pytest.approx(1_000_000, abs=1_000)


def test_changes_add_up() -> None:
    one = Change(host_scale=0.5, free=(1,), device_ns=np.array([5, 1]), work_scale={"input": 0.0})
    other = Change(launch_scale=0.0, free=(0, 1), skip=(2,), device_ns=np.array([3, 4]))
    both = one.and_(other)
    assert (both.host_scale, both.launch_scale) == (0.5, 0.0)
    assert both.free == (0, 1)
    assert both.skip == (2,)
    assert both.work_scale == {"input": 0.0}
    assert both.device_ns is not None
    assert both.device_ns.tolist() == [3, 1]
    assert both.profiled
    assert not both.and_(Change(profiled=False)).profiled


def test_without_the_profiler_the_host_is_cheaper() -> None:
    """Ten recorded operators in front of a kernel cost the host some 10 µs that no user pays."""
    trace = TraceBuilder()
    for i in range(5):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        for k in range(10):
            trace.op("aten::view", start_us=at + 10 * k + 5, dur_us=8)
        trace.launch_kernel("k", launch_us=at + 900, start_us=at + 910, dur_us=50)
    program = program_of(trace)
    profiled, plain = replay(program), replay(program, Change(profiled=False))
    saved = profiled.mean_ns - plain.mean_ns
    assert 10_000 <= saved <= 20_000


@settings(max_examples=60, deadline=None)
@given(
    programs,
    st.floats(0, 1),
    st.floats(0, 1),
    st.sets(st.sampled_from([*ALL_BLOCKING, int(Blocking.SMALL_TO_DEVICE)])),
)
def test_no_step_is_shorter_than_the_work_left_in_any_stream(
    program: list[Action], host: float, launch: float, free: set[int]
) -> None:
    """Whatever is removed, the steps together last at least as long as the busiest stream works."""
    built = program_of(run(program, 3))
    change = Change(host_scale=host, launch_scale=launch, free=tuple(free))
    result = replay(built, change)
    work = np.bincount(built.stream, weights=built.dur_ns)
    assert result.total_ns >= work.max()
    assert (result.step_ns >= 0).all()


@settings(max_examples=60, deadline=None)
@given(programs, st.floats(0, 1), st.floats(0, 1))
def test_taking_work_away_never_makes_a_run_longer(
    program: list[Action], host: float, device: float
) -> None:
    built = program_of(run(program, 3))
    base = replay(built)
    less = Change(
        host_scale=host, device_ns=(built.dur_ns * device).astype(np.int64), free=ALL_BLOCKING
    )
    assert replay(built, less).total_ns <= base.total_ns + 1


def test_the_last_step_lasts_until_the_host_is_done() -> None:
    job = Job()
    for number in range(4):
        with job.step(number):
            job.kernel(GEMM, 100)
            job.work(900)
    program = program_of(job)
    assert replay(program).step_ns[-1] == pytest.approx(program.measured_ns[-1], abs=1)
