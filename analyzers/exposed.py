"""The collectives of a rank that nothing hides, and whether its training thread waits for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.collectives import Collectives, find_collectives
from gpuprof.analyzers.intervals import covered, intersect, total, union
from gpuprof.distinct import is_in
from gpuprof.trace import Category

I64 = NDArray[np.int64]

_WAITS = ("gloo:", "mpi:", "ucc:", "c10d::", "record_param_comms")
"""What a training thread is inside of while it waits for a collective of the CPU."""


@dataclass(frozen=True, slots=True)
class ExposedCollectives:
    """The collectives of a rank's main device in the accounted steps.

    collectives: all of the rank. mine: which of them, (n,). exposed_ns: of each of those, (n,).
    running_ns, exposed_total_ns: how long any of them ran, and ran with nothing beside it.
    """

    collectives: Collectives
    mine: I64
    exposed_ns: I64
    running_ns: int
    exposed_total_ns: int

    def __len__(self) -> int:
        return len(self.mine)

    @property
    def bytes(self) -> I64:
        """Message of each: the larger of what goes in and comes out, -1 where not known, (n,)."""
        found = self.collectives
        larger: I64 = np.maximum(found.in_bytes, found.out_bytes)[self.mine]
        return larger

    @property
    def main_kind(self) -> CollectiveKind:
        """The kind with most exposed time."""
        kind = self.collectives.kind[self.mine]
        if not len(kind):
            return CollectiveKind.UNKNOWN
        return CollectiveKind(int(np.argmax(np.bincount(kind, weights=self.exposed_ns))))

    @property
    def mean_bytes(self) -> float | None:
        """Mean message, None where most are not known."""
        known = self.bytes[self.bytes > 0]
        return float(known.mean()) if len(known) > len(self.mine) / 2 else None


def exposed_collectives(rank: RankAccount) -> ExposedCollectives:
    """The collectives in the accounted steps of a rank, and what of them nothing hides."""
    found = find_collectives(rank)
    device = rank.main
    steps = device.steps
    step = np.searchsorted(steps.start_ns, found.start_ns, side="right") - 1
    inside = (step >= 0) & (found.start_ns < steps.end_ns[-1])
    inside &= steps.keep[np.clip(step, 0, len(steps) - 1)]
    if len(device.events):
        inside &= rank.trace.device.device[np.maximum(found.event, 0)] == device.index
    mine = np.flatnonzero(inside)
    start, end = found.start_ns[mine], found.end_ns[mine]
    spans = union(start, end)
    exposed = intersect(spans, device.budget.work.communication)
    return ExposedCollectives(
        found,
        mine,
        covered(device.budget.work.communication, start, end),
        total(spans),
        total(exposed),
    )


def waited_frac(rank: RankAccount) -> float:
    """Share of the step of a CPU run in which the training thread is inside a collective."""
    trace, budget = rank.trace, rank.main.budget
    named = trace.name_mask(lambda name: name.startswith(_WAITS))
    host = is_in(trace.category, (int(Category.CPU_OP), int(Category.USER_ANNOTATION)))
    rows = np.flatnonzero(named & host & is_in(trace.lane, rank.host.lanes))
    inside = union(trace.start_ns[rows], trace.end_ns[rows])
    exposed = intersect(inside, budget.work.communication)
    kept = covered(exposed, budget.steps.start_ns, budget.steps.end_ns)[budget.steps.keep]
    return float(kept.sum()) / max(budget.total_ns, 1)
