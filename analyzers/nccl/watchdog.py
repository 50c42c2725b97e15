"""Hangs that PyTorch's watchdog saw: which collective, and which ranks did not come to it.

What a timed-out job prints: every rank that waits names the collective it waits in; the rank that
is waited for names an earlier one, another one, or nothing. A desync report
(TORCH_NCCL_DESYNC_DEBUG=1) and the list of lagging ranks (2.7 on) name it outright.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gpuprof.analyzers.nccl.evidence import (
    class_evidence,
    finding,
    line_evidence,
    quote,
    rank_list,
    see_what,
)
from gpuprof.commlog import CommLog, Event
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

TIMEOUT = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\("
    r"(?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+), NumelOut=\d+)?"
    r"(?:, TensorShape=\[(?P<shape>\d+)\])?"
    r".*?Timeout\(ms\)=(?P<limit>\d+)\) ran for (?P<ran>\d+) milliseconds"
)
GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\w+)[^\]]*? Rank (?P<rank>\d+)\]")
GLOBAL_RANK = re.compile(r"\[rank(\d+)\]")
FINISHED = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<done>\d+), but didn't join collective "
    r"#(?P<missed>\d+)"
)
LAGGING = re.compile(r"\[?(?P<ranks>\d[\d, ]*)\]? are the lagging ranks")
STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?seconds?")
WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+)|work sequence id: (\d+)|(?:NCCL work|at work): (\d+)")
COUNTS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
    r"last completed (?:NCCL )?work: (?P<done>-?\d+)"
)

DEFAULT_LIMIT_MS = 600_000
"""PyTorch's own limit for NCCL, ten minutes (thirty for gloo and for older versions). One that is
lower ends jobs whose ranks are merely slow now and then: a save, an evaluation, a cold cache."""

START_UP_SEQUENCE = 3
"""Collectives before this one belong to set-up: barriers around tokenizing, downloads, broadcasts
of parameters (two of two such labelled time-outs are barriers at number 1 to 3)."""

MAX_SILENT_FRAC = 0.5
"""When more ranks are silent than speak, silence names nobody: their output is not in the log."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """One rank's time-out. `rank` is global where the launcher's prefix tells it; `group` is the
    process group's id on that rank, empty when no line tells it."""

    rank: int
    group: str
    sequence: int | None
    operation: str
    elements: int | None
    limit_ms: int
    event: Event


def timeouts(log: CommLog) -> list[TimedOut]:
    """The first time-out of each rank, in the order of the log."""
    found: dict[int, TimedOut] = {}
    groups = _groups(log)
    for event in log.events:
        match = TIMEOUT.search(event.text)
        if match is None:
            continue
        prefix = GLOBAL_RANK.search(event.text)
        rank = int(prefix[1]) if prefix else int(match["rank"])
        found.setdefault(
            rank,
            TimedOut(
                rank,
                groups.get((rank, match["seq"] or ""), ""),
                int(match["seq"]) if match["seq"] else None,
                match["op"],
                int(match["numel"] or match["shape"]) if match["numel"] or match["shape"] else None,
                int(match["limit"]),
                event,
            ),
        )
    return list(found.values())


def _groups(log: CommLog) -> dict[tuple[int, str], str]:
    """(global rank, sequence number) to process group, from the lines that follow a time-out."""
    found: dict[tuple[int, str], str] = {}
    for event in log.events:
        group, rank = GROUP.search(event.text), GLOBAL_RANK.search(event.text)
        work = WORK.search(event.text)
        if group is not None and rank is not None and work is not None:
            number = next(text for text in work.groups() if text is not None)
            found.setdefault((int(rank[1]), number), group["group"])
    return found


def named_ranks(log: CommLog) -> tuple[list[int], Event | None, str]:
    """Ranks that a report of PyTorch names as missing, its line, and what it says of them."""
    for event in log.events:
        match = FINISHED.search(event.text)
        if match is not None:
            text = f"finished collective #{match['done']} and never joined #{match['missed']}"
            return _numbers(match["ranks"]), event, text
        match = LAGGING.search(event.text)
        if match is not None:
            return _numbers(match["ranks"]), event, "joined no collective"
    return [], None, ""


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def late_by_comparison(rows: list[TimedOut], world_size: int) -> tuple[list[int], str]:
    """Ranks that the others wait for, and how it is known; empty when nothing tells.

    Numbers count within a process group, so ranks are compared within theirs: a rank behind the
    others comes first, then one in another operation; else the ranks that print nothing at all.
    """
    groups: dict[str, list[TimedOut]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    for members in groups.values():
        late, why = _late_in_group(members)
        if late:
            return late, why
    size = world_size or (max(row.rank for row in rows) + 1 if rows else 0)
    silent = [rank for rank in range(size) if rank not in {row.rank for row in rows}]
    if silent and len(silent) <= MAX_SILENT_FRAC * size:
        return silent, "printed nothing: busy elsewhere, or dead"
    return [], ""


def _late_in_group(rows: list[TimedOut]) -> tuple[list[int], str]:
    sequences = {row.rank: row.sequence for row in rows if row.sequence is not None}
    if not sequences:
        return [], ""
    top, votes = Counter(sequences.values()).most_common(1)[0]
    behind = [rank for rank, sequence in sequences.items() if sequence < top]
    if behind and votes > len(behind):
        lowest = min(sequences[rank] for rank in behind)
        return (
            sorted(rank for rank in behind if sequences[rank] == lowest),
            f"timed out in collective {lowest} while the others are in {top}",
        )
    same = [row for row in rows if row.sequence == top]
    calls = Counter((row.operation, row.elements) for row in same)
    (call, count), *rest = calls.most_common()
    if rest and count > len(same) / 2:
        odd = sorted(row.rank for row in same if (row.operation, row.elements) != call)
        return odd, f"called another collective at number {top} than the others' {call[0]}"
    return [], ""


def findings_from_watchdog(log: CommLog) -> list[Finding]:
    """The hang that the watchdog reports, if it does."""
    rows = timeouts(log)
    named, report, said = named_ranks(log)
    if not rows and report is None:
        return _stuck(log)
    late, why = named, said
    if not late:
        late, why = late_by_comparison(rows, log.world_size)
    first = rows[0] if rows else None
    event = report or (first.event if first else log.events[0])
    evidence = [line_evidence(log, event)]
    if first is not None:
        evidence.append(_collective(rows, first))
    if late:
        evidence.append(Evidence(text=f"{rank_list(late).capitalize()} {why}.", source="nccl-log"))
    evidence += _work(log, late)
    start_up = (
        report is None
        and first is not None
        and (first.sequence or START_UP_SEQUENCE + 1) <= START_UP_SEQUENCE
        and (first.elements or 2) == 1
    )
    progress = [line for line in log.progress if first is None or line[0] <= first.event.line + 50]
    if report is not None:
        classes = ["desync_straggler"]
    elif why.startswith("called another"):
        classes = ["collective_mismatch"]
    elif start_up or (progress and (first is None or (first.elements or 0) <= 1)):
        classes = ["wait_on_slow_rank_cpu_work", *([] if progress else ["desync_straggler"])]
    else:
        classes = ["desync_straggler", "wait_on_slow_rank_cpu_work"]
    if progress and classes[0] == "wait_on_slow_rank_cpu_work":
        number, text = progress[-1]
        evidence.append(
            Evidence(
                text=f"Work goes on meanwhile (line {number}): {quote(text[:120])}.",
                source="nccl-log",
            )
        )
    evidence.append(class_evidence(classes))
    name = rank_list(late) if late else "a rank"
    operation = first.operation if first else "a collective"
    title = f"{name} did not come to {operation}; the others waited until the time-out"
    return [
        finding(
            cause="hang",
            title=title[0].upper() + title[1:],
            severity="critical",
            confidence=0.95 if report else 0.8 if late else 0.5,
            evidence=evidence,
            fixes=_fixes(classes[0], late, first),
            ranks=[row.rank for row in rows],
            late_ranks=late,
        )
    ]


def _collective(rows: list[TimedOut], first: TimedOut) -> Evidence:
    size = f" of {first.elements} elements" if first.elements is not None else ""
    number = f", number {first.sequence} of its group" if first.sequence is not None else ""
    who = rank_list(row.rank for row in rows)
    return Evidence(
        text=f"{who[0].upper()}{who[1:]} waited {first.limit_ms / 1000:g} s in "
        f"{first.operation}{size}{number}.",
        value=first.limit_ms / 1000,
        unit="s",
        source="nccl-log",
    )


def _work(log: CommLog, late: list[int]) -> list[Evidence]:
    """How far the host ran ahead of the device, where the watchdog prints its counters."""
    for event in log.events:
        match = COUNTS.search(event.text)
        group = GROUP.search(event.text)
        if match is None or (group is not None and int(group["rank"]) in late):
            continue
        ahead = int(match["enqueued"]) - int(match["done"])
        text = (
            f"The host had queued {counted(ahead, 'more collective')} than the device finished: "
            + ("the device is stuck in one" if ahead > 1 else "the ranks stand still at this one")
            + "."
        )
        return [Evidence(text=text, value=float(ahead), unit="collectives", source="nccl-log")]
    return []


def _fixes(kind: str, late: list[int], first: TimedOut | None) -> list[Fix]:
    who = rank_list(late) if late else "the missing rank"
    look = Fix(
        title=see_what(who),
        detail="Its Python stack while the others wait names the line; its own log and exit code "
        "tell whether it died.",
        code="py-spy dump --pid PID",
    )
    record = Fix(
        title="Record the flight recorder of all ranks",
        detail="It names the ranks and the last call of each.",
        code="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    )
    if kind == "wait_on_slow_rank_cpu_work":
        limit = f" (now {first.limit_ms / 60000:g} min)" if first else ""
        return [
            Fix(
                title=f"Do the long work before the process group, or raise its time-out{limit}",
                detail="One rank tokenizes, downloads or saves while the others wait in a barrier.",
                code="dist.init_process_group(…, timeout=timedelta(hours=3))",
            ),
            look,
        ]
    if kind == "collective_mismatch":
        return [
            Fix(
                title="Make every rank issue the same collectives in the same order",
                detail="A branch that depends on data or an unused parameter is the usual reason.",
                code="TORCH_DISTRIBUTED_DEBUG=DETAIL …",
            ),
            look,
        ]
    if first is not None and first.limit_ms < DEFAULT_LIMIT_MS:
        return [look, _longer(first), record]
    return [look, record]


def _longer(first: TimedOut) -> Fix:
    return Fix(
        title=f"Raise the time-out of {first.limit_ms / 1000:g} s if this happens now and then",
        detail="It is below PyTorch's own ten minutes: a rank that saves, evaluates or reads from a"
        " cold disk for longer ends the job, although it would have come.",
        code="dist.init_process_group(…, timeout=timedelta(minutes=30))",
    )


def _stuck(log: CommLog) -> list[Finding]:
    for event in log.events:
        match = STUCK.search(event.text)
        if match is not None:
            return [
                finding(
                    cause="hang",
                    title="The watchdog thread itself is blocked, not a collective",
                    severity="warning",
                    confidence=0.6,
                    evidence=[
                        line_evidence(log, event),
                        Evidence(
                            text="No collective timed out: a thread holds Python's interpreter "
                            "lock, a CUDA call hangs, or communicators are destroyed in different "
                            "orders on different ranks.",
                            source="nccl-log",
                        ),
                        class_evidence(["teardown_order"]),
                    ],
                    fixes=[
                        Fix(
                            title="Destroy process groups in the same order on all ranks",
                            detail="Call destroy_process_group() before exit; take a native stack "
                            "of the process to see who holds the lock.",
                            code="py-spy dump --native --pid PID",
                        )
                    ],
                    ranks=() if event.rank is None else (event.rank,),
                )
            ]
    return []
