"""Hangs from the stacks of all ranks: who waits in what, who did not come, what they do instead.

Ranks that stand in the same call on the same line are one group. Who waits for no other rank is the
one that is waited for. Where all wait, but in different calls, the smaller group went another way:
it left a collective out, or made one too many. Two groups of one size are told apart by their
place in the program, the later one being the one that has left something out, and by counters of
the user's loops, the higher one being ahead.

A rank that is merely slow looks like one that will never come. So a finding says for how long the
others were seen to stand, and it is critical only where no rank goes on by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuprof.analyzers.hang_symptoms import Picture, differing_settings, symptom_of
from gpuprof.analyzers.nccl.evidence import (
    CLASS_UNIT,
    class_evidence,
    finding,
    rank_list,
    see_what,
)
from gpuprof.analyzers.standing import STOOD_S, Standing, standing
from gpuprof.diagnosis import Evidence, Finding, Fix, Place, Severity
from gpuprof.stacks import RankStacks

SOURCE = "stacks"
MAX_TOLD = 6
"""Ranks that are described one by one."""

TRANSFER_FROM = 0.05
"""Of a core, used by a process whose main thread waits in a collective: its transport works."""

COUNTER = re.compile(
    r"(?:^|_)(?:step|iter|iteration|it|i|idx|index|batch|epoch|micro)(?:_idx|_index|_id|_no|_num)?$",
    re.IGNORECASE,
)
"""Variables that count what all ranks do together; other numbers differ from rank to rank."""
USUAL = ("loader", "checkpoint", "busy")
"""What ranks do for seconds in jobs that go on."""

MOST_AHEAD = 2
"""A rank that left a collective out is one call ahead, or two where calls alternate."""

UNWATCHED_S = 30.0
"""A job that was recorded from within has made steps: it must stand longer to be called hanging."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Who is waited for, why that is known, and how sure it is."""

    waiting: tuple[Standing, ...]
    late: tuple[Standing, ...]
    why: str
    confidence: float


def findings_from_stacks(stacks: Sequence[RankStacks]) -> list[Finding]:
    """The hang that the stacks show; empty where no rank waits for another one.

    Args:
        stacks: One a rank, of one job.
    """
    ranks = [standing(one) for one in stacks]
    waiting = [one for one in ranks if one.waits and _stands(one)]
    if not waiting:
        return []
    world_size = max([len(ranks), *(one.stacks.header.world_size for one in ranks)])
    known = all(one.rank >= 0 for one in ranks)
    unseen = sorted(set(range(world_size)) - {one.rank for one in ranks}) if known else []
    answer = _answer(ranks, waiting)
    if answer is None:
        on_their_way = [one for one in ranks if one.waits and one not in waiting]
        if _transfers(waiting) or on_their_way:
            return []
        answer = _Answer(tuple(waiting), (), "", 0.5 if unseen else 0.6)
    picture = Picture(
        waiting=answer.waiting,
        late=answer.late,
        unseen=unseen,
        hosts=len({one.stacks.header.host for one in ranks if one.stacks.header.host}),
        world_size=world_size,
        differing=differing_settings({one.rank: one.stacks.header.environment for one in ranks}),
    )
    return [_finding(picture, answer)]


def join_hangs(exact: Sequence[Finding], seen: Sequence[Finding]) -> list[Finding]:
    """One hang from two recordings: calls that are numbered, and what the ranks were seen to do.
    Two that name different ranks stay two.

    Args:
        exact: From flight-recorder dumps or the like, whose numbers tell a left-out call from a
            late one.
        seen: From what shows the same hang less exactly: stacks, a log.
    """
    hangs = [one for one in exact if one.cause == "hang"]
    second = next((one for one in seen if one.cause == "hang"), None)
    if not hangs or second is None:
        return [*exact, *seen]
    first, stacks = hangs[0], second
    named = first.late_ranks and stacks.late_ranks
    if named and not set(first.late_ranks) & set(stacks.late_ranks):
        return [*exact, *seen]
    joined = msgspec.structs.replace(
        first,
        severity="critical" if "critical" in (first.severity, stacks.severity) else "warning",
        confidence=max(first.confidence, stacks.confidence),
        where=tuple(dict.fromkeys((*stacks.where, *first.where)))[:4],
        late_ranks=first.late_ranks or stacks.late_ranks,
        evidence=(
            *first.evidence,
            *(item for item in stacks.evidence if item.unit != CLASS_UNIT),
        ),
    )
    rest = [one for one in seen if one is not stacks]
    return [joined if one is first else one for one in exact] + rest


def with_stacks(found: Sequence[Finding], stacks: Sequence[RankStacks]) -> list[Finding]:
    """The hangs among these with what the stacks show of the ranks that did not come, also where
    those of the ranks that wait are missing, so that stacks alone say nothing."""
    does = {one.rank: one for one in map(standing, stacks) if one.rank >= 0}
    return [_with_stacks(one, does) if one.cause == "hang" else one for one in found]


def _with_stacks(hang: Finding, does: Mapping[int, Standing]) -> Finding:
    told = any(item.source == SOURCE for item in hang.evidence)
    late = [does[rank] for rank in hang.late_ranks if rank in does and not told][:MAX_TOLD]
    lines = [one.place for one in late if one.place]
    return msgspec.structs.replace(
        hang,
        evidence=(*hang.evidence[:1], *(_does(one) for one in late), *hang.evidence[1:]),
        where=tuple(dict.fromkeys((*lines, *hang.where)))[:4],
    )


def _stands(one: Standing) -> bool:
    """A dump without times stands for itself: whoever took it thought that the job hangs."""
    if not one.stacks.seen_ns:
        return True
    return one.stood_s >= (STOOD_S if one.stacks.watched is not None else UNWATCHED_S)


def _transfers(waiting: Iterable[Standing]) -> bool:
    """Whether their processes work although their main threads wait: a large message passes."""
    watched = [one.stacks.watched for one in waiting]
    return any(w is not None and w.process_cpu_frac >= TRANSFER_FROM for w in watched)


def _answer(ranks: Sequence[Standing], waiting: Sequence[Standing]) -> _Answer | None:
    """Who is waited for; None where all ranks stand in one call."""
    away = [one for one in ranks if not one.waits]
    if away:
        return _Answer(tuple(waiting), tuple(away), "", 0.95 if _is_final(away) else 0.85)
    moving = [one for one in ranks if one not in waiting]
    if moving:  # in a collective at this moment, in another one at the next
        return None
    groups: dict[tuple[str, str, str, int], list[Standing]] = {}
    for one in waiting:
        groups.setdefault(one.spot, []).append(one)
    if len(groups) == 1:
        return _ahead_by_counters(waiting)
    if all(one.is_point_to_point for one in waiting):
        return None  # ends of different pipes are in different lines by nature
    return _odd_group(sorted(groups.values(), key=len, reverse=True))


def _is_final(away: Sequence[Standing]) -> bool:
    return all(one.kind in ("ended", "exiting", "stopped", "sleep", "debugger") for one in away)


def _odd_group(groups: list[list[Standing]]) -> _Answer:
    largest, *rest = groups
    others = [one for group in rest for one in group]
    if len(largest) > len(rest[0]):
        why = f"{_number(len(largest))} ranks are in one call, {rank_list(o.rank for o in others)}"
        why += " in another" if len(rest) == 1 else " in others"
        return _Answer(tuple(largest), tuple(others), why, 0.85)
    by_counters = _ahead_by_counters([one for group in groups for one in group])
    if by_counters is not None:
        return by_counters
    first, second = groups[0], groups[1]
    ahead = second if _line_in_common(second[0], first[0]) else first
    behind = [one for group in groups if group is not ahead for one in group]
    why = "of two calls, the one that comes later in the program was made by who left one out"
    return _Answer(tuple(behind), tuple(ahead), why, 0.6)


def _line_in_common(one: Standing, other: Standing) -> bool:
    """Whether `one` is further on than `other` in the last function that both are in."""
    further = False
    for a, b in zip(one.path, other.path, strict=False):
        if (a.file, a.function) != (b.file, b.function):
            break
        further = (a.line or 0) > (b.line or 0)
        if a.line != b.line:
            break
    return further


def _ahead_by_counters(waiting: Sequence[Standing]) -> _Answer | None:
    """Ranks whose loops have counted further than the others': they have left a call out."""
    names = set.intersection(*(set(one.stacks.values) for one in waiting)) if waiting else set()
    for name in sorted(filter(COUNTER.search, names)):
        counts = {one.rank: one.stacks.values[name] for one in waiting}
        numbers = {rank: int(v) for rank, v in counts.items() if v.lstrip("-").isdigit()}
        if len(numbers) < len(waiting) or len(set(numbers.values())) != 2:
            continue
        if max(numbers.values()) - min(numbers.values()) > MOST_AHEAD:
            continue
        common, votes = Counter(numbers.values()).most_common(1)[0]
        highest = max(numbers.values())
        odd = common if votes == 1 else next(v for v in numbers.values() if v != common)
        if 2 * votes == len(waiting):
            odd = highest
        late = [one for one in waiting if numbers[one.rank] == odd]
        rest = [one for one in waiting if one not in late]
        why = f"the counter {name} is {odd} on {rank_list(one.rank for one in late)} and"
        why += f" {numbers[rest[0].rank]} on the others"
        return _Answer(tuple(rest), tuple(late), why, 0.75)
    return None


def _finding(picture: Picture, answer: _Answer) -> Finding:
    reported = _largest(answer.waiting)
    call = _call(reported[0])
    symptom = symptom_of(picture)
    names = rank_list(one.rank for one in answer.late)
    if not answer.late:
        title = f"All {_number(len(answer.waiting))} ranks that were seen stand in {call}"
        if len(answer.waiting) == 1:
            title = f"{_name(answer.waiting[0])} stands in {call}{_at(answer.waiting[0])}"
    elif len(answer.late) == 1:
        one = answer.late[0]
        title = f"{_name(one)} did not come to {call}: it {_did(one)}"
    else:
        did = Counter(one.words for one in answer.late).most_common(1)[0][0]
        first = _name(answer.late[0]).lower()
        title = f"{names.capitalize()} did not come to {call}; {first} {did}"
    evidence = [_waits(group) for group in _groups(answer.waiting)[:MAX_TOLD]]
    evidence += [_does(one) for one in answer.late[:MAX_TOLD]]
    if answer.why:
        evidence.append(_said(f"{answer.why[0].upper()}{answer.why[1:]}."))
    evidence.append(_said(symptom.reasons))
    if picture.unseen:
        evidence.append(_said(f"Nothing was seen of {rank_list(picture.unseen)}."))
    may_go_on = bool(answer.late) and not _is_final(answer.late)
    may_go_on = may_go_on and any(o.stacks.moves or o.kind in USUAL for o in answer.late)
    if may_go_on:
        evidence.append(_said("It may go on by itself: the job may be slow, and not hang."))
    evidence.append(class_evidence([symptom.id, "desync_straggler"], SOURCE))
    severity: Severity = "warning" if may_go_on else "critical"
    elsewhere = _look_elsewhere(picture)
    # Where nobody who was seen is late, it is for the others to tell.
    fixes = [*symptom.fixes, *elsewhere] if answer.late else [*elsewhere, *symptom.fixes]
    base = finding(
        cause="hang",
        title=title,
        severity=severity,
        confidence=0.6 if may_go_on else answer.confidence,
        evidence=evidence,
        fixes=fixes,
        ranks=[one.rank for one in answer.waiting if one.rank >= 0],
        late_ranks=[one.rank for one in answer.late if one.rank >= 0],
    )
    return msgspec.structs.replace(base, where=_where(answer))


def _look_elsewhere(picture: Picture) -> list[Fix]:
    if not picture.unseen:
        return []
    where = "their own nodes" if len(picture.unseen) > 1 else "its own node"
    return [
        Fix(
            title=f"{see_what(rank_list(picture.unseen))} on {where}",
            detail="Attach there as well, and give all run directories to one analysis.",
            code="gpuprof attach --pid PID; gpuprof analyze RUN RUN…",
        )
    ]


def _where(answer: _Answer) -> tuple[Place, ...]:
    """The lines of those that are waited for, then those of the others."""
    lines = [one.place for one in (*answer.late, *_largest(answer.waiting)) if one.place]
    return tuple(dict.fromkeys(lines))[:4]


def _groups(waiting: Sequence[Standing]) -> list[list[Standing]]:
    found: dict[tuple[str, str, str, int], list[Standing]] = {}
    for one in waiting:
        found.setdefault(one.spot, []).append(one)
    return sorted(found.values(), key=lambda group: (-len(group), group[0].rank))


def _largest(waiting: Sequence[Standing]) -> list[Standing]:
    return _groups(waiting)[0]


def _waits(group: Sequence[Standing]) -> Evidence:
    names = rank_list(one.rank for one in group)
    first = group[0]
    stood_s = min(one.stood_s for one in group)
    text = f"{names.capitalize()} {_plural(first.words, len(group))}{_at(first)}"
    text += f", unmoved for the {stood_s:.1f} s that were watched" if stood_s else ""
    return Evidence(
        text=f"{text}.", value=round(stood_s, 1) or None, unit="s" if stood_s else "", source=SOURCE
    )


def _does(one: Standing) -> Evidence:
    outer = [place for place in one.path[:-1] if place.line][-2:]
    via = "; called from " + " and ".join(_spot(p) for p in reversed(outer)) if outer else ""
    return _said(f"{_name(one)} {one.words}{_at(one)}{via}.")


def _name(one: Standing) -> str:
    return rank_list([one.rank]).capitalize()


def _did(one: Standing) -> str:
    words = one.words if one.kind != "collective" else f"is in {one.call}"
    return f"{words}{_at(one)}"


def _at(one: Standing) -> str:
    return f" at {_spot(one.place)}" if one.place is not None else ""


def _spot(place: Place) -> str:
    name = place.file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name}:{place.line}" + (f" ({place.function})" if place.function else "")


def _call(one: Standing) -> str:
    if one.kind == "collective":
        return one.call
    return {
        "start": "the start of the process group",
        "end": "the end of the process group",
        "device": "what the others' devices wait for",
    }.get(one.kind, "the reduction of gradients in backward")


def _plural(words: str, count: int) -> str:
    if count == 1:
        return words
    verb, _, rest = words.partition(" ")
    return f"{verb.removesuffix('s')} {rest}".rstrip()


def _number(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[count] if count < len(words) else str(count)


def _said(text: str) -> Evidence:
    return Evidence(text=text, source=SOURCE)
