"""Reads how the devices of a host are connected, in every form in which tools print it.

`nvidia-smi topo -m` in all its layouts (tabs or spaces, cells glued at the terminal's width,
underline escapes, NICs by name or number, with and without NUMA columns, rows missing, DCGM's PSB),
`nvidia-smi topo -p2p`, the connectivity matrix of CUDA's p2pBandwidthLatencyTest, the link types of
`rocm-smi --showtopo`, and NCCL's topology XML (`nccl_xml`). Layouts are told by content, never by
driver version.
"""

from __future__ import annotations

import os
import re

from gpuprof.errors import InputError
from gpuprof.readers.files import head
from gpuprof.readers.nccl_xml import parse_nccl_xml
from gpuprof.readers.text import text_of
from gpuprof.topology import Topology

MAX_TOPOLOGY_BYTES = 8 << 20
"""NCCL's XML of a 72-GPU domain is below 1 MB."""

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\\x1b\[[0-9;]*m|(?<![\w])\[(?:4|0)m")
DEVICE = (
    r"(?:GPU\d+|NIC\d+|mlx\d+_\w+|bnxt_re\w+|roce\w*\d|ib\w*\d|efa_\d+|rdmap\w+|irdma\w+|hfi\w+)"
)
CELL = re.compile(r"NV\d+|NODE|PIX|PXB|PHB|SYS|SOC|PSB|C2C|XGMI|PCIE|(?<![A-Z])X(?![A-Z])")
P2P_CELL = re.compile(r"CNS|GNS|TNS|OK|NS|DR|U|X")
AFFINITY = re.compile(r"\d+(?:[,\-]\d+)*|N/A")


def read_topology(path: str | os.PathLike[str]) -> Topology:
    """Reads a topology from a file (text or XML, also gzip).

    Raises:
        InputError: the file cannot be read, is too large, or holds no topology.
    """
    data = head(path, MAX_TOPOLOGY_BYTES + 1)
    if len(data) > MAX_TOPOLOGY_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_TOPOLOGY_BYTES >> 20} MiB", hint="no topology is"
        )
    if re.search(rb"<system\b|<\?xml", data[:4096]):
        return parse_nccl_xml(data, str(path))
    topology = parse_topology(text_of(data), str(path))
    if topology is None:
        raise InputError(
            f"{path} holds no topology", hint="record one with: nvidia-smi topo -m > topo.txt"
        )
    return topology


def parse_topology(text: str, path: str = "") -> Topology | None:
    """The topology in a text, None when it holds none. Matrices are joined into one."""
    topology = Topology("", path)
    lines = [ANSI.sub("", line) for line in text.replace("\r", "\n").split("\n")]
    index = 0
    while index < len(lines):
        header = _header(lines[index])
        if header:
            index = _matrix(topology, header, lines, index + 1)
        elif re.match(r"\s*D\\D\s+\d", lines[index]):
            index = _connectivity(topology, lines[index], lines, index + 1)
        else:
            _detail(topology, lines[index])
            index += 1
    if not topology.links and not topology.p2p and not topology.numa:
        return None
    rows = {a for a, _ in topology.links}
    topology.complete = not topology.links or all(gpu in rows for gpu in topology.gpus)
    _check_symmetry(topology)
    return topology


def _header(line: str) -> list[str]:
    words = line.split()
    devices = [word for word in words if re.fullmatch(DEVICE, word)]
    if not devices or words[0] != devices[0] or CELL.search(" ".join(words[1:2])):
        return []
    if len(devices) == 1 and len(words) > 1 and not re.search(r"Affinity|NUMA", line):
        return []
    return [] if any(re.fullmatch(P2P_CELL, word) for word in words[1:2]) else devices


def _matrix(topology: Topology, header: list[str], lines: list[str], index: int) -> int:
    """Reads rows until one is none; returns the index of the first line after them."""
    gaps = 0
    while index < len(lines):
        match = re.match(r"\s*(" + DEVICE + r")\s+(\S.*?)\s*$", lines[index])
        body = match[2] if match else ""
        if match is None or (_header(lines[index]) and not CELL.match(body)):
            gaps += 1
            if gaps > 1 or lines[index].strip():
                return index
            index += 1
            continue
        name = match[1]
        words = body.split()
        if len(words) <= len(header) and all(P2P_CELL.fullmatch(word) for word in words):
            _p2p_row(topology, name, header, words)
        elif not _link_row(topology, name, header, body):
            return index
        index += 1
    return index


def _p2p_row(topology: Topology, name: str, header: list[str], words: list[str]) -> None:
    topology.source = topology.source or "nvidia-smi topo -p2p"
    _add_devices(topology, header)
    for other, word in zip(header, words, strict=False):
        if other != name and word != "X":
            topology.p2p[name, other] = word


def _link_row(topology: Topology, name: str, header: list[str], body: str) -> bool:
    cells: list[str] = []
    at = 0
    own = re.compile(r"\s*(?:" + CELL.pattern + r"|0(?=\s))")
    while len(cells) < len(header):
        match = own.match(body, at)
        if match is None:
            break
        cells.append(match.group().strip())
        at = match.end()
    if not cells:
        return False
    topology.source = topology.source or (
        "rocm-smi" if {"XGMI", "PCIE"} & set(cells) else "nvidia-smi topo -m"
    )
    _add_devices(topology, header)
    if len(cells) < len(header):
        topology.notes.append(f"{name}: {len(cells)} of {len(header)} cells")
    for other, cell in zip(header, cells, strict=False):
        if other != name and cell not in ("X", "0"):
            topology.links[name, other] = "SYS" if cell == "SOC" else cell
    rest = AFFINITY.findall(body[at:])
    if rest:
        topology.cpu_affinity[name] = rest[0]
        if len(rest) > 1:
            topology.numa[name] = rest[1]
    return True


def _add_devices(topology: Topology, header: list[str]) -> None:
    topology.devices += tuple(d for d in header if d not in topology.devices)


def _connectivity(topology: Topology, header: str, lines: list[str], index: int) -> int:
    """CUDA's sample prints 1 where a device can reach another's memory."""
    columns = [f"GPU{n}" for n in re.findall(r"\d+", header)]
    while index < len(lines):
        words = lines[index].split()
        if not words or not all(word in ("0", "1") or word.isdigit() for word in words):
            break
        if len(words) != len(columns) + 1 or any(word not in ("0", "1") for word in words[1:]):
            break
        name = f"GPU{words[0]}"
        topology.source = topology.source or "p2pBandwidthLatencyTest"
        _add_devices(topology, columns)
        for other, word in zip(columns, words[1:], strict=True):
            if other != name:
                topology.p2p[name, other] = "OK" if word == "1" else "NS"
        index += 1
    return index


def _detail(topology: Topology, line: str) -> None:
    match = re.match(r"\s*(NIC\d+)\s*: (\S+)", line)
    if match is not None:
        topology.nic_names[match[1]] = match[2]
        return
    match = re.match(r"\s*GPU\[(\d+)\]\s*: \(Topology\) Numa Node: (-?\d+)", line)
    if match is not None:
        _add_devices(topology, [f"GPU{match[1]}"])
        topology.numa[f"GPU{match[1]}"] = match[2]
        topology.source = topology.source or "rocm-smi"
        return
    match = re.match(r"\s*Device: (\d+), .*?pciBusID: (\w+)", line)
    if match is not None:
        topology.bus[f"GPU{match[1]}"] = match[2]


def _check_symmetry(topology: Topology) -> None:
    for (a, b), link in topology.links.items():
        back = topology.links.get((b, a))
        if a < b and back is not None and back != link:
            topology.notes.append(f"{a}–{b} is {link}, the other way {back}")
