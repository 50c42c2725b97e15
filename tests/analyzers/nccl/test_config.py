# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""Slow paths, differences between ranks, and unfinished communicators, from generated logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.nccl_faults import FAULTS, Plan
from fixtures.nccl_logs import Job, build_log, start_up
from gpuprof.analyzers.nccl_causes import cause_classes, findings_from_commlog
from gpuprof.diagnosis import Finding
from gpuprof.readers.nccl_log import read_nccl_log


@pytest.fixture
def answer(tmp_path: Path) -> Callable[..., tuple[list[Finding], int | None]]:
    def run(version: str, fault: str | None, **shape: int) -> tuple[list[Finding], int | None]:
        job = Job(version, seed=11, steps=8, **shape)  # type: ignore[arg-type]
        text, _, guilty = build_log(job, fault)
        path = tmp_path / "nccl.log"
        path.write_text(text)
        return findings_from_commlog(read_nccl_log(path)), guilty

    return run


@pytest.mark.parametrize(
    "fault",
    [
        "p2p_off", "no_peer_access", "no_gdr", "one_side", "networks", "fewer_nics", "provider",
        "ib_disabled", "topology_file", "environment", "versions", "rank_missing", "mismatch_calls",
        "straggler", "port_failed",
    ],
)  # fmt: skip
def test_fault_is_named_first(
    answer: Callable[..., tuple[list[Finding], int | None]], fault: str
) -> None:
    findings, guilty = answer("2.30.7", fault)
    assert cause_classes(findings[0])[0] == FAULTS[fault].kind
    if guilty is not None:
        assert guilty in findings[0].ranks + findings[0].late_ranks


def folder_of(tmp_path: Path, version_of: Callable[[int], str]) -> list[Finding]:
    """Findings in a file a rank of a job whose ranks have these libraries."""
    jobs: dict[str, Job] = {}
    for rank in range(16):
        version = version_of(rank)
        job = jobs.setdefault(version, Job(version, seed=11))
        text = "\n".join(start_up(job, rank, Plan())) + "\n"
        (tmp_path / f"nccl.{job.host(rank)}.{job.pids[rank]}.log").write_text(text)
    return findings_from_commlog(read_nccl_log(tmp_path))


def test_an_older_library_on_some_ranks_states_its_version_once(tmp_path: Path) -> None:
    """Before 2.22 rank 0 alone prints it. The odd ranks are named, with what the others have."""
    (found,) = folder_of(tmp_path, lambda rank: "2.22.3" if rank == 11 else "2.18.5")
    assert cause_classes(found)[0] == "version_mismatch"
    assert found.ranks == (11,)
    assert "NCCL 2.22.3 on rank 11 (node1); others have NCCL 2.18.5" in found.evidence[0].text
    assert "line 3, node1:" in found.evidence[0].text


def test_a_job_that_another_one_followed_is_none_of_its_ranks(tmp_path: Path) -> None:
    """Two runs in one file, the library updated between them."""
    text = "".join(build_log(Job(v, seed=7, steps=4))[0] for v in ("2.18.5", "2.27.7"))
    path = tmp_path / "slurm.out"
    path.write_text(text)
    assert findings_from_commlog(read_nccl_log(path)) == []


def test_one_node_without_gdr_is_healthy(
    answer: Callable[..., tuple[list[Finding], int | None]],
) -> None:
    """GPUDirect RDMA serves traffic between nodes; on one node its absence costs nothing."""
    findings, _ = answer("2.27.7", "no_gdr", nodes=1)
    assert findings == []


def test_call_that_differs_is_shown_with_its_number(
    answer: Callable[..., tuple[list[Finding], int | None]],
) -> None:
    findings, guilty = answer("2.27.7", "mismatch_calls")
    assert findings[0].late_ranks == (guilty,)
    assert "the others AllReduce of" in findings[0].evidence[0].text


def test_network_inside_a_host_is_named(tmp_path: Path) -> None:
    lines = []
    for rank in range(2):
        lines.append(f"n0:{rank}:1 [{rank}] NCCL INFO NCCL_SHM_DISABLE set by environment to 1.")
        lines.append(
            f"n0:{rank}:1 [{rank}] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [{'send' if rank == 0 else 'receive'}] via NET/IB/0/GDRDMA"
        )
        lines.append(
            f"n0:{rank}:1 [{rank}] NCCL INFO comm 0xa{rank} rank {rank} nranks 2 cudaDev {rank} busId 1c000 commId 0x9 - Init COMPLETE"
        )
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    (found,) = findings_from_commlog(read_nccl_log(path))
    assert cause_classes(found) == ("env_disables_shm",)


def test_channel_limit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text("n0:1:1 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 1.\n")
    (found,) = findings_from_commlog(read_nccl_log(path))
    assert cause_classes(found) == ("env_limits_channels",)


def test_defect_of_a_release_needs_its_trigger(tmp_path: Path) -> None:
    """2.29.3 is accused only when NCCL_COMM_ID is set."""
    path = tmp_path / "nccl.log"
    version = "n0:1:1 [0] NCCL INFO NCCL version 2.29.3+cuda13.0\n"
    path.write_text(version)
    assert findings_from_commlog(read_nccl_log(path)) == []
    path.write_text(
        version + "n0:1:1 [0] NCCL INFO NCCL_COMM_ID set by environment to 10.0.0.1:4000\n"
    )
    (found,) = findings_from_commlog(read_nccl_log(path))
    assert cause_classes(found)[0] == "nic_loopback"


def test_rank_that_stopped_issuing_calls_is_named(tmp_path: Path) -> None:
    lines = [
        f"n0:{r}:1 [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 4 cudaDev {r} busId 1c000 commId 0x9 - Init COMPLETE"
        for r in range(4)
    ]
    lines += [
        f"n0:{r}:1 [{r}] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x1 count 64 datatype 7 op 0 root 0 comm 0xa{r} [nranks=4] stream 0x5"
        for n in range(400)
        for r in range(4)
        if not (r == 2 and n > 100)
    ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    (found,) = findings_from_commlog(read_nccl_log(path))
    assert found.late_ranks == (2,)
    assert found.cause == "hang"
