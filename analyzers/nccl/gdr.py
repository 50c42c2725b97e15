"""RDMA without GPUDirect: every byte between nodes takes the way through host memory."""

from __future__ import annotations

import re
from collections import defaultdict

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, ranks_of, row_evidence
from gpuprof.commlog import CommLog
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix

GDR_CAPABLE = re.compile(r"mlx\d|bnxt_re|ib\d|efa|rdmap|irdma|roce|IB|ibext", re.IGNORECASE)
GDR_INCAPABLE = re.compile(r"hfi\d|opa", re.IGNORECASE)
"""Omni-Path adapters do not move GPU memory over the verbs path that NCCL uses."""

GDR_LOST_FRAC = 0.5
"""Below this share the NICs are far from some GPUs only, which NCCL decides by itself."""


def findings_from_gdr(log: CommLog) -> list[Finding]:
    """RDMA without GPUDirect: every byte between nodes takes the way through host memory."""
    facts = Facts(log)
    net = [
        t
        for t in log.transports
        if t.kind == "net" and t.gdr is not None and t.how not in ("Socket", "socket")
    ]
    names = " ".join(f.fields.get("devices", "") for f in log.facts_of("rdma_devices"))
    if GDR_INCAPABLE.search(names) and not re.search(r"mlx\d", names):
        return []
    if net:
        by_pair: dict[tuple[int, int | None], dict[str, bool]] = defaultdict(dict)
        for t in net:
            pair = by_pair[t.source, t.target]
            pair[t.direction] = pair.get(t.direction, True) and bool(t.gdr)
        one_sided = [
            (pair, ways)
            for pair, ways in by_pair.items()
            if len(ways) == 2 and len(set(ways.values())) == 2
        ]
        without = [t for t in net if not t.gdr]
        directions = {t.direction: [x.gdr for x in net if x.direction == t.direction] for t in net}
        split = (
            len(directions) == 2
            and {all(v) for v in directions.values()} == {True, False}
            and (any(not any(v) for v in directions.values()))
        )
        if one_sided or split:
            bad = next(t for t in net if not t.gdr)
            text = (
                f"GPUDirect RDMA is used on one end of a connection only: {bad.direction} of "
                f"{bad.source} → {bad.target} goes through host memory"
            )
            return [_gdr_finding(log, bad.line, bad.process, text, "gdr_disabled_one_side", facts)]
        if len(without) >= GDR_LOST_FRAC * len(net):
            bad = without[0]
            text = f"{len(without)} of {len(net)} network connections go through host memory"
            return [_gdr_finding(log, bad.line, bad.process, text, "gdr_disabled", facts)]
        return []
    if log.multi_node is False:
        return []
    rings = [f for f in log.facts_of("connected") if f.fields.get("gdr") == "0"]
    if (
        rings
        and log.multi_node
        and any(f.fields["network"] != "Socket" for f in log.facts_of("network"))
    ):
        one = rings[0]
        return [
            _gdr_finding(
                log,
                one.line,
                one.process,
                "The rings are connected with GDR 0",
                "gdr_disabled",
                facts,
            )
        ]
    states = [
        f
        for f in log.facts_of("gdr")
        if GDR_CAPABLE.search(f.fields.get("name", f.fields.get("net", "")))
        and "Socket" not in f.fields.get("net", "")
    ]
    if states and all(f.fields["state"] == "Disabled" for f in states):
        one = states[0]
        text = f"GPUDirect RDMA is disabled for every NIC ({counted(len(states), 'line')})"
        return [_gdr_finding(log, one.line, one.process, text, "gdr_disabled", facts)]
    return []


def _gdr_finding(
    log: CommLog, line: int, process: int | None, text: str, kind: str, facts: Facts
) -> Finding:
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
        fixes=_gdr_fix(facts),
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
