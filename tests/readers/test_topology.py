# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""Topologies in every layout: tabs, spaces, glued cells, escapes, p2p tables, XML."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.nccl_cases import CASES
from gpuprof.errors import InputError
from gpuprof.readers.topology import parse_topology, read_topology
from gpuprof.topology import link_rank

TABS = (
    "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tPIX\t16-31,80-95\t1\nGPU1\tNV4\t X \tSYS\t0-15\t0\nmlx5_0\tPIX\tSYS\t X\n"
)


def test_tabs_and_nic_by_name() -> None:
    topology = parse_topology(TABS)
    assert topology is not None
    assert topology.gpus == ("GPU0", "GPU1") and topology.nics == ("mlx5_0",)
    assert topology.link("GPU0", "GPU1") == "NV4" and topology.link("GPU1", "mlx5_0") == "SYS"
    assert topology.cpu_affinity["GPU0"] == "16-31,80-95" and topology.numa == {
        "GPU0": "1",
        "GPU1": "0",
    }
    assert topology.complete and not topology.notes


def test_spaces_escapes_and_nic_legend() -> None:
    text = (
        "\x1b[4m        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\x1b[0m\n"
        "GPU0     X      SYS     PIX     0-23,48-71      0               N/A\n"
        "GPU1    SYS      X      SYS     24-47           1               N/A\n"
        "NIC0    PIX     SYS      X\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    topology = parse_topology(text)
    assert topology is not None
    assert topology.nic_names == {"NIC0": "mlx5_0"} and topology.numa["GPU1"] == "1"


def test_cells_glued_at_the_width_of_the_terminal() -> None:
    topology = parse_topology("  GPU0 NIC0 NIC1 NIC2 CPU Affinity\nGPU0 X NODENODE PIX 0-5\n")
    assert topology is not None
    assert [topology.link("GPU0", f"NIC{n}") for n in range(3)] == ["NODE", "NODE", "PIX"]


def test_missing_rows_are_said() -> None:
    topology = parse_topology("     GPU0 GPU1 GPU2 CPU Affinity\nGPU0  X  NV4 NV4 0-5\n")
    assert topology is not None and not topology.complete


def test_old_soc_is_sys_and_asymmetry_is_noted() -> None:
    topology = parse_topology("     GPU0 GPU1 CPU Affinity\nGPU0  X  SOC 0-5\nGPU1  NV1 X 0-5\n")
    assert topology is not None
    assert topology.links["GPU0", "GPU1"] == "SYS" and topology.notes


def test_p2p_status_and_cuda_sample() -> None:
    topology = parse_topology(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n")
    assert topology is not None and topology.p2p["GPU0", "GPU1"] == "GNS"
    sample = parse_topology(
        "P2P Connectivity Matrix\n     D\\D     0     1\n     0       1     0\n     1       0     1\n"
    )
    assert sample is not None and sample.p2p == {("GPU0", "GPU1"): "NS", ("GPU1", "GPU0"): "NS"}


def test_rocm_link_types() -> None:
    topology = parse_topology(
        "======= Link Type between two GPUs =======\n       GPU0         GPU1\n"
        "GPU0   0            XGMI\nGPU1   XGMI         0\nGPU[0]\t\t: (Topology) Numa Node: 1\n"
    )
    assert topology is not None
    assert topology.link("GPU0", "GPU1") == "XGMI" and topology.numa == {"GPU0": "1"}


def test_links_are_ordered_from_near_to_far() -> None:
    order = ["NV12", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(order, key=link_rank) == order
    assert link_rank("SOC") == link_rank("SYS")


XML = """<system version="1"><cpu numaid="0"><pci busid="0000:10:00.0">
<pci busid="0000:1b:00.0"><gpu dev="0" rank="0"><nvlink target="0000:1c:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:1c:00.0"><gpu dev="1" rank="1"><nvlink target="0000:1b:00.0" count="4" tclass="0x030200"/></gpu></pci>
</pci></cpu><cpu numaid="1"><pci busid="0000:2b:00.0"><gpu dev="2" rank="2"/></pci>
<nic><net name="mlx5_0" dev="0"/></nic></cpu></system>"""


def test_nccl_xml(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(XML)
    topology = read_topology(path)
    assert topology.link("GPU0", "GPU1") == "NV4" and topology.link("GPU0", "GPU2") == "SYS"
    assert topology.link("GPU2", "NIC0") == "PHB" and topology.nic_names == {"NIC0": "mlx5_0"}
    assert topology.bus["GPU0"] == "0000:1b:00.0" and topology.numa["GPU2"] == "1"


def test_nvswitch_reaches_every_gpu(tmp_path: Path) -> None:
    gpus = "".join(
        f'<pci busid="0000:{n}b:00.0"><gpu dev="{n}"><nvlink target="0000:c{n}:00.0" count="12" tclass="0x068000"/></gpu></pci>'
        for n in range(2)
    )
    path = tmp_path / "topo.xml"
    path.write_text(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    assert read_topology(path).link("GPU0", "GPU1") == "NV12"


@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "b">]><system><gpu dev="0"/></system>',
        '<?xml version="1.0"?><!DOCTYPE s SYSTEM "file:///etc/passwd"><system><gpu dev="0"/></system>',
        "<system>" + "<pci>" * 100 + "</pci>" * 100 + "</system>",
        "<system><gpu></system>",
        "<system></system>",
    ],
)
def test_hostile_or_broken_xml_is_refused(tmp_path: Path, text: str) -> None:
    """Entities, external references and endless depth end in one line, and read nothing."""
    path = tmp_path / "topo.xml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_topology(path)


def test_text_without_a_topology_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("nothing here\n")
    with pytest.raises(InputError, match="holds no topology"):
        read_topology(path)


@pytest.mark.skipif(
    not CASES.is_dir(), reason="the collected topologies are not beside the repository"
)
def test_collected_topologies_are_read_without_loss() -> None:
    expected = {
        "001": (4, 2), "003": (6, 2), "005": (8, 18), "007": (8, 10), "009": (2, 0), "011": (16, 10),
        "013": (2, 0), "015": (6, 0), "017": (8, 36), "019": (2, 0), "021": (3, 0), "023": (2, 1),
        "025": (8, 2),
    }  # fmt: skip
    for name, (gpus, nics) in expected.items():
        topology = read_topology(CASES / "topo" / f"{name}.txt")
        assert (len(topology.gpus), len(topology.nics)) == (gpus, nics), name
        assert not topology.notes, name


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(alphabet='GPUNIC0123 \t\nXVSYPHB<>/="systemgpu', max_size=200))
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.txt"
    path.write_text(text)
    with contextlib.suppress(InputError):
        read_topology(path)
