"""The copies between host and device of a rank: what each carried, how fast, and who waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.host import SAME_COPY_NS, Blocking
from gpuprof.analyzers.intervals import Spans, contains, covered, intersect, union
from gpuprof.distinct import distinct, is_in

I64 = NDArray[np.int64]
I8 = NDArray[np.int8]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and device on one device in the accounted steps; arrays of shape (n,).

    event: index into the trace's device rows. inward: to the device. pageable: 1 for pageable, 0
    for pinned host memory, -1 where not known. blocking: the host waited for it. in_checkpoint: it
    was launched while a checkpoint was written. bytes: 0 where not recorded. start_ns, end_ns: on
    the device. exposed_ns: the part in which no kernel ran. steps: accounted steps, at least 1.
    """

    event: I64
    inward: Bools
    pageable: I8
    blocking: Bools
    in_checkpoint: Bools
    bytes: I64
    start_ns: I64
    end_ns: I64
    exposed_ns: I64
    steps: int

    def __len__(self) -> int:
        return len(self.event)

    def of(self, mask: Bools) -> Copies:
        """Some of them, mask (n,)."""
        return Copies(
            self.event[mask],
            self.inward[mask],
            self.pageable[mask],
            self.blocking[mask],
            self.in_checkpoint[mask],
            self.bytes[mask],
            self.start_ns[mask],
            self.end_ns[mask],
            self.exposed_ns[mask],
            self.steps,
        )

    @property
    def duration_ns(self) -> I64:
        return self.end_ns - self.start_ns

    @property
    def mean_bytes(self) -> float:
        return float(self.bytes.mean()) if len(self) else 0.0

    @property
    def gb_per_s(self) -> float:
        """What they carried over the time that they took, 10^9 bytes a second."""
        return float(self.bytes.sum()) / max(float(self.duration_ns.sum()), 1.0)

    @property
    def per_step(self) -> float:
        """How many there are in a step."""
        return len(self) / self.steps

    @property
    def ms_per_step(self) -> float:
        """How long they run in a step, ms; copies side by side count twice."""
        return float(self.duration_ns.sum()) / self.steps / 1e6


def find_copies(rank: RankAccount) -> Copies:
    """The copies between host and device on the rank's main device."""
    device, launches, trace = rank.main, rank.launches, rank.trace
    steps, events = device.steps, device.events
    start = launches.start_ns[events]
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    kept = (step >= 0) & (start < steps.end_ns[-1]) & rank.is_transfer[events]
    kept &= steps.keep[np.clip(step, 0, len(steps) - 1)]
    event = events[kept]
    start, end = launches.start_ns[event], launches.end_ns[event]
    names = [trace.names[i] for i in trace.name[trace.device.rows[event]].tolist()]
    return Copies(
        event=event,
        inward=np.array(["HtoD" in n or "HostToDevice" in n for n in names], np.bool_),
        pageable=np.array([_pageable(n) for n in names], np.int8),
        blocking=_blocking(rank, event),
        in_checkpoint=_in_checkpoint(rank, event),
        bytes=np.maximum(trace.device.bytes[event], 0),
        start_ns=start,
        end_ns=end,
        exposed_ns=covered(device.budget.work.copy, start, end),
        steps=max(int(np.count_nonzero(steps.keep)), 1),
    )


def exposed_ns(rank: RankAccount, copies: Copies) -> int:
    """How long at least one of these copies ran and no kernel did, ns of the accounted steps."""
    return int(exposed_spans(rank, copies).lengths.sum())


def exposed_spans(rank: RankAccount, copies: Copies) -> Spans:
    """When at least one of these copies ran and no kernel did, within the accounted steps."""
    steps = rank.main.steps
    kept = union(steps.start_ns[steps.keep], steps.end_ns[steps.keep])
    alone = intersect(rank.main.budget.work.copy, union(copies.start_ns, copies.end_ns))
    return intersect(alone, kept)


def _pageable(name: str) -> int:
    return 1 if "Pageable" in name else 0 if "Pinned" in name else -1


def _blocking(rank: RankAccount, event: I64) -> Bools:
    """A copy's own call waited, or a synchronize right after it did (PyTorch's blocking copy)."""
    calls, launches = rank.host.blocking, rank.launches
    waited: Bools = is_in(launches.row[event], calls.row) & launches.known[event]
    second = is_in(calls.kind, [int(kind) for kind in Blocking if kind != Blocking.SYNCHRONIZE])
    for lane in distinct(launches.lane[event]):
        mine = np.flatnonzero(launches.lane[event] == lane)
        begun = calls.start_ns[second & (calls.lane == lane)]
        if not len(begun) or lane < 0:
            continue
        after = launches.call_end_ns[event[mine]]
        following = np.searchsorted(begun, after, side="left")
        soon = begun[np.minimum(following, len(begun) - 1)] - after < SAME_COPY_NS
        waited[mine] |= (following < len(begun)) & soon
    return waited


def _in_checkpoint(rank: RankAccount, event: I64) -> Bools:
    launches = rank.launches
    inside = np.zeros(len(event), np.bool_)
    for lane, spans in rank.host.spans["checkpoint"].items():
        inside |= (launches.lane[event] == lane) & contains(spans, launches.call_start_ns[event])
    return inside
