"""What the host was doing: the labels that an idle gap on the device can be charged to.

A label is a set of time spans on a host thread. Where two overlap, the outer reason wins: a copy
inside `torch.save` is part of saving, and a wait inside the loader's `__next__` is the loader's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.intervals import Spans, covered, empty, merge, subtract, union
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.pauses import pauses
from gpuprof.distinct import distinct
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

LABELS = ("checkpoint", "input", "allocator", "sync", "communication_host")
"""Labels by precedence; what none of them covers is `host`: Python, the dispatcher, the launch
calls themselves, garbage collection, compilation."""

SMALL_BYTES = 64 * 1024
"""Up to 64 KiB a copy out of pageable memory is staged at once (CUDA's documentation of its
synchronization behaviour); a host that waits for such a copy waits for the work before it. To the
host, 64 KiB pass in about the 10 µs that any copy costs: what is larger costs by what it carries
too, and pinned memory or data that stays on the device would save that."""

HANDED_OVER_NS = 500_000
"""A batch that worker processes have ready is handed over in 0.05 to 0.12 ms in all recordings
seen; what takes over 0.5 ms waits for it."""

SAME_COPY_NS = 50_000
"""PyTorch's blocking copy is an asynchronous copy and, within some 10 µs, a stream synchronize."""

_LOADER = re.compile(r"enumerate\(Data(Loader|Pipe)\)#.*__next__|.*DataLoader(Iter)?\.__next__")
_WORKERS = re.compile(r".*_MultiProcessingDataLoaderIter")
_INPUT_NAME = re.compile(
    r"#*\s*(gpuprof[.:]\s*)?(input|data[\s_-]?load(er|ing)?|load[\s_-]?(data|batch)"
    r"|(get|next|fetch)[\s_-]?(data|batch))\s*#*",
    re.IGNORECASE,
)
_INPUT_PYTHON = re.compile(
    r"(.*[/\\])?(torch[/\\]utils[/\\]data[/\\]dataloader\.py|nvidia[/\\]dali[/\\].*\.py"
    r"|webdataset[/\\].*\.py|ffcv[/\\]loader[/\\].*\.py)\(\d+\): __next__"
)
_SAVE_NAME = re.compile(
    r"#*\s*(gpuprof[.:]\s*)?(checkpoint(ing)?|ckpt|torch\.save|os\.fsync|.*save_checkpoint.*"
    r"|(save|write|store)[\s_-]?(model|checkpoint|ckpt|state([\s_-]?dict)?))\s*#*",
    re.IGNORECASE,
)
_SAVE_PYTHON = re.compile(
    r"(.*[/\\])?(torch[/\\]serialization\.py\(\d+\): (save|_save|_legacy_save)"
    r"|torch[/\\]distributed[/\\]checkpoint[/\\].*\.py\(\d+\): (save|save_state_dict|async_save)"
    r"|safetensors[/\\].*\.py\(\d+\): save(_file|_model)?)$"
)
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree|FreeHost|MallocHost|HostRegister)"
    r"|cuMem(Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess|Alloc|Free)"
)
_ASYNC_ALLOCATOR = re.compile(r"(cuda|hip|cuMem)(Malloc|Free|Alloc)\w*Async")
_SYNC = re.compile(r"(cuda|hip|cu)(Stream|Device|Event|Ctx|Context)Synchronize")
_STREAM_WAIT = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
_BLOCKING_COPY = re.compile(
    r"(cudaMemcpy|hipMemcpy)(2D|3D)?(_v\d+)?$|hipMemcpyWithStream|(cudaMemcpy|hipMemcpy)(To|From)Symbol$"
    r"|cuMemcpy(DtoH|HtoD|DtoD)?(_v\d)?$|hipMemcpy(DtoH|HtoD|DtoD)$"
)
_CPU_COLLECTIVE = re.compile(r"(gloo|mpi|ucc):")


class Blocking(IntEnum):
    """Why a runtime call does not return before the device is done."""

    SYNCHRONIZE = 0
    """A stream, device or event synchronize."""
    TO_HOST = 1
    """A copy to the host of at most `SMALL_BYTES`, or of unknown size, whose result the host needs:
    `.item()`, `.tolist()`, `.cpu()`."""
    TO_DEVICE = 2
    """A copy out of pageable memory: the host waits until it has been staged or is done."""
    SMALL_TO_DEVICE = 3
    """One of at most `SMALL_BYTES`: it costs by what it waits for, not by what it carries."""
    LARGE_TO_HOST = 4
    """A larger copy to the host that the host waits for."""


@dataclass(frozen=True, slots=True)
class BlockingCalls:
    """Runtime calls that wait for the device, shape (n,), ordered by start.

    row: row in the trace. kind: `Blocking`. lane: the thread's lane.
    """

    row: I64
    kind: NDArray[np.uint8]
    lane: I64
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class HostActivity:
    """What each thread that drives the device was doing.

    lanes: the driving threads: those that launched kernels, and the one that marks the steps.
    spans: label -> lane -> disjoint spans; no two labels of one lane overlap.
    presence: lane -> spans in which the thread shows any event at all.
    main_lane: the thread that marks the steps, else the one that launched most; -1 without any.
    stream_waits_ns: when a stream was told to wait for an event of another, ascending.
    fetches: when it waited for batches of worker processes; each ends when the batch came.
    pauses: when none of these threads launched for far longer than usual, and no label says why.
    """

    lanes: tuple[int, ...]
    main_lane: int
    spans: dict[str, dict[int, Spans]]
    presence: dict[int, Spans]
    blocking: BlockingCalls
    recorded: bool
    stream_waits_ns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    fetches: Spans = field(default_factory=empty)
    pauses: Spans = field(default_factory=empty)

    def charge(self, lane: I64, start_ns: I64, end_ns: I64) -> dict[str, I64]:
        """Splits stretches of host time by label.

        Args:
            lane: The thread that was awaited, (n,); -1 stands for the main thread.
            start_ns, end_ns: The stretches, (n,); an empty one has end <= start.

        Returns:
            ns per label, each (n,). Their sum is at most the stretch; the rest is plain host work.

        A thread that shows no event was not running yet (the backward thread before `backward()`
        is called): then what the other driving threads did counts.
        """
        result = {label: np.zeros(len(lane), np.int64) for label in LABELS}
        lane = np.where(lane < 0, self.main_lane, lane)
        for own in distinct(lane):
            mine = np.flatnonzero((lane == own) & (end_ns > start_ns))
            if not len(mine):
                continue
            for label in LABELS:
                spans = self.spans[label].get(int(own))
                if spans is not None:
                    result[label][mine] += covered(spans, start_ns[mine], end_ns[mine])
            for label, spans in self._elsewhere(int(own)).items():
                result[label][mine] += covered(spans, start_ns[mine], end_ns[mine])
        return result

    def _elsewhere(self, own: int) -> dict[str, Spans]:
        """What the other driving threads did while this one showed no event, by label."""
        found: dict[str, Spans] = {}
        taken = self.presence.get(own, empty())
        for label in LABELS:
            others = [s for lane, s in self.spans[label].items() if lane != own]
            if not others:
                continue
            free = subtract(merge(*others), taken)
            if len(free.start):
                found[label] = free
                taken = merge(taken, free)
        return found


def host_activity(trace: Trace, launches: Launches, main_lane: int) -> HostActivity:
    """Labels the host time of a trace.

    Args:
        trace: The trace.
        launches: Its launches.
        main_lane: The thread that marks the steps, -1 where there are no marks.
    """
    kernel_rows = trace.category[trace.device.rows] == Category.KERNEL
    launched = launches.lane[kernel_rows & launches.known]
    lanes, counts = np.unique(launched, return_counts=True)
    if main_lane < 0:
        main_lane = int(lanes[np.argmax(counts)]) if len(lanes) else _busiest_thread(trace)
    driving = tuple(sorted({int(lane) for lane in lanes} | {main_lane} - {-1}))

    blocking = _blocking_calls(trace, launches)
    host = ~trace.is_one_of(
        Category.KERNEL,
        Category.MEMCPY,
        Category.MEMSET,
        Category.SYNC,
        Category.GPU_ANNOTATION,
        Category.OVERHEAD,
    )
    rows_by_label = {
        "checkpoint": _named(trace, _SAVE_NAME, _SAVE_PYTHON),
        "input": _named(trace, _LOADER, _INPUT_PYTHON, _INPUT_NAME),
        "allocator": _runtime_rows(trace, _is_allocator),
        "sync": blocking.row,
        "communication_host": _named(trace, _CPU_COLLECTIVE, None),
    }
    spans: dict[str, dict[int, Spans]] = {label: {} for label in LABELS}
    presence: dict[int, Spans] = {}
    for lane in driving:
        taken = empty()
        for label in LABELS:
            rows = rows_by_label[label]
            mine = _spans_of(trace, rows[trace.lane[rows] == lane])
            free = subtract(mine, taken)
            if len(free.start):
                spans[label][lane] = free
                taken = merge(taken, free)
        presence[lane] = _spans_of(trace, np.flatnonzero(host & (trace.lane == lane)))
    recorded = any(len(s.start) for s in presence.values())
    waits = np.sort(trace.start_ns[_runtime_rows(trace, _STREAM_WAIT.match)])
    labelled = merge(*(each for by_lane in spans.values() for each in by_lane.values()))
    return HostActivity(
        driving,
        main_lane,
        spans,
        presence,
        blocking,
        recorded,
        waits,
        _fetches(trace, driving),
        pauses(trace, launches, driving, labelled),
    )


def _fetches(trace: Trace, lanes: tuple[int, ...]) -> Spans:
    """When the host waited for batches that worker processes made."""
    named = trace.name_mask(_WORKERS.match) & trace.is_one_of(
        Category.CPU_OP, Category.USER_ANNOTATION
    )
    waited = named & (trace.dur_ns > HANDED_OVER_NS) & np.isin(trace.lane, lanes)
    return _spans_of(trace, np.flatnonzero(waited))


def is_loader_name(name: str) -> bool:
    """Whether an event of this name is a wait for, or the work of, the next batch."""
    return bool(_LOADER.match(name) or _INPUT_PYTHON.match(name) or _INPUT_NAME.fullmatch(name))


def _is_allocator(name: str) -> bool:
    return bool(_ALLOCATOR.match(name)) and not _ASYNC_ALLOCATOR.match(name)


def _named(
    trace: Trace,
    pattern: re.Pattern[str],
    python: re.Pattern[str] | None,
    whole: re.Pattern[str] | None = None,
) -> I64:
    """Rows of operators and annotations whose whole name matches, and of matching Python frames."""

    def accepts(name: str) -> bool:
        return bool(pattern.fullmatch(name) or (whole and whole.fullmatch(name)))

    if pattern is _CPU_COLLECTIVE:
        named = trace.name_mask(pattern.match)
    else:
        named = trace.name_mask(accepts)
    host = trace.is_one_of(Category.CPU_OP, Category.USER_ANNOTATION)
    found = host & named
    if python is not None and bool((trace.category == Category.PYTHON).any()):
        found |= (trace.category == Category.PYTHON) & trace.name_mask(python.match)
    rows: I64 = np.flatnonzero(found)
    return rows


def _runtime_rows(trace: Trace, accepts: object) -> I64:
    assert callable(accepts)
    rows: I64 = np.flatnonzero((trace.category == Category.RUNTIME) & trace.name_mask(accepts))
    return rows


def _blocking_calls(trace: Trace, launches: Launches) -> BlockingCalls:
    """Finds the calls that waited for the device: synchronizes and synchronous copies by name,
    other copies by what happened (the call came back no earlier than the copy was done)."""
    syncs = _runtime_rows(trace, _SYNC.match)
    copies = np.flatnonzero((trace.category[trace.device.rows] == Category.MEMCPY) & launches.known)
    call = launches.row[copies]
    by_name = trace.name_mask(_BLOCKING_COPY.match)[call] if len(copies) else np.zeros(0, np.bool_)
    waited = by_name | (launches.call_end_ns[copies] >= launches.end_ns[copies])
    to_device = trace.name_mask(lambda name: "HtoD" in name or "HostToDevice" in name)
    size = trace.device.bytes[copies]
    small = (size >= 0) & (size <= SMALL_BYTES)
    inward = np.where(small, int(Blocking.SMALL_TO_DEVICE), int(Blocking.TO_DEVICE))
    outward = np.where(size > SMALL_BYTES, int(Blocking.LARGE_TO_HOST), int(Blocking.TO_HOST))
    direction = np.where(to_device[trace.device.rows[copies]], inward, outward)
    rows = np.concatenate((syncs, call[waited]))
    kinds = np.concatenate((_sync_kinds(trace, syncs, call, direction), direction[waited]))
    order = np.argsort(trace.start_ns[rows], kind="stable")
    rows, kinds = rows[order], kinds[order].astype(np.uint8)
    return BlockingCalls(
        row=rows,
        kind=kinds,
        lane=trace.lane[rows].astype(np.int64),
        start_ns=trace.start_ns[rows],
        end_ns=trace.start_ns[rows] + trace.dur_ns[rows],
    )


def _sync_kinds(trace: Trace, syncs: I64, copy_call: I64, copy_kind: I64) -> I64:
    """A synchronize right after a copy on the same thread is the second half of that copy."""
    kinds = np.full(len(syncs), int(Blocking.SYNCHRONIZE), np.int64)
    order = np.lexsort((trace.start_ns[copy_call], trace.lane[copy_call]))
    call, kind = copy_call[order], copy_kind[order]
    for lane in distinct(trace.lane[syncs]):
        mine = np.flatnonzero(trace.lane[syncs] == lane)
        theirs = np.flatnonzero(trace.lane[call] == lane)
        if not len(theirs):
            continue
        start = trace.start_ns[syncs[mine]]
        before = np.searchsorted(trace.start_ns[call[theirs]], start, side="right") - 1
        row = call[theirs[np.maximum(before, 0)]]
        apart = start - (trace.start_ns[row] + trace.dur_ns[row])
        second_half = (before >= 0) & (apart < SAME_COPY_NS)
        kinds[mine[second_half]] = kind[theirs[before[second_half]]]
    return kinds


def _busiest_thread(trace: Trace) -> int:
    rows = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION)
    if not len(rows):
        return -1
    lanes, counts = np.unique(trace.lane[rows], return_counts=True)
    return int(lanes[np.argmax(counts)])


def _spans_of(trace: Trace, rows: I64) -> Spans:
    return union(trace.start_ns[rows], trace.start_ns[rows] + trace.dur_ns[rows])
