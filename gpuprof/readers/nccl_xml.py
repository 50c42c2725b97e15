"""Reads NCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) into a `Topology`.

The file can come from anywhere, so the parser refuses what a topology does not need and an attack
does: document types, entities, external references, unbounded depth and size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from gpuprof.errors import InputError
from gpuprof.topology import Topology

MAX_DEPTH = 64
"""PCIe trees are below 16 levels."""

MAX_ELEMENTS = 100_000


@dataclass(slots=True)
class Element:
    """One element and what is below it."""

    name: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element] = field(default_factory=list)

    def ancestors(self) -> list[Element]:
        """From the parent up to the root."""
        found: list[Element] = []
        node = self.parent
        while node is not None:
            found.append(node)
            node = node.parent
        return found


def parse_nccl_xml(data: bytes, path: str) -> Topology:
    """The topology in NCCL's XML.

    Raises:
        InputError: it is no well-formed XML, declares a document type or entities, is too deep,
            or holds no GPU.
    """
    root = _tree(data, path)
    gpus: list[tuple[str, Element]] = []
    nics: list[tuple[str, Element]] = []
    stack = [root]
    while stack:
        element = stack.pop()
        stack.extend(reversed(element.children))
        if element.name == "gpu":
            gpus.append((f"GPU{element.attributes.get('dev', len(gpus))}", element))
        elif element.name == "net":
            nics.append((f"NIC{element.attributes.get('dev', len(nics))}", element))
    if not gpus:
        raise InputError(
            f"{path} holds no GPU", hint="give the file that NCCL_TOPO_DUMP_FILE wrote"
        )
    topology = Topology("NCCL topology XML", path)
    nodes = [*gpus, *nics]
    topology.devices = tuple(name for name, _ in nodes)
    topology.nic_names = {
        name: element.attributes["name"] for name, element in nics if "name" in element.attributes
    }
    for name, element in gpus:
        pci = next((e for e in element.ancestors() if e.name == "pci"), None)
        topology.bus[name] = pci.attributes.get("busid", "") if pci is not None else ""
        cpu = next((e for e in element.ancestors() if e.name == "cpu"), None)
        if cpu is not None:
            topology.numa[name] = cpu.attributes.get("numaid", "")
    for index, (a, first) in enumerate(nodes):
        for b, second in nodes[index + 1 :]:
            link = _nvlink(topology, a, first, b, second) or _path(first, second)
            topology.links[a, b] = topology.links[b, a] = link
    return topology


def _tree(data: bytes, path: str) -> Element:
    parser = expat.ParserCreate()
    root = Element("", {}, None)
    state = {"node": root, "depth": 0, "count": 0}

    def refuse(*_: object) -> None:
        raise InputError(
            f"{path} declares a document type or entities", hint="NCCL's topology files do not"
        )

    def start(name: str, attributes: dict[str, str]) -> None:
        depth, count = state["depth"], state["count"]
        parent = state["node"]
        assert isinstance(depth, int) and isinstance(count, int) and isinstance(parent, Element)
        if depth >= MAX_DEPTH or count >= MAX_ELEMENTS:
            raise InputError(f"{path} is too large for a topology", hint="give NCCL's own file")
        element = Element(name, attributes, parent)
        parent.children.append(element)
        state.update(node=element, depth=depth + 1, count=count + 1)

    def end(_name: str) -> None:
        node, depth = state["node"], state["depth"]
        assert isinstance(node, Element) and isinstance(depth, int)
        state.update(node=node.parent, depth=depth - 1)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse  # type: ignore[assignment]
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InputError(f"{path} is no well-formed XML", hint=str(error)) from error
    return root


def _nvlink(topology: Topology, a: str, first: Element, b: str, second: Element) -> str | None:
    if first.name != "gpu" or second.name != "gpu":
        return None
    count = 0
    switched = [0, 0]
    for number, (element, target) in enumerate(
        ((first, topology.bus.get(b)), (second, topology.bus.get(a)))
    ):
        for link in element.children:
            if link.name != "nvlink":
                continue
            amount = link.attributes.get("count", "1")
            links = int(amount) if amount.isdigit() and len(amount) < 5 else 1
            if number == 0 and link.attributes.get("target") == target:
                count += links
            if link.attributes.get("tclass", "").startswith("0x0680"):
                switched[number] += links  # to an NVSwitch, which reaches every GPU
    if count:
        return f"NV{count}"
    return f"NV{min(switched)}" if min(switched) else None


def _path(first: Element, second: Element) -> str:
    """The link as `nvidia-smi` would call it, from the lowest element that both hang below."""
    mine = first.ancestors()
    theirs = {id(element) for element in second.ancestors()}
    common = next((element for element in mine if id(element) in theirs), None)
    if common is None or common.name in ("", "system"):
        return "SYS"
    if common.name == "cpu":
        return "PHB"
    bridges = sum(1 for e in mine[: mine.index(common)] if e.name == "pci")
    others = second.ancestors()
    bridges = max(bridges, sum(1 for e in others[: others.index(common)] if e.name == "pci"))
    return "PIX" if bridges <= 1 else "PXB"
