"""What limits each device event: arithmetic, memory bandwidth, its own smallness, or neither.

Where the launching operator's shapes were recorded, the roofline decides: the time that the FLOPs
need at the dense peak of the data type against the time that the bytes need at the bandwidth of
device memory (Williams, Waterman and Patterson, Roofline, 2009). Where not, the kernel's family
does. `basis` says which it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.device_columns import (
    DTYPES,
    NameColumns,
    name_columns,
    peak_columns,
    sm_counts,
)
from gpuprof.analyzers.kernels import BANDWIDTH_KINDS, MATRIX_KINDS, Kind
from gpuprof.analyzers.launches import Launches, find_launches
from gpuprof.analyzers.operators import count_operators, launching_ops, share_costs
from gpuprof.analyzers.shapes import ITEM_BYTES
from gpuprof.distinct import distinct, is_in
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]
Bools = NDArray[np.bool_]

SHORT_NS = 5_000
"""A kernel below 5 µs spends most of its time filling and draining the device (an empty kernel
takes 2 to 3 µs from launch to completion), so that neither roof describes it."""

FILLED_FRAC = 0.5
"""With blocks on fewer than half of the SMs neither roof is in reach: each SM has a fixed share of
the arithmetic, and about half of them must load at once to saturate memory. Kernels between one
half and one block an SM can be persistent ones, which launch no more than the device holds on
purpose."""

REACHED_FRAC = 0.5
"""A short or under-filled kernel that still gets half of its roof is limited by the roof."""

TRUSTED_FRAC = 1.05
"""Nothing runs faster than the device. A kernel that would, by more than timer and clock slack,
shows that the count or the peak is wrong, or that a cache held its inputs: the family decides."""

LOW_INTENSITY = 10.0
"""FLOP per byte below the ridge point of every data type of every device of the table: limited by
bandwidth even where the device is unknown."""


class Limit(IntEnum):
    """What a device event cannot outrun."""

    UNKNOWN = 0
    COMPUTE = 1
    BANDWIDTH = 2
    LATENCY = 3
    """Too small to reach either roof."""
    COMMUNICATION = 4
    COPY = 5
    """A memcpy or memset of the runtime."""


class Basis(IntEnum):
    """What a limit was concluded from."""

    NONE = 0
    SHAPES = 1
    COUNTERS = 2
    """Hardware counters; set by whoever joins samples with the trace, never here."""
    FAMILY = 3
    """The kind of kernel that the name tells, and its size."""


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """One row a device event, in the order of `trace.device.rows`; all arrays (n_device,).

    limit, basis: uint8, a `Limit` and a `Basis`. kind: uint8, a `Kind`.
    flops: float64, of matrix work alone; 0 for known operators without, NaN where unknown.
    bytes: float64, least traffic of device memory; payload for copies; NaN where unknown.
    ideal_ns: float64, the roofline time, NaN where unknown.
    peak_flops, peak_bytes_per_s: float64, dense peak of the type in use and bandwidth of device
        memory, NaN where unknown.
    dtype: uint8, index into `DTYPES`. matrix_units: int8, 1 used, 0 not used, -1 not known.
    op_row: int64, row of the operator whose cost was counted, -1 where none was.
    from_graph, generated: bool, launched by a CUDA graph; written by torch.compile.
    """

    limit: U8
    flops: F64
    bytes: F64
    ideal_ns: F64
    basis: U8
    kind: U8
    peak_flops: F64
    peak_bytes_per_s: F64
    dtype: U8
    matrix_units: I8
    op_row: I64
    from_graph: Bools
    generated: Bools

    def __len__(self) -> int:
        return len(self.limit)


def kernel_limits(
    trace: Trace, ops_of_device_rows: I64 | None = None, launches: Launches | None = None
) -> KernelLimits:
    """What limits each device event of a trace.

    Args:
        trace: The trace.
        ops_of_device_rows: Row of the operator that launched each device event, -1 where unknown,
            (n_device,). Found from the launches when not given.
        launches: From `find_launches`, when it is at hand.
    """
    launches = find_launches(trace) if launches is None else launches
    counted = count_operators(trace)
    ops = ops_of_device_rows
    if ops is None:
        ops = launching_ops(trace, launches, counted)
    columns = name_columns(trace)
    duration = trace.dur_ns[trace.device.rows].astype(np.float64)
    costs = share_costs(trace, ops, counted, columns)
    dtype = np.where(columns.dtype > 0, columns.dtype, costs.dtype).astype(np.uint8)
    width = np.array([ITEM_BYTES.get(name, np.nan) for name in DTYPES])[dtype]
    flops = costs.flops
    moved = np.where(np.isnan(costs.bytes), costs.elements * width, costs.bytes)
    reduced = costs.reduced
    peak, bandwidth = peak_columns(trace, columns, dtype)

    compute_ns, memory_ns = flops / peak * 1e9, moved / bandwidth * 1e9
    # Without matrix work there is nothing to compare with: the bytes alone are the roof.
    compute_ns = np.where(flops == 0, 0.0, compute_ns)
    ideal_ns = np.maximum(compute_ns, memory_ns)
    longest_ns = TRUSTED_FRAC * duration
    wrong_flops = (compute_ns > longest_ns) & ~reduced
    flops = np.where(wrong_flops, np.nan, flops)
    moved = np.where((memory_ns > longest_ns) | wrong_flops, np.nan, moved)
    ideal_ns = np.where((ideal_ns > longest_ns) | reduced, np.nan, ideal_ns)

    limit, basis = _by_family(columns)
    low = flops < LOW_INTENSITY * moved
    shaped = ~np.isnan(ideal_ns) | (low & (flops > 0))
    limit = np.where(
        shaped, np.where(compute_ns > memory_ns, Limit.COMPUTE, Limit.BANDWIDTH), limit
    )
    basis = np.where(shaped, Basis.SHAPES, basis)
    small = _too_small(trace, duration) & ~(ideal_ns >= REACHED_FRAC * duration)
    small &= ~columns.communication
    limit = np.where(small, Limit.LATENCY, limit)
    basis = np.where(small & (basis == Basis.NONE), Basis.FAMILY, basis)

    copies = trace.category[trace.device.rows] != Category.KERNEL
    known_payload = trace.device.bytes >= 0
    payload = np.where(known_payload, trace.device.bytes, np.nan).astype(np.float64)
    return KernelLimits(
        limit=np.where(copies, Limit.COPY, limit).astype(np.uint8),
        flops=np.where(copies, 0.0, flops),
        bytes=np.where(copies, payload, moved),
        ideal_ns=np.where(copies, np.nan, ideal_ns),
        basis=np.where(copies, Basis.FAMILY, basis).astype(np.uint8),
        kind=np.where(copies, Kind.COPY, columns.kind).astype(np.uint8),
        peak_flops=peak,
        peak_bytes_per_s=bandwidth,
        dtype=dtype,
        matrix_units=columns.matrix_units,
        op_row=costs.row,
        from_graph=launches.from_graph,
        generated=columns.generated,
    )


def _by_family(columns: NameColumns) -> tuple[U8, U8]:
    limit = np.full(len(columns.kind), Limit.UNKNOWN, dtype=np.uint8)
    limit[is_in(columns.kind, [int(kind) for kind in BANDWIDTH_KINDS])] = Limit.BANDWIDTH
    limit[columns.matrix] = Limit.COMPUTE
    limit[columns.streaming] = Limit.BANDWIDTH
    limit[columns.communication] = Limit.COMMUNICATION
    basis = np.where(limit == Limit.UNKNOWN, Basis.NONE, Basis.FAMILY).astype(np.uint8)
    return limit, basis


def _too_small(trace: Trace, duration: F64) -> Bools:
    sm_count = sm_counts(trace)
    filled = trace.device.blocks / np.where(sm_count > 0, sm_count, 1)
    sparse = (trace.device.blocks > 0) & (sm_count > 0) & (filled < FILLED_FRAC)
    small: Bools = (duration < SHORT_NS) | sparse
    return small


COUNTED_FRAC = 0.8
"""An MFU is only quoted where the FLOPs of this share of the matrix kernels' time were counted.
Below, it is a lower bound that looks like a result."""

SHORT_SHARE_NS = 10_000
"""Kernels below 10 µs are the usual mark of a run that launches too little work at a time: a launch
costs the host about as long."""

COMPILED_MARKS = ("CompiledFunction", "Torch-Compiled Region", "## Call CompiledFxGraph")
"""Beginnings of the names that torch.compile leaves on the host."""


@dataclass(frozen=True, slots=True)
class RooflineSummary:
    """What the device events of a window achieve. Shares are of device time (durations added up).

    device_ns: that time. limit_ns, kind_ns: it by limit and by kind, keyed in lower case.
    shapes_frac: share whose limit follows from recorded shapes rather than from the family.
    tflops: counted matrix TFLOP/s over the wall time, None where nothing was counted.
    mfu: time that the counted FLOPs need at the dense peaks of their types ÷ wall time, None where
        peaks or shapes are missing (`COUNTED_FRAC`).
    counted_frac: share of the matrix kernels' time whose FLOPs were counted, None without any.
    matrix_efficiency: the same time ÷ the time that the counted matrix kernels took.
    gb_per_s, bandwidth_frac: of the memory-bound kernels with known bytes, while they ran, and as a
        share of the device's bandwidth.
    matrix_units_frac: share of the matrix kernels' time on matrix units (tensor cores), where the
        names tell; None where they do not. dtype_frac: the same kernels' time by data type.
    fill_frac: min(1, blocks ÷ SMs) averaged over kernel time; underfilled_frac: share of kernel
        time with fewer blocks than SMs. None where grids or SMs were not recorded. Collectives are
        left out: they use few blocks on purpose.
    short_frac: share of kernel time in kernels below 10 µs, collectives left out.
    graph_launched_frac: share of the events that a CUDA or HIP graph launched.
    compiled: torch.compile was in use.
    """

    device_ns: int
    limit_ns: dict[str, int]
    kind_ns: dict[str, int]
    shapes_frac: float
    tflops: float | None
    mfu: float | None
    counted_frac: float | None
    matrix_efficiency: float | None
    gb_per_s: float | None
    bandwidth_frac: float | None
    matrix_units_frac: float | None
    dtype_frac: dict[str, float]
    fill_frac: float | None
    underfilled_frac: float | None
    short_frac: float | None
    graph_launched_frac: float
    compiled: bool


def summarize(
    limits: KernelLimits, trace: Trace, mask: Bools | None = None, *, wall_ns: int | None = None
) -> RooflineSummary:
    """Sums up what a part of the device events achieves.

    Args:
        limits: From `kernel_limits`.
        trace: The trace.
        mask: Which device events to count, bool (n_device,); all when not given.
        wall_ns: Wall time that they stand for, for example the accounted steps. From the first
            start to the last end when not given.
    """
    rows = trace.device.rows
    chosen = np.ones(len(limits), dtype=np.bool_) if mask is None else mask
    duration = np.where(chosen, trace.dur_ns[rows], 0).astype(np.float64)
    device_ns = float(duration.sum())
    matrix = is_in(limits.kind, [int(kind) for kind in MATRIX_KINDS]) & chosen
    has_flops = chosen & (limits.flops > 0)
    rated = has_flops & ~np.isnan(limits.peak_flops)
    if wall_ns is None and chosen.any():
        wall_ns = int(trace.end_ns[rows][chosen].max() - trace.start_ns[rows][chosen].min())
    devices = len(distinct(trace.device.device[chosen]))
    wall_s = (wall_ns or 0) * 1e-9 * devices
    at_peak_s = float((limits.flops[rated] / limits.peak_flops[rated]).sum())
    counted_frac = _ratio(duration[has_flops & matrix].sum(), duration[matrix].sum())
    enough = counted_frac is not None and counted_frac >= COUNTED_FRAC and bool(rated.any())
    flops = float(limits.flops[has_flops].sum())

    moving = chosen & (limits.limit == Limit.BANDWIDTH) & (limits.bytes > 0)
    moving_s = float(duration[moving].sum()) * 1e-9
    moved_share = moving & ~np.isnan(limits.peak_bytes_per_s)
    at_bandwidth_s = (limits.bytes[moved_share] / limits.peak_bytes_per_s[moved_share]).sum()

    named = matrix & (limits.matrix_units >= 0)
    kernels = chosen & (trace.category[rows] == Category.KERNEL)
    kernels &= limits.kind != Kind.COMMUNICATION
    kernel_ns = duration[kernels].sum()
    fill, underfilled = _fill(trace, kernels, duration)
    short = kernels & (trace.dur_ns[rows] < SHORT_SHARE_NS)
    return RooflineSummary(
        device_ns=int(device_ns),
        limit_ns={one.name.lower(): int(duration[limits.limit == one].sum()) for one in Limit},
        kind_ns={one.label: int(duration[limits.kind == one].sum()) for one in Kind},
        shapes_frac=_ratio(duration[limits.basis == Basis.SHAPES].sum(), device_ns) or 0.0,
        tflops=_ratio(flops * 1e-12, wall_s) if has_flops.any() else None,
        mfu=_ratio(at_peak_s, wall_s) if enough else None,
        counted_frac=counted_frac,
        matrix_efficiency=_ratio(at_peak_s * 1e9, duration[rated].sum()),
        gb_per_s=_ratio(limits.bytes[moving].sum() * 1e-9, moving_s),
        bandwidth_frac=_ratio(at_bandwidth_s * 1e9, duration[moved_share].sum()),
        matrix_units_frac=_ratio(
            duration[named & (limits.matrix_units == 1)].sum(), duration[named].sum()
        ),
        dtype_frac=_dtype_mix(limits, matrix, duration),
        fill_frac=fill,
        underfilled_frac=underfilled,
        short_frac=_ratio(duration[short].sum(), kernel_ns),
        graph_launched_frac=_ratio(
            int(np.count_nonzero(limits.from_graph & chosen)), int(np.count_nonzero(chosen))
        )
        or 0.0,
        compiled=bool((limits.generated & chosen).any())
        or any(name.startswith(COMPILED_MARKS) for name in trace.names),
    )


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole > 0 else None


def _dtype_mix(limits: KernelLimits, matrix: Bools, duration: F64) -> dict[str, float]:
    whole = float(duration[matrix].sum())
    mix = {}
    for index, name in enumerate(DTYPES):
        spent = float(duration[matrix & (limits.dtype == index)].sum())
        if spent > 0:
            mix[name or "unknown"] = spent / whole
    return mix


def _fill(trace: Trace, kernels: Bools, duration: F64) -> tuple[float | None, float | None]:
    sm_count = sm_counts(trace)
    known = kernels & (trace.device.blocks > 0) & (sm_count > 0)
    filled = np.minimum(1.0, trace.device.blocks[known] / sm_count[known])
    spent = duration[known]
    return _ratio((filled * spent).sum(), spent.sum()), _ratio(spent[filled < 1].sum(), spent.sum())
