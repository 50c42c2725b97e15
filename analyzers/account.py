"""One rank, accounted: everything the causes look at, computed once.

    Trace → launches, marks, host activity → per device: steps, budget, program → pricing

`RankAccount` is what Lighthouse calls computed artifacts: rules read it and never recompute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.budget import StepBudget, Work, device_work, step_budget
from gpuprof.analyzers.cpu import cpu_work
from gpuprof.analyzers.cut import missing_spans
from gpuprof.analyzers.distil import build_program
from gpuprof.analyzers.host import HostActivity, host_activity
from gpuprof.analyzers.intervals import Spans, empty
from gpuprof.analyzers.kernels import is_communication
from gpuprof.analyzers.launches import Launches, find_launches
from gpuprof.analyzers.overhead import ProfilerCost, profiler_cost
from gpuprof.analyzers.pricing import DevicePricing, Pricing, SerialPricing
from gpuprof.analyzers.program import Program
from gpuprof.analyzers.roofline import KernelLimits, Limit, kernel_limits
from gpuprof.analyzers.steps import Marks, Steps, find_marks, steps_on_device, steps_on_host
from gpuprof.trace import Category, DeviceInfo, Trace

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

CPU = -1
"""The device index of a run whose device is the CPU."""

SIDE_DEVICE_FRAC = 0.01
"""A device with under 1 % of the events of the busiest one only exchanges a few copies with it."""


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """One device of a rank.

    index: its ordinal, `CPU` where the CPU is the device. events: indices into the device rows,
    ordered by start. program is None where launches were not recorded; then pricing is None.
    """

    index: int
    info: DeviceInfo | None
    name: str
    events: I64
    budget: StepBudget
    program: Program | None
    pricing: Pricing | None

    @property
    def steps(self) -> Steps:
        return self.budget.steps


@dataclass(frozen=True, slots=True)
class RankAccount:
    """One rank. is_communication, is_copy, is_transfer: kind of each device row, (n_device,);
    a transfer is a copy between host and device. profiler: what recording cost the host.
    attribution: the account of a window with stacks,
    whose times are distorted."""

    rank: int
    trace: Trace
    launches: Launches
    marks: Marks
    host: HostActivity
    limits: KernelLimits
    is_communication: Bools
    is_copy: Bools
    is_transfer: Bools
    devices: tuple[DeviceAccount, ...]
    profiler: ProfilerCost
    attribution: RankAccount | None = None

    @property
    def lines(self) -> RankAccount:
        """The account to ask for the user's lines: of the attribution window, if there is one."""
        return self.attribution or self

    def with_lines(self, attribution: RankAccount) -> RankAccount:
        """The same with a trace of later steps that has stacks, used for lines only."""
        return replace(self, attribution=attribution)

    def without_account(self) -> RankAccount:
        """The same where the busy time of the device was not recorded: all of it is unknown."""
        return replace(self, devices=tuple(_unknown(device, self.trace) for device in self.devices))

    @property
    def main(self) -> DeviceAccount:
        """The device that did most."""
        return self.devices[0]


def account_rank(trace: Trace, rank: int) -> RankAccount:
    """Accounts for a trace.

    Args:
        trace: The trace of one process.
        rank: Its rank, from the trace or, where that does not say, given by the caller.
    """
    launches = find_launches(trace)
    marks = find_marks(trace)
    host = host_activity(trace, launches, marks.lane)
    limits = kernel_limits(trace, launches=launches)
    category = trace.category[trace.device.rows]
    collective = trace.name_mask(is_communication)[trace.device.rows]
    collective &= category == Category.KERNEL
    copy = category != Category.KERNEL
    crosses = trace.name_mask(_crosses_the_bus)[trace.device.rows]
    transfer = (category == Category.MEMCPY) & crosses
    cost = profiler_cost(trace, host.lanes)
    parts = _Parts(trace, launches, marks, host, limits, cost, collective, copy, transfer)
    order = np.argsort(launches.start_ns, kind="stable")
    device_of = trace.device.device[order]
    indices, counts = np.unique(device_of, return_counts=True)
    by_size = indices[np.argsort(-counts, kind="stable")]
    enough = np.sort(counts)[::-1] >= SIDE_DEVICE_FRAC * counts.max(initial=0)
    devices = tuple(
        _account_device(parts, int(index), order[device_of == index]) for index in by_size[enough]
    )
    return RankAccount(
        rank,
        trace,
        launches,
        marks,
        host,
        limits,
        collective,
        copy,
        transfer,
        devices or (_account_cpu(parts),),
        cost,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    trace: Trace
    launches: Launches
    marks: Marks
    host: HostActivity
    limits: KernelLimits
    cost: ProfilerCost
    collective: Bools
    copy: Bools
    transfer: Bools


def _account_device(parts: _Parts, index: int, events: I64) -> DeviceAccount:
    launches = parts.launches
    whole = int(launches.start_ns[events].min()), int(launches.end_ns[events].max())
    missing = missing_spans(parts.trace, launches, parts.marks)
    steps = steps_on_device(parts.marks, launches, events, whole, missing, _loading(parts.host))
    work = device_work(launches, events, parts.collective, parts.copy)
    budget = step_budget(steps, work, events, parts.collective, launches, parts.host)
    program = build_program(
        steps, events, launches, parts.trace.device.stream, parts.host, parts.cost
    )
    pricing = None
    if program is not None:
        source = program.source
        pricing = DevicePricing(
            program,
            parts.collective[source],
            parts.transfer[source],
            parts.limits.limit[source] == Limit.BANDWIDTH,
        )
    info = next((d for d in parts.trace.meta.devices if d.index == index), None)
    name = info.name if info is not None else ""
    return DeviceAccount(index, info, name, events, budget, program, pricing)


def _loading(host: HostActivity) -> Spans | None:
    """When the thread that marks the steps waited for input, or loaded it."""
    return host.spans["input"].get(host.main_lane)


def _account_cpu(parts: _Parts) -> DeviceAccount:
    rows = parts.trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION, Category.RUNTIME)
    if not len(rows):
        rows = np.arange(len(parts.trace))
    start = parts.trace.start_ns[rows]
    end = start + parts.trace.dur_ns[rows]
    whole = (int(start.min()), int(end.max())) if len(rows) else (0, 0)
    missing = missing_spans(parts.trace, parts.launches, parts.marks)
    operators = parts.trace.start_ns[parts.trace.rows_of(Category.CPU_OP)]
    steps = steps_on_host(parts.marks, whole, missing, operators, _loading(parts.host))
    work = cpu_work(parts.trace, parts.host)
    nothing = np.zeros(0, np.int64)
    budget = step_budget(steps, work, nothing, parts.collective, parts.launches, parts.host)
    return DeviceAccount(CPU, None, "CPU", nothing, budget, None, SerialPricing(budget, parts.cost))


def _unknown(device: DeviceAccount, trace: Trace) -> DeviceAccount:
    steps = replace(device.budget.steps, keep=np.ones(len(device.budget.steps), np.bool_))
    per_step = {bucket: np.zeros_like(steps.start_ns) for bucket in device.budget.per_step_ns}
    per_step["unknown"] = steps.end_ns - steps.start_ns
    work = Work(empty(), empty(), empty())
    budget = replace(device.budget, steps=steps, work=work, per_step_ns=per_step)
    name = trace.meta.devices[0].name if trace.meta.devices else ""
    return replace(device, name=name, budget=budget, program=None, pricing=None)


def _crosses_the_bus(name: str) -> bool:
    return any(way in name for way in ("HtoD", "DtoH", "HostToDevice", "DeviceToHost"))


def mean_step_ms(accounts: Sequence[RankAccount]) -> float:
    """Mean length of the accounted steps, over ranks, in ms; 0 without any."""
    lengths = [account.main.steps.length_ns for account in accounts]
    means = [float(length.mean()) / 1e6 for length in lengths if len(length)]
    return sum(means) / len(means) if means else 0.0
