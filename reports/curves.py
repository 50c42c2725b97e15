"""What was sampled over a run, ready to draw: utilization, power, clock and memory of each GPU,
busy cores and memory of each host.

The page draws them over the whole recording, the timeline over the span of the traces. A read that
failed leaves a hole: nothing is drawn where nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.utilization_findings import curve_of, job_scopes
from gpuprof.reports import text
from gpuprof.reports.words import Catalog
from gpuprof.samples import DeviceFacts, Samples

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MAX_GPUS = 64
"""GPUs with curves: more than a page has room for, bounded on a hostile file."""

HOLD_TIMES = 5.0
"""A value holds until the next read, but not over a hole this many times the usual distance."""

ROUND_UP = 1.05
"""Room above the largest value where the device did not tell its own limit."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one GPU, with its failed reads left out.

    key: which text of the catalogue names it (`curve.KEY`). time_ns: int64 (n,), ascending.
    value: float64 (n,), in `unit`. top: the value at the upper edge, above 0.
    """

    key: str
    unit: str
    time_ns: I64
    value: F64
    top: float

    @property
    def hold_ns(self) -> int:
        """How long a value stands for the time behind it."""
        step = float(np.median(np.diff(self.time_ns))) if len(self.time_ns) > 1 else 1e9
        return int(HOLD_TIMES * max(step, 1.0))


@dataclass(frozen=True, slots=True)
class GpuCurves:
    """The curves of one GPU, or of a host. rank: the process whose own GPU it is, None where nobody
    told. epoch: whether times count from the Unix epoch, as those of traces and findings do."""

    label: str
    rank: int | None
    epoch: bool
    timed: bool
    curves: tuple[Curve, ...]
    is_host: bool = False

    @property
    def span_ns(self) -> tuple[int, int]:
        """First and last sample of all curves."""
        return (
            min(int(curve.time_ns[0]) for curve in self.curves),
            max(int(curve.time_ns[-1]) for curve in self.curves),
        )


def gpu_curves(nodes: Sequence[Samples], words: Catalog) -> list[GpuCurves]:
    """The GPUs of the job that were sampled, node by node, then the hosts; at most `MAX_GPUS`."""
    found = []
    for node in nodes:
        ranks = {node.gpu_of_rank(rank.rank): rank.rank for rank in node.ranks if rank.rank >= 0}
        for scope in job_scopes(node):
            curves = tuple(curve for curve in _curves(node, scope) if len(curve.time_ns) > 1)
            if not curves:
                continue
            rank = ranks.get(scope)
            label = words.say("curve.gpu", index=scope.partition(":")[2])
            if rank is not None:
                label = f"{words.say('rank.name', rank=rank)} · {label}"
            if len(nodes) > 1 and node.node:
                label += f" · {text.clean(node.node, 60)}"
            found.append(GpuCurves(label, rank, node.epoch, node.timed, curves))
    for node in nodes:
        curves = tuple(curve for curve in _host_curves(node, words) if len(curve.time_ns) > 1)
        if curves:
            label = words.say("curve.host")
            if node.node:
                label += f" {text.clean(node.node, 60)}"
            found.append(GpuCurves(label, None, node.epoch, node.timed, curves, is_host=True))
    return found[:MAX_GPUS]


def _host_curves(node: Samples, words: Catalog) -> list[Curve]:
    """Busy cores, and memory that is not available to anybody."""
    found = []
    busy, cores = node.get("cpu_busy_s", "host"), node.get("cpus", "host")
    if busy is not None:
        time_ns, value = busy.rate_per_s()
        if len(value):
            known = cores.good()[1] if cores is not None else np.zeros(0)
            top = max(float(known.max(initial=0.0)), float(value.max()), 1e-9)
            found.append(Curve("cpu", words.say("curve.cores"), time_ns, value, top))
    total, available = (node.get(f"mem_{name}_bytes", "host") for name in ("total", "available"))
    if total is not None and available is not None and total.ok.any():
        size = float(total.good()[1].max())
        time_ns, free = available.good()
        if len(free) and size > 0:
            used = np.clip(size - free, 0, size) * 1e-9
            found.append(Curve("host_memory", "GB", time_ns, used, size * 1e-9))
    return found


def _curves(node: Samples, scope: str) -> list[Curve]:
    found = []
    device = node.device(scope)
    busy = curve_of(node, scope)
    if busy is not None:
        share = np.clip(100 * busy.util_frac, 0, 100)
        found.append(Curve("util", "%", busy.time_ns, share, 100.0))
    for key, metric, unit, scale, limits in (
        ("power", "power_w", "W", 1.0, ("power_limit_w", "power_default_w")),
        ("clock", "sm_clock_mhz", "MHz", 1.0, ("sm_clock_max_mhz",)),
        ("memory", "mem_used_bytes", "GB", 1e-9, ("mem_total_bytes",)),
    ):
        series = node.get(metric, scope)
        if series is None:
            continue
        time_ns, value = series.good()
        finite = np.isfinite(value)
        time_ns, value = time_ns[finite], np.maximum(value[finite] * scale, 0)
        if len(value):
            found.append(Curve(key, unit, time_ns, value, _top(device, limits, value, scale)))
    return found


def _top(device: DeviceFacts | None, limits: Sequence[str], value: F64, scale: float) -> float:
    """The device's own limit where it told one that holds, else the largest value and some room."""
    most = float(value.max())
    for name in limits:
        limit = device.number(name) if device is not None else None
        if limit is not None and limit * scale >= most:
            return max(limit * scale, 1e-9)
    return max(ROUND_UP * most, 1e-9)


def column_means(curve: Curve, start_ns: int, end_ns: int, columns: int) -> F64:
    """The mean of a curve in equal parts of a span, as a share of `top`: float64 (columns,).

    A value holds until the next one. NaN where nothing is known.
    """
    at = curve.time_ns - start_ns
    until = np.minimum(np.append(at[1:], at[-1] + curve.hold_ns), at + curve.hold_ns)
    edges = np.linspace(0, max(end_ns - start_ns, columns), columns + 1)
    known = _area(at, until, np.ones(len(at)), edges)
    total = _area(at, until, np.clip(curve.value / curve.top, 0, 1), edges)
    width = edges[1] - edges[0]
    shares: F64 = np.full(columns, np.nan)
    enough = known > width * 1e-6
    shares[enough] = total[enough] / known[enough]
    return shares


def _area(at: I64, until: I64, height: F64, edges: F64) -> F64:
    """The area of a step curve in each column, (len(edges) - 1,)."""
    length = np.maximum(until - at, 0).astype(np.float64)
    before = np.concatenate([[0.0], np.cumsum(height * length)])
    place = np.clip(np.searchsorted(at, edges, side="right") - 1, 0, len(at) - 1)
    inside = np.clip(edges - at[place], 0, length[place])
    return np.diff(np.where(edges < at[0], 0.0, before[place] + height[place] * inside))


def mean_and_peak(curve: Curve) -> tuple[float, float]:
    """The mean over the samples, and the largest one."""
    return float(curve.value.mean()), float(curve.value.max())


def amount(value: float, unit: str) -> str:
    """A value of a curve with its unit."""
    digits = 0 if unit in ("%", "W", "MHz") else 1
    return f"{text.number(value, digits)}{text.NBSP}{unit}"
