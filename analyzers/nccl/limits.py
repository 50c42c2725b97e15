"""Settings that leave transports or channels unused: shared memory off, too few channels."""

from __future__ import annotations

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, row_evidence
from gpuprof.commlog import CommLog
from gpuprof.diagnosis import Finding, Fix

CHANNEL_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")

FEW_CHANNELS = 2
"""A channel carries about one NVLink, or part of a NIC; two leave most of a server's links idle."""


def findings_from_limits(log: CommLog) -> list[Finding]:
    """What the environment keeps NCCL from using."""
    return [*_network_inside_host(log), *_few_channels(log)]


def _network_inside_host(log: CommLog) -> list[Finding]:
    """Ranks of one host that talk over the network. Only where all communicators have one size,
    since ranks of transports are those of their own communicator."""
    if len({comm.size for comm in log.communicators}) != 1:
        return []
    comm = log.communicators[0]
    inside = [
        t
        for t in log.transports
        if t.kind == "net"
        and t.source in comm.processes
        and t.target in comm.processes
        and log.host(comm.processes[t.source]) == log.host(comm.processes[t.target])
    ]
    if not inside:
        return []
    facts = Facts(log)
    first = inside[0]
    evidence = [
        row_evidence(
            log,
            first.line,
            first.process,
            f"Ranks {first.source} and {first.target} share a host and talk over the network",
        )
    ]
    off = [v for v in ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE") if facts.variables.get(v) == "1"]
    for variable in off:
        line = next((e.line for e in log.env if e.variable == variable), 0)
        evidence.append(row_evidence(log, line, None, f"{variable} is 1 in the environment"))
    evidence.append(class_evidence(["env_disables_shm" if off else "host_identity"]))
    fix = (
        Fix(
            title=f"Unset {' and '.join(off)}",
            detail="If shared memory fails, give the container a larger /dev/shm instead.",
            code=f"unset {' '.join(off)}",
        )
        if off
        else Fix(
            title="Let the containers of a host share /dev/shm and the IPC namespace",
            detail="NCCL takes containers with their own identity for different hosts.",
            code="docker run --ipc=host …",
        )
    )
    return [
        finding(
            cause="nccl-config",
            title="Ranks of one host talk over the network",
            severity="warning",
            confidence=0.8,
            evidence=evidence,
            fixes=[fix],
            ranks={rank for t in inside for rank in (t.source, t.target or 0)},
        )
    ]


def _few_channels(log: CommLog) -> list[Finding]:
    facts = Facts(log)
    for variable in CHANNEL_LIMITS:
        value = facts.variables.get(variable, "")
        if not value.isdigit() or not 0 < int(value[:9]) <= FEW_CHANNELS:
            continue
        line = next((e.line for e in log.env if e.variable == variable), 0)
        return [
            finding(
                cause="nccl-config",
                title=f"{variable} leaves NCCL {value} channel{'s' if value != '1' else ''}",
                severity="warning",
                confidence=0.8,
                evidence=[
                    row_evidence(log, line, None, f"{variable} is {value} in the environment"),
                    class_evidence(["env_limits_channels"]),
                ],
                fixes=[
                    Fix(
                        title=f"Unset {variable}",
                        detail="NCCL takes as many channels as the links need; fewer only make "
                        "sense where its kernels disturb compute.",
                        code=f"unset {variable}",
                    )
                ],
            )
        ]
    return []
