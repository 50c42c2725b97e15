"""Hangs from NCCL's RAS: which ranks of a communicator are behind, and which do not answer.

The counts are of calls that were made, not finished, and are read while the job runs: a difference
of one is normal in a job that goes on. It is a hang's where the counts did not change between two
questions, or where a rank does not answer at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, rank_list, see_what
from gpuprof.diagnosis import Evidence, Finding, Fix
from gpuprof.readers.ras import RasCommunicator, RasCount, RasRank, RasReport

SOURCE = "nccl-ras"
FAR_BEHIND = 10
"""Calls. A rank that is so far behind in a single answer is late, whether the job goes on or not:
hosts run some calls ahead, and not tens of them apart."""


def findings_from_ras(report: RasReport) -> list[Finding]:
    """What RAS says of ranks that are gone, or behind; empty for a job that goes on."""
    gone = [one for one in report.communicators if one.missing]
    if gone or report.dead:
        return [_gone(report, gone)]
    for one in report.communicators:
        behind = _behind(one)
        if behind is None:
            continue
        if report.same or (report.same is None and _gap(one) >= FAR_BEHIND):
            return [_late(report, one, behind)]
    return []


def _behind(one: RasCommunicator) -> RasCount | None:
    """Those that have come least far, where it is known who they are."""
    if one.state != "MISMATCH" or len(one.counts) < 2:
        return None
    least = min(one.counts, key=lambda count: count.operations)
    return least if least.ranks else None


def _gap(one: RasCommunicator) -> int:
    numbers = [count.operations for count in one.counts]
    return max(numbers) - min(numbers)


def _late(report: RasReport, one: RasCommunicator, behind: RasCount) -> Finding:
    ahead = max(one.counts, key=lambda count: count.operations)
    ranks = [rank.rank for rank in behind.ranks]
    names = rank_list(ranks)
    what = one.operation if one.operation != "collective" else "a collective"
    others = f"{ahead.count} ranks" if ahead.count > 1 else "another rank"
    text = (
        f"In communicator {one.name} {others} have called {what} up to number {ahead.operations},"
        f" {names} only up to {behind.operations}."
    )
    evidence = [Evidence(text=text, value=float(ahead.operations), unit="calls", source=SOURCE)]
    if report.same:
        text = "Asked again after a while, the counts were the same."
        evidence.append(Evidence(text=text, source=SOURCE))
    evidence += _places(behind.ranks)
    evidence.append(class_evidence(["rank_did_not_come", "desync_straggler"], SOURCE))
    return finding(
        cause="hang",
        title=f"{names.capitalize()} did not come to {what}",
        severity="critical" if report.same else "warning",
        confidence=0.9 if report.same else 0.6,
        evidence=evidence,
        fixes=[
            Fix(
                title=see_what(names),
                detail="Its Python stack names the line.",
                code="gpuprof attach --pid PID",
            )
        ],
        ranks=[rank.rank for rank in ahead.ranks],
        late_ranks=ranks,
    )


def _gone(report: RasReport, communicators: Iterable[RasCommunicator]) -> Finding:
    missing = {rank.rank: rank for one in communicators for rank in one.missing}
    names = rank_list(missing) if missing else "a process"
    evidence = _places(missing.values())
    for pid, node in report.dead[:8]:
        text = f"Process {pid} on node {node} is taken for dead."
        evidence.append(Evidence(text=text, source=SOURCE))
    evidence.append(class_evidence(["rank_died", "rank_did_not_come"], SOURCE))
    return finding(
        cause="hang",
        title=f"{names.capitalize()} no longer answers NCCL's health check",
        severity="critical",
        confidence=0.85 if report.dead else 0.7,
        evidence=evidence,
        fixes=[
            Fix(
                title=f"Find out how {names} ended",
                detail="Its own log and exit status, and the kernel's log (out of memory, Xid).",
                code="dmesg -T | grep -iE 'xid|oom|killed process'",
            )
        ],
        late_ranks=[rank for rank in missing if rank >= 0],
    )


def _places(ranks: Iterable[RasRank]) -> list[Evidence]:
    return [
        Evidence(text=f"Rank {r.rank} is process {r.pid} on node {r.node}.", source=SOURCE)
        for r in list(ranks)[:8]
        if r.node
    ]
