# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""What a topology allows: islands, slow groups, far NICs, lost links."""

from __future__ import annotations

from pathlib import Path

from gpuprof.analyzers.nccl.evidence import cause_classes
from gpuprof.analyzers.nccl.islands import nvlink_islands
from gpuprof.analyzers.nccl.placement import findings_from_topology
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.topology import parse_topology
from gpuprof.topology import Topology


def topology(rows: list[str], numa: list[int] | None = None, nics: int = 0) -> Topology:
    """GPUs by rows of cells; the last `nics` columns are NICs."""
    size = len(rows[0].split())
    names = [f"GPU{n}" for n in range(size - nics)] + [f"NIC{n}" for n in range(nics)]
    text = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\n"
    for index, row in enumerate(rows):
        text += (
            names[index]
            + "\t"
            + "\t".join(row.split())
            + f"\t0-{index + 1}\t{(numa or [0] * size)[index]}\n"
        )
    found = parse_topology(text)
    assert found is not None
    return found


PAIRS = ["X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"]
MESH = ["X NV12 NV12 NV12", "NV12 X NV12 NV12", "NV12 NV12 X NV12", "NV12 NV12 NV12 X"]


def test_full_mesh_gives_no_finding() -> None:
    assert findings_from_topology(topology(MESH)) == []


def test_islands_and_their_advice() -> None:
    pairs = topology(PAIRS)
    assert nvlink_islands(pairs) == [("GPU0", "GPU1"), ("GPU2", "GPU3")]
    (found,) = findings_from_topology(pairs)
    assert cause_classes(found) == ("tp_placement",)
    assert found.severity == "info"


def test_lost_links_of_one_gpu() -> None:
    rows = [
        row.replace("NV12", "NV8")
        if n == 2
        else " ".join(
            "NV8" if i == 2 and cell != "X" else cell for i, cell in enumerate(row.split())
        )
        for n, row in enumerate(MESH)
    ]
    (found,) = findings_from_topology(topology(rows))
    assert cause_classes(found) == ("nvlink_down",)
    assert "GPU2" in found.title


def test_hybrid_mesh_is_meant_to_be_uneven() -> None:
    rows = ["X NV2 NV2 NV1", "NV2 X NV1 NV2", "NV2 NV1 X NV1", "NV1 NV2 NV1 X"]
    assert findings_from_topology(topology(rows)) == []


def test_board_with_nics_and_no_nvlink_lost_its_switches() -> None:
    rows = [
        " ".join("X" if a == b else "SYS" for b in range(8))
        + " "
        + " ".join("PIX" if a == b else "SYS" for b in range(8))
        for a in range(8)
    ]
    assert cause_classes(findings_from_topology(topology(rows, nics=8))[0]) == ("fabric_manager",)


def test_far_nic() -> None:
    rows = ["X NV4 PIX", "NV4 X SYS"]
    (found,) = findings_from_topology(topology(rows, nics=1))
    assert cause_classes(found) == ("nic_far",)
    assert "GPU1" in found.title


def test_no_peer_access_is_named() -> None:
    found = parse_topology(" \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n")
    assert found is not None
    assert cause_classes(findings_from_topology(found)[0]) == ("tp_over_pcie_no_p2p",)


def test_group_over_slow_links_is_named_with_the_job(tmp_path: Path) -> None:
    """Ranks 0 and 1 sit on GPU0 and GPU2 although GPU0 and GPU1 share NVLink."""
    path = tmp_path / "nccl.log"
    path.write_text("".join(
        f"n0:{r}:1 [{d}] NCCL INFO comm 0xa{r} rank {r} nranks 2 cudaDev {d} busId {d}c000 commId 0x9 - Init COMPLETE\n"
        for r, d in ((0, 0), (1, 2))
    ))  # fmt: skip
    (found,) = findings_from_topology(topology(PAIRS), read_nccl_log(path))
    assert cause_classes(found) == ("tp_over_pcie",)
    assert found.ranks == (0, 1)


def test_ring_that_crosses_sockets_too_often(tmp_path: Path) -> None:
    rows = [
        " ".join("X" if a == b else "PHB" if a // 2 == b // 2 else "SYS" for b in range(4))
        for a in range(4)
    ]
    path = tmp_path / "nccl.log"
    text = "".join(
        f"n0:{r}:1 [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 4 cudaDev {r} busId {r}c000 commId 0x9 - Init COMPLETE\n"
        for r in range(4)
    )
    path.write_text(text + "n0:0:1 [0] NCCL INFO Channel 00/02 :    0   2   1   3\n")
    (found,) = findings_from_topology(topology(rows, numa=[0, 0, 1, 1]), read_nccl_log(path))
    assert cause_classes(found) == ("ring_crosses_sockets",)
