"""Blame that is passed on: a rank that was late because it waited in another communicator.

In a job of tensor and data parallelism one slow rank makes its tensor-parallel peers wait, and they
come late to their data-parallel groups. There they are the last, but not the cause. For each rank
and each collective the waits in other communicators since its last collective of this one are added
up; as far as they exceed those of the middle rank they explain its lateness, and that part of the
blame goes to the ranks that bear those waits, in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.lateness import middle_wait
from gpuprof.distinct import distinct

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_LEVELS = 4
"""Tensor, context or expert, pipeline, data: communicators nest no deeper."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The split of the matched collectives of one communicator.

    members: positions of its ranks, (n_ranks,). place: index into each rank's summary,
    (n_ranks, n). size: of the communicator. step: (n,). start_ns, wait_ns, exposed_wait_ns,
    blame_ns: (n_ranks, n). transfer_ns: (n,). decisive: where one can see who came last, (n,).
    """

    members: I64
    place: I64
    size: int
    step: I64
    start_ns: F64
    wait_ns: F64
    exposed_wait_ns: F64
    transfer_ns: F64
    blame_ns: F64
    decisive: Bools


def pass_on(waits: Sequence[Waits], n_ranks: int) -> tuple[list[F64], list[F64]]:
    """Who bears what in the end.

    Args:
        waits: One a communicator.
        n_ranks: How many ranks there are in all.

    Returns:
        For each communicator the blame that stays, (n_ranks, n), ns of the average rank of the job
        (so that a wait of a large communicator counts for more); and the share of each rank's
        lateness that its waits elsewhere explain, (n_ranks, n), 0 to 1.
    """
    weighted = [one.blame_ns * (len(one.members) / n_ranks) for one in waits]
    borne = list(weighted)
    explained = [np.zeros_like(one.blame_ns) for one in waits]
    if len({tuple(one.members.tolist()) for one in waits}) < 2:
        return borne, explained
    order = _sequences(waits, n_ranks)
    credit = [np.zeros_like(one.wait_ns) for one in waits]
    for sequence in order:
        _credit(waits, sequence, credit)
    for one, because, own in zip(waits, explained, credit, strict=True):
        middle = (len(one.members) - 1) // 2
        excess = np.maximum(own - np.partition(own, middle, axis=0)[middle], 0.0)
        lateness = middle_wait(one.wait_ns) - one.wait_ns
        np.divide(excess, lateness, out=because, where=(lateness > 0) & (excess > 0))
        np.minimum(because, 1.0, out=because)
    fresh = weighted
    for _ in range(MOST_LEVELS):
        moved = [b * because for b, because in zip(fresh, explained, strict=True)]
        if not any(m.any() for m in moved):
            break
        fresh = _received(waits, order, credit, moved)
        borne = [b - out + into for b, out, into in zip(borne, moved, fresh, strict=True)]
    return borne, explained


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The collectives of one rank in order of start: which communicator, row in it, column there,
    and position of the previous one of the same communicator, -1 for the first."""

    block: I64
    row: I64
    column: I64
    before: I64


def _sequences(waits: Sequence[Waits], n_ranks: int) -> list[_Sequence]:
    parts: list[list[tuple[int, int]]] = [[] for _ in range(n_ranks)]
    for b, one in enumerate(waits):
        for row, rank in enumerate(one.members.tolist()):
            parts[rank].append((b, row))
    return [_sequence(waits, some) for some in parts]


def _sequence(waits: Sequence[Waits], parts: Sequence[tuple[int, int]]) -> _Sequence:
    blocks, rows, columns, starts = [], [], [], []
    for b, row in parts:
        n = waits[b].wait_ns.shape[1]
        blocks.append(np.full(n, b, np.int64))
        rows.append(np.full(n, row, np.int64))
        columns.append(np.arange(n))
        starts.append(waits[b].start_ns[row])
    if not blocks:
        nothing = np.zeros(0, np.int64)
        return _Sequence(nothing, nothing, nothing, nothing)
    order = np.argsort(np.concatenate(starts), kind="stable")
    block = np.concatenate(blocks)[order]
    before = np.full(len(block), -1, np.int64)
    for b in distinct(block).tolist():
        at = np.flatnonzero(block == b)
        before[at[1:]] = at[:-1]
    return _Sequence(block, np.concatenate(rows)[order], np.concatenate(columns)[order], before)


def _values(of: Sequence[F64], sequence: _Sequence) -> F64:
    result = np.zeros(len(sequence.block))
    for b in distinct(sequence.block).tolist():
        at = sequence.block == b
        result[at] = of[b][sequence.row[at], sequence.column[at]]
    return result


def _credit(waits: Sequence[Waits], sequence: _Sequence, credit: list[F64]) -> None:
    """Waits elsewhere since the last collective of the same communicator, exposed ones only."""
    wait = _values([one.exposed_wait_ns for one in waits], sequence)
    sums = np.concatenate(([0.0], np.cumsum(wait)))
    since = sums[np.arange(len(wait))] - sums[sequence.before + 1]
    for b in distinct(sequence.block).tolist():
        at = sequence.block == b
        credit[b][sequence.row[at], sequence.column[at]] = since[at]


def _received(
    waits: Sequence[Waits], order: Sequence[_Sequence], credit: list[F64], moved: list[F64]
) -> list[F64]:
    """Blame that arrives at the waits which explain it, shared as those waits are borne."""
    amount = [np.zeros(one.wait_ns.shape[1]) for one in waits]
    for sequence in order:
        if not len(sequence.block):
            continue
        n = len(sequence.block)
        own, out = _values(credit, sequence), _values(moved, sequence)
        each = np.divide(out, own, out=np.zeros(n), where=own > 0)
        steps = np.zeros(n + 1)  # adds `each` to every position of its window [before + 1, i)
        np.add.at(steps, sequence.before + 1, each)
        np.add.at(steps, np.arange(n), -each)
        wait = _values([one.exposed_wait_ns for one in waits], sequence)
        given = np.cumsum(steps[:-1]) * wait
        for b in distinct(sequence.block).tolist():
            at = sequence.block == b
            np.add.at(amount[b], sequence.column[at], given[at])
    result = []
    for one, into in zip(waits, amount, strict=True):
        total = one.blame_ns.sum(axis=0)
        shares = np.divide(one.blame_ns, total, out=np.zeros_like(one.blame_ns), where=total > 0)
        result.append(shares * into)
    return result
