"""What recordings beside the traces say: NCCL's logs, flight-recorder dumps, topology, samples.

Each source has its own analyzers; here their findings are laid beside those of the traces. A trace
measures what the others only show signs of, so a cause that was judged from a trace keeps that
verdict and takes the other source's evidence with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from gpuprof.diagnosis import CAUSES, Finding, InputFile, NotJudged, RuledOut

if TYPE_CHECKING:
    from gpuprof.commlog import CommLog
    from gpuprof.readers.flight_recorder import FlightRecords
    from gpuprof.readers.ras import RasReport
    from gpuprof.readers.xid import XidEvent, XidLog
    from gpuprof.samples import Samples
    from gpuprof.stacks import RankStacks
    from gpuprof.topology import Topology


SAME_GAIN = 0.01
"""Gains are shown in whole percents: those that are nearer to each other look the same."""


@dataclass(frozen=True, slots=True)
class OtherSources:
    """Recordings beside the traces; empty fields were not given. files: what was read."""

    comm_log: CommLog | None = None
    topologies: tuple[Topology, ...] = ()
    flight: FlightRecords | None = None
    samples: tuple[Samples, ...] = ()
    xids: tuple[XidLog, ...] = ()
    stacks: tuple[RankStacks, ...] = ()
    ras: tuple[RasReport, ...] = ()
    files: tuple[InputFile, ...] = ()

    def is_empty(self) -> bool:
        return not (
            self.comm_log
            or self.topologies
            or self.flight
            or self.samples
            or self.xids
            or self.stacks
            or self.ras
        )


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on all causes: what the diagnosis holds."""

    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    not_judged: tuple[NotJudged, ...]


def findings_of(other: OtherSources) -> list[Finding]:
    """All findings of the other sources, most sources' gravest first."""
    found: list[Finding] = []
    if other.flight is not None:
        from gpuprof.analyzers.nccl_causes import findings_from_flight

        found += findings_from_flight(other.flight)
    if other.ras:
        from gpuprof.analyzers.hang import join_hangs
        from gpuprof.analyzers.nccl.ras import findings_from_ras

        for report in other.ras:
            found = join_hangs(found, findings_from_ras(report))
    if other.stacks:
        from gpuprof.analyzers.hang import findings_from_stacks, join_hangs

        found = join_hangs(found, findings_from_stacks(other.stacks))
    if other.comm_log is not None:
        from gpuprof.analyzers.nccl_causes import findings_from_commlog

        logged = findings_from_commlog(other.comm_log)
        if any(one.cause == "hang" for one in found):
            from gpuprof.analyzers.hang import join_hangs

            found = join_hangs(found, logged)
        else:
            found += logged
    if other.stacks:
        from gpuprof.analyzers.hang import with_stacks

        found = with_stacks(found, other.stacks)
    if other.topologies:
        from gpuprof.analyzers.nccl_causes import findings_from_topology

        for topology in other.topologies:
            found += findings_from_topology(topology, other.comm_log)
    if other.samples or other.xids:
        found += _findings_of_samples(other)
    return found


def _findings_of_samples(other: OtherSources) -> list[Finding]:
    """What the hardware reports, memory that runs out, and the curves' guesses, of every node."""
    from gpuprof.analyzers.hardware import hardware_findings, is_of_node, xid_findings
    from gpuprof.analyzers.memory_pressure import memory_findings
    from gpuprof.analyzers.utilization_findings import curve_findings
    from gpuprof.samples import Samples

    logged = _logged(other.xids)
    alone = len(other.samples) == 1
    found: list[Finding] = []
    for node in other.samples:
        is_own = [alone or is_of_node(event, node) for event in logged]
        own = [event for event, is_its in zip(logged, is_own, strict=True) if is_its]
        logged = [event for event, is_its in zip(logged, is_own, strict=True) if not is_its]
        found += hardware_findings(node, own)
        found += memory_findings(node)
        found += curve_findings(node)
    return found + xid_findings(Samples(node="", source="kernel log"), logged)


def _logged(logs: Sequence[XidLog]) -> list[XidEvent]:
    """The reports of all kernel logs; where there are several, one that does not name its machine
    is told by its file: bus addresses are the same on all machines of a kind."""
    if len(logs) == 1:
        return list(logs[0].events)
    return [
        event if event.host else replace(event, host=PurePath(log.path).name)
        for log in logs
        for event in log.events
    ]


def join(traced: Verdicts, others: Sequence[Finding]) -> Verdicts:
    """Lays findings of other sources beside the verdicts of the traces.

    One of the eight causes stays as the trace has it when the trace found it (its evidence grows)
    or ruled it out; where the trace could not judge it, the other source's finding answers. Of two
    findings of one cause from other sources, the surer one stays.
    """
    findings = {f.cause: f for f in traced.findings if f.cause in CAUSES}
    beside = [f for f in traced.findings if f.cause not in CAUSES]
    ruled_out = {r.cause for r in traced.ruled_out}
    for other in sorted(others, key=lambda f: -f.confidence):
        if other.cause not in CAUSES:
            beside.append(other)
        elif other.cause in findings:
            mine = findings[other.cause]
            findings[other.cause] = msgspec.structs.replace(
                mine,
                evidence=(*mine.evidence, *other.evidence),
                late_ranks=mine.late_ranks or other.late_ranks,
            )
        elif other.cause not in ruled_out:
            findings[other.cause] = other
    return replace(
        traced,
        findings=_in_order([*findings.values(), *beside]),
        not_judged=tuple(n for n in traced.not_judged if n.cause not in findings),
    )


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Most gain first, and so gravest first: the severity is a band of the gain. Two pairs of
    findings can be two views of one thing and save the same:

    * A full queue hides a slow host, and a fast host refills a drained queue. Where either repair
      alone is enough, what the device is idle for longer is the first to look at.
    * What a late rank's own host does is the reason for its lateness. The lateness, which says whom
      the others wait for, comes first.
    """
    ordered = sorted(findings, key=_weight)
    sync = next((f for f in ordered if f.cause == "sync-points"), None)
    late = next((f for f in ordered if f.cause == "nccl-wait" and f.late_ranks), None)
    host = next((f for f in ordered if f.cause == "host-overhead"), None)
    if host is None:
        return tuple(ordered)
    if sync is not None and host.share > sync.share and _save_the_same(sync, host):
        _move_before(ordered, host, sync)
    of_late = late is not None and host.ranks and set(host.ranks) <= set(late.late_ranks)
    if late is not None and of_late and _save_the_same(late, host):
        _move_before(ordered, late, host)
    return tuple(ordered)


def _save_the_same(one: Finding, other: Finding) -> bool:
    if one.gain is None or other.gain is None or one.severity != other.severity:
        return False
    return abs(one.gain.reduction - other.gain.reduction) < SAME_GAIN


def _move_before(ordered: list[Finding], one: Finding, other: Finding) -> None:
    """Puts a finding right before another, unless it stands before it already."""
    if ordered.index(one) > ordered.index(other):
        ordered.remove(one)
        ordered.insert(ordered.index(other), one)


_GRAVEST_FIRST = {"critical": 0, "warning": 1, "info": 2}


def _weight(finding: Finding) -> tuple[int, int, float, bool]:
    """Most gain first; what stops or breaks the job comes before what slows it, and of two findings
    with the same gain, unequal work comes before the waiting that it makes.

    Of the causes of a step the severity is the band of the gain (of the share, where no gain is
    priced), so that it changes nothing here. What logs and samples show has no cost of a step: it
    stands by its severity, and no finding stands above a graver one."""
    stops = finding.cause in ("hang", "hardware-fault") and finding.severity == "critical"
    gain = finding.gain.reduction if finding.gain is not None else finding.share
    order = _GRAVEST_FIRST[finding.severity]
    return (0 if stops else 1, order, -gain, finding.cause == "nccl-wait")
