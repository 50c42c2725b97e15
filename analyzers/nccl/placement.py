"""What a topology allows and what not: NVLink islands, slow pairs, far NICs, no peer access.

A topology alone shows what a job must avoid, not what it does: such findings are `info`. With a log
of the job, its communicators are laid over the topology, and misuse is named.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, rank_list
from gpuprof.commlog import CommLog, Communicator
from gpuprof.diagnosis import Evidence, Finding, Fix
from gpuprof.readers.topology import Topology, link_rank

MAX_TENSOR_PARALLEL = 8
"""Communicators up to this size inside a host are taken for tensor-parallel groups."""

SLOW_FROM = link_rank("PHB")
"""From the host bridge on a pair is slow for tensor parallelism: all bytes cross the CPU."""

SOURCE = "topology"
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
        found += _misplaced(topology, log)
    if not found:
        found += _pcie_only(topology)
        found += _islands(topology)
    found += _far_nics(topology)
    return found


def nvlink_islands(topology: Topology) -> list[tuple[str, ...]]:
    """Groups of GPUs that all reach each other over NVLink (or XGMI), largest first."""
    left = list(topology.gpus)
    islands: list[tuple[str, ...]] = []
    while left:
        island = [left.pop(0)]
        for gpu in list(left):
            links = [topology.link(gpu, other) for other in island]
            known = [link for link in links if link is not None]  # rows may be missing
            if known and all(_fast(link) for link in known):
                island.append(gpu)
                left.remove(gpu)
        islands.append(tuple(island))
    return sorted(islands, key=lambda island: -len(island))


def _fast(link: str) -> bool:
    return link.startswith("NV") or link == "XGMI"


def _gpu_links(topology: Topology) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for a, b in combinations(topology.gpus, 2):
        link = topology.link(a, b)
        if link is not None:
            found[a, b] = link
    return found


def _fact(text: str, value: float | None = None, unit: str = "") -> Evidence:
    return Evidence(text=text, value=value, unit=unit, source=SOURCE)


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
                _fact(
                    f"Peer access is {NO_PEER_ACCESS[status]} ({status}) for all "
                    f"{len(pairs)} pairs of GPUs.",
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
    if not reach or any(_fast(link) for link in _gpu_links(topology).values()):
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
            _fact(text),
            _fact(
                "Whether PCIe ACS or the IOMMU redirects these transfers is not in "
                "this file. If collectives hang after a complete start and NCCL_P2P_DISABLE=1 "
                "helps, they do.",
            ),
            class_evidence(["acs_iommu", "tp_over_pcie_no_p2p"], SOURCE),
        ],
        fixes=[
            Fix(
                title="On a hang: switch PCIe ACS and the IOMMU off",
                detail="Disable VT-d or AMD-Vi in the firmware (or iommu=pt), clear ACS on the "
                "bridges, cold boot.",
                code="lspci -vvv | grep -i acsctl; cat /proc/cmdline",
            ),
            Fix(
                title="Keep tensor-parallel groups on the nearest pairs",
                detail="PIX before PXB before PHB; across sockets last.",
                code="nvidia-smi topo -m",
            ),
        ],
    )


def _pcie_only(topology: Topology) -> list[Finding]:
    links = _gpu_links(topology)
    if not links or any(_fast(link) for link in links.values()):
        return []
    counts = Counter(links.values())
    text = ", ".join(f"{count} of {link}" for link, count in counts.most_common())
    return [_pcie_finding(topology, f"Of {len(links)} pairs of GPUs none has NVLink: {text}.")]


def _missing_nvlink(topology: Topology) -> list[Finding]:
    """Eight GPUs, a NIC beside each, and no NVLink: an NVSwitch board whose switches are not up."""
    links = _gpu_links(topology)
    if len(topology.gpus) < HGX_GPUS or not links or any(_fast(v) for v in links.values()):
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
                _fact(
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
    links = _gpu_links(topology)
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
                _fact(
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
    links = _gpu_links(topology)
    islands = nvlink_islands(topology)
    if not links or not any(_fast(link) for link in links.values()) or len(islands) < 2:
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
                _fact(f"NVLink groups: {shown}. Between them the link is {worst}."),
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
                _fact(
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


def _placement(topology: Topology, log: CommLog, comm: Communicator) -> dict[int, str]:
    """Rank to GPU for a communicator that lies within one host; empty otherwise."""
    hosts = {log.processes[process].host for process in comm.processes.values()}
    if len(hosts) != 1 or len(comm.devices) != comm.size:
        return {}
    by_bus = {
        bus.lower().replace(":", "").replace(".", "").lstrip("0"): gpu
        for gpu, bus in topology.bus.items()
    }
    placed: dict[int, str] = {}
    for rank, (ordinal, bus) in comm.devices.items():
        name = by_bus.get(bus.lstrip("0"), f"GPU{ordinal}") if bus else f"GPU{ordinal}"
        placed[rank] = name
    if len(set(placed.values())) < comm.size or not set(placed.values()) <= set(topology.gpus):
        return {}
    return placed


def _misplaced(topology: Topology, log: CommLog) -> list[Finding]:
    """A communicator over slow pairs although the host has a faster set of as many GPUs."""
    seen: set[frozenset[str]] = set()
    islands = nvlink_islands(topology)
    for comm in log.communicators:
        if not 2 <= comm.size <= MAX_TENSOR_PARALLEL or comm.size == len(topology.gpus):
            continue
        placed = _placement(topology, log, comm)
        gpus = frozenset(placed.values())
        if not placed or gpus in seen:
            continue
        seen.add(gpus)
        links = {pair: topology.link(*pair) for pair in combinations(sorted(gpus), 2)}
        known = {pair: link for pair, link in links.items() if link is not None}
        if not known:
            continue
        pair, worst = max(known.items(), key=lambda item: link_rank(item[1]))
        better = [i for i in islands if len(i) >= comm.size]
        if link_rank(worst) < SLOW_FROM or not better:
            continue
        return [
            finding(
                cause="nccl-wait",
                title=f"A group of {comm.size} ranks spans slow links though NVLink is there",
                severity="warning",
                confidence=0.8,
                evidence=[
                    _fact(
                        f"The communicator of {rank_list(placed)} uses "
                        f"{', '.join(sorted(gpus))}; {pair[0]}–{pair[1]} is {worst}. "
                        f"{', '.join(better[0][: comm.size])} would share NVLink.",
                    ),
                    class_evidence(["tp_over_pcie"], SOURCE),
                ],
                fixes=[
                    Fix(
                        title="Place the group inside one NVLink group",
                        detail="Order the devices so that neighbouring ranks share NVLink.",
                        code="export CUDA_VISIBLE_DEVICES="
                        + ",".join(gpu[3:] for island in islands for gpu in island),
                    )
                ],
                ranks=placed,
            )
        ]
    return _ring_over_sockets(topology, log)


def _ring_over_sockets(topology: Topology, log: CommLog) -> list[Finding]:
    """A ring that crosses sockets more often than there are sockets."""
    sockets = {gpu: numa for gpu, numa in topology.numa.items() if gpu.startswith("GPU")}
    if len(set(sockets.values())) < 2 or any(_fast(v) for v in _gpu_links(topology).values()):
        return []
    for comm in log.communicators:
        placed = _placement(topology, log, comm)
        for order in log.rings.values():
            if not placed or sorted(order) != sorted(placed):
                continue
            hops = list(zip(order, (*order[1:], order[0]), strict=True))
            crossing = [
                (a, b) for a, b in hops if sockets.get(placed[a], "") != sockets.get(placed[b], "")
            ]
            need = len({sockets.get(placed[rank], "") for rank in order})
            if len(crossing) > need:
                return [
                    finding(
                        cause="nccl-wait",
                        title="The ring crosses sockets more often than it has to",
                        severity="warning",
                        confidence=0.7,
                        evidence=[
                            _fact(
                                f"The ring {' → '.join(map(str, order))} crosses "
                                f"sockets {len(crossing)} times; {need} would do.",
                                float(len(crossing)),
                                "crossings",
                            ),
                            class_evidence(["ring_crosses_sockets"], SOURCE),
                        ],
                        fixes=[
                            Fix(
                                title="Let NCCL see the real topology",
                                detail="A container or virtual machine that hides /sys makes it "
                                "order GPUs by number.",
                                code="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH …",
                            )
                        ],
                        ranks=order,
                    )
                ]
    return []
