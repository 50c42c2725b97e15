"""What was sampled, as lanes of the timeline: the part of each curve within the traces' span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.reports.curves import Curve, GpuCurves
from gpuprof.reports.words import Catalog
from gpuprof.trace import Trace

I64 = NDArray[np.int64]

LEVELS = 10_000
"""Steps from 0 to the upper edge of a counter: finer than any screen, two bytes in the file."""

BYTES_PER_POINT = 5
"""What a point takes at most in the file, in base64."""

COUNTERS_SHARE = 0.1
"""Part of the byte budget that counters may take; beyond it each is thinned to equal parts."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One curve. group: the trace it is drawn with. time_ns: int64 (n,), from the timeline's zero,
    ascending. level: int64 (n,), in `LEVELS` parts of `top`."""

    label: str
    group: int
    unit: str
    top: float
    time_ns: I64
    level: I64


def counters_of(
    traces: Sequence[Trace],
    zeros: Sequence[int],
    gpus: Sequence[GpuCurves],
    limit_bytes: int,
    words: Catalog,
) -> list[Counter]:
    """The curves of each trace's own GPU; [] where clocks can't be laid side by side.

    Args:
        zeros: each trace's time that is 0 on the timeline.
        limit_bytes: of the timeline.
    """
    own = [gpu for gpu in gpus if not gpu.is_host]
    pairs = [
        (index, curve)
        for gpu in own
        if gpu.epoch and gpu.timed
        for index in _groups(gpu, own, traces)
        for curve in gpu.curves
    ]
    most = int(COUNTERS_SHARE * limit_bytes / BYTES_PER_POINT / max(len(pairs), 1))
    found = []
    for index, curve in pairs:
        trace = traces[index]
        end = int((trace.start_ns + trace.dur_ns).max())
        counter = _counter(curve, index, zeros[index], int(trace.start_ns[0]), end, most, words)
        if counter is not None:
            found.append(counter)
    return found


def _groups(gpu: GpuCurves, gpus: Sequence[GpuCurves], traces: Sequence[Trace]) -> list[int]:
    """The traces that ran on a GPU: of its rank; the only one where neither has a rank."""
    filled = [i for i, t in enumerate(traces) if len(t) and t.meta.epoch]
    if gpu.rank is None:
        return filled if len(gpus) == len(traces) == 1 else []
    return [i for i in filled if traces[i].meta.rank == gpu.rank] or (
        filled if len(gpus) == len(traces) == 1 else []
    )


def _counter(
    curve: Curve, group: int, zero_ns: int, start_ns: int, end_ns: int, most: int, words: Catalog
) -> Counter | None:
    inside = np.flatnonzero((curve.time_ns >= start_ns - curve.hold_ns) & (curve.time_ns <= end_ns))
    if not len(inside) or most < 2:
        return None
    inside = inside[max(int(np.searchsorted(curve.time_ns[inside], start_ns, "right")) - 1, 0) :]
    value = curve.value[inside]
    time = np.maximum(curve.time_ns[inside] - zero_ns, 0)
    if len(inside) > most:
        first = np.linspace(0, len(inside), most, endpoint=False).astype(np.int64)
        counts = np.diff(np.append(first, len(inside)))
        value = np.add.reduceat(value, first) / counts
        time = time[first]
    level = np.rint(np.clip(value / curve.top, 0, 1) * LEVELS).astype(np.int64)
    label = words.say(f"curve.{curve.key}")
    return Counter(label, group, curve.unit, round(curve.top, 3), time, level)
