# ruff: noqa: E501 (lines of logs are quoted whole)
"""Jobs whose ranks never met: PyTorch's store and torchrun's rendezvous, without a line of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.analyzers.nccl.evidence import cause_classes, decisive_line
from gpuprof.analyzers.nccl_causes import findings_from_commlog
from gpuprof.diagnosis import Finding
from gpuprof.inputs import kind_of
from gpuprof.readers.nccl_log import read_nccl_log

SERVER = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
CLIENT = "[rank{0}]:[E521 15:43:02.707733876 socket.cpp:1023] [c10d] The client socket has timed out after 600000ms while trying to connect to ({1}, 29500)."
BARRIER = "RuntimeError: Timed out initializing process group in store based barrier on rank: {0}, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
ELASTIC = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
TAKEN = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"


def judged(tmp_path: Path, *lines: str) -> list[Finding]:
    path = tmp_path / "job.log"
    path.write_text("\n".join(("Traceback (most recent call last):", *lines)) + "\n")
    assert kind_of(path) == "nccl-log"
    return findings_from_commlog(read_nccl_log(path))


def said(found: Finding) -> str:
    return " ".join(item.text for item in found.evidence)


def test_server_counts_who_joined(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, SERVER)
    assert "3 of 4 processes joined, 1 did not." in said(found)
    assert decisive_line(found) == 2
    assert cause_classes(found) == ("init_rank_missing",)
    assert not found.late_ranks  # a count names nobody
    assert "MASTER_ADDR" in found.fixes[0].detail
    assert "CUDA_VISIBLE_DEVICES" in found.fixes[0].code


def test_client_names_itself_and_the_address(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, CLIENT.format(3, "10.0.0.7"), SERVER)
    assert found.late_ranks == (3,)
    assert "1 did not: rank 3." in said(found)
    assert "No answer came from 10.0.0.7, port 29500." in said(found)
    assert found.fixes[1].code == "nc -zv 10.0.0.7 29500"


def test_refused_connections_add_no_second_finding(tmp_path: Path) -> None:
    refused = "[W socket.cpp:601] [c10d] The client socket has failed to connect to 10.0.0.7:29500 (errno: 111 - Connection refused)."
    (found,) = judged(tmp_path, refused, CLIENT.format(1, "10.0.0.7"))
    assert found.late_ranks == (1,)


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        (("localhost", "localhost"), "A loopback address reaches only"),
        (("10.0.0.7", "10.0.0.8"), "The processes try different addresses"),
    ],
)
def test_address_that_cannot_work_is_said(
    tmp_path: Path, hosts: tuple[str, str], sentence: str
) -> None:
    (found,) = judged(tmp_path, CLIENT.format(1, hosts[0]), CLIENT.format(2, hosts[1]))
    assert sentence in said(found)


def test_barrier_leaves_the_rank_that_no_line_names(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, *[BARRIER.format(rank) for rank in (0, 1, 3)])
    assert found.late_ranks == (2,)
    assert found.ranks == (0, 1, 2, 3)


def test_barrier_of_some_ranks_accuses_nobody(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, BARRIER.format(0))
    assert found.late_ranks == ()
    assert "3 of 4 processes joined, 1 did not." in said(found)


def test_barrier_in_the_wording_of_newer_versions(tmp_path: Path) -> None:
    line = (
        BARRIER.format(0).replace("rank: 0", "rank 0").replace("worker_count", "num_workers_joined")
    )
    (found,) = judged(tmp_path, line)
    assert "3 of 4 processes joined, 1 did not." in said(found)


def test_torchrun_gave_up(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, ELASTIC)
    assert "does not say how many joined" in said(found)
    assert found.confidence < 0.7


def test_port_that_is_taken_is_no_missing_rank(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, TAKEN)
    assert cause_classes(found) == ("store_port_taken",)


def test_rank_that_owes_the_identity_is_named(tmp_path: Path) -> None:
    line = "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
    (found,) = judged(tmp_path, line)
    assert found.late_ranks == (0,)


def test_retry_that_went_well_is_no_finding(tmp_path: Path) -> None:
    refused = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [127.0.0.1]:29500 (errno: 111 - Connection refused)."
    retry = "[W TCPStore.cpp:330] [c10d] TCP client failed to connect/validate to host 10.0.0.7:29500 - retrying (try=0, timeout=600000ms, delay=81ms): Connection reset"
    path = tmp_path / "nccl.log"
    path.write_text(f"{refused}\n{retry}\nh:1:1 [0] NCCL INFO NCCL version 2.27.7+cuda12.4\n")
    assert not findings_from_commlog(read_nccl_log(path))
