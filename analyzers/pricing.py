"""What a step would take with something removed: the one place where gains come from.

On a device the answer is a replay of the program. Where the CPU is the device, the step is one
line of work and each part of it was accounted once, so what is removed is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.budget import StepBudget
from gpuprof.analyzers.by_step import mean_over_ranks
from gpuprof.analyzers.host import Blocking
from gpuprof.analyzers.idle import IdleGaps
from gpuprof.analyzers.overhead import MAX_FRAC, ProfilerCost
from gpuprof.analyzers.program import Program, Region
from gpuprof.analyzers.replay import TRUSTED_ERROR, Change, Replayed, replay
from gpuprof.diagnosis import Gain
from gpuprof.distinct import quantile

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

REMOVABLE = (
    "input",
    "checkpoint",
    "sync",
    "copies",
    "communication",
    "host",
    "allocator",
    "compute",
    "bandwidth",
    "overhead",
)
"""What can be taken out of a step: see `DevicePricing.change`."""

RANGE_PERCENTILES = (10.0, 90.0)
"""The interval of a gain spans the middle 80 % of the steps: one odd step does not set it."""

ALL_STEPS = 5
"""With at most five steps, percentiles would only interpolate: the range is all of them."""


@dataclass(frozen=True, slots=True)
class Price:
    """A predicted step. `reduction` is the share of the step that goes; `low` and `high` bound it
    over the steps of the window. before_ns, after_ns: each step of the window, (n_steps,)."""

    step_ns: float
    reduction: float
    low: float
    high: float
    before_ns: F64 = field(default_factory=lambda: np.zeros(0), compare=False)
    after_ns: F64 = field(default_factory=lambda: np.zeros(0), compare=False)


class Pricing(Protocol):
    """Answers what-if questions about one rank on one device."""

    @property
    def measured_ns(self) -> float:
        """Mean length of the steps that are replayed."""

    @property
    def replayed_ns(self) -> float:
        """The same, from the replay with nothing changed and no unexplained delay kept."""

    @property
    def error(self) -> float:
        """Relative error of that replay; it is trusted up to `TRUSTED_ERROR`."""

    def without(self, *removed: str, profiled: bool = True) -> Price:
        """The step with these parts (of `REMOVABLE`) removed.

        With `profiled=False`, both the step and what it is compared with are those of a run
        without the profiler.
        """


class DevicePricing:
    """Prices by replay.

    `base` is what prices are compared with: the run as it was, unexplained delays included.
    `explained` is what the model reproduces without them, and how far it can be trusted.

    Args:
        program: The program of the device.
        is_communication, is_transfer, is_bandwidth: For each event of the program: a collective;
            a copy between host and device; limited by memory bandwidth rather than arithmetic.
    """

    def __init__(
        self, program: Program, is_communication: Bools, is_transfer: Bools, is_bandwidth: Bools
    ) -> None:
        self.program = program
        self._communication = is_communication
        self._transfer = is_transfer
        self._bandwidth = is_bandwidth
        saving = program.region == int(Region.CHECKPOINT)
        self._saving = np.repeat(saving, program.n_events)
        self.base = replay(program)
        self.explained = replay(program, Change(lags=False))
        self._known: dict[tuple[bool, tuple[str, ...]], Price] = {}
        self._unprofiled: Replayed | None = None

    @property
    def measured_ns(self) -> float:
        return float(self.program.measured_ns.mean())

    @property
    def replayed_ns(self) -> float:
        return self.explained.mean_ns

    @property
    def error(self) -> float:
        measured = self.measured_ns
        return abs(self.replayed_ns - measured) / measured if measured else 1.0

    @property
    def unprofiled(self) -> Replayed:
        """The unchanged program without the profiler's own cost."""
        if self._unprofiled is None:
            self._unprofiled = replay(self.program, Change(profiled=False))
        return self._unprofiled

    def without(self, *removed: str, profiled: bool = True) -> Price:
        key = profiled, tuple(sorted(set(removed)))
        if key not in self._known:
            change = Change(profiled=profiled)
            for part in key[1]:
                change = change.and_(self.change(part))
            self._known[key] = self.price(change)
        return self._known[key]

    def price(self, change: Change) -> Price:
        """Prices any change of the program, against the same run, profiled or not."""
        base = self.base if change.profiled else self.unprofiled
        return price_of(base, replay(self.program, change))

    def change(self, part: str) -> Change:
        """What removing a part means for the program."""
        duration = self.program.dur_ns
        if part == "input":
            return Change(work_scale={"input": 0.0}, skip=(int(Region.INPUT),))
        if part == "checkpoint":
            return Change(work_scale={"checkpoint": 0.0}, skip=(int(Region.CHECKPOINT),))
        if part == "sync":
            return Change(
                free=(
                    int(Blocking.SYNCHRONIZE),
                    int(Blocking.TO_HOST),
                    int(Blocking.SMALL_TO_DEVICE),
                )
            )
        if part == "copies":
            # Pinned, asynchronous and on their own stream: the host does not wait, and the copy
            # runs beside the kernels.
            return Change(
                free=(int(Blocking.TO_DEVICE), int(Blocking.LARGE_TO_HOST)),
                device_ns=np.where(self._transfer & ~self._saving, 0, duration),
            )
        if part == "communication":
            return Change(
                work_scale={"communication_host": 0.0},
                device_ns=np.where(self._communication, 0, duration),
            )
        if part == "host":
            return Change(host_scale=0.0, launch_scale=0.0)
        if part == "allocator":
            return Change(work_scale={"allocator": 0.0})
        if part == "overhead":
            # Everything that is the host's doing, save the wait for input.
            return Change(
                host_scale=0.0,
                launch_scale=0.0,
                work_scale={"checkpoint": 0.0, "allocator": 0.0},
                free=tuple(int(kind) for kind in Blocking),
                skip=(int(Region.CHECKPOINT),),
            )
        kernels = ~self._communication & ~self._transfer
        if part == "compute":
            return Change(device_ns=np.where(kernels & ~self._bandwidth, 0, duration))
        if part == "bandwidth":
            return Change(device_ns=np.where(kernels & self._bandwidth, 0, duration))
        raise ValueError(f"nothing is called {part!r} in a step")


class SerialPricing:
    """Prices a run whose device is the CPU: the parts of the step follow each other."""

    BUCKETS: ClassVar[dict[str, tuple[str, ...]]] = {
        "input": ("input",),
        "checkpoint": ("checkpoint",),
        "sync": ("sync",),
        "copies": (),
        "communication": ("communication", "communication_host"),
        "host": ("host", "launch"),
        "allocator": ("allocator",),
        "compute": ("compute",),
        "bandwidth": (),
        "overhead": ("host", "launch", "sync", "checkpoint", "allocator", "copy"),
    }

    def __init__(self, budget: StepBudget, cost: ProfilerCost | None = None) -> None:
        self.budget = budget
        keep = budget.steps.keep
        self._length = (budget.steps.end_ns - budget.steps.start_ns)[keep].astype(np.float64)
        self._profiler = _ProfilerParts.of(budget, cost)

    @property
    def measured_ns(self) -> float:
        return float(self._length.mean()) if len(self._length) else 0.0

    @property
    def replayed_ns(self) -> float:
        keep = self.budget.steps.keep
        total = sum(int(ns[keep].sum()) for ns in self.budget.per_step_ns.values())
        return total / max(len(self._length), 1)

    @property
    def error(self) -> float:
        measured = self.measured_ns
        return abs(self.replayed_ns - measured) / measured if measured else 1.0

    def without(self, *removed: str, profiled: bool = True) -> Price:
        keep = self.budget.steps.keep
        gone = np.zeros(len(self._length))
        buckets = {bucket for part in removed for bucket in self.BUCKETS[part]}
        for bucket in buckets:
            gone += self.budget.per_step_ns[bucket][keep]
        length = self._length
        if not profiled:
            length = length - self._profiler.step_ns[keep]
            if "host" in buckets:
                gone -= self._profiler.host_ns[keep]
        return price_of(Replayed(length), Replayed(length - gone))


@dataclass(frozen=True, slots=True)
class _ProfilerParts:
    """What the profiler's records cost each step, and what of that lies in its host work, (n,)."""

    step_ns: I64
    host_ns: I64

    @classmethod
    def of(cls, budget: StepBudget, cost: ProfilerCost | None) -> _ProfilerParts:
        steps, gaps = budget.steps, budget.gaps
        host = np.zeros(len(steps), np.int64)
        if cost is None:
            return cls(host, host)
        in_gap = gaps.parts["host"] - own_host_ns(gaps, cost)
        step = np.searchsorted(steps.start_ns, gaps.start_ns, side="right") - 1
        np.add.at(host, step, in_gap)
        whole = cost.between(steps.start_ns, steps.end_ns)
        return cls(np.maximum(whole, host), host)


def own_host_ns(gaps: IdleGaps, cost: ProfilerCost) -> I64:
    """The plain host work of each gap of a CPU's account, the profiler's records not counted.

    The record of the operator that ends a gap is made before it begins: in the gap.
    """
    host = gaps.parts["host"]
    records = cost.between(gaps.start_ns, gaps.end_ns + 1)
    own: I64 = host - np.minimum(records, (MAX_FRAC * host).astype(np.int64))
    return own


def price_of(base: Replayed, changed: Replayed) -> Price:
    """Compares two replays of the same steps."""
    total = base.total_ns
    if total <= 0:
        return Price(0.0, 0.0, 0.0, 0.0)
    reduction = 1.0 - changed.total_ns / total
    per_step = 1.0 - changed.step_ns / np.maximum(base.step_ns, 1.0)
    if len(per_step) > ALL_STEPS:
        low, high = (quantile(per_step, percent / 100) for percent in RANGE_PERCENTILES)
    else:
        low, high = per_step.min(), per_step.max()
    return Price(
        step_ns=changed.mean_ns,
        reduction=_share(reduction),
        low=_share(min(float(low), reduction)),
        high=_share(max(float(high), reduction)),
        before_ns=base.step_ns,
        after_ns=changed.step_ns,
    )


def mean_price(prices: Sequence[Price]) -> Price:
    """The price of several ranks: the mean of each number."""
    n = max(len(prices), 1)
    return Price(
        step_ns=sum(p.step_ns for p in prices) / n,
        reduction=sum(p.reduction for p in prices) / n,
        low=sum(p.low for p in prices) / n,
        high=sum(p.high for p in prices) / n,
        before_ns=mean_over_ranks([p.before_ns for p in prices]),
        after_ns=mean_over_ranks([p.after_ns for p in prices]),
    )


def gain_of(price: Price, step_ms: float, how: str = "") -> Gain:
    """The gain as the diagnosis states it.

    What a replay saves is a share of the replayed step, which differs from the measured one by the
    replay's error. Of all gains it is the share that is carried over to the measured step, so that
    "saves", "share" and "the step after it" are one number in three forms.

    Args:
        price: Of the change.
        step_ms: The measured step that it is a share of: the mean over ranks.
        how: The words for what was changed.
    """
    return Gain(
        step_ms=step_ms * (1 - price.reduction),
        reduction=price.reduction,
        low=price.low,
        high=price.high,
        how=how,
    )


def trusted(pricing: Pricing) -> bool:
    """Whether the unchanged replay is near enough to the measured step to quote gains."""
    return pricing.error <= TRUSTED_ERROR


def _share(value: float) -> float:
    return float(min(max(value, 0.0), 1.0))
