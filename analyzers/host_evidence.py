"""What the host's samples add to a cause: facts with their numbers, never a verdict.

A trace says that the GPU waited for data; these say what the data waited for: a CPU quota, the
disk, one busy worker, memory. Each function looks at one stretch of time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.counted import agrees
from gpuprof.diagnosis import Evidence
from gpuprof.samples import Samples

THROTTLED_FRAC = 0.05
"""Share of its scheduling periods in which a control group was stopped, from which it counts."""
STALLED_FRAC = 0.10
"""Share of time in which some task waited for a resource (pressure), from which it counts."""
BUSY_CORE_FRAC = 0.9
"""A thread above this share of a core does nothing but compute."""
STEAL_FRAC = 0.05
OVERSUBSCRIBED_PER_S = 500.0
"""Preemptions of a rank's main thread a second, from which it shares its core."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the recording, ns, in the samples' own clock."""

    start_ns: int
    end_ns: int


def growth(samples: Samples, metric: str, scope: str, part: Stretch | None = None) -> float | None:
    """Growth of a counter within a stretch, by the reads nearest to its ends; None if unknown."""
    series = samples.get(metric, scope)
    if series is None:
        return None
    time_ns, value = series.good()
    if part is not None:
        first = max(0, int(np.searchsorted(time_ns, part.start_ns, side="right")) - 1)
        last = int(np.searchsorted(time_ns, part.end_ns, side="left")) + 1
        time_ns, value = time_ns[first:last], value[first:last]
    if len(value) < 2:
        return None
    steps = np.diff(value)
    return float(steps[steps > 0].sum())


def rate(samples: Samples, metric: str, scope: str, part: Stretch | None = None) -> float | None:
    """Growth of a counter per second; for seconds of CPU or of stalling, a share of time."""
    series = samples.get(metric, scope)
    grown = growth(samples, metric, scope, part)
    if series is None or grown is None or not samples.timed:
        return None
    time_ns, _ = series.good()
    if part is not None:
        first = max(0, int(np.searchsorted(time_ns, part.start_ns, side="right")) - 1)
        last = int(np.searchsorted(time_ns, part.end_ns, side="left")) + 1
        time_ns = time_ns[first:last]
    seconds = float(time_ns[-1] - time_ns[0]) / 1e9
    return grown / seconds if seconds > 0 else None


def input_evidence(
    samples: Samples, rank: int, part: Stretch | None = None
) -> tuple[Evidence, ...]:
    """What held the input of a rank back, as far as the host shows it."""
    return tuple(
        fact
        for fact in (
            cpu_quota(samples, part),
            busy_workers(samples, rank, part),
            stalled(samples, "io", part),
            stalled(samples, "mem", part),
            steal(samples, part),
        )
        if fact is not None
    )


def host_evidence(samples: Samples, rank: int, part: Stretch | None = None) -> tuple[Evidence, ...]:
    """What kept a rank's main thread from launching, as far as the host shows it."""
    return tuple(
        fact
        for fact in (
            busy_main_thread(samples, rank, part),
            preempted(samples, rank, part),
            cpu_quota(samples, part),
            steal(samples, part),
        )
        if fact is not None
    )


def cpu_quota(samples: Samples, part: Stretch | None = None) -> Evidence | None:
    """A control group that was stopped because it used up its CPU quota."""
    periods = growth(samples, "cgroup_periods", "host", part)
    stopped = growth(samples, "cgroup_throttled_periods", "host", part)
    if not periods or stopped is None or stopped / periods < THROTTLED_FRAC:
        return None
    quota = samples.get("cgroup_cpu_quota_cores", "host")
    cores = quota.good()[1] if quota is not None else np.empty(0)
    size = f" of {cores[-1]:.1f} CPUs" if len(cores) else ""
    share = stopped / periods
    return _fact(
        f"The container used up its CPU quota{size} in {share:.0%} of the scheduling periods, and "
        "was stopped for the rest of each.",
        share,
        "share of periods",
    )


def busy_workers(samples: Samples, rank: int, part: Stretch | None = None) -> Evidence | None:
    """DataLoader workers: how busy they are tells a slow transform from slow storage."""
    scope = f"rank:{rank}"
    used = rate(samples, "workers_cpu_s", scope, part)
    counts = samples.get("workers", scope)
    number = float(np.median(counts.good()[1])) if counts is not None and len(counts) else 0.0
    if used is None or number < 1:
        return None
    share = used / number
    works, waits = agrees(number, "computes", "compute"), agrees(number, "waits", "wait")
    how = f"{works} all the time" if share >= BUSY_CORE_FRAC else f"{waits} for most of it"
    middle = "" if share >= BUSY_CORE_FRAC or share < 0.5 else f" or {works} by turns"
    who = f"worker process of rank {rank} uses {share:.0%} of a core: it"
    if round(number) != 1:
        who = f"{number:.0f} worker processes of rank {rank} use {share:.0%} of a core each: they"
    return _fact(f"The {who} {how}{middle}.", share, "cores per worker")


def busy_main_thread(samples: Samples, rank: int, part: Stretch | None = None) -> Evidence | None:
    """A main thread that is busy all the time: Python and the launches hold the GPU back."""
    share = rate(samples, "main_thread_cpu_s", f"rank:{rank}", part)
    if share is None or share < BUSY_CORE_FRAC:
        return None
    return _fact(
        f"The main thread of rank {rank} is busy {share:.0%} of the time: one core is the limit.",
        share,
        "share of a core",
    )


def preempted(samples: Samples, rank: int, part: Stretch | None = None) -> Evidence | None:
    """A main thread that has to share its core."""
    per_s = rate(samples, "switches_involuntary", f"rank:{rank}", part)
    if per_s is None or per_s < OVERSUBSCRIBED_PER_S:
        return None
    return _fact(
        f"The main thread of rank {rank} was preempted {per_s:.0f} times a second: more threads "
        "than cores (OMP_NUM_THREADS times ranks, DataLoader workers).",
        per_s,
        "switches per second",
    )


def stalled(samples: Samples, kind: str, part: Stretch | None = None) -> Evidence | None:
    """Time in which some task waited for `io` or `mem`, by the kernel's pressure counters."""
    share = rate(samples, f"pressure_{kind}_some_s", "host", part)
    if share is None or share < STALLED_FRAC:
        return None
    what = {"io": "disk or network storage", "mem": "memory"}[kind]
    return _fact(
        f"Tasks on this node waited for {what} {share:.0%} of the time.", share, "share of time"
    )


def steal(samples: Samples, part: Stretch | None = None) -> Evidence | None:
    """CPU time that the hypervisor gave to others."""
    taken = rate(samples, "cpu_steal_s", "host", part)
    cpus = samples.get("cpus", "host")
    number = float(cpus.good()[1][-1]) if cpus is not None and cpus.ok.any() else 0.0
    if taken is None or number < 1 or taken / number < STEAL_FRAC:
        return None
    share = taken / number
    return _fact(
        f"The hypervisor gave {share:.0%} of this machine's CPU time to others.",
        share,
        "share of CPU time",
    )


def _fact(text: str, value: float, unit: str) -> Evidence:
    return Evidence(text=text, value=value, unit=unit, source="host")
