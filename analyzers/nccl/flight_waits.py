"""Who waits for whom in the flight-recorder dumps of all ranks.

A rank waits in a collective that its record shows as issued and unfinished. A member of the same
group that has not issued that number yet is missing. A missing rank can itself wait in another
group (tensor parallel waits for pipeline waits for data parallel), so blame goes to missing ranks
that wait for nobody missing. Beside that, a device can stand still while its host goes on: its rank
has an unfinished collective that another member has finished.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.readers.flight_recorder import Entry, FlightRecords, RankDump

MIN_STALLED = 2
"""Collectives that a device must miss: a finished one can be unreported for the moment between two
looks of the thread that marks it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks that wait in one collective of one group, and the members that are not there."""

    group: str
    description: str
    sequence: int
    entry: Entry
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since_ns: int


def pending(dump: RankDump) -> list[Entry]:
    """Collectives that the rank issued and that did not finish."""
    return [e for e in dump.entries if e.pending and not e.is_p2p and e.sequence >= 0]


def _group_ids(records: FlightRecords) -> dict[str, int]:
    """The local id of each group, where all ranks that name it agree: it lets the status of a rank
    speak that has no entry of the group."""
    seen: dict[str, set[int]] = {}
    for dump in records.ranks.values():
        for entry in dump.entries:
            if entry.group_id >= 0:
                seen.setdefault(entry.group, set()).add(entry.group_id)
    return {name: next(iter(ids)) for name, ids in seen.items() if len(ids) == 1}


def last_issued(dump: RankDump, group: str, group_id: int | None) -> int:
    """The highest collective number that the rank issued in the group, -1 when it issued none."""
    numbers = [e.sequence for e in dump.entries if e.group == group and not e.is_p2p]
    if group_id is not None and not any(e.group == group and e.is_p2p for e in dump.entries):
        numbers.append(dump.status.get(group_id, (-1, -1))[0])
    return max(numbers, default=-1)


def find_waits(records: FlightRecords) -> list[Wait]:
    """The first collective of each group in which some wait and some are missing."""
    ids = _group_ids(records)
    groups = records.groups
    waits: list[Wait] = []
    by_group: dict[str, dict[int, dict[int, Entry]]] = {}
    for rank, dump in records.ranks.items():
        for entry in pending(dump):
            by_group.setdefault(entry.group, {}).setdefault(entry.sequence, {})[rank] = entry
    for name, numbers in by_group.items():
        members = groups[name].ranks if name in groups else ()
        present = [rank for rank in members if rank in records.ranks]
        issued = {r: last_issued(records.ranks[r], name, ids.get(name)) for r in present}
        for number in sorted(numbers):
            waiting = numbers[number]
            missing = tuple(r for r in present if r not in waiting and issued[r] < number)
            if missing:
                entry = min(waiting.values(), key=lambda e: e.created_ns or 0)
                waits.append(
                    Wait(
                        name,
                        entry.description or (groups[name].description if name in groups else ""),
                        number,
                        entry,
                        tuple(sorted(waiting)),
                        missing,
                        entry.created_ns or 0,
                    )
                )
                break
    return waits


def root_ranks(waits: list[Wait]) -> set[int]:
    """Missing ranks that do not themselves wait for a missing rank; all of them when the waits
    form a circle."""
    missing = {rank for wait in waits for rank in wait.missing}
    waiting = {rank for wait in waits for rank in wait.waiting}
    return (missing - waiting) or missing


def reported_wait(waits: list[Wait], blamed: set[int]) -> Wait:
    """The wait that began first among those for a blamed rank."""
    own = [wait for wait in waits if set(wait.missing) & blamed] or waits
    return min(own, key=lambda wait: wait.since_ns)


def stalled_devices(records: FlightRecords) -> list[int]:
    """Ranks with an unfinished collective that another member of the group has finished."""
    ids = _group_ids(records)
    groups = records.groups
    stalled: set[int] = set()
    for name, group in groups.items():
        group_id = ids.get(name, -1)
        done: dict[int, int] = {}
        first: dict[int, int] = {}
        for rank in group.ranks:
            dump = records.ranks.get(rank)
            if dump is None:
                continue
            open_numbers = [e.sequence for e in pending(dump) if e.group == name]
            has_p2p = any(e.group == name and e.is_p2p for e in dump.entries)
            if open_numbers:
                first[rank] = min(open_numbers)
                done[rank] = first[rank] - 1
            elif group_id in dump.status and not has_p2p:
                done[rank] = dump.status[group_id][1]
        best = max(done.values(), default=-1)
        stalled |= {rank for rank, number in first.items() if best - number >= MIN_STALLED - 1}
    return sorted(stalled)
