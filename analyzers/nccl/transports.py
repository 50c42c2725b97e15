"""Slow paths in a log: shared memory for peers, TCP for RDMA, an unreachable interface."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, ranks_of, row_evidence
from gpuprof.commlog import CommLog, Transport
from gpuprof.counted import agrees, counted
from gpuprof.diagnosis import Evidence, Finding, Fix

P2P_OFF = {
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("LOC", "0", "NVL", "PIX", "1", "PXB", "2"),
}
"""Settings that keep peer access off, or inside one switch or NVLink island."""

P2P_FULLY_OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}

VIRTUAL_INTERFACE = re.compile(
    r"^(?:docker|br-|virbr|veth|cni|cali|flannel|tun|tailscale|lxc|kube|podman)"
)


def _origin(log: CommLog, transport: Transport) -> str:
    return log.host(transport.process)


def findings_from_peers(log: CommLog) -> list[Finding]:
    """GPUs of one host that talk through host memory."""
    shm = [t for t in log.transports if t.kind == "shm"]
    facts = Facts(log)
    off = {v: facts.variables[v] for v in P2P_OFF if facts.variables.get(v) in P2P_OFF[v]}
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for transport in log.transports:
        kinds[_origin(log, transport)][transport.kind] += 1
    only_shm = [host for host, count in kinds.items() if count["shm"] and not count["p2p"]]
    pairs = {tuple(sorted((t.source, t.target or 0))) for t in shm}
    refused = [f for f in log.facts_of("p2p_off") if "e" not in f.fields]
    nvlink = any(f.fields.get("nvlink") for f in refused)
    total = any(off.get(v) in values for v, values in P2P_FULLY_OFF.items())
    peers = any(t.kind == "p2p" for t in log.transports)
    if not shm and (peers or not total or not log.env):
        return []
    if not off and not only_shm and not nvlink:
        return []
    evidence: list[Evidence] = []
    if shm:
        text = (
            f"{counted(len(pairs), 'pair')} of GPUs of one host"
            f" {agrees(len(pairs), 'talks', 'talk')} through host memory (SHM)"
        )
        evidence.append(row_evidence(log, shm[0].line, shm[0].process, text))
    ranks = {rank for pair in pairs for rank in pair}
    if off:
        variable, value = next(iter(off.items()))
        return [_peers_forbidden(log, variable, value, evidence, ranks, grave=bool(only_shm))]
    for fact in refused[:1]:
        names = " and ".join(fact.fields[k] for k in ("a", "b", "c", "d") if k in fact.fields)
        text = f"The driver offers no peer access between GPUs {names}"
        evidence.append(row_evidence(log, fact.line, fact.process, text))
    return [_peers_unavailable(evidence, ranks)]


def _peers_forbidden(
    log: CommLog,
    variable: str,
    value: str,
    evidence: list[Evidence],
    ranks: set[int],
    *,
    grave: bool,
) -> Finding:
    line = next((e.line for e in log.env if e.variable == variable), 0)
    said = row_evidence(log, line, None, f"{variable} is {value} in the environment")
    return finding(
        cause="nccl-config",
        title=f"{variable}={value} keeps GPUs from reaching each other directly",
        severity="critical" if grave else "warning",
        confidence=0.9,
        evidence=[said, *evidence, class_evidence(["env_disables_p2p"])],
        fixes=[
            Fix(
                title=f"Unset {variable}",
                detail="Keep it only where peer access is broken (PCIe ACS, IOMMU): then mend "
                "that.",
                code=f"unset {variable}",
            )
        ],
        ranks=ranks,
    )


def _peers_unavailable(evidence: list[Evidence], ranks: set[int]) -> Finding:
    return finding(
        cause="nccl-config",
        title="Traffic between the GPUs of a host is staged through host memory",
        severity="warning",
        confidence=0.8,
        evidence=[*evidence, class_evidence(["tp_over_pcie_no_p2p", "p2p_unavailable"])],
        fixes=[
            Fix(
                title="Use peer access where the platform has it",
                detail="Consumer cards and many virtual machines have none; there, prefer "
                "parallelism that sends less (pipeline instead of tensor parallelism).",
                code="nvidia-smi topo -p2p r; nvidia-smi topo -m",
            )
        ],
        ranks=ranks,
    )


class _Fallback(NamedTuple):
    """Why nodes talk over TCP although they could do better."""

    evidence: Evidence
    kind: str
    title: str
    fix: Fix


def findings_from_sockets(log: CommLog) -> list[Finding]:
    """TCP between nodes: a fallback where RDMA exists, else a limit worth naming."""
    if log.multi_node is not True:
        return []
    tcp = [t for t in log.transports if t.kind == "net" and t.how == "Socket"]
    chosen = [f for f in log.facts_of("network") if f.fields["network"] == "Socket"]
    if not tcp and not (chosen and not any(t.kind == "net" for t in log.transports)):
        return []
    line, process = (tcp[0].line, tcp[0].process) if tcp else (chosen[0].line, chosen[0].process)
    seen = row_evidence(log, line, process, "Traffic between nodes goes over TCP sockets")
    fallback = _switched_off(log) or _not_taken(log)
    if fallback is not None:
        return [
            finding(
                cause="nccl-config",
                title=fallback.title,
                severity="critical",
                confidence=0.9,
                evidence=[seen, fallback.evidence, class_evidence([fallback.kind])],
                fixes=[fallback.fix],
            )
        ]
    return [
        finding(
            cause="nccl-config",
            title="Nodes talk over TCP sockets: no RDMA device is usable",
            severity="info",
            confidence=0.6,
            evidence=[seen, class_evidence(["plugin_fallback_socket"])],
            fixes=[
                Fix(
                    title="Use the fabric's RDMA if the machines have one",
                    detail="InfiniBand or RoCE needs /dev/infiniband in the container, EFA the "
                    "aws-ofi-nccl plugin. Without one, several sockets a NIC help on fast "
                    "Ethernet.",
                    code="export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
                )
            ],
        )
    ]


def _switched_off(log: CommLog) -> _Fallback | None:
    """RDMA that the environment forbids."""
    variables = Facts(log).variables
    off = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
    variable = next((name for name, value in off if variables.get(name) == value), None)
    if variable is None:
        return None
    line = next((e.line for e in log.env if e.variable == variable), 0)
    return _Fallback(
        row_evidence(log, line, None, f"{variable} is {variables[variable]}"),
        "env_disables_ib",
        f"{variable} switches RDMA off: nodes talk over TCP",
        Fix(
            title=f"Unset {variable}",
            detail="Then look for `NET/IB : Using` in the log.",
            code=f"unset {variable}",
        ),
    )


def _not_taken(log: CommLog) -> _Fallback | None:
    """RDMA devices that NCCL lists and does not use."""
    for fact in log.facts_of("rdma_devices"):
        devices = fact.fields.get("devices", "")
        if "[0]" in devices:
            there = f"RDMA devices are there:{devices[:120]}"
            return _Fallback(
                row_evidence(log, fact.line, fact.process, there),
                "plugin_fallback_socket",
                "Nodes talk over TCP although RDMA is there",
                Fix(
                    title="Find out why this rank did not take RDMA",
                    detail="Compare NCCL_IB_HCA, the container's devices and the plugin with a "
                    "rank that did.",
                    code="ibv_devinfo; ls /dev/infiniband",
                ),
            )
    return None


def findings_from_interface(log: CommLog) -> list[Finding]:
    """A bootstrap interface that other hosts cannot reach, in a job of several nodes."""
    if log.multi_node is not True and "NCCL_COMM_ID" not in Facts(log).variables:
        return []
    for fact in log.facts_of("bootstrap"):
        name, address = fact.fields["interface"], fact.fields["address"]
        loop = name == "lo" or address.startswith(("127.", "::1"))
        if not loop and not VIRTUAL_INTERFACE.match(name) and not address.startswith("169.254."):
            continue
        return [
            finding(
                cause="nccl-config",
                title=f"The bootstrap uses {name}, which other hosts cannot reach",
                severity="critical",
                confidence=0.8,
                evidence=[
                    row_evidence(log, fact.line, fact.process, f"Bootstrap uses {name}:{address}"),
                    class_evidence(["nic_loopback" if loop else "nic_wrong_interface"]),
                ],
                fixes=[
                    Fix(
                        title="Name the interface between the nodes",
                        detail="A leading = means the exact name, ^ excludes.",
                        code="ip -br addr; export NCCL_SOCKET_IFNAME=eth0",
                    )
                ],
                ranks=ranks_of(log, fact.process),
            )
        ]
    return []
