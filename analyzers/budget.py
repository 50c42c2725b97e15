"""The step budget: where every nanosecond of every step of one device went.

A nanosecond belongs to `compute` if any other kernel than a collective runs, else to
`communication` if a collective does, else to `copy` if a copy or memset does; the rest is idle and
is charged by `gpuprof.analyzers.idle`. So the buckets of a step add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.host import HostActivity
from gpuprof.analyzers.idle import IDLE_BUCKETS, IdleGaps, attribute_idle
from gpuprof.analyzers.intervals import Spans, complement, covered, merge, subtract, union
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.steps import Steps
from gpuprof.diagnosis import BUCKETS
from gpuprof.distinct import distinct

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Work:
    """What ran on one device, as disjoint sets of time; together they are its busy time."""

    compute: Spans
    communication: Spans
    copy: Spans

    @property
    def busy(self) -> Spans:
        return merge(self.compute, self.communication, self.copy)


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The budget of one device.

    per_step_ns: bucket -> ns of each step, int64 (n_steps,), excluded steps too.
    """

    steps: Steps
    work: Work
    gaps: IdleGaps
    per_step_ns: dict[str, I64]

    @property
    def total_ns(self) -> int:
        """Length of all accounted steps."""
        return int(self.steps.length_ns.sum())

    def kept_ns(self, bucket: str) -> int:
        """ns that the accounted steps spent in a bucket."""
        return int(self.per_step_ns[bucket][self.steps.keep].sum())

    def frac(self) -> dict[str, float]:
        """Share of the accounted steps in each bucket; adds up to 1 (0 for a run without time)."""
        total = self.total_ns
        if not total:
            return dict.fromkeys(BUCKETS, 0.0)
        return {bucket: self.kept_ns(bucket) / total for bucket in BUCKETS}

    @property
    def busy_frac(self) -> float:
        """Share of the accounted steps in which the device did anything."""
        total = self.total_ns
        busy = covered(self.work.busy, self.steps.start_ns, self.steps.end_ns)
        return float(busy[self.steps.keep].sum() / total) if total else 0.0


def device_work(launches: Launches, events: I64, is_communication: Bools, is_copy: Bools) -> Work:
    """Splits a device's busy time by what was most useful in it.

    Args:
        launches: Times of all device rows.
        events: The device's events, indices into the device rows.
        is_communication, is_copy: Kind of each device row, (n_device,).
    """
    start, end = launches.start_ns[events], launches.end_ns[events]
    collective, copy = is_communication[events], is_copy[events]
    plain = ~collective & ~copy
    compute = union(start[plain], end[plain])
    exposed = subtract(union(start[collective], end[collective]), compute)
    copies = subtract(subtract(union(start[copy], end[copy]), compute), exposed)
    return Work(compute, exposed, copies)


def step_budget(
    steps: Steps,
    work: Work,
    events: I64,
    is_communication: Bools,
    launches: Launches,
    host: HostActivity,
) -> StepBudget:
    """Accounts for all steps of one device (arguments as in `device_work`)."""
    busy = work.busy
    gaps = _cut(complement(busy, int(steps.start_ns[0]), int(steps.end_ns[-1])), steps.end_ns[:-1])
    idle = attribute_idle(gaps, busy, events, is_communication, launches, host)
    return StepBudget(steps, work, idle, _per_step(steps, work, idle))


def _per_step(steps: Steps, work: Work, idle: IdleGaps) -> dict[str, I64]:
    per_step = {bucket: np.zeros(len(steps), np.int64) for bucket in BUCKETS}
    for bucket, spans in (
        ("compute", work.compute),
        ("communication", work.communication),
        ("copy", work.copy),
    ):
        per_step[bucket] += covered(spans, steps.start_ns, steps.end_ns)
    step = np.searchsorted(steps.start_ns, idle.start_ns, side="right") - 1
    for bucket in IDLE_BUCKETS:
        np.add.at(per_step[bucket], step, idle.parts[bucket])
    return per_step


def _cut(gaps: Spans, at: I64) -> Spans:
    """The gaps, cut where a step ends inside one (so no longer canonical: pieces may touch)."""
    if not len(gaps):
        return gaps
    holder = np.searchsorted(gaps.start, at, side="left") - 1
    inside = (holder >= 0) & (at < gaps.end[np.maximum(holder, 0)])
    cuts = distinct(at[inside])
    start = np.sort(np.concatenate((gaps.start, cuts)))
    return Spans(start, np.sort(np.concatenate((gaps.end, cuts))))
