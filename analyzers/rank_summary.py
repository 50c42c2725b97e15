"""What comparing ranks needs to know of one rank: kilobytes instead of a trace.

A run of thousands of ranks is analyzed by summarizing each rank where its trace lies and combining
the summaries. A collective takes some 60 bytes here, and at most `MAX_COLLECTIVES` are kept.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.collectives import Communicator, find_collectives
from gpuprof.analyzers.intervals import covered
from gpuprof.distinct import distinct
from gpuprof.errors import InputError

I64 = NDArray[np.int64]

MAX_COLLECTIVES = 50_000
"""More than a window of a profiler holds; beyond it the earliest are kept, on every rank alike."""

MAX_SUMMARY_BYTES = 64 << 20
"""A summary that unpacks to more is not one of ours."""

MAX_KERNEL_NAMES = 100
"""Kernels that are kept for comparing ranks, the heaviest first; the rest counts as one more."""

_LEVEL = 1  # columns of small integers shrink to a third at the fastest level


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """All launches of one kernel in the accounted steps. blocks: thread blocks of all of them, -1
    where grids were not recorded."""

    count: int
    total_ns: int
    blocks: int = -1


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank, reduced.

    rank, world_size (0 where not known), host. device: ordinal, -1 for the CPU. labels, step_ns,
    kept: its steps, their lengths and whether they are accounted. buckets: ns a bucket of the step
    budget, summed over kept steps. compute_ns: time with a kernel that computes, of each step.
    kernels: totals by name.

    The collectives in order of start, int64 (n,): event: index into the device rows (-1 on the
    host). start_ns, duration_ns, exposed_ns: the last is the part with no other kernel beside it.
    kind, in_bytes, out_bytes, seq: as in `Collectives`. group: index into `groups`. step: the step
    that issued it, -1 before the first.
    """

    rank: int
    world_size: int
    host: str
    device: int
    labels: tuple[str, ...]
    step_ns: I64
    kept: I64
    compute_ns: I64
    buckets: dict[str, int]
    kernels: dict[str, KernelTotal]
    groups: tuple[Communicator, ...]
    event: I64
    start_ns: I64
    duration_ns: I64
    exposed_ns: I64
    kind: I64
    in_bytes: I64
    out_bytes: I64
    group: I64
    seq: I64
    step: I64

    def __len__(self) -> int:
        return len(self.start_ns)


def _from_before(account: RankAccount, event: I64) -> NDArray[np.bool_]:
    """Collectives that a host far ahead had launched before the window, (n,): they run inside it,
    more of them on a rank that is further ahead, and would be matched with those of other steps."""
    result = np.zeros(len(event), np.bool_)
    on_device = event >= 0
    result[on_device] = account.launches.backlog[event[on_device]]
    return result


def summarize(account: RankAccount) -> RankSummary:
    """Reduces one rank to what is compared."""
    table = find_collectives(account)
    main = account.main
    mine = np.arange(len(table))
    if len(main.events):
        mine = mine[account.trace.device.device[table.event] == main.index]
    mine = mine[:MAX_COLLECTIVES]
    steps, budget = main.steps, main.budget
    step = np.searchsorted(steps.host_start_ns, table.issued_ns[mine], side="right") - 1
    step[table.issued_ns[mine] >= steps.host_end_ns[-1]] = -1
    step[_from_before(account, table.event[mine])] = -1
    if steps.source == "none":
        step[:] = 0
    start, end = table.start_ns[mine], table.end_ns[mine]
    # Only communication that nothing hides is in the budget's set of that name.
    exposed = covered(budget.work.communication, start, end)
    return RankSummary(
        rank=account.rank,
        world_size=account.trace.meta.world_size or 0,
        host=account.trace.meta.host_name,
        device=main.index,
        labels=steps.labels,
        step_ns=steps.end_ns - steps.start_ns,
        kept=steps.keep.astype(np.int64),
        compute_ns=budget.per_step_ns["compute"].astype(np.int64),
        buckets={bucket: budget.kept_ns(bucket) for bucket in budget.per_step_ns},
        kernels=_kernels(account),
        groups=table.groups,
        event=table.event[mine],
        start_ns=start,
        duration_ns=end - start,
        exposed_ns=exposed,
        kind=table.kind[mine].astype(np.int64),
        in_bytes=table.in_bytes[mine],
        out_bytes=table.out_bytes[mine],
        group=table.communicator[mine].astype(np.int64),
        seq=table.seq[mine],
        step=step.astype(np.int64),
    )


def _kernels(account: RankAccount) -> dict[str, KernelTotal]:
    """Totals of the kernels that compute, in the kept steps of the main device."""
    main, trace = account.main, account.trace
    events = main.events
    if not len(events):
        return {}
    plain = ~account.is_communication[events] & ~account.is_copy[events]
    events = events[plain]
    steps = main.steps
    start = account.launches.start_ns[events]
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    inside = (step >= 0) & (start < steps.end_ns[-1])
    events = events[inside & steps.keep[np.clip(step, 0, len(steps) - 1)]]
    rows = trace.device.rows[events]
    names, inverse, count = np.unique(trace.name[rows], return_inverse=True, return_counts=True)
    total = np.zeros(len(names), np.int64)
    np.add.at(total, inverse.reshape(-1), trace.dur_ns[rows])
    heaviest = np.argsort(-total, kind="stable")[:MAX_KERNEL_NAMES]
    grids = trace.device.blocks[events].astype(np.int64)
    blocks = np.zeros(len(names), np.int64)
    np.add.at(blocks, inverse.reshape(-1), np.maximum(grids, 0))
    unknown = distinct(inverse.reshape(-1)[grids < 0])
    blocks[unknown] = -1
    return {
        trace.names[names[i]]: KernelTotal(int(count[i]), int(total[i]), int(blocks[i]))
        for i in heaviest.tolist()
    }


_COLUMNS = tuple(field.name for field in fields(RankSummary) if field.type == "I64")


def to_bytes(summary: RankSummary) -> bytes:
    """The summary as bytes that another machine can read; no pickle."""
    plain = {
        field.name: getattr(summary, field.name)
        for field in fields(summary)
        if field.name not in _COLUMNS
    }
    plain["kernels"] = {n: (k.count, k.total_ns, k.blocks) for n, k in summary.kernels.items()}
    columns = {name: getattr(summary, name).astype("<i8").tobytes() for name in _COLUMNS}
    return zlib.compress(msgspec.msgpack.encode((plain, columns)), _LEVEL)


class _Plain(msgspec.Struct):
    rank: int
    world_size: int
    host: str
    device: int
    labels: tuple[str, ...]
    buckets: dict[str, int]
    kernels: dict[str, tuple[int, int, int]]
    groups: tuple[tuple[str, tuple[int, ...], int, int], ...]


def from_bytes(data: bytes) -> RankSummary:
    """Reads what `to_bytes` wrote.

    Raises:
        InputError: the bytes are no summary.
    """
    try:
        unpacked = zlib.decompressobj()
        raw = unpacked.decompress(data, MAX_SUMMARY_BYTES)
        if unpacked.unconsumed_tail:
            raise ValueError("too large")
        plain, columns = msgspec.msgpack.decode(raw, type=tuple[_Plain, dict[str, bytes]])
        arrays = {name: np.frombuffer(columns[name], "<i8").astype(np.int64) for name in _COLUMNS}
    except (zlib.error, msgspec.MsgspecError, ValueError, KeyError) as error:
        raise InputError(
            f"a rank's summary can't be read ({error})", hint="summarize its trace again"
        ) from None
    return RankSummary(
        rank=plain.rank,
        world_size=plain.world_size,
        host=plain.host,
        device=plain.device,
        labels=plain.labels,
        buckets=plain.buckets,
        kernels={name: KernelTotal(*pair) for name, pair in plain.kernels.items()},
        groups=tuple(Communicator(*group) for group in plain.groups),
        **arrays,
    )
