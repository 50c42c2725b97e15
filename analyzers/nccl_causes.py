"""From what the communication library said to findings: the door that `gpuprof analyze` uses.

The parts are in `gpuprof.analyzers.nccl`: the first cause of a failure, hangs, slow paths,
differences between ranks, topology, flight-recorder dumps. A log holds no step times, so these
findings carry no share and no gain; each carries its decisive line and the class of the cause
(`cause_classes`).
"""

from __future__ import annotations

from gpuprof.analyzers.nccl.bandwidth import findings_from_bandwidth
from gpuprof.analyzers.nccl.differences import findings_from_differences
from gpuprof.analyzers.nccl.evidence import cause_classes, decisive_line
from gpuprof.analyzers.nccl.first_cause import findings_from_events
from gpuprof.analyzers.nccl.flight import findings_from_flight
from gpuprof.analyzers.nccl.gdr import findings_from_gdr
from gpuprof.analyzers.nccl.graph import findings_from_graph
from gpuprof.analyzers.nccl.init import findings_from_calls, findings_from_init
from gpuprof.analyzers.nccl.limits import findings_from_limits
from gpuprof.analyzers.nccl.placement import findings_from_topology
from gpuprof.analyzers.nccl.rendezvous import findings_from_rendezvous
from gpuprof.analyzers.nccl.transports import (
    findings_from_interface,
    findings_from_peers,
    findings_from_sockets,
)
from gpuprof.analyzers.nccl.watchdog import findings_from_watchdog
from gpuprof.commlog import CommLog
from gpuprof.diagnosis import Finding

__all__ = [
    "cause_classes",
    "decisive_line",
    "findings_from_commlog",
    "findings_from_flight",
    "findings_from_topology",
]

CERTAIN = 0.6
"""A first cause of at least this confidence explains a hang that follows; below it, a difference
between ranks that the log shows is the better answer."""

_RANK = {"critical": 0, "warning": 1, "info": 2}


def findings_from_commlog(log: CommLog) -> list[Finding]:
    """Findings of one job's logs, the one that started it first; empty on a healthy log.

    When a failure has a cause, hangs and unfinished communicators are its consequences and are
    folded away, and so are mere limits (severity info).
    """
    failure = findings_from_events(log)
    differences = findings_from_differences(log)
    slow = [
        *findings_from_graph(log),
        *findings_from_peers(log),
        *findings_from_gdr(log),
        *findings_from_sockets(log),
        *findings_from_interface(log),
        *findings_from_limits(log),
        *findings_from_bandwidth(log),
    ]
    slow.sort(key=lambda f: (_RANK[f.severity], -f.confidence))
    strong = [f for f in failure if f.confidence >= CERTAIN]
    calls = findings_from_calls(log)
    if strong:
        explained = [
            f for f in differences if set(cause_classes(f)) & set(cause_classes(strong[0]))
        ]
        rest = [f for f in (*differences, *slow) if f.severity != "info"]
        return [*strong, *[f for f in rest if f not in explained]]
    hangs = calls or findings_from_watchdog(log) or findings_from_init(log)
    if not hangs:
        hangs = findings_from_rendezvous(log)
        if hangs and not log.communicators:  # refused connections then only say the same
            failure = []
    certain = [f for f in hangs if f.severity != "info"]
    grave = [f for f in differences if f.severity == "critical"]
    ordered = [*grave, *certain, *failure] if grave else [*certain, *failure]
    ordered += [f for f in differences if f not in ordered]
    ordered += [f for f in slow if not ordered or f.severity != "info"]
    return ordered + [f for f in hangs if f not in ordered]
