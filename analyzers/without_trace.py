"""A diagnosis from logs, dumps and samples alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.analyzers.sources import OtherSources, Verdicts, findings_of, join
from gpuprof.diagnosis import (
    BUCKETS,
    CAUSES,
    Bound,
    Diagnosis,
    NotJudged,
    ReplaySummary,
    RunSummary,
    StepsSummary,
)

if TYPE_CHECKING:
    from gpuprof.commlog import CommLog

_NO_TRACE = "a trace of some steps"
UNREAD = "NCCL warned of something, but nothing here shows that it did harm."


def diagnose_without_trace(other: OtherSources, version: str) -> Diagnosis:
    """What logs, dumps and samples say on their own: signs and faults, but no account of time."""
    verdicts = join(
        Verdicts((), (), tuple(NotJudged(cause=c, missing=_NO_TRACE) for c in CAUSES)),
        findings_of(other),
    )
    log, flight = other.comm_log, other.flight
    seen = {*(flight.ranks if flight is not None else ()), *(s.rank for s in other.stacks)}
    ranks = sorted(rank for rank in seen if rank >= 0)
    stacked = [s.header.world_size for s in other.stacks]
    groups = flight.groups.values() if flight is not None else ()
    members = {rank for group in groups for rank in group.ranks}
    sizes = [c.size for c in log.communicators] if log is not None else []
    devices = sorted({d.name for s in other.samples for d in s.devices if d.name})
    first = next(iter(verdicts.findings), None)
    unread = "" if first is not None or log is None else _unread(log)
    well = UNREAD if unread else "Nothing is wrong in what was given."
    return Diagnosis(
        gpuprof=version,
        inputs=tuple(file.path for file in other.files),
        run=RunSummary(
            world_size=max([len(seen | members), *sizes, *stacked, 1]),
            ranks=tuple(ranks),
            devices=tuple(devices),
            steps=StepsSummary(count=0, source="none", median_ms=None),
        ),
        bound=Bound(class_="unknown", why="Without a trace nobody knows where the time went."),
        budget={bucket: float(bucket == "unknown") for bucket in BUCKETS},
        replay=ReplaySummary(measured_ms=None, replayed_ms=None, error=None, trusted=False),
        findings=verdicts.findings,
        ruled_out=verdicts.ruled_out,
        not_judged=verdicts.not_judged,
        warnings=(*(w for s in other.samples for w in s.warnings), *filter(None, (unread,))),
        headline=f"{first.title}." if first is not None else well,
        files=other.files,
    )


def _unread(log: CommLog) -> str:
    from gpuprof.analyzers.nccl.first_cause import unread_warning

    return unread_warning(log)
