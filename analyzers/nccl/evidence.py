"""How findings about communication are put together: one wording for line, rank and cause class."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprof.commlog import CommLog, Event
from gpuprof.diagnosis import CAUSES, Evidence, Finding, Fix, Severity

CLASS_UNIT = "cause class"
LINE_UNIT = "line"
MAX_QUOTE = 240


def number_of(cause: str) -> int | None:
    """The number of one of the eight causes, None for the others."""
    return CAUSES.get(cause)


def class_evidence(classes: Iterable[str], source: str = "nccl-log") -> Evidence:
    """Names the class of the cause; several mean that the recording does not tell them apart."""
    names = tuple(classes)
    text = f"Cause class: {names[0]}" + (f" (or {', '.join(names[1:])})." if names[1:] else ".")
    return Evidence(text=text, unit=CLASS_UNIT, source=source)


def cause_classes(finding: Finding) -> tuple[str, ...]:
    """The classes that `class_evidence` wrote into a finding, the likely one first."""
    for item in finding.evidence:
        if item.unit == CLASS_UNIT:
            text = item.text.removeprefix("Cause class: ").rstrip(".")
            first, _, rest = text.partition(" (or ")
            return (first, *[name for name in rest.rstrip(")").split(", ") if name])
    return ()


def decisive_line(finding: Finding) -> int | None:
    """The number of the decisive line of the log."""
    for item in finding.evidence:
        if item.unit == LINE_UNIT and item.value is not None:
            return int(item.value)
    return None


def quote(text: str) -> str:
    """A line in quotation marks, cut where it is long."""
    text = " ".join(text.split())
    return f"“{text if len(text) <= MAX_QUOTE else text[: MAX_QUOTE - 1] + '…'}”"


def line_evidence(log: CommLog, event: Event, prefix: str = "") -> Evidence:
    """The decisive line, its place, its rank and its words."""
    path = log.paths[event.file]
    who = log.describe(event.process, event.rank)
    source = f"{event.source}:{event.source_line}: " if event.source else ""
    times = f" ({event.count} times)" if event.count > 1 else ""
    return Evidence(
        text=f"{prefix}{path}:{event.line}, {who}: {quote(source + event.text)}{times}",
        value=float(event.line),
        unit=LINE_UNIT,
        source="nccl-log",
    )


def row_evidence(log: CommLog, line: int, process: int | None, text: str) -> Evidence:
    """A sentence about one row of a table, with its line and process."""
    where = log.describe(process, None) if process is not None else ""
    place = f" (line {line}{', ' + where if where else ''})" if line else ""
    return Evidence(
        text=f"{text}{place}.",
        value=float(line) if line else None,
        unit=LINE_UNIT if line else "",
        source="nccl-log",
    )


def finding(
    *,
    cause: str,
    title: str,
    severity: Severity,
    confidence: float,
    evidence: Iterable[Evidence],
    fixes: Iterable[Fix],
    ranks: Iterable[int] = (),
    late_ranks: Iterable[int] = (),
) -> Finding:
    """A finding without a price: a log does not hold the time of a step."""
    return Finding(
        cause=cause,
        number=number_of(cause),
        title=title,
        severity=severity,
        confidence=confidence,
        share=0.0,
        gain=None,
        ranks=tuple(sorted(set(ranks))),
        late_ranks=tuple(sorted(set(late_ranks))),
        evidence=tuple(evidence),
        fixes=tuple(fixes),
    )


def rank_list(ranks: Iterable[int], limit: int = 16) -> str:
    """`rank 3` or `ranks 0–7, 9 and 12`, long lists cut; `process 4242` for a negative number,
    where the rank is not known."""
    given = set(ranks)
    ordered = sorted(rank for rank in given if rank >= 0)
    processes = [str(-rank) for rank in sorted(given, reverse=True) if rank < 0]
    if processes:
        named = [rank_list(ordered, limit)] if ordered else []
        shown = ", ".join(processes[:limit]) + (", …" if len(processes) > limit else "")
        word = "processes" if len(processes) > 1 else "process"
        return " and ".join([*named, f"{word} {shown}"])
    if not ordered:
        return "no rank"
    spans: list[tuple[int, int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    parts = [f"{a}–{b}" if b > a + 1 else f"{a}, {b}" if b > a else f"{a}" for a, b in spans]
    if len(parts) > limit:
        parts = [*parts[:limit], "…"]
    return ("ranks " if len(ordered) > 1 else "rank ") + ", ".join(parts)


def ranks_of(log: CommLog, process: int | None) -> tuple[int, ...]:
    """Ranks of a process, none when it is unknown."""
    return () if process is None else tuple(set(log.processes[process].ranks.values()))


def see_what(who: str) -> str:
    """The title of the fix that looks at ranks, named as `rank_list` does."""
    return f"See what {who} {'do' if who.startswith(('ranks ', 'processes ')) else 'does'}"


def who_waits(ranks: Iterable[int]) -> str:
    """`Rank 3 waits` or `Ranks 0–7 wait`, to begin a sentence with."""
    names = rank_list(ranks)
    many = names.startswith(("ranks ", "processes ")) or " and " in names
    return f"{names[0].upper()}{names[1:]} {'wait' if many else 'waits'}"
