"""Which collectives of different ranks are the same one.

By process group and sequence number where both were recorded; else by order, within a step, of the
operations of a communicator (a process group, or a stream where groups were not recorded). The
windows of ranks differ at their edges, so only what every rank of a communicator has is kept. An
order proves nothing by itself: kinds, and sizes where all ranks must have the same, have to agree.

Where a communicator has different numbers of operations on its ranks and no numbers, the ends tell:
all ranks leave a collective within microseconds of each other, so under the right shift the
difference of ends is one constant, the offset of the two clocks, and under a wrong one it is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.collective_kinds import SYMMETRIC, CollectiveKind
from gpuprof.analyzers.rank_summary import RankSummary
from gpuprof.distinct import is_in

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Key = tuple[tuple[str, tuple[int, ...], int], tuple[int, ...]]

MAX_SHIFT = 64
"""How many collectives one rank's window may begin before another's."""

LEAST_OVERLAP = 0.5
"""Under a shift at least half of the shorter sequence must still have partners."""

SAME_KIND_FRAC = 0.95
"""Sequences whose kinds differ in more than a twentieth are not the same program."""

ENDS_AGREE_NS = 200_000.0
ENDS_AGREE_FRAC = 0.25
"""Ranks of one communicator leave a collective within some 50 µs of each other, on the host's back
ends within a fraction of its duration. Ranks of different ones have nothing that holds them so
close together."""

_EQUAL_SIZES = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
"""All ranks must pass the same number of elements."""

_POINT_TO_POINT = int(CollectiveKind.SEND_RECV)


@dataclass(frozen=True, slots=True)
class Block:
    """Matched collectives of one communicator, in the order of its first rank.

    name: of the process group, "" where not recorded. members: positions of its ranks in the list
    of summaries, (n_ranks,). place: index of each collective in each rank's summary,
    (n_ranks, n). size: ranks that the communicator has, 0 where not known.
    """

    name: str
    members: I64
    place: I64
    size: int


def match(summaries: Sequence[RankSummary]) -> list[Block]:
    """Lays the collectives of ranks side by side.

    Args:
        summaries: One a rank. Only collectives of kept steps are matched.
    """
    sequences: dict[Key, dict[int, I64]] = defaultdict(dict)
    sizes: dict[Key, int] = defaultdict(int)
    names: dict[Key, str] = {}
    for position, one in enumerate(summaries):
        usable = _accounted(one) & (one.kind != _POINT_TO_POINT)
        for number, who in enumerate(one.groups):
            places = np.flatnonzero(usable & (one.group == number)).astype(np.int64)
            if not len(places):
                continue
            # Operations of the host's back ends begin on several threads, so their order is told
            # apart by what they carry.
            on_host = not who.name and one.event[places[0]] < 0
            for extra, some in _by_content(one, places) if on_host else [((), places)]:
                key = who.key, extra
                sequences[key][position] = some
                sizes[key] = max(sizes[key], who.size)
                names[key] = who.name
    blocks = []
    for key, by_rank in sequences.items():
        if len(by_rank) > 1:
            found = _aligned(summaries, by_rank, names[key], sizes[key])
            recorded = bool(key[0][1])
            blocks += found if recorded else [b for f in found for b in _apart(summaries, f)]
    return blocks


def _accounted(one: RankSummary) -> Bools:
    if not len(one.kept):
        return np.zeros(len(one), np.bool_)
    inside = (one.step >= 0) & (one.step < len(one.kept))
    kept: Bools = inside & (one.kept[np.clip(one.step, 0, len(one.kept) - 1)] == 1)
    return kept


def _by_content(one: RankSummary, places: I64) -> list[tuple[tuple[int, ...], I64]]:
    content = np.stack([one.kind[places], one.in_bytes[places]])
    distinct, inverse = np.unique(content, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    contents = distinct.T.tolist()
    return [(tuple(what), places[inverse == i]) for i, what in enumerate(contents)]


def _aligned(
    summaries: Sequence[RankSummary], by_rank: dict[int, I64], name: str, size: int
) -> list[Block]:
    """One communicator: the collectives that all of its ranks have."""
    members = np.array(sorted(by_rank), np.int64)
    places = [by_rank[int(m)] for m in members]
    ones = [summaries[int(m)] for m in members]
    numbered = name and all((one.seq[p] >= 0).all() for one, p in zip(ones, places, strict=True))
    place: I64 | None
    if numbered:
        keys = [_counted(one.seq[p]) for one, p in zip(ones, places, strict=True)]
        place = _joined(keys, places)
    else:
        place = _ordered(ones, places)
    if place is None or not place.shape[1]:
        return []
    place = place[:, _agree(ones, place)]
    return [Block(name, members, place, size)] if place.shape[1] else []


def _apart(summaries: Sequence[RankSummary], block: Block) -> list[Block]:
    """Where a communicator's ranks were not recorded, those that seem to be of one may be of
    several alike, such as the tensor-parallel groups of a job. The ends tell here as well."""
    ends = np.stack(
        [
            (summaries[int(m)].start_ns + summaries[int(m)].duration_ns)[p]
            for m, p in zip(block.members, block.place, strict=True)
        ]
    )
    first = summaries[int(block.members[0])]
    symmetric = is_in(first.kind[block.place[0]], [int(kind) for kind in SYMMETRIC])
    if symmetric.any():
        ends = ends[:, symmetric]
    longest = np.max(
        [
            np.median(summaries[int(m)].duration_ns[p])
            for m, p in zip(block.members, block.place, strict=True)
        ]
    )
    limit = max(ENDS_AGREE_NS, ENDS_AGREE_FRAC * float(longest))
    rest, found = np.arange(len(block.members)), []
    while len(rest) > 1:
        offset = (ends[rest] - ends[rest[0]]).astype(np.float64)
        spread = np.median(np.abs(offset - np.median(offset, axis=1, keepdims=True)), axis=1)
        spread[0] = -1.0
        near = np.argsort(spread, kind="stable")[: block.size or None]
        together = np.sort(rest[near[spread[near] <= limit]])
        if len(together) > 1:
            found.append(
                Block(block.name, block.members[together], block.place[together], block.size)
            )
        rest = np.setdiff1d(rest, together)
    return found


def _counted(values: I64) -> I64:
    """values, told apart where they repeat: value * 4096 + how many equal ones came before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    begin = np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))
    result = np.empty(len(values), np.int64)
    result[order] = ordered * 4096 + np.minimum(np.arange(len(values)) - begin, 4095)
    return result


def _joined(keys: list[I64], places: list[I64]) -> I64:
    """Places of the keys that every rank has, (n_ranks, n), in the order of the first rank."""
    shared = keys[0]
    for key in keys[1:]:
        shared = shared[is_in(shared, key)]
    rows = []
    for key, place in zip(keys, places, strict=True):
        order = np.argsort(key, kind="stable")
        rows.append(place[order[np.searchsorted(key[order], shared)]])
    return np.stack(rows)


def _ordered(ones: list[RankSummary], places: list[I64]) -> I64 | None:
    """By order: within those steps that hold equally many operations on every rank, else along the
    whole sequence, shifted so that the ends agree."""
    numbers = _shared_steps(ones)
    if numbers is None:
        return _shifted(ones, places)
    steps = [number[one.step[p]] for number, one, p in zip(numbers, ones, places, strict=True)]
    n_steps = max(int(number.max(initial=-1)) for number in numbers) + 1
    counts = np.stack([np.bincount(step[step >= 0], minlength=n_steps) for step in steps])
    equal = np.append((counts == counts[0]).all(axis=0) & (counts[0] > 0), False)
    if not equal.any():
        return _shifted(ones, places)
    return np.stack([p[equal[step]] for p, step in zip(places, steps, strict=True)])


def _shared_steps(ones: list[RankSummary]) -> list[I64] | None:
    """For each rank, the common number of each of its steps, -1 for one that others do not have;
    None where steps can't be told apart."""
    if all(len(one.kept) == 1 for one in ones):
        return [np.zeros(1, np.int64) for _ in ones]
    if any(len(one.labels) != len(one.kept) for one in ones):
        return None
    shared = set(ones[0].labels).intersection(*(one.labels for one in ones[1:]))
    if not shared or any(len(set(one.labels)) != len(one.labels) for one in ones):
        return None
    number = {label: i for i, label in enumerate(x for x in ones[0].labels if x in shared)}
    return [np.array([number.get(label, -1) for label in one.labels], np.int64) for one in ones]


def _shifted(ones: list[RankSummary], places: list[I64]) -> I64 | None:
    shortest = min(range(len(ones)), key=lambda i: len(places[i]))
    begin = np.zeros(len(ones), np.int64)  # where the shortest sequence begins in each
    low, high = 0, len(places[shortest])
    for i, one in enumerate(ones):
        found = _shift(ones[shortest], places[shortest], one, places[i])
        if found is None:
            return None
        begin[i] = found
        low = max(low, -found)
        high = min(high, len(places[i]) - found)
    if high <= low:
        return None
    return np.stack([p[b + low : b + high] for p, b in zip(places, begin.tolist(), strict=True)])


def _shift(a: RankSummary, a_places: I64, b: RankSummary, b_places: I64) -> int | None:
    """Where the sequence of `a` begins in that of `b` (negative: before it), None if nowhere.

    The shift under which the ends of both differ by a constant as nearly as possible.
    """
    if a is b:
        return 0
    n, m = len(a_places), len(b_places)
    a_end = (a.start_ns + a.duration_ns)[a_places]
    b_end = (b.start_ns + b.duration_ns)[b_places]
    best: tuple[float, int] | None = None
    for shift in sorted(range(-min(MAX_SHIFT, n - 1), min(MAX_SHIFT, m - 1) + 1), key=abs):
        low, high = max(0, -shift), min(n, m - shift)
        if high - low < max(LEAST_OVERLAP * min(n, m), 1):
            continue
        x, y = a_places[low:high], b_places[low + shift : high + shift]
        if np.mean(a.kind[x] == b.kind[y]) < SAME_KIND_FRAC:
            continue
        apart = b_end[low + shift : high + shift] - a_end[low:high]
        spread = float(np.median(np.abs(apart - np.median(apart))))
        if best is None or spread < best[0]:
            best = spread, shift
    return None if best is None else best[1]


def _agree(ones: list[RankSummary], place: I64) -> Bools:
    """Which columns are one operation on all ranks: the same kind, and the same size where all
    ranks must pass the same."""
    kind = np.stack([one.kind[p] for one, p in zip(ones, place, strict=True)])
    size = np.stack([one.in_bytes[p] for one, p in zip(ones, place, strict=True)])
    same_kind = (kind == kind[0]).all(axis=0)
    known = (size >= 0).all(axis=0) & is_in(kind[0], [int(k) for k in _EQUAL_SIZES])
    agreed: Bools = same_kind & (~known | (size == size[0]).all(axis=0))
    return agreed
