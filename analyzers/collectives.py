"""The collectives of one trace, one row a collective.

On a device a collective is a kernel. Its arguments (message size, process group, sequence number)
stand on the kernel itself, on the `record_param_comms` row that launched it, or, in older traces,
only as the shapes of the annotation around the call ("nccl:all_to_all"). On a run whose device is
the CPU a collective is the annotation on the back end's own thread ("gloo:all_reduce"), from the
moment it is begun until all ranks are served.

Where no process group is recorded, collectives of one stream are taken for one communicator: NCCL
orders the operations of a communicator, and PyTorch gives every process group its own stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.collective_kinds import CollectiveKind, collective_kind, item_bytes
from gpuprof.analyzers.kernels import is_communication
from gpuprof.analyzers.launches import Launches, find_launches
from gpuprof.counted import counted
from gpuprof.distinct import distinct, is_in
from gpuprof.trace import Category, CollectiveArgs, OpArgs, Trace

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]

MAX_MESSAGE_BYTES = 1 << 50
"""A petabyte: a larger message is a damaged number."""

_HOST_BACK_END = re.compile(r"(gloo|mpi|ucc):")
_CALL = re.compile(r"(nccl|rccl|ucc|xccl):")
_NOT_A_COLLECTIVE = frozenset({"wait", "init", "coalesced", "start_coalescing", "end_coalescing"})


class Communicator(NamedTuple):
    """Who takes part.

    name: the process group's, "" where it was not recorded; then `stream` says which stream it is
    (0 for the first one used). ranks: () where not recorded. size: 0 likewise.
    """

    name: str
    ranks: tuple[int, ...]
    size: int
    stream: int = -1

    @property
    def key(self) -> tuple[str, tuple[int, ...], int]:
        """What is equal for all its ranks."""
        return self.name, self.ranks, self.stream


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of one trace in order of their start; arrays of shape (n,).

    event: index into the device rows, -1 for a collective of the host. row: row of the trace.
    start_ns, end_ns: when it ran. issued_ns: when the host called it, the start where that is not
    known. stream: its stream, -1 on the host. kind: a `CollectiveKind`.
    in_bytes, out_bytes: what this rank puts in and gets out, -1 where not known.
    communicator: index into `groups`. seq: number in its process group, -1 where not recorded.
    dtype: index into `dtypes`; dtypes[0] is "".
    """

    event: I64
    row: I64
    start_ns: I64
    end_ns: I64
    issued_ns: I64
    stream: I64
    kind: U8
    in_bytes: I64
    out_bytes: I64
    communicator: I32
    seq: I64
    dtype: I32
    groups: tuple[Communicator, ...]
    dtypes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> I64:
        """Durations, (n,)."""
        return self.end_ns - self.start_ns

    @property
    def group_size(self) -> I64:
        """Ranks of the communicator, 0 where not known, (n,)."""
        sizes = np.array([group.size for group in self.groups], dtype=np.int64)
        return sizes[self.communicator] if len(self.groups) else np.zeros(0, np.int64)


class _Described(NamedTuple):
    kind: CollectiveKind
    in_bytes: int
    out_bytes: int
    group: str
    ranks: tuple[int, ...]
    size: int
    seq: int
    dtype: str


_NOTHING = _Described(CollectiveKind.UNKNOWN, -1, -1, "", (), 0, -1, "")


def find_collectives(source: Trace | RankAccount) -> Collectives:
    """The collectives of a trace: its communication kernels, or, where it has none, those that a
    back end of the host ran.

    Args:
        source: The trace of one rank, or its account, which holds the launches already.
    """
    if isinstance(source, RankAccount):
        trace, launches = source.trace, source.launches
    else:
        trace, launches = source, None
    rows = trace.device.rows
    here = trace.name_mask(is_communication)[rows] if len(rows) else np.zeros(0, np.bool_)
    event = np.flatnonzero(here & (trace.category[rows] == Category.KERNEL)).astype(np.int64)
    if len(event):
        return _on_device(trace, launches or find_launches(trace), event)
    return _on_host(trace)


def _on_device(trace: Trace, launches: Launches, event: I64) -> Collectives:
    order = np.argsort(launches.start_ns[event], kind="stable")
    event = event[order]
    row = trace.device.rows[event]
    known = launches.row[event] >= 0
    issued = np.where(known, launches.call_start_ns[event], launches.start_ns[event])
    lane = launches.lane[event]
    comms = np.flatnonzero(trace.name_mask(lambda name: name == "record_param_comms"))
    calls = np.flatnonzero(
        trace.name_mask(_CALL.match) & (trace.category != Category.GPU_ANNOTATION)
    )
    by_comms = _enclosing(trace, comms, lane, issued, known)
    by_call = _enclosing(trace, calls, lane, issued, known)
    shared = _times_used(by_comms) > 1
    described = [
        _describe(trace, int(row[i]), int(by_comms[i]), int(by_call[i]), bool(shared[i]))
        for i in range(len(event))
    ]
    return _table(
        trace, described, event, row, launches.start_ns[event], launches.end_ns[event], issued,
        trace.device.stream[event],
    )  # fmt: skip


def _on_host(trace: Trace) -> Collectives:
    host = is_in(trace.category, (Category.USER_ANNOTATION, Category.CPU_OP))
    row = np.flatnonzero(trace.name_mask(_HOST_BACK_END.match) & host).astype(np.int64)
    described = [_of_annotation(trace, int(r), _NOTHING) for r in row]
    start = trace.start_ns[row]
    missing = np.full(len(row), -1, dtype=np.int64)
    return _table(trace, described, missing, row, start, trace.end_ns[row], start, missing)


def _describe(trace: Trace, row: int, comms: int, call: int, shared: bool) -> _Described:
    """What is known of one kernel, from the best source of each fact."""
    args = trace.collectives.get(row)
    if args is None and comms >= 0:
        args = trace.collectives.get(comms)
    found = _of_args(args) if args is not None else _NOTHING
    if call >= 0:
        found = _of_annotation(trace, call, found)
    if comms >= 0 and found.seq < 0:
        found = _of_old_inputs(trace, comms, found)
    if found.kind == CollectiveKind.UNKNOWN:
        found = found._replace(kind=collective_kind(trace.names[trace.name[row]]))
    if shared and row not in trace.collectives:
        found = found._replace(in_bytes=-1, out_bytes=-1)  # several kernels carry one message
    return found


def _of_args(args: CollectiveArgs) -> _Described:
    item = item_bytes(args.dtype)
    kind = CollectiveKind.UNKNOWN
    if args.collective not in _NOT_A_COLLECTIVE:
        kind = collective_kind(args.collective)

    def size(elements: int) -> int:
        known = item > 0 and 0 <= elements * item <= MAX_MESSAGE_BYTES
        return elements * item if known else -1

    return _Described(
        kind,
        size(args.in_elements),
        size(args.out_elements),
        args.group,
        args.group_ranks,
        max(args.group_size, len(args.group_ranks), 0),
        args.seq,
        args.dtype,
    )


def _of_annotation(trace: Trace, row: int, found: _Described) -> _Described:
    """Adds what the annotation around a call tells: the operation and its input tensors."""
    if found.kind == CollectiveKind.UNKNOWN:
        found = found._replace(kind=collective_kind(trace.names[trace.name[row]].split(":", 1)[1]))
    if found.in_bytes < 0 and trace.op_args[row] >= 0:
        size, dtype = _tensor_bytes(trace.arg_sets[trace.op_args[row]])
        if size >= 0:
            found = found._replace(in_bytes=size, dtype=found.dtype or dtype)
    return found


def _tensor_bytes(inputs: OpArgs) -> tuple[int, str]:
    """Bytes of all input tensors and the type of the first, (-1, "") where shapes are missing."""
    total, dtype = -1, ""
    for shape, kind in zip(inputs.dims, inputs.types, strict=False):
        item = item_bytes(kind)
        if not item or not isinstance(shape, tuple) or not shape:
            continue
        size = item
        for side in shape:
            if not isinstance(side, int) or side < 0:
                return -1, ""
            size *= side
        total = max(total, 0) + size
        dtype = dtype or kind
        if total > MAX_MESSAGE_BYTES:
            return -1, ""
    return total, dtype


def _of_old_inputs(trace: Trace, row: int, found: _Described) -> _Described:
    """PyTorch 2.1 to 2.3 put the sequence number, the address of the process group, the rank and
    the size among the inputs of `record_param_comms`: tensors, seq, group, rank, …, size."""
    if trace.op_args[row] < 0:
        return found
    values = trace.arg_sets[trace.op_args[row]].concrete
    if len(values) < 8 or not (values[1].isdigit() and values[2].isdigit() and values[3].isdigit()):
        return found
    if len(values[1]) > 18 or len(values[2]) < 9:
        return found
    size = int(values[-1]) if values[-1].isdigit() and len(values[-1]) < 8 else 0
    return found._replace(
        seq=int(values[1]), group=found.group or f"@{values[2]}", size=found.size or size
    )


def _table(
    trace: Trace,
    described: list[_Described],
    event: I64,
    row: I64,
    start: I64,
    end: I64,
    issued: I64,
    stream: I64,
) -> Collectives:
    recorded = {group.name: group.ranks for group in trace.meta.groups}
    streams: dict[int, int] = {}
    addresses: dict[str, str] = {}
    groups: dict[Communicator, int] = {}
    dtypes = {"": 0}
    group = np.zeros(len(described), np.int32)
    dtype = np.zeros(len(described), np.int32)
    for i, one in enumerate(described):
        name = one.group
        if name.startswith("@"):  # an address differs from rank to rank: count them instead
            name = addresses.setdefault(
                name, f"{counted(one.size, 'rank')}, group {len(addresses)}"
            )
        ranks = one.ranks or recorded.get(name, ())
        of_stream = -1
        if not name:
            of_stream = streams.setdefault(int(stream[i]), len(streams))
        who = Communicator(name, ranks, max(one.size, len(ranks)), of_stream)
        group[i] = groups.setdefault(who, len(groups))
        dtype[i] = dtypes.setdefault(one.dtype, len(dtypes))

    def column(values: list[int]) -> I64:
        return np.array(values, dtype=np.int64)

    return Collectives(
        event=event,
        row=row,
        start_ns=start.astype(np.int64),
        end_ns=end.astype(np.int64),
        issued_ns=issued.astype(np.int64),
        stream=stream.astype(np.int64),
        kind=np.array([one.kind for one in described], dtype=np.uint8),
        in_bytes=column([one.in_bytes for one in described]),
        out_bytes=column([one.out_bytes for one in described]),
        communicator=group,
        seq=column([one.seq for one in described]),
        dtype=dtype,
        groups=tuple(groups),
        dtypes=tuple(dtypes),
    )


def _enclosing(trace: Trace, outer: I64, lane: I64, at: I64, known: Bools) -> I64:
    """The row among `outer` that encloses each instant on its lane, -1 where none does."""
    found = np.full(len(at), -1, dtype=np.int64)
    for one in distinct(lane[known]).tolist():
        candidates = outer[trace.lane[outer] == one]
        if not len(candidates):
            continue
        which = np.flatnonzero(known & (lane == one))
        last = np.searchsorted(trace.start_ns[candidates], at[which], side="right") - 1
        holder = candidates[np.maximum(last, 0)]
        inside = (last >= 0) & (at[which] <= trace.end_ns[holder])
        found[which[inside]] = holder[inside]
    return found


def _times_used(holder: I64) -> I64:
    """How many instants share the holder of each; 0 where there is none."""
    values, inverse, counts = np.unique(holder, return_inverse=True, return_counts=True)
    times: I64 = np.where(values < 0, 0, counts)[inverse.reshape(-1)]
    return times
