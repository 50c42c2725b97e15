"""`Topology`: how the devices of one host are connected.

`gpuprof.readers.topology` fills it, `gpuprof.analyzers.nccl` judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LINK_ORDER: tuple[str, ...] = (
    "NV",
    "XGMI",
    "C2C",
    "PIX",
    "PSB",
    "PXB",
    "PCIE",
    "PHB",
    "NODE",
    "SYS",
)
"""Links from near to far: NVLink, one PCIe bridge, several, the host bridge, between host bridges
of a NUMA node, across sockets (SOC in old drivers)."""


@dataclass(slots=True)
class Topology:
    """Devices of one host. `links` and `p2p` are keyed by ordered pairs of device names.

    `links` holds NV# (NV alone: number unknown), XGMI, PIX, PSB, PXB, PHB, NODE, SYS,
    C2C or PCIE; `p2p` holds OK, NS, CNS, GNS, TNS, DR or U. `nic_names` maps NIC# to its device.
    `complete` is False when rows of GPUs in the header are missing. `bus` maps a GPU to its PCI id.
    """

    source: str
    path: str
    devices: tuple[str, ...] = ()
    links: dict[tuple[str, str], str] = field(default_factory=dict)
    p2p: dict[tuple[str, str], str] = field(default_factory=dict)
    cpu_affinity: dict[str, str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    nic_names: dict[str, str] = field(default_factory=dict)
    bus: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if device.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if not device.startswith("GPU"))

    def link(self, a: str, b: str) -> str | None:
        """The link of two devices, from either row."""
        return self.links.get((a, b)) or self.links.get((b, a))


def link_rank(link: str) -> int:
    """Position in `LINK_ORDER`, 0 the nearest."""
    if link.startswith("NV"):
        return 0
    return LINK_ORDER.index("SYS" if link == "SOC" else link)
