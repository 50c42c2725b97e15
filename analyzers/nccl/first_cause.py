"""Of many warnings over many ranks, the one that started it; the rest is folded under it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import (
    class_evidence,
    finding,
    line_evidence,
    rank_list,
)
from gpuprof.analyzers.nccl.rules import Rule, match
from gpuprof.commlog import CommLog, Event
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

CLOCK_TOLERANCE_NS = 1_000_000_000
"""Hosts of one job agree on the time within a second (NTP does better); events closer than that
are ordered by what can cause what."""

MAX_FOLDED = 6
"""Lines of consequences that a reader will look at."""

UNKNOWN_CONFIDENCE = 0.35
"""A warning that no rule knows, of a process that then failed: a lead, not a verdict."""

_PEER_DIED_FIX = Fix(
    title="Look at the log of the rank that closed the connection",
    detail="Its own first warning, its exit code, or the kernel's out-of-memory killer has the "
    "cause; this log only shows that it went away.",
    code="dmesg -T | grep -iE 'xid|oom|killed process'",
)


@dataclass(frozen=True, slots=True)
class Sorted:
    """Events by role. `causes` pairs each with its rule, the most probable origin first."""

    causes: tuple[tuple[Event, Rule], ...]
    symptoms: tuple[tuple[Event, Rule], ...]
    unknown: tuple[Event, ...]


def sort_events(log: CommLog) -> Sorted:
    """Gives every event its role."""
    facts = Facts(log)
    causes: list[tuple[Event, Rule]] = []
    symptoms: list[tuple[Event, Rule]] = []
    unknown: list[Event] = []
    probes_count = failed(log)  # NCCL tries things out and tells of it at INFO
    for event in log.events:
        rule = match(event, facts)
        if rule is None:
            if event.level == "WARN":
                unknown.append(event)
        elif rule.role == "cause" and (event.level != "INFO" or (probes_count and rule.tier < 4)):
            causes.append((event, rule))
        elif rule.role == "symptom":
            symptoms.append((event, rule))
    for fact in log.facts_of("shared_memory_limit"):
        need, have = fact.fields["need"], fact.fields["have"]
        text = f"ncclMaxSharedMem {need} exceeds device/fn maxSharedMem {have}"
        event = Event(0, fact.line, fact.process, _rank(log, fact.process), "INFO", text)
        rule = match(event, facts)
        if rule is not None:
            causes.append((event, rule))
    return Sorted(tuple(_ordered(causes)), tuple(symptoms), tuple(unknown))


def _rank(log: CommLog, process: int | None) -> int | None:
    if process is None:
        return None
    ranks = set(log.processes[process].ranks.values())
    return next(iter(ranks)) if len(ranks) == 1 else None


def _ordered(causes: list[tuple[Event, Rule]]) -> list[tuple[Event, Rule]]:
    """By time where every cause carries one, else by tier; the order of the log decides ties.

    INFO lines come after warnings of the same tier: NCCL prints some of them on paths that work.
    """

    def by_tier(pair: tuple[Event, Rule]) -> tuple[int, bool, int, int]:
        event, rule = pair
        return (rule.tier, event.level == "INFO", event.file, event.line)

    ordered = sorted(causes, key=by_tier)
    times = [event.time_ns for event, _ in causes if event.level == "WARN"]
    stamped = [t for t in times if t is not None]
    if len(stamped) == len(causes) > 0:
        first = min(stamped)
        head = [p for p in ordered if (p[0].time_ns or 0) <= first + CLOCK_TOLERANCE_NS]
        return head + [p for p in ordered if p not in head]
    return ordered


def failed(log: CommLog) -> bool:
    """Whether the log shows that something did not work: an abort, or a text that a framework
    prints when it gives up."""
    if any(word == "Abort" for comm in log.communicators for word in comm.ended.values()):
        return True
    marks = (
        "NCCL error",
        "NCCL failure",
        "Last error",
        "CUDA failure",
        "ncclSystemError",
        "ncclInternalError",
        "ncclRemoteError",
        "ncclUnhandledCudaError",
    )
    return any(
        event.level == "BARE" and any(mark in event.text for mark in marks) for event in log.events
    )


def findings_from_events(log: CommLog) -> list[Finding]:
    """The first cause, or what can be said without one; nothing for benign lines."""
    events = sort_events(log)
    if events.causes:
        return [_first(log, events)]
    if events.unknown and _process_failed(log, events.unknown[0]):
        return [_unknown(log, events)]
    peers = [pair for pair in events.symptoms if pair[1].id == "closed" and pair[0].level != "INFO"]
    if peers and not _torn_down(log, peers[0][0]):
        return [_peer_died(log, peers)]
    return []


def _first(log: CommLog, events: Sorted) -> Finding:
    event, rule = events.causes[0]
    same = [e for e, r in events.causes if set(r.classes) & set(rule.classes)]
    others = [(e, r) for e, r in events.causes if not set(r.classes) & set(rule.classes)]
    evidence = [line_evidence(log, event), Evidence(text=rule.meaning, source="nccl-log")]
    evidence += _folded(log, event, same, others, events)
    evidence.append(class_evidence(rule.classes))
    ranks = {e.rank for e in same if e.rank is not None}
    return finding(
        cause=rule.cause,
        title=rule.title,
        severity=rule.severity,
        confidence=rule.confidence,
        evidence=evidence,
        fixes=rule.fix_list(),
        ranks=ranks if event.rank is None else ranks | {event.rank},
        late_ranks=() if event.rank is None or rule.cause != "hang" else (event.rank,),
    )


def _folded(
    log: CommLog,
    event: Event,
    same: list[Event],
    others: list[tuple[Event, Rule]],
    events: Sorted,
) -> list[Evidence]:
    lines: list[Evidence] = []
    ranks = {e.rank for e in same if e.rank is not None and e.rank != event.rank}
    repeats = sum(e.count for e in same) - 1
    if repeats > 0:
        where = f", also on {rank_list(ranks)}" if ranks else ""
        lines.append(
            Evidence(
                text=f"{counted(repeats, 'more line says', 'more lines say')} the same{where}.",
                value=float(repeats),
                unit="lines",
                source="nccl-log",
            )
        )
    for other, rule in others[:2]:
        lines.append(
            line_evidence(
                log, other, f"Taken for a consequence ({rule.title[0].lower()}{rule.title[1:]}): "
            )
        )
    kinds = Counter(rule.id for e, rule in events.symptoms for _ in range(e.count))
    if kinds:
        words = {
            "closed": "closed connections",
            "proxy": "failed proxy operations",
            "watchdog": "watchdog lines",
            "abort": "error reports",
            "retry": "retries",
            "wd-stuck": "stuck watchdogs",
        }
        text = ", ".join(
            f"{count} {words.get(kind, 'completion errors')}"
            for kind, count in kinds.most_common(MAX_FOLDED)
        )
        lines.append(
            Evidence(
                text=f"Consequences folded under it: {text}.",
                value=float(sum(kinds.values())),
                unit="lines",
                source="nccl-log",
            )
        )
    return lines


def _process_failed(log: CommLog, event: Event) -> bool:
    if failed(log):
        return True
    return any(
        other.level == "INFO"
        and other.process == event.process
        and other.line > event.line
        and "->" in other.text
        for other in log.events
    ) and not any(comm.completed for comm in log.communicators)


def _torn_down(log: CommLog, event: Event) -> bool:
    """Connections close when a job ends: every communicator of this process was destroyed."""
    if event.process is None or failed(log):
        return False
    mine = [c for c in log.communicators if event.process in c.processes.values()]
    return bool(mine) and all(
        "Destroy" in c.ended.values() or "Finalize" in c.ended.values() for c in mine
    )


def unread_warning(log: CommLog) -> str:
    """The first warning of NCCL's that no rule knows, in a sentence; empty where there is none.

    Where nothing shows that the job failed it is no finding, and no reason to say that all is well.
    """
    for event in sort_events(log).unknown:
        said = line_evidence(log, event).text
        return f"NCCL warned of something that gpuprof does not know: {said}"
    return ""


def _unknown(log: CommLog, events: Sorted) -> Finding:
    event = events.unknown[0]
    return finding(
        cause="nccl-config",
        title="NCCL failed with a message that gpuprof does not know",
        severity="warning",
        confidence=UNKNOWN_CONFIDENCE,
        evidence=[line_evidence(log, event), class_evidence(["unknown_warning"])],
        fixes=[
            Fix(
                title="Read the first warning in NCCL's own words",
                detail="The path lines after it (file:line -> code) say which call failed.",
                code="NCCL_DEBUG=INFO …",
            )
        ],
        ranks=() if event.rank is None else (event.rank,),
    )


def _peer_died(log: CommLog, peers: list[tuple[Event, Rule]]) -> Finding:
    event = peers[0][0]
    ranks = {e.rank for e, _ in peers if e.rank is not None}
    silent = [r for r in range(log.world_size) if r not in ranks] if ranks else []
    classes = ["peer_died"]
    text = "The connection was closed from the other side; no line says why."
    if "remote process exited" in event.text:
        classes = ["acs_gdr", "peer_died", "ib_timeout"]
        text = (
            "A remote process exited or the network failed, and no rank wrote a warning. Between "
            "nodes the first thing to try is NCCL_NET_GDR_LEVEL=0: if that works, PCIe ACS blocks "
            "GPUDirect RDMA."
        )
    fixes = [_PEER_DIED_FIX]
    if classes[0] == "acs_gdr":
        fixes.insert(
            0,
            Fix(
                title="Switch PCIe ACS off",
                detail="On bare metal it sends the NIC's requests for GPU memory to the root "
                "complex.",
                code="lspci -vvv | grep -i acsctl; NCCL_NET_GDR_LEVEL=0 …  # proves it",
            ),
        )
    evidence = [line_evidence(log, event), Evidence(text=text, source="nccl-log")]
    if silent and len(silent) <= log.world_size // 2:
        evidence.append(
            Evidence(
                text=f"{rank_list(silent)} wrote no such line: it went first.".capitalize(),
                source="nccl-log",
            )
        )
    evidence.append(class_evidence(classes))
    return finding(
        cause="hang" if classes[0] == "peer_died" else "nccl-config",
        title="Another rank went away first"
        if classes[0] == "peer_died"
        else "The network between the nodes fails without a warning of NCCL",
        severity="critical",
        confidence=0.5,
        evidence=evidence,
        fixes=fixes,
        ranks=ranks,
        late_ranks=silent if len(silent) <= log.world_size // 2 else (),
    )
