"""The account of a rank: its devices, what their rows are, and which trace names the lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fixtures.runs import Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import CPU, account_rank
from gpuprof.analyzers.pricing import DevicePricing, SerialPricing
from gpuprof.analyzers.roofline import Basis


def test_rows_are_sorted_by_what_they_are() -> None:
    trace = TraceBuilder().step(0, start_us=0, dur_us=1_000)
    trace.launch_kernel("gemm", launch_us=0, start_us=10, dur_us=10)
    trace.launch_collective("allreduce", launch_us=20, start_us=30, dur_us=10)
    trace.memcpy(size_bytes=8, launch_us=40, start_us=50, dur_us=10)
    trace.memcpy("DtoD (Device -> Device)", size_bytes=8, launch_us=60, start_us=70, dur_us=10)
    trace.memset(size_bytes=8, launch_us=80, start_us=90, dur_us=10)
    account = account_rank(trace.trace(), 3)
    assert account.rank == 3
    assert account.is_communication.tolist() == [False, True, False, False, False]
    assert account.is_copy.tolist() == [False, False, True, True, True]
    assert account.is_transfer.tolist() == [False, False, True, False, False]


def test_each_device_has_its_own_account_busiest_first() -> None:
    """A process that drives two devices: neither hides the other's idle time."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        trace.step(i, start_us=at, dur_us=1_000)
        trace.launch_kernel("k", launch_us=at, start_us=at + 10, dur_us=200, device=0)
        for part in range(3):
            start = at + 20 + 300 * part
            trace.launch_kernel("k", launch_us=start - 10, start_us=start, dur_us=300, device=1)
    account = account_rank(trace.trace(), 0)
    assert [device.index for device in account.devices] == [1, 0]
    assert account.main.index == 1
    busy = [device.budget.busy_frac for device in account.devices]
    assert busy[0] > 0.85
    assert busy[1] < 0.3


def test_a_device_that_only_exchanges_a_few_copies_is_left_out() -> None:
    job = training(4, kernels=(10,) * 60)
    job.trace.memcpy("HtoD (Pageable -> Device)", size_bytes=4, start_us=50, dur_us=1, device=1)
    assert [device.index for device in job.account().devices] == [0]


def test_a_device_is_replayed_and_a_cpu_is_summed() -> None:
    assert isinstance(training(3).account().main.pricing, DevicePricing)
    cpu = cpu_training(3).account()
    assert cpu.main.index == CPU
    assert isinstance(cpu.main.pricing, SerialPricing)


def test_without_launches_there_is_no_price() -> None:
    trace = TraceBuilder().launch_kernel("k", start_us=0, dur_us=10)
    device = account_rank(trace.trace(), 0).main
    assert device.program is None
    assert device.pricing is None


def test_a_trace_with_nothing_but_one_row_is_accounted() -> None:
    account = account_rank(TraceBuilder().op("aten::mm", start_us=0, dur_us=10).trace(), 0)
    assert account.main.budget.total_ns == 10_000
    assert account.main.budget.frac()["compute"] == 1.0


def test_lines_come_from_the_attribution_window_times_do_not() -> None:
    times, lines = training(3).account(), training(5).account()
    both = times.with_lines(lines)
    assert both.lines is lines
    assert both.main is times.main
    assert times.lines is times


def test_rows_of_the_file_in_any_order_give_the_same_account() -> None:
    """Kineto sorts nothing."""
    job = training(5, kernels=(100, 70), load_us=300, items=1, collective_us=40)
    shuffled = Job(replace_events(job.trace))
    first, second = job.account(), shuffled.account()
    for bucket, ns in first.main.budget.per_step_ns.items():
        assert ns.tolist() == second.main.budget.per_step_ns[bucket].tolist()


def replace_events(builder: TraceBuilder) -> TraceBuilder:
    order = np.random.default_rng(5).permutation(len(builder._events))
    return replace(builder, _events=[builder._events[i] for i in order])


def test_shapes_of_the_launching_operator_decide_what_limits_its_kernel() -> None:
    """A product with recorded shapes is rated by its FLOPs, not by its kernel's family."""
    trace = (
        TraceBuilder()
        .op(
            "aten::mm",
            start_us=0,
            dur_us=60,
            dims=[[4096, 4096], [4096, 4096]],
            types=["float", "float"],
        )
        .launch_kernel("ampere_sgemm_128x64_tn", launch_us=10, start_us=20, dur_us=9000)
        .trace()
    )
    limits = account_rank(trace, 0).limits
    assert limits.basis.tolist() == [Basis.SHAPES]
    assert limits.flops.tolist() == [2 * 4096**3]
