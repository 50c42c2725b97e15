"""The replay of all ranks together: what one rank saves shows in what the others wait for.

A rank alone takes its collectives as they were, however long they waited for somebody. Here every
rank runs its own program, and a collective that all of its ranks have recorded begins when the last
of them comes. So a faster host on the late rank shortens everybody's step, a faster network does
not shorten a wait for a rank, and the waiting of a job can be told from its transfers.

Clocks need not agree: times of other hosts are shifted by the offset that the ends of their common
collectives show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.matching import match
from gpuprof.analyzers.pricing import DevicePricing, Price, mean_price, price_of
from gpuprof.analyzers.program import Program
from gpuprof.analyzers.rank_summary import RankSummary
from gpuprof.analyzers.replay import Change, Meeting, Replayed, run

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MOST_ITEMS = 400_000
"""Host calls and device events of all ranks that one joint replay runs through: about 0.3 s of CPU.
Of a larger job the ranks are priced one by one."""


@dataclass(frozen=True, slots=True)
class _Common:
    """Collectives that several programs share.

    meets: rank -> number of the collective of each event, -1 for none. members: number of ranks of
    each. transfer_ns: shortest duration over its ranks. rest_ns: rank -> by event, what its end was
    observed to differ from (last to begin + transfer): kept like a lag, and left out where the
    model has to stand alone.
    offset_ns: how far each rank's clock is ahead of the first one's.
    """

    meets: list[list[int]]
    members: list[int]
    transfer_ns: list[int]
    rest_ns: list[list[int]]
    offset_ns: list[int]


class _Question(NamedTuple):
    """A replay: whether the profiler's records are paid for, which parts are removed, of which
    ranks, and for which ranks nobody waits (positions)."""

    profiled: bool
    removed: tuple[str, ...]
    of: tuple[int, ...]
    late: tuple[int, ...]


class JointPricing:
    """Prices a job by replaying all of its ranks together (see `gpuprof.analyzers.pricing`)."""

    def __init__(self, pricings: Sequence[DevicePricing], common: _Common) -> None:
        self._pricings = list(pricings)
        self._common = common
        self._known: dict[_Question, Price] = {}
        self._bases: dict[bool, list[Replayed]] = {}
        self._explained = self._run([Change(lags=False) for _ in pricings], ())

    @property
    def measured_ns(self) -> float:
        return float(np.mean([p.measured_ns for p in self._pricings]))

    @property
    def replayed_ns(self) -> float:
        return float(np.mean([r.mean_ns for r in self._explained]))

    @property
    def error(self) -> float:
        """The largest relative error of any rank, unexplained delays left out."""
        pairs = zip(self._explained, self._pricings, strict=True)
        return max(abs(r.mean_ns - p.measured_ns) / p.measured_ns for r, p in pairs)

    @property
    def programs(self) -> list[Program]:
        """What each rank runs."""
        return [pricing.program for pricing in self._pricings]

    def without(self, *removed: str, profiled: bool = True) -> Price:
        return self.without_of(range(len(self._pricings)), *removed, profiled=profiled)

    def without_of(self, some: Collection[int], *removed: str, profiled: bool = True) -> Price:
        """The step of all ranks when parts of some are removed (positions in the list)."""
        question = _Question(profiled, tuple(sorted(set(removed))), tuple(sorted(some)), ())
        return self._priced(question)

    def without_waiting_for(self, late: Collection[int]) -> Price:
        """The step of the other ranks when nobody waits for these (positions in the list)."""
        return self._priced(_Question(True, (), (), tuple(sorted(late))))

    def saved_of_each_step(self, late: Collection[int]) -> F64:
        """The share of each step that the other ranks save when nobody waits for these,
        (n_steps,)."""
        changed = self._run([Change() for _ in self._pricings], tuple(sorted(late)))
        kept = [i for i in range(len(self._pricings)) if i not in late]
        base = self._base(profiled=True)
        before = np.mean([base[i].step_ns for i in kept], axis=0)
        after = np.mean([changed[i].step_ns for i in kept], axis=0)
        saved: F64 = 1.0 - after / np.maximum(before, 1.0)
        return saved

    def _priced(self, question: _Question) -> Price:
        if question not in self._known:
            changes = []
            for i, pricing in enumerate(self._pricings):
                change = Change(profiled=question.profiled)
                for part in question.removed if i in question.of else ():
                    change = change.and_(pricing.change(part))
                changes.append(change)
            changed = self._run(changes, question.late)
            base = self._base(profiled=question.profiled)
            kept = [i for i in range(len(self._pricings)) if i not in question.late]
            self._known[question] = mean_price([price_of(base[i], changed[i]) for i in kept])
        return self._known[question]

    def _base(self, *, profiled: bool) -> list[Replayed]:
        if profiled not in self._bases:
            changes = [Change(profiled=profiled) for _ in self._pricings]
            self._bases[profiled] = self._run(changes, ())
        return self._bases[profiled]

    def _run(self, changes: Sequence[Change], late: tuple[int, ...]) -> list[Replayed]:
        ranks = [
            run(pricing.program, change, meets)
            for pricing, change, meets in zip(
                self._pricings, changes, self._common.meets, strict=True
            )
        ]
        free = [
            None if change.device_ns is None else (change.device_ns < pricing.program.dur_ns)
            for change, pricing in zip(changes, self._pricings, strict=True)
        ]
        common = self._common
        if not all(change.lags for change in changes):
            common = replace(common, rest_ns=[[0] * len(rest) for rest in common.rest_ns])
        return _run_together(ranks, common, free, frozenset(late))


def joint_pricing(
    pricings: Sequence[object], summaries: Sequence[RankSummary], offset_ns: F64
) -> JointPricing | None:
    """The pricing of a job, None where its ranks can't be replayed together.

    Args:
        pricings: The pricing of each rank's main device.
        summaries: The rank's summaries, for the collectives.
        offset_ns: How far each host's clock is ahead of the common one, NaN where nothing tells.
    """
    ready = [p for p in pricings if isinstance(p, DevicePricing)]
    if len(ready) != len(pricings) or len(ready) < 2:
        return None
    if sum(len(p.program.call_ns) + len(p.program.dur_ns) for p in ready) > MOST_ITEMS:
        return None
    common = _common(ready, summaries, offset_ns)
    return JointPricing(ready, common) if common.members else None


def _common(
    pricings: Sequence[DevicePricing], summaries: Sequence[RankSummary], offset_ns: F64
) -> _Common:
    programs = [p.program for p in pricings]
    offset = [0 if np.isnan(o) else int(o) for o in offset_ns]
    place_of = [dict(zip(p.source.tolist(), range(len(p.source)), strict=True)) for p in programs]
    begins = [_begins(p) for p in pricings]
    common = _Common(
        meets=[[-1] * len(p.dur_ns) for p in programs],
        members=[],
        transfer_ns=[],
        rest_ns=[[0] * len(p.dur_ns) for p in programs],
        offset_ns=offset,
    )
    for block in match(summaries):
        members = block.members.tolist()
        rows = [summaries[m].event[place] for m, place in zip(members, block.place, strict=True)]
        for column in zip(*(r.tolist() for r in rows), strict=True):
            events = [place_of[m].get(row, -1) for m, row in zip(members, column, strict=True)]
            if min(events) < 0:
                continue
            number = len(common.members)
            begun = [begins[m][e] - offset[m] for m, e in zip(members, events, strict=True)]
            lasted = [int(programs[m].dur_ns[e]) for m, e in zip(members, events, strict=True)]
            transfer = min(lasted)
            common.members.append(len(members))
            common.transfer_ns.append(transfer)
            for m, e, b, d in zip(members, events, begun, lasted, strict=True):
                common.meets[m][e] = number
                common.rest_ns[m][e] = b + d - (max(begun) + transfer)
    return common


def _begins(pricing: DevicePricing) -> list[int]:
    """When each event of a program can begin in its own unchanged replay, ns."""
    program = pricing.program
    begun = [0] * len(program.dur_ns)
    lasting = np.maximum(program.dur_ns + program.lag_ns, 0).tolist()
    loop = run(program, Change(), list(range(len(begun))))
    try:
        meeting = next(loop)
        while True:
            begun[meeting.event] = meeting.begin_ns
            meeting = loop.send(meeting.begin_ns + lasting[meeting.event])
    except StopIteration:
        return [b + lag for b, lag in zip(begun, program.lag_ns.tolist(), strict=True)]


def _run_together(
    ranks: list[Generator[Meeting, int, Replayed]],
    common: _Common,
    free: Sequence[NDArray[np.bool_] | None],
    late: frozenset[int],
) -> list[Replayed]:
    """Runs all ranks, each until it waits for others; the last to come sets everybody going."""
    results: list[Replayed | None] = [None] * len(ranks)
    runnable: deque[tuple[int, int | None]] = deque((r, None) for r in range(len(ranks)))
    present: dict[int, list[tuple[int, Meeting]]] = {}
    released: dict[int, int] = {}
    while runnable or present:
        if not runnable:
            # Ranks that issue different communicators in different orders would wait in a circle
            # here, though not on a device: let the earliest go on.
            number = min(present, key=lambda n: min(m.begin_ns for _, m in present[n]))
            _release(number, present, released, common, free, late, runnable)
            continue
        rank, end = runnable.popleft()
        try:
            meeting = next(ranks[rank]) if end is None else ranks[rank].send(end)
        except StopIteration as done:
            results[rank] = done.value
            continue
        present.setdefault(meeting.number, []).append((rank, meeting))
        waiting = len(present[meeting.number])
        if meeting.number in released or waiting == common.members[meeting.number]:
            _release(meeting.number, present, released, common, free, late, runnable)
    return [result for result in results if result is not None]


def _release(
    number: int,
    present: dict[int, list[tuple[int, Meeting]]],
    released: dict[int, int],
    common: _Common,
    free: Sequence[NDArray[np.bool_] | None],
    late: frozenset[int],
    runnable: deque[tuple[int, int | None]],
) -> None:
    """Lets the ranks that are at a collective go on, each with its end on its own clock."""
    there = present.pop(number)
    counted = [m.begin_ns - common.offset_ns[r] for r, m in there if r not in late]
    last = max(counted, default=min(m.begin_ns - common.offset_ns[r] for r, m in there))
    last = max(last, released.get(number, last))
    released[number] = last
    for rank, meeting in there:
        mine = free[rank]
        is_free = mine is not None and bool(mine[meeting.event])
        length = 0 if is_free else common.transfer_ns[number] + common.rest_ns[rank][meeting.event]
        end = last + max(length, 0) + common.offset_ns[rank]
        runnable.append((rank, max(end, meeting.begin_ns)))
