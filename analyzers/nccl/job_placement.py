"""A job laid over its host's topology: groups over slow links, rings over too many sockets."""

from __future__ import annotations

from itertools import combinations

from gpuprof.analyzers.nccl.evidence import class_evidence, finding, rank_list
from gpuprof.analyzers.nccl.islands import SOURCE, fact, gpu_links, is_fast, nvlink_islands
from gpuprof.commlog import CommLog, Communicator
from gpuprof.diagnosis import Finding, Fix
from gpuprof.topology import Topology, link_rank

MAX_TENSOR_PARALLEL = 8
"""Communicators up to this size inside a host are taken for tensor-parallel groups."""

SLOW_FROM = link_rank("PHB")
"""From the host bridge on a pair is slow for tensor parallelism: all bytes cross the CPU."""


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


def findings_from_placement(topology: Topology, log: CommLog) -> list[Finding]:
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
                    fact(
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
    if len(set(sockets.values())) < 2 or any(is_fast(v) for v in gpu_links(topology).values()):
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
                            fact(
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
