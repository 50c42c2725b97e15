"""What names and devices tell about the device events of a trace, as columns.

Each distinct name and each distinct device is judged once and spread over its events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.kernels import MATRIX_KINDS, Kind, classify
from gpuprof.distinct import distinct, is_in
from gpuprof.peaks import Peaks, lookup
from gpuprof.trace import DeviceInfo, Trace

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]
Bools = NDArray[np.bool_]

DTYPES = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""What a `dtype` column indexes."""

MATRIX_UNITS = {True: 1, False: 0, None: -1}
"""How a `matrix_units` column says used, not used and not known."""


@dataclass(frozen=True, slots=True)
class NameColumns:
    """What the names tell, (n_device,), in the order of `trace.device.rows`.

    kind: a `Kind`. dtype: index into `DTYPES`. matrix_units: see `MATRIX_UNITS`. The others are
    the flags of `KernelClass`.
    """

    kind: U8
    dtype: U8
    matrix_units: I8
    reduced: Bools
    streaming: Bools
    generated: Bools

    @property
    def communication(self) -> Bools:
        """Where an event moves data between ranks."""
        return np.asarray(self.kind == Kind.COMMUNICATION, dtype=np.bool_)

    @property
    def matrix(self) -> Bools:
        """Where an event is a product, a convolution or attention."""
        return is_in(self.kind, [int(kind) for kind in MATRIX_KINDS])


def name_columns(trace: Trace) -> NameColumns:
    """Classifies the device events of a trace."""
    name = trace.name[trace.device.rows]
    names = np.flatnonzero(np.bincount(name, minlength=len(trace.names)))
    known = [classify(trace.names[each]) for each in names.tolist()]
    place = np.zeros(len(trace.names), dtype=np.int64)
    place[names] = np.arange(len(names))
    spread = place[name]

    def column(values: list[Any], dtype: type[np.generic]) -> NDArray[Any]:
        return np.array(values, dtype=dtype).take(spread)

    return NameColumns(
        kind=column([one.kind for one in known], np.uint8),
        dtype=column([DTYPES.index(one.dtype) for one in known], np.uint8),
        matrix_units=column([MATRIX_UNITS[one.matrix_units] for one in known], np.int8),
        reduced=column([one.reduced for one in known], np.bool_),
        streaming=column([one.streaming for one in known], np.bool_),
        generated=column([one.generated for one in known], np.bool_),
    )


def peak_columns(trace: Trace, columns: NameColumns, dtype: U8) -> tuple[F64, F64]:
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
        for value in distinct(state[here]).tolist():
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


def sm_counts(trace: Trace) -> I64:
    """SMs (compute units) of the device of each device event, 0 where not known, (n_device,)."""
    counts = np.zeros(len(trace.device), dtype=np.int64)
    for device in trace.meta.devices:
        counts[trace.device.device == device.index] = device.sm_count
    return counts
