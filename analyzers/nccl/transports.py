"""Slow paths in a log: shared memory for peers, TCP for RDMA, no GPUDirect, a wrong graph."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, row_evidence
from gpuprof.commlog import CommLog, Transport
from gpuprof.diagnosis import Evidence, Finding, Fix

P2P_OFF = {
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("LOC", "0", "NVL", "PIX", "1", "PXB", "2"),
}
"""Settings that keep peer access off, or inside one switch or NVLink island."""

P2P_FULLY_OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}

GDR_CAPABLE = re.compile(r"mlx\d|bnxt_re|ib\d|efa|rdmap|irdma|roce|IB|ibext", re.IGNORECASE)
GDR_INCAPABLE = re.compile(r"hfi\d|opa", re.IGNORECASE)
"""Omni-Path adapters do not move GPU memory over the verbs path that NCCL uses."""

VIRTUAL_INTERFACE = re.compile(
    r"^(?:docker|br-|virbr|veth|cni|cali|flannel|tun|tailscale|lxc|kube|podman)"
)

GDR_LOST_FRAC = 0.5
"""Below this share the NICs are far from some GPUs only, which NCCL decides by itself."""

MIN_GPU_LINK_GBPS = 1.0
"""A PCIe link of a GPU below 1 GB/s is no real one: the slowest, Gen1 x4, carries that."""

ASYMMETRY = 2.0
"""NVLink carries the same both ways; a factor two apart means a topology that was made up."""

NVLINK_SHARE = 0.5
"""A ring that uses less than half of the NVLink bandwidth of its own topology is cut off."""


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
        text = f"{len(pairs)} pairs of GPUs of one host talk through host memory (SHM)"
        evidence.append(row_evidence(log, shm[0].line, shm[0].process, text))
    if off:
        variable, value = next(iter(off.items()))
        line = next((e.line for e in log.env if e.variable == variable), 0)
        evidence.insert(
            0, row_evidence(log, line, None, f"{variable} is {value} in the environment")
        )
        title = f"{variable}={value} keeps GPUs from reaching each other directly"
        fix = Fix(
            title=f"Unset {variable}",
            detail="Keep it only where peer access is broken (PCIe ACS, IOMMU): then mend that.",
            code=f"unset {variable}",
        )
        classes, severity = ["env_disables_p2p"], "critical" if only_shm else "warning"
    else:
        for fact in refused[:1]:
            names = [fact.fields[k] for k in ("a", "b", "c", "d") if k in fact.fields]
            evidence.append(
                row_evidence(
                    log,
                    fact.line,
                    fact.process,
                    f"The driver offers no peer access between GPUs {' and '.join(names)}",
                )
            )
        title = "Traffic between the GPUs of a host is staged through host memory"
        fix = Fix(
            title="Use peer access where the platform has it",
            detail="Consumer cards and many virtual machines have none; there, prefer parallelism "
            "that sends less (pipeline instead of tensor parallelism).",
            code="nvidia-smi topo -p2p r; nvidia-smi topo -m",
        )
        classes, severity = ["tp_over_pcie_no_p2p", "p2p_unavailable"], "warning"
    evidence.append(class_evidence(classes))
    ranks = {rank for pair in pairs for rank in pair}
    return [
        finding(
            cause="nccl-config",
            title=title,
            severity="critical" if severity == "critical" else "warning",
            confidence=0.9 if off else 0.8,
            evidence=evidence,
            fixes=[fix],
            ranks=ranks,
        )
    ]


def findings_from_sockets(log: CommLog) -> list[Finding]:
    """TCP between nodes: a fallback where RDMA exists, else a limit worth naming."""
    if log.multi_node is not True:
        return []
    tcp = [t for t in log.transports if t.kind == "net" and t.how == "Socket"]
    chosen = [f for f in log.facts_of("network") if f.fields["network"] == "Socket"]
    if not tcp and not (chosen and not any(t.kind == "net" for t in log.transports)):
        return []
    facts = Facts(log)
    line, process = (tcp[0].line, tcp[0].process) if tcp else (chosen[0].line, chosen[0].process)
    rdma = [
        f for f in log.facts_of("rdma_devices") if re.search(r"\[0\]", f.fields.get("devices", ""))
    ]
    evidence = [row_evidence(log, line, process, "Traffic between nodes goes over TCP sockets")]
    variable = next(
        (
            v
            for v, bad in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
            if facts.variables.get(v) == bad
        ),
        "",
    )
    if variable:
        at = next((e.line for e in log.env if e.variable == variable), 0)
        evidence.append(row_evidence(log, at, None, f"{variable} is {facts.variables[variable]}"))
        classes, title = ["env_disables_ib"], f"{variable} switches RDMA off: nodes talk over TCP"
        fix = Fix(
            title=f"Unset {variable}",
            detail="Then look for `NET/IB : Using` in the log.",
            code=f"unset {variable}",
        )
    elif rdma:
        row = rdma[0]
        evidence.append(
            row_evidence(
                log,
                row.line,
                row.process,
                f"RDMA devices are there:{row.fields.get('devices', '')[:120]}",
            )
        )
        classes, title = ["plugin_fallback_socket"], "Nodes talk over TCP although RDMA is there"
        fix = Fix(
            title="Find out why this rank did not take RDMA",
            detail="Compare NCCL_IB_HCA, the container's devices and the plugin with a rank "
            "that did.",
            code="ibv_devinfo; ls /dev/infiniband",
        )
    else:
        return [
            finding(
                cause="nccl-config",
                title="Nodes talk over TCP sockets: no RDMA device is usable",
                severity="info",
                confidence=0.6,
                evidence=[*evidence, class_evidence(["plugin_fallback_socket"])],
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
    evidence.append(class_evidence(classes))
    return [
        finding(
            cause="nccl-config",
            title=title,
            severity="critical",
            confidence=0.9,
            evidence=evidence,
            fixes=[fix],
        )
    ]


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
        text = f"GPUDirect RDMA is disabled for every NIC ({len(states)} lines)"
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
        ranks=_ranks(log, process),
    )


def _ranks(log: CommLog, process: int | None) -> tuple[int, ...]:
    return () if process is None else tuple(set(log.processes[process].ranks.values()))


def findings_from_graph(log: CommLog) -> list[Finding]:
    """A topology that cannot be real, or a ring that leaves most of the NVLink bandwidth unused."""
    facts = Facts(log)
    problem = _bad_link(log) or _asymmetric(log) or _thin_ring(log)
    if problem is None:
        return []
    line, process, text = problem
    evidence = [row_evidence(log, line, process, text)]
    path = facts.variables.get("NCCL_TOPO_FILE")
    fixes = [
        Fix(
            title="Let NCCL detect the topology, or give it the machine's own file",
            detail="Dump what it sees with NCCL_TOPO_DUMP_FILE and compare it with nvidia-smi.",
            code="nvidia-smi topo -m; nvidia-smi nvlink --status",
        )
    ]
    if path is not None:
        at = next((e.line for e in log.env if e.variable == "NCCL_TOPO_FILE"), 0)
        evidence.append(row_evidence(log, at, None, f"NCCL_TOPO_FILE is {path}"))
        fixes.insert(
            0,
            Fix(
                title="Unset NCCL_TOPO_FILE",
                detail="The file does not describe this machine.",
                code="unset NCCL_TOPO_FILE",
            ),
        )
    evidence.append(class_evidence(["topo_file_wrong"]))
    return [
        finding(
            cause="nccl-config",
            title="NCCL plans with a topology that this machine does not have"
            if path is not None
            else "NCCL sees links far slower than this machine's",
            severity="critical",
            confidence=0.9 if path is not None else 0.7,
            evidence=evidence,
            fixes=fixes,
            ranks=_ranks(log, process),
        )
    ]


Problem = tuple[int, int | None, str]
"""Line, process and what is wrong there."""


def _bad_link(log: CommLog) -> Problem | None:
    for node in log.topology:
        narrow = node.bandwidth is not None and node.bandwidth < MIN_GPU_LINK_GBPS
        if narrow and node.link == "PCI" and node.kind in ("GPU", "PCI"):
            return (
                node.line,
                node.process,
                f"The PCIe link of {node.kind}/{node.identity} carries {node.bandwidth:g} GB/s",
            )
    if log.multi_node is not True:
        for graph in log.graphs:
            if graph.pattern == 4 and 0 < graph.bandwidth_intra < MIN_GPU_LINK_GBPS:
                return (
                    graph.line,
                    graph.process,
                    f"The ring is planned with {graph.bandwidth_intra:g} GB/s a channel",
                )
    return None


def _asymmetric(log: CommLog) -> Problem | None:
    links: dict[tuple[int | None, str, str], tuple[float, int]] = {}
    for node in log.topology:
        if node.link == "NVL" and node.kind == "GPU" and node.parent and node.bandwidth:
            links.setdefault(
                (node.process, node.parent, node.identity), (node.bandwidth, node.line)
            )
    for (process, a, b), (there, line) in links.items():
        back = links.get((process, b, a))
        if back is not None and there * ASYMMETRY <= back[0]:
            return (
                line,
                process,
                f"NVLink from GPU/{a} to GPU/{b} carries {there:g} GB/s, the way back {back[0]:g}",
            )
    return None


def _thin_ring(log: CommLog) -> Problem | None:
    totals: dict[int | None, float] = {}
    for fact in log.facts_of("system"):
        if "total" in fact.fields:
            totals.setdefault(fact.process, float(fact.fields["total"]))
    if log.multi_node:
        return None
    for graph in log.graphs:
        total = totals.get(graph.process)
        if graph.pattern != 4 or total is None or graph.type_intra != "NVL":
            continue
        ring = graph.channels * graph.bandwidth_intra
        if 0 < ring < NVLINK_SHARE * total:
            return (
                graph.line,
                graph.process,
                f"The ring uses {graph.channels} channels of {graph.bandwidth_intra:g} GB/s; "
                f"the GPU's links carry {total:g} GB/s",
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
                ranks=_ranks(log, fact.process),
            )
        ]
    return []
