"""RDMA without GPUDirect: every byte between nodes takes the way through host memory."""

from __future__ import annotations

import re
from collections import defaultdict

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, ranks_of, row_evidence
from gpuprof.commlog import CommLog, Transport
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

GDR_CAPABLE = re.compile(r"mlx\d|bnxt_re|ib\d|efa|rdmap|irdma|roce|IB|ibext", re.IGNORECASE)
GDR_INCAPABLE = re.compile(r"hfi\d|opa", re.IGNORECASE)
"""Omni-Path adapters do not move GPU memory over the verbs path that NCCL uses."""

GDR_LOST_FRAC = 0.5
"""Below this share the NICs are far from some GPUs only, which NCCL decides by itself."""


def findings_from_gdr(log: CommLog) -> list[Finding]:
    """RDMA without GPUDirect: every byte between nodes takes the way through host memory.

    Connections tell it best; without any, the rings' own line, then what each NIC says of itself.
    """
    names = " ".join(f.fields.get("devices", "") for f in log.facts_of("rdma_devices"))
    if GDR_INCAPABLE.search(names) and not re.search(r"mlx\d", names):
        return []
    net = [
        t
        for t in log.transports
        if t.kind == "net" and t.gdr is not None and t.how not in ("Socket", "socket")
    ]
    if net:
        return _of_connections(log, net)
    if log.multi_node is False:
        return []
    return _of_rings(log) or _of_nics(log)


def _of_connections(log: CommLog, net: list[Transport]) -> list[Finding]:
    by_pair: dict[tuple[int, int | None], dict[str, bool]] = defaultdict(dict)
    by_way: dict[str, list[bool]] = defaultdict(list)
    for t in net:
        pair = by_pair[t.source, t.target]
        pair[t.direction] = pair.get(t.direction, True) and bool(t.gdr)
        by_way[t.direction].append(bool(t.gdr))
    without = [t for t in net if not t.gdr]
    one_sided = any(len(ways) == 2 and len(set(ways.values())) == 2 for ways in by_pair.values())
    split = len(by_way) == 2 and {(all(one), any(one)) for one in by_way.values()} == {
        (True, True),
        (False, False),
    }
    if one_sided or split:
        bad = without[0]
        text = (
            f"GPUDirect RDMA is used on one end of a connection only: {bad.direction} of "
            f"{bad.source} → {bad.target} goes through host memory"
        )
        return [_gdr_finding(log, bad.line, bad.process, text, "gdr_disabled_one_side")]
    if len(without) >= GDR_LOST_FRAC * len(net):
        bad = without[0]
        text = f"{len(without)} of {len(net)} network connections go through host memory"
        return [_gdr_finding(log, bad.line, bad.process, text, "gdr_disabled")]
    return []


def _of_rings(log: CommLog) -> list[Finding]:
    rings = [f for f in log.facts_of("connected") if f.fields.get("gdr") == "0"]
    by_rdma = any(f.fields["network"] != "Socket" for f in log.facts_of("network"))
    if not (rings and log.multi_node and by_rdma):
        return []
    text = "The rings are connected with GDR 0"
    return [_gdr_finding(log, rings[0].line, rings[0].process, text, "gdr_disabled")]


def _of_nics(log: CommLog) -> list[Finding]:
    states = [
        f
        for f in log.facts_of("gdr")
        if GDR_CAPABLE.search(f.fields.get("name", f.fields.get("net", "")))
        and "Socket" not in f.fields.get("net", "")
    ]
    if not states or any(f.fields["state"] != "Disabled" for f in states):
        return []
    text = f"GPUDirect RDMA is disabled for every NIC ({counted(len(states), 'line')})"
    return [_gdr_finding(log, states[0].line, states[0].process, text, "gdr_disabled")]


def _gdr_finding(log: CommLog, line: int, process: int | None, text: str, kind: str) -> Finding:
    return finding(
        cause="nccl-config",
        title="Nodes exchange data without GPUDirect RDMA"
        if kind == "gdr_disabled"
        else "GPUDirect RDMA works on one end of the connections only",
        severity="critical",
        confidence=0.85 if log.multi_node else 0.6,
        evidence=[
            row_evidence(log, line, process, text),
            Evidence(
                text="Measured cost in reported cases: 10 instead of 180 GB/s across PCIe "
                "switches, 33 instead of 93 GB/s.",
                source="nccl-log",
            ),
            class_evidence([kind]),
        ],
        fixes=_gdr_fix(Facts(log)),
        ranks=ranks_of(log, process),
    )


def _gdr_fix(facts: Facts) -> list[Fix]:
    fixes = [
        Fix(
            title="Load nvidia-peermem, or use DMA-BUF",
            detail="NCCL up to 2.22 looks for nv_peer_mem by its old name only; 2.23 on knows "
            "nvidia-peermem, and kernels from 5.12 on with open GPU modules need neither.",
            code="modprobe nvidia-peermem; lsmod | grep peermem",
        )
    ]
    level = facts.variables.get("NCCL_NET_GDR_LEVEL")
    if level is not None:
        fixes.insert(
            0,
            Fix(
                title="Unset NCCL_NET_GDR_LEVEL",
                detail=f"It is {level}: GPUDirect RDMA is kept to nearer NICs.",
                code="unset NCCL_NET_GDR_LEVEL",
            ),
        )
    return fixes
