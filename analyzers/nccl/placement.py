"""What a topology allows and what not: NVLink islands, slow pairs, far NICs, no peer access.

A topology alone shows what a job must avoid, not what it does: such findings are `info`. With a log
of the job, its communicators are laid over the topology, and misuse is named.
"""

from __future__ import annotations

from collections import Counter

from gpuprof.analyzers.nccl.evidence import class_evidence, finding
from gpuprof.analyzers.nccl.islands import SOURCE, fact, gpu_links, is_fast, nvlink_islands
from gpuprof.analyzers.nccl.job_placement import findings_from_placement
from gpuprof.commlog import CommLog
from gpuprof.counted import counted
from gpuprof.diagnosis import Finding, Fix
from gpuprof.topology import Topology, link_rank

HGX_GPUS = 8
"""Boards with eight GPUs and a NIC beside each are NVSwitch boards."""

NO_PEER_ACCESS = {
    "NS": "not supported",
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPUs",
    "TNS": "not supported by this topology",
    "DR": "disabled by a registry key",
}


def findings_from_topology(topology: Topology, log: CommLog | None = None) -> list[Finding]:
    """Findings of one host's topology, laid under the job's communicators where a log is given."""
    found: list[Finding] = []
    found += _no_peer_access(topology)
    found += _missing_nvlink(topology)
    found += _degraded_nvlink(topology)
    if log is not None:
        found += findings_from_placement(topology, log)
    if not found:
        found += _pcie_only(topology)
        found += _islands(topology)
    found += _far_nics(topology)
    return found


def _no_peer_access(topology: Topology) -> list[Finding]:
    bad = {pair: status for pair, status in topology.p2p.items() if status in NO_PEER_ACCESS}
    pairs = {tuple(sorted(pair)) for pair in topology.p2p}
    if not bad or len(bad) < len(topology.p2p):
        return _acs_hint(topology) if topology.p2p else []
    status = Counter(bad.values()).most_common(1)[0][0]
    return [
        finding(
            cause="nccl-wait",
            title="The GPUs of this host cannot reach each other's memory",
            severity="warning",
            confidence=0.9,
            evidence=[
                fact(
                    f"Peer access is {NO_PEER_ACCESS[status]} ({status}) between any two GPUs.",
                    float(len(pairs)),
                    "pairs",
                ),
                class_evidence(["tp_over_pcie_no_p2p"], SOURCE),
            ],
            fixes=[
                Fix(
                    title="Avoid tensor parallelism here",
                    detail="Each all-reduce is staged through host memory. Pipeline or data "
                    "parallelism sends far less; some drivers allow peer access on these cards.",
                    code="nvidia-smi topo -p2p r",
                )
            ],
        )
    ]


def _acs_hint(topology: Topology) -> list[Finding]:
    """A connectivity matrix that says yes: where NCCL hangs all the same, PCIe is to blame."""
    reach = sorted({tuple(sorted(p)) for p, status in topology.p2p.items() if status == "OK"})
    if not reach or any(is_fast(link) for link in gpu_links(topology).values()):
        return []
    shown = ", ".join(f"{a}–{b}" for a, b in reach[:6])
    return [_pcie_finding(topology, f"CUDA offers peer access between {shown}.")]


def _pcie_finding(topology: Topology, text: str) -> Finding:
    return finding(
        cause="nccl-wait",
        title="GPUs reach each other over PCIe only: right for data parallelism, slow for tensor "
        "parallelism, and the first suspect when collectives hang",
        severity="info",
        confidence=0.3,
        evidence=[
            fact(text),
            fact(
                "Whether PCIe ACS or the IOMMU redirects these transfers is not in "
                "this file. If collectives hang after a complete start and NCCL_P2P_DISABLE=1 "
                "helps, they do.",
            ),
            class_evidence(["acs_iommu", "tp_over_pcie_no_p2p"], SOURCE),
        ],
        fixes=[
            Fix(
                title="Keep tensor-parallel groups on the nearest pairs",
                detail="PIX before PXB before PHB; across sockets last.",
                code="nvidia-smi topo -m",
            ),
            Fix(
                title="On a hang: switch PCIe ACS and the IOMMU off",
                detail="Disable VT-d or AMD-Vi in the firmware (or iommu=pt), clear ACS on the "
                "bridges, cold boot.",
                code="lspci -vvv | grep -i acsctl; cat /proc/cmdline",
            ),
        ],
    )


def _pcie_only(topology: Topology) -> list[Finding]:
    links = gpu_links(topology)
    if not links or any(is_fast(link) for link in links.values()):
        return []
    counts = Counter(links.values())
    text = ", ".join(f"{count} of {link}" for link, count in counts.most_common())
    return [
        _pcie_finding(
            topology, f"Of {counted(len(links), 'pair')} of GPUs none has NVLink: {text}."
        )
    ]


def _missing_nvlink(topology: Topology) -> list[Finding]:
    """Eight GPUs, a NIC beside each, and no NVLink: an NVSwitch board whose switches are not up."""
    links = gpu_links(topology)
    if len(topology.gpus) < HGX_GPUS or not links or any(is_fast(v) for v in links.values()):
        return []
    rows = [
        gpu for gpu in topology.gpus if any((gpu, nic) in topology.links for nic in topology.nics)
    ]
    near = [
        gpu
        for gpu in rows
        if any(topology.link(gpu, nic) in ("PIX", "PXB") for nic in topology.nics)
    ]
    if not rows or len(near) < len(rows) or len(topology.nics) < HGX_GPUS:
        return []
    return [
        finding(
            cause="hardware-fault",
            title="No NVLink is visible on what looks like an NVSwitch board",
            severity="warning",
            confidence=0.6,
            evidence=[
                fact(
                    f"{len(topology.gpus)} GPUs with a NIC beside each, and no pair "
                    "has NVLink: the fabric manager is down, or the switches are not passed "
                    "through to this virtual machine.",
                ),
                class_evidence(["fabric_manager"], SOURCE),
            ],
            fixes=[
                Fix(
                    title="Check the fabric manager, or the machine's pass-through",
                    detail="Its version must equal the driver's.",
                    code="systemctl status nvidia-fabricmanager; nvidia-smi nvlink --status",
                )
            ],
        )
    ]


def _degraded_nvlink(topology: Topology) -> list[Finding]:
    """A full NVLink mesh in which one GPU has fewer links than the rest."""
    links = gpu_links(topology)
    numbers = {pair: int(link[2:]) for pair, link in links.items() if link[2:].isdigit()}
    if len(numbers) < len(links) or len(topology.gpus) < 4 or not numbers:
        return []
    common, votes = Counter(numbers.values()).most_common(1)[0]
    low = {pair: number for pair, number in numbers.items() if number < common}
    if not low or votes < 0.5 * len(numbers):
        return []
    suspects = Counter(gpu for pair in low for gpu in pair)
    gpu, count = suspects.most_common(1)[0]
    if count < len(low):  # no one GPU is in all of them: a mesh that is meant to be uneven
        return []
    number = min(low.values())
    return [
        finding(
            cause="hardware-fault",
            title=f"{gpu} has fewer NVLinks up than its neighbours",
            severity="critical",
            confidence=0.8,
            evidence=[
                fact(
                    f"{gpu} shows NV{number} where the other pairs show NV{common}.",
                    float(number),
                    "links",
                ),
                class_evidence(["nvlink_down"], SOURCE),
            ],
            fixes=[
                Fix(
                    title="Look at the link states and errors of this GPU",
                    detail="A reset may bring them back; repeated loss is a fault of the board.",
                    code="nvidia-smi nvlink --status; nvidia-smi nvlink -e",
                )
            ],
        )
    ]


def _islands(topology: Topology) -> list[Finding]:
    links = gpu_links(topology)
    islands = nvlink_islands(topology)
    if not links or not any(is_fast(link) for link in links.values()) or len(islands) < 2:
        return []
    shown = "; ".join(", ".join(island) for island in islands[:8])
    worst = max(links.values(), key=link_rank)
    return [
        finding(
            cause="nccl-wait",
            title="Only some GPUs have NVLink between them: keep tensor-parallel groups inside",
            severity="info",
            confidence=0.8,
            evidence=[
                fact(f"NVLink groups: {shown}. Between them the link is {worst}."),
                class_evidence(["tp_placement"], SOURCE),
            ],
            fixes=[
                Fix(
                    title="Place each tensor-parallel group inside one NVLink group",
                    detail="Order the devices so that neighbouring ranks share NVLink.",
                    code="export CUDA_VISIBLE_DEVICES="
                    + ",".join(gpu[3:] for island in islands for gpu in island),
                )
            ],
        )
    ]


def _far_nics(topology: Topology) -> list[Finding]:
    """GPUs whose nearest NIC is on another socket while other GPUs have one beside them."""
    best: dict[str, str] = {}
    for gpu in topology.gpus:
        links = [topology.links[gpu, nic] for nic in topology.nics if (gpu, nic) in topology.links]
        if links:
            best[gpu] = min(links, key=link_rank)
    far = [gpu for gpu, link in best.items() if link == "SYS"]
    near = [gpu for gpu, link in best.items() if link in ("PIX", "PXB", "PHB", "NODE")]
    if not far or not near:
        return []
    return [
        finding(
            cause="nccl-wait",
            title=f"The nearest NIC of {', '.join(far[:8])} is on another socket",
            severity="info",
            confidence=0.8,
            evidence=[
                fact(
                    f"{len(far)} of {len(best)} GPUs reach a NIC only across sockets "
                    f"(SYS), {', '.join(near[:8])} have one on their own.",
                    float(len(far)),
                    "GPUs",
                ),
                class_evidence(["nic_far"], SOURCE),
            ],
            fixes=[
                Fix(
                    title="Let traffic leave through the GPU beside the NIC",
                    detail="NCCL 2.12 and newer does it over NVLink (PXN) unless NCCL_PXN_DISABLE "
                    "is set; a NIC on each socket is better.",
                    code="unset NCCL_PXN_DISABLE",
                )
            ],
        )
    ]
