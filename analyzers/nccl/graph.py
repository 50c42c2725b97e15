"""A topology that cannot be real, or a ring that leaves most of the NVLink bandwidth unused."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.analyzers.nccl.conditions import Facts
from gpuprof.analyzers.nccl.evidence import class_evidence, finding, ranks_of, row_evidence
from gpuprof.commlog import CommLog
from gpuprof.counted import counted
from gpuprof.diagnosis import Finding, Fix

MIN_GPU_LINK_GBPS = 1.0
"""A PCIe link of a GPU below 1 GB/s is no real one: the slowest, Gen1 x4, carries that."""

ASYMMETRY = 2.0
"""NVLink carries the same both ways; a factor two apart means a topology that was made up."""

NVLINK_SHARE = 0.5
"""A ring that uses less than half of the NVLink bandwidth of its own topology is cut off."""


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
            ranks=ranks_of(log, process),
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


@dataclass(frozen=True, slots=True)
class UnevenLink:
    """NVLink that a topology states unlike in its two directions. Bandwidths in GB/s."""

    line: int
    process: int | None
    source: str
    target: str
    there_gbps: float
    back_gbps: float


def uneven_link(log: CommLog) -> UnevenLink | None:
    """The first NVLink whose way back carries `ASYMMETRY` times as much as the way there."""
    links: dict[tuple[int | None, str, str], tuple[float, int]] = {}
    for node in log.topology:
        if node.link == "NVL" and node.kind == "GPU" and node.parent and node.bandwidth:
            links.setdefault(
                (node.process, node.parent, node.identity), (node.bandwidth, node.line)
            )
    for (process, a, b), (there, line) in links.items():
        back = links.get((process, b, a))
        if back is not None and there * ASYMMETRY <= back[0]:
            return UnevenLink(line, process, a, b, there, back[0])
    return None


def _asymmetric(log: CommLog) -> Problem | None:
    link = uneven_link(log)
    if link is None:
        return None
    return (
        link.line,
        link.process,
        f"NVLink from GPU/{link.source} to GPU/{link.target} carries {link.there_gbps:g} GB/s,"
        f" the way back {link.back_gbps:g}",
    )


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
                f"The ring uses {counted(graph.channels, 'channel')} of"
                f" {graph.bandwidth_intra:g} GB/s; the GPU's links carry {total:g} GB/s",
            )
    return None
