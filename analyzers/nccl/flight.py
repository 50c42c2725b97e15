"""Hangs from flight-recorder dumps: the collective, who did not come, what they did instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, rank_list, see_what, who_waits
from gpuprof.analyzers.nccl.flight_waits import (
    Wait,
    find_waits,
    pending,
    reported_wait,
    root_ranks,
    stalled_devices,
)
from gpuprof.analyzers.wording import milliseconds
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix, Place
from gpuprof.readers.flight_recorder import Entry, FlightRecords, RankDump

SAME_SIZE = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "_reduce_scatter_base",
    "reduce_scatter",
    "barrier",
)
"""Collectives whose input must have the same size on all ranks."""


FRESH_WAIT_NS = 2_000_000_000
"""A rank of a healthy job is behind the others by less than a step; a wait that was younger than
this when the dumps were written may end by itself."""


def findings_from_flight(records: FlightRecords) -> list[Finding]:
    """The hang that the dumps show; empty when no rank waits."""
    mismatch = _mismatch(records)
    if mismatch is not None:
        return [mismatch]
    waits = find_waits(records)
    stalled = stalled_devices(records)
    if not waits and not stalled:
        return _without_dump(records) or _unmatched_p2p(records)
    blamed = root_ranks(waits)
    wait = reported_wait(waits, blamed) if waits else None
    late = sorted({*blamed, *stalled})
    return [_hang(records, wait, blamed, stalled, late)]


def _did(dump: RankDump, reported: Wait | None) -> str:
    """What a rank did instead, from its own record."""
    pending = [e for e in dump.entries if e.pending]
    if not pending:
        return (
            "has nothing in flight: its host thread does something else (Python's interpreter "
            "lock, input or output, an exception)"
        )
    last = max(pending, key=lambda e: e.created_ns or 0)
    text = f"last issued {last.describe()} in group {last.group} {last.description}".rstrip()
    if reported is not None and last.created_ns is not None and reported.since_ns:
        gap = (reported.since_ns - last.created_ns) / 1e6
        text += f", {milliseconds(gap)} before the others began to wait" if gap > 0 else ""
    return text + f", and has {counted(len(pending), 'call')} that never finished"


def _places(dump: RankDump) -> tuple[Place, ...]:
    entries = [e for e in dump.entries if e.frames]
    if not entries:
        return ()
    last = max(entries, key=lambda e: e.created_ns or 0)
    own = [f for f in last.frames if "/torch/" not in f.file and "site-packages" not in f.file]
    return tuple(
        Place(file=f.file, line=f.line, function=f.function) for f in (own or last.frames)[:1]
    )


def _hang(
    records: FlightRecords,
    wait: Wait | None,
    blamed: set[int],
    stalled: list[int],
    late: list[int],
) -> Finding:
    fresh = wait is not None and 0 <= _age_ns(records, wait) < FRESH_WAIT_NS
    if wait is not None:
        title = f"{rank_list(wait.missing)} did not come to {wait.entry.describe()}"
    else:
        title = f"The device of {rank_list(stalled)} stands still"
    sentences = _does_not_go_on(records, wait, [r for r in late[:4] if r in blamed], stalled)
    evidence = [Evidence(text=text, source="flight-recorder") for text in sentences]
    if wait is not None:
        evidence.insert(0, _waits(wait))
        if fresh:
            text = (
                f"When the dumps were written this wait was {_age_ns(records, wait) / 1e9:.1f} s"
                " old: the job may be running, and the rank merely behind."
            )
            evidence.append(Evidence(text=text, source="flight-recorder"))
    kind = "gpu_stalled" if stalled else "rank_did_not_come"
    where = tuple(place for rank in sorted(blamed)[:2] for place in _places(records.ranks[rank]))
    base = finding(
        cause="hang",
        title=title[0].upper() + title[1:],
        severity="warning" if fresh else "critical",
        confidence=0.4 if fresh else 0.9 if wait is not None else 0.7,
        evidence=[*evidence, class_evidence([kind, "desync_straggler"], "flight-recorder")],
        fixes=_fixes(sorted(blamed) or late, stalled),
        ranks=wait.waiting if wait is not None else stalled,
        late_ranks=late,
    )
    return base if not where else _with_places(base, where)


def _waits(wait: Wait) -> Evidence:
    return Evidence(
        text=f"{who_waits(wait.waiting)} in collective {wait.sequence} of group {wait.group}"
        f" {wait.description}: {wait.entry.describe()}; {rank_list(wait.missing)} did not come.",
        value=float(wait.sequence),
        unit="collective",
        source="flight-recorder",
    )


def _does_not_go_on(
    records: FlightRecords, wait: Wait | None, blamed: list[int], stalled: list[int]
) -> Iterator[str]:
    """What the dumps show of those that are waited for, and which dumps are missing."""
    for rank in blamed:
        yield f"Rank {rank} {_did(records.ranks[rank], wait)}."
    if stalled:
        yield (
            f"The device of {rank_list(stalled)} stopped first: collectives that other members "
            "finished are unfinished there. A fault or a hanging kernel of that GPU looks so."
        )
    absent = _no_dump(records)
    if absent:
        yield f"There is no dump of {rank_list(absent)}."


def _fixes(late: list[int], stalled: list[int]) -> list[Fix]:
    look = Fix(
        title=see_what(rank_list(late)),
        detail="Its Python stack while the others wait names the line; if the process is gone, "
        "its log and exit code tell why.",
        code="py-spy dump --pid PID",
    )
    if not stalled:
        return [look]
    gpu = Fix(
        title=f"Look at the GPU of {rank_list(stalled)}",
        detail="An Xid in the kernel log, or a kernel of the program that never ends.",
        code="dmesg -T | grep -i xid; nvidia-smi -q",
    )
    return [gpu, look]


def _age_ns(records: FlightRecords, wait: Wait) -> int:
    return max(dump.written_ns for dump in records.ranks.values()) - wait.since_ns


def _with_places(base: Finding, where: tuple[Place, ...]) -> Finding:
    import msgspec

    return msgspec.structs.replace(base, where=where)


def _no_dump(records: FlightRecords) -> list[int]:
    members = {rank for group in records.groups.values() for rank in group.ranks}
    return sorted(members - set(records.ranks))


def _without_dump(records: FlightRecords) -> list[Finding]:
    """All that left a dump are in the same place: the ranks without one are missing, or dead."""
    absent = set(_no_dump(records))
    waiting: dict[int, Entry] = {}
    groups = records.groups
    for rank, dump in records.ranks.items():
        for entry in pending(dump):
            members = set(groups[entry.group].ranks) if entry.group in groups else set()
            if members & absent:
                waiting.setdefault(rank, entry)
    if not absent or not waiting:
        return []
    entry = min(waiting.values(), key=lambda e: e.created_ns or 0)
    late = sorted(absent & set(groups[entry.group].ranks))
    name = rank_list(late)
    few = len(absent) >= len(records.ranks)
    ended = Fix(
        title=f"Find out how {name} ended",
        detail="Its log, its exit code, the kernel's out-of-memory killer.",
        code="dmesg -T | grep -iE 'xid|oom|killed process'",
    )
    given = Fix(
        title=f"Give the dumps of {name} as well, if there are any",
        detail="Every rank writes one, each on its own node: what they did is in them.",
        code="gpuprof analyze FOLDER-WITH-ALL-DUMPS",
    )
    return [
        finding(
            cause="hang",
            title=f"{name.capitalize()} left no dump; the others wait in {entry.describe()}",
            severity="critical",
            confidence=0.4 if few else 0.7,
            evidence=[
                Evidence(
                    text=f"{who_waits(waiting)} in collective {entry.sequence} of group "
                    f"{entry.group} {entry.description}, all that left a dump are there.",
                    value=float(entry.sequence),
                    unit="collective",
                    source="flight-recorder",
                ),
                class_evidence(["rank_died", "rank_did_not_come"], "flight-recorder"),
            ],
            fixes=[given, ended] if few else [ended],
            ranks=waiting,
            late_ranks=late,
        )
    ]


def _unmatched_p2p(records: FlightRecords) -> list[Finding]:
    """A send or receive whose other end has nothing in flight at all."""
    groups = records.groups
    for rank, dump in sorted(records.ranks.items()):
        for entry in dump.entries:
            if not (entry.is_p2p and entry.pending) or entry.group not in groups:
                continue
            members = groups[entry.group].ranks
            numbers = [
                int(n)
                for n in entry.operation.replace("->", " ").replace("<-", " ").split()
                if n.isdigit()
            ]
            if not numbers or numbers[-1] >= len(members):
                continue
            peer = records.ranks.get(members[numbers[-1]])
            if peer is None or any(e.pending for e in peer.entries):
                continue
            return [
                finding(
                    cause="hang",
                    title=f"Rank {rank} waits for rank {peer.rank}, which has nothing in flight",
                    severity="critical",
                    confidence=0.7,
                    evidence=[
                        Evidence(
                            text=f"Rank {rank} waits in {entry.describe()} of group {entry.group}; "
                            f"rank {peer.rank} {_did(peer, None)}.",
                            source="flight-recorder",
                        ),
                        class_evidence(["rank_did_not_come"], "flight-recorder"),
                    ],
                    fixes=[
                        Fix(
                            title=f"See what rank {peer.rank} does",
                            detail="Its Python stack while the other waits names the line.",
                            code="py-spy dump --pid PID",
                        )
                    ],
                    ranks=[rank],
                    late_ranks=[peer.rank],
                )
            ]
    return []


def _mismatch(records: FlightRecords) -> Finding | None:
    """The first number of a group at which members call different things; the majority is right."""
    calls: dict[tuple[str, int], dict[int, Entry]] = {}
    for rank, dump in records.ranks.items():
        for entry in pending(dump):
            calls.setdefault((entry.group, entry.sequence), {})[rank] = entry
    found: list[tuple[int, str, int, dict[int, Entry], list[int]]] = []
    for (group, number), entries in calls.items():
        forms = {rank: _form(entry) for rank, entry in entries.items()}
        counts = Counter(forms.values())
        if len(counts) < 2:
            continue
        common = counts.most_common(1)[0][0]
        odd = sorted(rank for rank, form in forms.items() if form != common)
        since = min(entry.created_ns or 0 for entry in entries.values())
        found.append((since, group, number, entries, odd))
    if not found:
        return None
    _since, group, number, entries, odd = min(found, key=lambda item: item[0])
    right = next(entry for rank, entry in entries.items() if rank not in odd)
    wrong = entries[odd[0]]
    base = finding(
        cause="hang",
        title="Ranks issue different collectives",
        severity="critical",
        confidence=0.95,
        evidence=[
            Evidence(
                text=f"At collective {number} of group {group} {right.description}, "
                f"{rank_list(odd)} called {wrong.describe()}, the others {right.describe()}.",
                value=float(number),
                unit="collective",
                source="flight-recorder",
            ),
            class_evidence(["collective_mismatch"], "flight-recorder"),
        ],
        fixes=[
            Fix(
                title="Make every rank issue the same collectives in the same order",
                detail="A branch that depends on data or an unused parameter is the usual reason.",
                code="TORCH_DISTRIBUTED_DEBUG=DETAIL …",
            )
        ],
        ranks=entries,
        late_ranks=odd,
    )
    where = _places(records.ranks[odd[0]])
    return base if not where else _with_places(base, where)


def _form(entry: Entry) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]:
    name = entry.operation.removeprefix("nccl:")
    if name in SAME_SIZE:
        return name, entry.sizes, entry.dtypes
    return name, (), entry.dtypes
