"""Prices: what a step would take without a cause, against runs that really are without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.layouts import Action, programs, run
from fixtures.runs import ELEMENTWISE, Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import DeviceAccount, account_rank
from gpuprof.analyzers.pricing import (
    REMOVABLE,
    DevicePricing,
    Price,
    Pricing,
    SerialPricing,
    price_of,
    trusted,
)
from gpuprof.analyzers.replay import Replayed


def pricing_of(job: Job) -> Pricing:
    pricing = job.account().main.pricing
    assert pricing is not None
    return pricing


# Known gains


def test_a_loader_wait_of_known_size_gives_the_known_step() -> None:
    """4 ms of loading and 1 ms of kernels, one after the other: 5.008 ms become 1.008 ms."""
    pricing = pricing_of(training(6, load_us=4_000, settled=True))
    assert pricing.measured_ns == 5_008_000
    price = pricing.without("input")
    assert price.step_ns == 1_008_000
    assert price.reduction == pytest.approx(4_000 / 5_008)
    assert price.low == pytest.approx(price.high)


def test_a_share_is_not_a_gain() -> None:
    """1.5 ms of loading, then 0.65 ms of host work for 1 ms of kernels. Without the loading the
    host keeps ahead, so that its own late launches go as well: the kernels alone are left."""
    job = training(8, load_us=1_500, kernels=(100,) * 10, work_us=60)
    share = job.account().main.budget.frac()["input"]
    price = pricing_of(job).without("input")
    assert price.reduction > share + 0.02
    assert price.step_ns == pytest.approx(1_000_000 + 68_000 / 8, rel=1e-3)


def test_freed_syncs_let_the_host_run_ahead() -> None:
    """Ten 100 µs kernels, 80 µs of host work before each, an `.item()` at the end: the refill of
    95 µs a step goes."""
    pricing = pricing_of(training(8, kernels=(100,) * 10, work_us=80, items=1))
    assert pricing.measured_ns == pytest.approx(1_093_000, rel=0.01)
    price = pricing.without("sync")
    # The kernels, the copy behind .item(), and what the very first launch takes.
    assert price.step_ns == pytest.approx(1_001_000 + 88_000 / 8, rel=0.005)


def test_without_communication_the_kernels_are_left() -> None:
    assert pricing_of(training(6, collective_us=500)).without(
        "communication"
    ).reduction == pytest.approx(1 / 3, abs=0.01)


def test_free_communication_gains_nothing_where_the_host_sets_the_pace() -> None:
    """500 µs of exposed communication beside 2 ms of host work: it moves the wait."""
    price = pricing_of(training(40, kernels=(100,), work_us=2_000, collective_us=500)).without(
        "communication"
    )
    assert price.low < 0.001
    assert price.reduction < 0.01  # the last step is awaited


def test_copies_become_asynchronous_and_hidden() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.copy("HtoD (Pageable -> Device)", 10**7, 500, blocking=True)
            job.kernel("k", 1_000)
    assert pricing_of(job).without("copies").step_ns == pytest.approx(1_000_000, rel=0.02)


def test_a_checkpoint_goes_with_all_that_is_inside_it() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("k", 1_000)
            with job.annotation("torch.save"):
                job.copy("DtoH (Device -> Pageable)", 10**7, 300, blocking=True)
                job.work(2_000)
    pricing = pricing_of(job)
    assert pricing.measured_ns == pytest.approx(3_310_000, rel=0.01)
    assert pricing.without("checkpoint").step_ns == pytest.approx(1_000_000, rel=0.01)


def test_the_allocators_calls_are_priced_alone() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("k", 100)
            job.trace.runtime("cudaMalloc", start_us=job.now, dur_us=600)
            job.work(600)
            job.work(100)
    pricing = pricing_of(job)
    assert pricing.without("allocator").step_ns == pytest.approx(105_000, rel=0.05)


def test_kernels_are_priced_by_what_limits_them() -> None:
    job = Job()
    for number in range(6):
        with job.step(number):
            job.kernel("ampere_sgemm_128x128_nn", 300)
            job.kernel(ELEMENTWISE, 700)
    pricing = pricing_of(job)
    assert pricing.without("compute").reduction == pytest.approx(0.3, abs=0.01)
    assert pricing.without("bandwidth").reduction == pytest.approx(0.7, abs=0.01)


@settings(max_examples=50, deadline=None)
@given(programs)
def test_the_price_of_loading_is_the_step_without_a_loader(program: list[Action]) -> None:
    """The same program recorded with and without its loader: on one stream the prediction is the
    truth, on several it is never too good (the order between streams is kept)."""
    with_loader, without = account(program), account(program, frozenset({"load"}))
    assert with_loader.pricing is not None
    assert with_loader.program is not None
    first, last = with_loader.program.steps_used
    steps = without.steps
    truth = float((steps.end_ns - steps.start_ns)[first : last + 1].mean())
    predicted = with_loader.pricing.without("input").step_ns
    slack = 0.01 * truth + 2_000  # a launch at the window's edge: 9 µs over five steps
    assert predicted >= truth - slack
    if not any(kind in ("side", "collective") for kind, _ in program):
        assert predicted <= truth + slack


def account(program: list[Action], without: frozenset[str] = frozenset()) -> DeviceAccount:
    return run(program, 5, without=without).account().main


# What holds for every price


@pytest.mark.parametrize(
    "part", ["input", "checkpoint", "sync", "copies", "communication", "allocator"]
)
def test_removing_what_is_not_there_changes_nothing(part: str) -> None:
    pricing = pricing_of(training(6, kernels=(100, 200), work_us=150))
    price = pricing.without(part)
    assert price == Price(pricing.replayed_ns, 0.0, 0.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(programs, st.sets(st.sampled_from(REMOVABLE), min_size=1, max_size=3))
def test_removing_more_never_leaves_a_longer_step(program: list[Action], parts: set[str]) -> None:
    pricing = pricing_of(run(program, 4))
    together = pricing.without(*parts)
    assert 0.0 <= together.low <= together.reduction <= together.high <= 1.0
    for part in parts:
        assert together.step_ns <= pricing.without(part).step_ns + 1


@settings(max_examples=40, deadline=None)
@given(programs, st.sampled_from(REMOVABLE))
def test_a_price_is_never_below_the_work_that_is_left(program: list[Action], part: str) -> None:
    pricing = pricing_of(run(program, 4))
    assert isinstance(pricing, DevicePricing)
    change = pricing.change(part)
    left = pricing.program.dur_ns if change.device_ns is None else change.device_ns
    skipped = np.isin(pricing.program.region, change.skip)
    left = np.where(np.repeat(skipped, pricing.program.n_events), 0, left)
    busiest = np.bincount(pricing.program.stream, weights=left).max()
    assert pricing.without(part).step_ns * pricing.program.n_steps >= busiest - 1


def test_nothing_else_can_be_removed() -> None:
    with pytest.raises(ValueError, match="'luck'"):
        pricing_of(training(3)).without("luck")


def test_an_answer_is_computed_once() -> None:
    pricing = pricing_of(training(4, load_us=3_000))
    assert pricing.without("input", "sync") is pricing.without("sync", "input", "input")
    assert pricing.without("input") is not pricing.without("input", profiled=False)


def test_a_replay_that_misses_by_more_than_3_percent_is_not_trusted() -> None:
    class Off(SerialPricing):
        off = 0.0

        @property
        def error(self) -> float:
            return self.off

    pricing = Off(cpu_training(3).account().main.budget)
    for error, expected in ((0.0, True), (0.03, True), (0.031, False)):
        pricing.off = error
        assert trusted(pricing) is expected


def test_a_delay_that_nothing_explains_is_an_error_of_the_replay() -> None:
    """The gains keep it, but how well the step is understood is judged without it."""
    trace = TraceBuilder()
    for i in range(6):
        trace.step(i, start_us=50 * i, dur_us=50)
        trace.launch_kernel("k", launch_us=50 * i, start_us=1_000 * i + 10, dur_us=100)
        trace.launch_kernel("k", launch_us=50 * i + 20, start_us=1_000 * i + 700, dur_us=310)
    pricing = account_rank(trace.trace(), 0).main.pricing
    assert isinstance(pricing, DevicePricing)
    assert pricing.base.mean_ns == pytest.approx(pricing.measured_ns, rel=0.02)
    assert pricing.error > 0.1
    assert not trusted(pricing)


# Ranges


def test_with_few_steps_the_range_is_all_of_them() -> None:
    base = Replayed(np.array([100.0, 100.0, 200.0]))
    changed = Replayed(np.array([50.0, 90.0, 100.0]))
    price = price_of(base, changed)
    assert price.reduction == pytest.approx(0.4)
    assert (price.low, price.high) == (pytest.approx(0.1), pytest.approx(0.5))
    assert price.step_ns == 80.0


def test_with_many_steps_one_odd_step_does_not_set_the_range() -> None:
    base = Replayed(np.full(20, 100.0))
    changed = Replayed(np.array([50.0] * 19 + [1.0]))
    price = price_of(base, changed)
    assert price.low == pytest.approx(0.5)
    assert price.high == pytest.approx(price.reduction)
    assert price.high < 0.6


def test_steps_without_length_have_no_price() -> None:
    nothing = Replayed(np.zeros(3))
    assert price_of(nothing, nothing) == Price(0.0, 0.0, 0.0, 0.0)


# Without a device


def test_on_a_cpu_parts_are_subtracted() -> None:
    pricing = pricing_of(cpu_training(5, compute_us=600, load_us=200, python_us=100, gloo_us=100))
    assert isinstance(pricing, SerialPricing)
    assert pricing.error == 0
    expected = {"input": 0.2, "host": 0.1, "communication": 0.1, "compute": 0.6, "copies": 0.0}
    for part, reduction in expected.items():
        assert pricing.without(part).reduction == pytest.approx(reduction), part
    assert pricing.without("input", "host").reduction == pytest.approx(0.3)
    assert pricing.without(*REMOVABLE).reduction == pytest.approx(1.0)
