"""`Trace`: one rank's Kineto trace as columns.

A trace of a million events is a million rows of NumPy arrays, not a million objects. Text is
interned: a row holds an index into `names`. Times are int64 nanoseconds since the Unix epoch
(`meta.epoch` is False where the file does not say when it was recorded: then they only count
from the profiler's own zero). `gpuprof.readers.kineto` makes it; nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]


class Category(IntEnum):
    """What kind of event a row is, whatever the dialect called it."""

    CPU_OP = 0
    USER_ANNOTATION = 1
    PYTHON = 2
    RUNTIME = 3
    """A CUDA or HIP runtime or driver call."""
    SYNC = 4
    """A `cuda_sync` record: drawn on a device lane, but it is no device work."""
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    GPU_ANNOTATION = 8
    """A user annotation projected on a device lane: no device work."""
    OVERHEAD = 9
    """The profiler's own time: buffer requests, flushes, resource switches."""
    OTHER = 10


DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a row is drawn: a host thread or a device stream.

    For a stream, `device` and `stream` are its ordinals and `pid`/`tid` repeat what the file said.
    For a thread both are None.
    """

    pid: int
    tid: int
    device: int | None
    stream: int | None
    name: str

    @property
    def is_stream(self) -> bool:
        return self.device is not None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One entry of Kineto's `deviceProperties`; 0 or "" stands for what it does not say."""

    index: int
    name: str
    memory_bytes: int = 0
    sm_count: int = 0
    compute_major: int = 0
    compute_minor: int = 0
    warp_size: int = 32
    threads_per_sm: int = 0


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One process group of `distributedInfo`."""

    name: str
    description: str
    ranks: tuple[int, ...]
    backend: str = ""


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """What the file says about itself. A flag is None where the file does not say."""

    path: str
    size_bytes: int
    sha256: str
    rank: int | None
    world_size: int | None
    backend: str
    nccl_version: str
    devices: tuple[DeviceInfo, ...]
    groups: tuple[ProcessGroup, ...]
    record_shapes: bool | None
    with_stack: bool | None
    profile_memory: bool | None
    epoch: bool
    """Whether times count from the Unix epoch."""
    host_name: str
    is_rocm: bool
    span_ns: tuple[int, int] | None
    """Start and end of the profiler's own "PyTorch Profiler" span, if it was recorded."""
    truncated: bool = False
    lists_devices: bool = True
    """Whether the file has a list of GPUs, even if it is empty."""


@dataclass(frozen=True, slots=True)
class OpArgs:
    """The recorded inputs of an operator. One object stands for all calls with the same inputs.

    `dims` holds one entry an input: a shape, or a tuple of shapes for a list of tensors, or () for
    a scalar. `types` and `concrete` run beside it ("" where nothing was recorded).
    """

    dims: tuple[object, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """The arguments of one collective, from `record_param_comms` or from the kernel itself.

    Sizes count elements; -1 and "" stand for what was not recorded. `seq` is the collective's
    number in its process group, where the version records it.
    """

    collective: str
    dtype: str
    in_elements: int
    out_elements: int
    group: str
    group_size: int
    group_ranks: tuple[int, ...]
    seq: int = -1
    src_rank: int = -1
    dst_rank: int = -1


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """What only device rows have; all arrays have shape (n_device,), in the order of `rows`.

    rows: index into the trace's columns, ascending (so ordered by start).
    device, stream: ordinals. bytes: payload of a copy or memset, -1 for others.
    blocks: thread blocks of the grid, threads: threads a block; -1 where not recorded.
    warps_per_sm, occupancy_pct: Kineto's estimates, NaN where not recorded. `occupancy_pct` is
    truncated to whole percents by Kineto, and blocks/warps per SM count the whole grid.
    """

    rows: I64
    device: I32
    stream: I64
    bytes: I64
    blocks: I64
    threads: I32
    warps_per_sm: F32
    occupancy_pct: F32

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """Allocator events (`profile_memory`), shape (n,), ordered by time.

    device: -1 for host memory. delta_bytes: positive for an allocation. allocated_bytes,
    reserved_bytes: the allocator's totals after it, -1 where the version does not record them.
    """

    time_ns: I64
    device: I32
    delta_bytes: I64
    allocated_bytes: I64
    reserved_bytes: I64


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace. Rows are complete events, ordered by start, the longer one first.

    start_ns, dur_ns: int64 (n,). category: uint8 (n,), a `Category`. name: int32 (n,), index into
    `names`. lane: int32 (n,), index into `lanes`. corr: int64 (n,), the correlation id that joins
    a runtime call with its device events, 0 where there is none. op_args: int32 (n,), index into
    `arg_sets`, -1 where no shapes were recorded. stack: int32 (n,), index into `stacks` (frames
    joined by ";", innermost first, as old Kineto wrote them), -1 where none.
    collectives: row -> arguments, for rows that carry any.
    dropped: counts of events that were left out, by reason.
    """

    meta: TraceMeta
    start_ns: I64
    dur_ns: I64
    category: U8
    name: I32
    lane: I32
    corr: I64
    op_args: I32
    stack: I32
    names: list[str]
    lanes: list[Lane]
    arg_sets: list[OpArgs]
    stacks: list[str]
    device: DeviceColumns
    memory: MemoryColumns
    collectives: dict[int, CollectiveArgs]
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> I64:
        """End of each row, int64 (n,)."""
        return self.start_ns + self.dur_ns

    def rows_of(self, *categories: Category) -> I64:
        """Indices of the rows of these categories, ascending, int64 (k,)."""
        rows: I64 = np.flatnonzero(self.is_one_of(*categories)).astype(np.int64, copy=False)
        return rows

    def is_one_of(self, *categories: Category) -> Bools:
        """Which rows are of these categories, bool (n,)."""
        found = np.zeros(len(self), dtype=np.bool_)
        for category in categories:  # comparing bytes costs a tenth of looking each up
            found |= self.category == category
        return found

    def on_lanes(self, lanes: Collection[int]) -> Bools:
        """Which rows are on these lanes, bool (n,)."""
        wanted = np.zeros(max(len(self.lanes), 1), dtype=np.bool_)
        wanted[[lane for lane in lanes if 0 <= lane < len(wanted)]] = True
        return wanted.take(self.lane)

    def name_mask(self, predicate: Callable[[str], object]) -> Bools:
        """Which rows have a name that the predicate accepts; it is asked once a distinct name."""
        accepted = np.fromiter(
            (bool(predicate(text)) for text in self.names), dtype=np.bool_, count=len(self.names)
        )
        return accepted.take(self.name) if len(self.names) else np.zeros(len(self), dtype=np.bool_)
