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

from gpuprof.analyzers.kernels import BANDWIDTH_KINDS, MATRIX_KINDS, KernelClass, Kind, classify
from gpuprof.analyzers.launches import Launches, find_launches
from gpuprof.analyzers.operators import CountedOps, count_operators, launching_ops
from gpuprof.analyzers.shapes import ITEM_BYTES
from gpuprof.peaks import Peaks, lookup
from gpuprof.trace import Category, DeviceInfo, Trace

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


DTYPES = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""What `KernelLimits.dtype` indexes."""


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """One row a device event, in the order of `trace.device.rows`; all arrays (n_device,).

    limit, basis: uint8, a `Limit` and a `Basis`. kind: uint8, a `Kind`.
    flops: float64, of matrix work alone; 0 for known operators without, NaN where unknown.
    bytes: float64, least traffic of device memory; payload for copies; NaN where unknown.
    ideal_ns: float64, the roofline time, NaN where unknown.
    peak_flops: float64, dense peak in FLOP/s of the type in use, NaN where unknown.
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
    columns = _NameColumns.of(trace)
    duration = trace.dur_ns[trace.device.rows].astype(np.float64)

    flops, moved, elements, op_dtype, op_row = _shared_costs(trace, ops, counted, columns, duration)
    dtype = np.where(columns.dtype > 0, columns.dtype, op_dtype).astype(np.uint8)
    width = np.array([ITEM_BYTES.get(name, np.nan) for name in DTYPES])[dtype]
    moved = np.where(np.isnan(moved), elements * width, moved)
    peak, bandwidth = _peaks(trace, columns, dtype)

    compute_ns, memory_ns = flops / peak * 1e9, moved / bandwidth * 1e9
    # Without matrix work there is nothing to compare with: the bytes alone are the roof.
    compute_ns = np.where(flops == 0, 0.0, compute_ns)
    ideal_ns = np.maximum(compute_ns, memory_ns)
    longest_ns = TRUSTED_FRAC * duration
    wrong_flops = (compute_ns > longest_ns) & ~columns.reduced
    flops = np.where(wrong_flops, np.nan, flops)
    moved = np.where((memory_ns > longest_ns) | wrong_flops, np.nan, moved)
    ideal_ns = np.where((ideal_ns > longest_ns) | columns.reduced, np.nan, ideal_ns)

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
        dtype=dtype,
        matrix_units=columns.matrix_units,
        op_row=op_row,
        from_graph=launches.from_graph,
        generated=columns.generated,
    )


@dataclass(frozen=True, slots=True)
class _NameColumns:
    """What the names tell, spread over the device events: each distinct name is judged once."""

    kind: U8
    dtype: U8
    matrix_units: I8
    reduced: Bools
    streaming: Bools
    generated: Bools

    @property
    def communication(self) -> Bools:
        return np.asarray(self.kind == Kind.COMMUNICATION, dtype=np.bool_)

    @property
    def matrix(self) -> Bools:
        return np.isin(self.kind, [int(kind) for kind in MATRIX_KINDS])

    @staticmethod
    def of(trace: Trace) -> _NameColumns:
        names, inverse = np.unique(trace.name[trace.device.rows], return_inverse=True)
        known: list[KernelClass] = [classify(trace.names[name]) for name in names.tolist()]
        spread = inverse.reshape(-1)

        def column(values: list[int], dtype: type[np.generic]) -> NDArray[np.generic]:
            return np.array(values, dtype=dtype)[spread]

        units = {True: 1, False: 0, None: -1}
        return _NameColumns(
            kind=column([one.kind for one in known], np.uint8),  # type: ignore[arg-type]
            dtype=column([DTYPES.index(one.dtype) for one in known], np.uint8),  # type: ignore[arg-type]
            matrix_units=column([units[one.matrix_units] for one in known], np.int8),  # type: ignore[arg-type]
            reduced=column([one.reduced for one in known], np.bool_),  # type: ignore[arg-type]
            streaming=column([one.streaming for one in known], np.bool_),  # type: ignore[arg-type]
            generated=column([one.generated for one in known], np.bool_),  # type: ignore[arg-type]
        )


def _shared_costs(
    trace: Trace, ops: I64, counted: CountedOps, columns: _NameColumns, duration: F64
) -> tuple[F64, F64, F64, U8, I64]:
    """FLOPs, bytes, elements, type and row of the operator behind each device event.

    One call can launch several kernels (a split product, both gradients of a convolution). Its cost
    is shared among those that do its main work, in proportion to their durations, so that it is
    counted once and each shows the rate of the call.
    """
    count = len(ops)
    unknown = np.full(count, np.nan)
    nothing = np.full(count, -1, dtype=np.int64)
    place = np.searchsorted(counted.row, ops)
    found = place < len(counted.row)
    found[found] = counted.row[place[found]] == ops[found]
    if not found.any():
        return unknown, unknown.copy(), unknown.copy(), np.zeros(count, np.uint8), nothing

    cost = np.zeros(count, dtype=np.int64)
    cost[found] = counted.cost[place[found]]
    of_matrix = np.array([one.matrix for one in counted.costs])[cost]
    kernel = trace.category[trace.device.rows] == Category.KERNEL
    other = columns.kind == Kind.OTHER
    suits = np.where(of_matrix, columns.matrix | other, ~columns.matrix) & ~columns.communication
    main = found & kernel & suits
    named = main & of_matrix & ~other
    # A kernel with a name that nobody knows does the product only where no other kernel does.
    main &= ~(of_matrix & other & np.isin(ops, ops[named]))
    main &= ~np.isin(ops, _enclosing(trace, np.unique(ops[main & of_matrix])))

    calls, call = np.unique(ops[main], return_inverse=True)
    spent = np.bincount(call.reshape(-1), weights=duration[main], minlength=len(calls))
    share = np.full(count, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share[main] = duration[main] / spent[call.reshape(-1)]

    def spread(values: list[float]) -> F64:
        return np.asarray(np.array(values, dtype=np.float64)[cost] * share, dtype=np.float64)

    dtypes = [DTYPES.index(one.dtype) if one.dtype in DTYPES else 0 for one in counted.costs]
    return (
        spread([one.flops for one in counted.costs]),
        spread([one.bytes for one in counted.costs]),
        spread([one.elements for one in counted.costs]),
        np.where(main, np.array(dtypes, dtype=np.uint8)[cost], 0).astype(np.uint8),
        np.where(main, ops, -1),
    )


def _enclosing(trace: Trace, rows: I64) -> I64:
    """Those of some operator rows that enclose another of them: `linear` around its `addmm`."""
    order = np.lexsort((rows, trace.lane[rows]))
    ordered = rows[order]
    outer, inner = ordered[:-1], ordered[1:]
    encloses = (trace.lane[outer] == trace.lane[inner]) & (
        trace.start_ns[inner] < trace.start_ns[outer] + trace.dur_ns[outer]
    )
    return np.asarray(outer[encloses], dtype=np.int64)


def _peaks(trace: Trace, columns: _NameColumns, dtype: U8) -> tuple[F64, F64]:
    """Peak FLOP/s of the type in use and bytes/s of device memory, NaN where not known."""
    peak = np.full(len(dtype), np.nan)
    bandwidth = np.full(len(dtype), np.nan)
    for device in trace.meta.devices:
        peaks = peaks_of(device)
        here = trace.device.device == device.index
        if peaks is None or not here.any():
            continue
        bandwidth[here] = peaks.memory_bytes_per_s
        state = (dtype.astype(np.int64) * 3 + columns.matrix_units + 1) * 16 + columns.kind
        for value in np.unique(state[here]).tolist():
            kind, rest = Kind(value % 16), value // 16
            units = {0: None, 1: False, 2: True}[rest % 3]
            found = _peak(peaks, DTYPES[rest // 3], units, kind)
            if found is not None:
                peak[here & (state == value)] = found
    return peak, bandwidth


def peaks_of(device: DeviceInfo) -> Peaks | None:
    """The peaks of a device of a trace, None where it is unknown."""
    return lookup(device.name, device.memory_bytes, device.sm_count)


def _peak(peaks: Peaks, dtype: str, matrix_units: bool | None, kind: Kind) -> float | None:
    if not dtype:
        return None
    if matrix_units is False and dtype in ("fp16", "bf16"):
        dtype = "fp32"  # plain units add up in fp32 at that type's rate
    if kind == Kind.ATTENTION and dtype == "fp32" and matrix_units:
        dtype = "tf32"  # memory-efficient attention splits fp32 operands into tf32 parts
    return peaks.flops(dtype, matrix=matrix_units)


def _by_family(columns: _NameColumns) -> tuple[U8, U8]:
    limit = np.full(len(columns.kind), Limit.UNKNOWN, dtype=np.uint8)
    limit[np.isin(columns.kind, [int(kind) for kind in BANDWIDTH_KINDS])] = Limit.BANDWIDTH
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


def sm_counts(trace: Trace) -> I64:
    """SMs (compute units) of the device of each device event, 0 where not known, (n_device,)."""
    counts = np.zeros(len(trace.device), dtype=np.int64)
    for device in trace.meta.devices:
        counts[trace.device.device == device.index] = device.sm_count
    return counts
