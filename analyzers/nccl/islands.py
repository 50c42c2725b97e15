"""The links between the GPUs of a host, and the groups that all reach each other over NVLink."""

from __future__ import annotations

from itertools import combinations

from gpuprof.diagnosis import Evidence
from gpuprof.topology import Topology

SOURCE = "topology"


def nvlink_islands(topology: Topology) -> list[tuple[str, ...]]:
    """Groups of GPUs that all reach each other over NVLink (or XGMI), largest first."""
    left = list(topology.gpus)
    islands: list[tuple[str, ...]] = []
    while left:
        island = [left.pop(0)]
        for gpu in list(left):
            links = [topology.link(gpu, other) for other in island]
            known = [link for link in links if link is not None]  # rows may be missing
            if known and all(is_fast(link) for link in known):
                island.append(gpu)
                left.remove(gpu)
        islands.append(tuple(island))
    return sorted(islands, key=lambda island: -len(island))


def is_fast(link: str) -> bool:
    """Whether the link is NVLink or AMD's XGMI."""
    return link.startswith("NV") or link == "XGMI"


def gpu_links(topology: Topology) -> dict[tuple[str, str], str]:
    """Links of all pairs of GPUs that the topology states."""
    found: dict[tuple[str, str], str] = {}
    for a, b in combinations(topology.gpus, 2):
        link = topology.link(a, b)
        if link is not None:
            found[a, b] = link
    return found


def fact(text: str, value: float | None = None, unit: str = "") -> Evidence:
    """A sentence about the topology."""
    return Evidence(text=text, value=value, unit=unit, source=SOURCE)
