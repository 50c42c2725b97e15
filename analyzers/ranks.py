"""Many ranks: who waited for whom, how long, and whether a rank is late.

"No rank is late" is the common answer; `gpuprof.analyzers.lateness` says what it takes to accuse
one. Ranks are reduced to summaries first, and summaries are compared, so that it makes no
difference where and by whom each trace was read.

With several communicators (tensor, pipeline, data parallel) a rank can be late to one because it
waited in another. What it bears for the part of its lateness that such a wait explains is passed
on to those who were late there, until it arrives at the rank that waited for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.collective_kinds import SYMMETRIC, CollectiveKind
from gpuprof.analyzers.intervals import union
from gpuprof.analyzers.lateness import LateRank, blame, decisive, find_late, split
from gpuprof.analyzers.matching import Block, match
from gpuprof.analyzers.passing_on import Waits, pass_on
from gpuprof.analyzers.rank_summary import RankSummary, summarize
from gpuprof.distinct import is_in

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_SYMMETRIC = tuple(int(kind) for kind in SYMMETRIC)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """The matched collectives of one rank, arrays (n,), in order of their start.

    event: index into its device rows, -1 on the host. wait_ns, transfer_ns: its duration, split.
    exposed_wait_ns: the part of the wait with no other kernel beside it. left_ns: what it would
    still wait if the late ranks had come with the rest.
    """

    event: I64
    start_ns: I64
    wait_ns: F64
    transfer_ns: F64
    exposed_wait_ns: F64
    left_ns: F64


@dataclass(frozen=True, slots=True)
class Transfers:
    """Matched collectives of one block: what passes between ranks when all of them are there.

    Arrays (n,). kind: a `CollectiveKind`. in_bytes, out_bytes: mean over ranks, -1 where not known.
    transfer_ns: shortest duration over ranks. wait_ns: mean wait over ranks. n_ranks: that were
    compared; size: of the communicator, 0 where not known. same_host: whether all were on one.
    """

    kind: I64
    in_bytes: I64
    out_bytes: I64
    transfer_ns: F64
    wait_ns: F64
    n_ranks: int
    size: int
    same_host: bool


@dataclass(frozen=True, slots=True)
class RankComparison:
    """What comparing ranks shows; arrays (n_ranks,) in the order of `ranks`.

    total_ns: accounted time of each rank. wait_ns, transfer_ns: its matched collectives, split.
    exposed_wait_ns: time of waiting with no other kernel beside it, once where collectives wait
    side by side, as the host's back ends do. n_last: in how many of
    `n_decisive` collectives it came last. blame_share: what it costs the others, as a share of the
    step. late: accused ranks, the costliest first. suspects: ranks that cost as much, but not
    oftener than chance may have it. matched, unmatched: collectives of the first
    rank that could be compared and that could not. world_size: ranks that the job has.
    clock_offset_ns: how far each host clock is ahead of the common one, NaN where nothing tells.
    """

    ranks: tuple[int, ...]
    total_ns: F64
    wait_ns: F64
    exposed_wait_ns: F64
    transfer_ns: F64
    n_last: F64
    n_decisive: I64
    blame_share: F64
    late: tuple[LateRank, ...]
    suspects: tuple[LateRank, ...]
    n_steps: int
    matched: int
    unmatched: int
    world_size: int
    waits: tuple[RankWaits, ...]
    transfers: tuple[Transfers, ...]
    clock_offset_ns: F64

    @property
    def late_ranks(self) -> tuple[int, ...]:
        """Numbers of the accused ranks, ascending."""
        return tuple(sorted(one.rank for one in self.late))

    @property
    def complete(self) -> bool:
        """Whether all ranks of the job were given. If not, those that are missing may be late, and
        what all the others waited for them counts as transfer here."""
        return len(self.ranks) >= self.world_size

    def wait_fracs(self) -> dict[int, float]:
        """Rank -> share of its accounted time spent in nothing but waiting for another rank."""
        shares = self._shares().tolist()
        return {rank: round(s, 6) for rank, s in zip(self.ranks, shares, strict=True)}

    def wait_frac(self) -> float:
        """Mean share of the step spent in nothing but waiting for another rank, over ranks."""
        return float(np.mean(self._shares()))

    def _shares(self) -> F64:
        """A wait that outlasts the last accounted step counts up to its end."""
        return np.minimum(self.exposed_wait_ns / np.maximum(self.total_ns, 1.0), 1.0)

    def transfer_frac(self) -> float:
        """Mean share of the step that transfers take, exposed or not."""
        return float(np.mean(self.transfer_ns / np.maximum(self.total_ns, 1.0)))


def compare_ranks(accounts: Sequence[RankAccount]) -> RankComparison:
    """Compares the ranks of a job.

    Args:
        accounts: At least one; a single one has nobody to wait for that could be seen.
    """
    return compare_summaries([summarize(account) for account in accounts])


def compare_summaries(summaries: Sequence[RankSummary]) -> RankComparison:
    """Compares ranks by their summaries (see `compare_ranks`)."""
    blocks = match(summaries)
    steps, step_ns = _steps(summaries)
    waits = [w for w in (_waits(summaries, b, steps) for b in blocks) if w is not None]
    n_ranks = len(summaries)
    borne, explained = pass_on(waits, n_ranks)
    last, expected, of = _last_to_come(waits, explained, n_ranks)
    per_step = np.zeros((n_ranks, len(step_ns)))
    worst = np.zeros(n_ranks)
    for one, weighted in zip(waits, borne, strict=True):
        rows = np.broadcast_to(one.members[:, None], weighted.shape)
        np.add.at(per_step, (rows, np.broadcast_to(one.step, weighted.shape)), weighted)
        worst[one.members] = np.maximum(worst[one.members], weighted.max(axis=1))
    ranks = tuple(one.rank for one in summaries)
    costly = find_late(ranks, per_step, step_ns, last, np.stack([expected, of], axis=1), worst)
    late = tuple(one for one in costly if one.proven)
    accused = {one.rank for one in late}
    is_late = np.array([rank in accused for rank in ranks], np.bool_)
    tables = _rank_waits(summaries, waits, is_late)
    own = np.array([(s.step_ns * s.kept).sum() for s in summaries], np.float64)
    matched = len(tables[0].event) if tables else 0
    return RankComparison(
        ranks=ranks,
        total_ns=own,
        wait_ns=np.array([t.wait_ns.sum() for t in tables]),
        exposed_wait_ns=np.array([_only_waiting_ns(t) for t in tables]),
        transfer_ns=np.array([t.transfer_ns.sum() for t in tables]),
        n_last=last,
        n_decisive=of.astype(np.int64),
        blame_share=per_step.sum(axis=1) / max(float(step_ns.sum()), 1.0),
        late=late,
        suspects=tuple(one for one in costly if not one.proven),
        n_steps=len(step_ns),
        matched=matched,
        unmatched=len(summaries[0]) - matched if summaries else 0,
        world_size=max([n_ranks, *(one.world_size for one in summaries)]),
        waits=tables,
        transfers=tuple(_transfers(summaries, one) for one in waits),
        clock_offset_ns=_clock_offsets(summaries, waits),
    )


def _steps(summaries: Sequence[RankSummary]) -> tuple[dict[str, int], F64]:
    """A number for each step that any rank accounts for, and its length over ranks (median)."""
    lengths: dict[str, list[int]] = {}
    for one in summaries:
        for label, length, kept in zip(
            _labels(one), one.step_ns.tolist(), one.kept.tolist(), strict=True
        ):
            if kept:
                lengths.setdefault(label, []).append(length)
    # A step that few ranks have recorded says nothing about all of them.
    common = [label for label, of in lengths.items() if 2 * len(of) >= len(summaries)]
    return (
        {label: i for i, label in enumerate(common)},
        np.array([float(np.median(lengths[label])) for label in common]),
    )


def _labels(one: RankSummary) -> tuple[str, ...]:
    """Names of its steps that mean the same on every rank."""
    n_steps = len(one.kept)
    if n_steps == 1:
        return ("",)
    if len(one.labels) == n_steps and len(set(one.labels)) == n_steps:
        return one.labels
    return tuple(str(i) for i in range(n_steps))


def _waits(summaries: Sequence[RankSummary], block: Block, steps: dict[str, int]) -> Waits | None:
    """The split of one block's symmetric collectives; None where it has none."""
    ones = [summaries[int(m)] for m in block.members]
    first = ones[0]
    numbers = np.array([steps.get(label, -1) for label in _labels(first)], np.int64)
    step = numbers[first.step[block.place[0]]]
    use = is_in(first.kind[block.place[0]], _SYMMETRIC) & (step >= 0)
    if not use.any():
        return None
    place, step = block.place[:, use], step[use]

    def column(name: str) -> F64:
        return np.stack([getattr(one, name)[p] for one, p in zip(ones, place, strict=True)]).astype(
            np.float64
        )

    duration, exposed = column("duration_ns"), column("exposed_ns")
    wait, transfer = split(duration, _stretch(first.kind[place[0]], column("in_bytes")))
    exposed_wait = np.clip(exposed - transfer, 0.0, wait)
    total = wait.sum(axis=0)
    hidden = np.divide(exposed_wait.sum(axis=0), total, out=np.ones_like(total), where=total > 0)
    return Waits(
        members=block.members,
        place=place,
        size=block.size,
        step=step,
        start_ns=column("start_ns"),
        wait_ns=wait,
        exposed_wait_ns=exposed_wait,
        transfer_ns=transfer,
        blame_ns=blame(wait) * hidden,
        decisive=decisive(wait, transfer) & decisive(exposed_wait, np.zeros_like(transfer)),
    )


def _stretch(kind: I64, in_bytes: F64) -> F64:
    """How many times the smallest message the largest of an exchange with uneven sizes is."""
    uneven = (kind == int(CollectiveKind.ALL_TO_ALL)) & (in_bytes > 0).all(axis=0)
    most, least = in_bytes.max(axis=0), np.maximum(in_bytes.min(axis=0), 1.0)
    return np.where(uneven, most / least, 1.0)


def _last_to_come(
    waits: Sequence[Waits], explained: Sequence[F64], n_ranks: int
) -> tuple[F64, F64, F64]:
    """How often each rank came last, how often it would by chance, and in how many collectives.

    Ranks that come last together share the count. Where the last one had waited elsewhere for most
    of the time by which it was late, the collective says nothing about the ranks of this block.
    """
    last, expected, of = np.zeros(n_ranks), np.zeros(n_ranks), np.zeros(n_ranks)
    for one, because in zip(waits, explained, strict=True):
        is_last = one.wait_ns <= 0.0
        own = (np.where(is_last, because, 0.0) < 0.5).all(axis=0)
        use = one.decisive & own
        if not use.any():
            continue
        counted = is_last[:, use] / np.maximum(is_last[:, use].sum(axis=0), 1)
        last[one.members] += counted.sum(axis=1)
        expected[one.members] += use.sum() / len(one.members)
        of[one.members] += use.sum()
    return last, expected, of


def _rank_waits(
    summaries: Sequence[RankSummary], waits: Sequence[Waits], is_late: NDArray[np.bool_]
) -> tuple[RankWaits, ...]:
    """The matched collectives of every rank."""
    parts: list[list[tuple[I64, F64, F64, F64, F64]]] = [[] for _ in summaries]
    for one in waits:
        rest = ~is_late[one.members]
        left = np.zeros_like(one.wait_ns)
        if rest.any():
            left = np.maximum(one.wait_ns - one.wait_ns[rest].min(axis=0), 0.0)
        for i, position in enumerate(one.members.tolist()):
            parts[position].append(
                (one.place[i], one.wait_ns[i], one.transfer_ns, one.exposed_wait_ns[i], left[i])
            )
    return tuple(_in_order(one, some) for one, some in zip(summaries, parts, strict=True))


def _in_order(one: RankSummary, parts: list[tuple[I64, F64, F64, F64, F64]]) -> RankWaits:
    if not parts:
        none, zero = np.zeros(0, np.int64), np.zeros(0)
        return RankWaits(none, none, zero, zero, zero, zero)
    place = np.concatenate([part[0] for part in parts])
    order = np.argsort(place)
    columns = [np.concatenate([part[k] for part in parts])[order] for k in range(1, 5)]
    place = place[order]
    return RankWaits(one.event[place], one.start_ns[place], *columns)


def _only_waiting_ns(waits: RankWaits) -> float:
    """Time in which a rank only waits for others, each stretch once. A collective waits first and
    transfers then, so the exposed part is taken for the first part of it."""
    end = waits.start_ns + np.rint(waits.exposed_wait_ns).astype(np.int64)
    return float(union(waits.start_ns, end).lengths.sum())


def _transfers(summaries: Sequence[RankSummary], one: Waits) -> Transfers:
    ones = [summaries[int(m)] for m in one.members]

    def mean(name: str) -> I64:
        values = np.stack([getattr(o, name)[p] for o, p in zip(ones, one.place, strict=True)])
        known = (values >= 0).all(axis=0)
        return np.where(known, values.mean(axis=0), -1).astype(np.int64)

    hosts = {o.host for o in ones}
    devices = {o.device for o in ones}
    # Without names of hosts: ranks of one host use different devices, those of several repeat them.
    apart = hosts == {""} and -1 not in devices and len(devices) == len(ones)
    return Transfers(
        kind=ones[0].kind[one.place[0]],
        in_bytes=mean("in_bytes"),
        out_bytes=mean("out_bytes"),
        transfer_ns=one.transfer_ns,
        wait_ns=one.wait_ns.mean(axis=0),
        n_ranks=len(ones),
        size=one.size,
        same_host=apart or (len(hosts) == 1 and "" not in hosts),
    )


def _clock_offsets(summaries: Sequence[RankSummary], waits: Sequence[Waits]) -> F64:
    """How far each rank's clock is ahead of the middle one, from the ends of the collectives of the
    largest block: all ranks leave within some 50 µs of each other, whatever their clocks say."""
    offset = np.full(len(summaries), np.nan)
    if not waits:
        return offset
    one = max(waits, key=lambda w: (len(w.members), w.place.shape[1]))
    ends = np.stack(
        [
            (summaries[int(m)].start_ns + summaries[int(m)].duration_ns)[p]
            for m, p in zip(one.members, one.place, strict=True)
        ]
    )
    relative = (ends - ends[0]).astype(np.float64)  # int64 first: epoch ns exceed a float's digits
    offset[one.members] = np.median(relative - np.median(relative, axis=0), axis=1)
    return offset
