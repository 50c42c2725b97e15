"""The transports of a job as a matrix."""

from __future__ import annotations

from pathlib import Path

from gpuprof.analyzers.nccl.matrix import transport_matrix
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.topology import parse_topology


def test_slowest_transport_of_a_pair_counts_and_gdr_needs_both_ends(tmp_path: Path) -> None:
    head = "n0:1:1 [0] NCCL INFO "
    path = tmp_path / "nccl.log"
    path.write_text(
        f"{head}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        f"{head}Channel 01 : 0[0] -> 1[1] via SHM/direct/direct\n"
        f"{head}Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA\n"
        f"{head}Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0\n"
        f"{head}comm 0xa rank 0 nranks 3 cudaDev 0 busId 1c000 commId 0x9 - Init COMPLETE\n"
        f"{head}comm 0xb rank 1 nranks 3 cudaDev 1 busId 2c000 commId 0x9 - Init COMPLETE\n"
    )
    topology = parse_topology("     GPU0 GPU1 CPU Affinity\nGPU0  X  PHB 0-5\nGPU1  PHB X 0-5\n")
    first, second = transport_matrix(read_nccl_log(path), topology)
    assert (first.kind, first.link, first.gdr) == ("shm", "PHB", None)
    assert (second.kind, second.gdr) == ("net", False)
