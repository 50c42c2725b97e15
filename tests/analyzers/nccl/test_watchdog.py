# ruff: noqa: E501 (lines of logs are quoted whole)
"""Time-outs of PyTorch's watchdog: which collective, and who did not come."""

from __future__ import annotations

from pathlib import Path

from gpuprof.analyzers.nccl.evidence import cause_classes
from gpuprof.analyzers.nccl.watchdog import findings_from_watchdog
from gpuprof.diagnosis import Finding
from gpuprof.readers.nccl_log import read_nccl_log


def timeout(rank: int, sequence: int = 812, op: str = "ALLREDUCE", numel: int = 4096) -> str:
    return (
        f"[rank{rank}]:[E304 05:06:07.123 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel}, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )


def findings(tmp_path: Path, *lines: str) -> list[Finding]:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines) + "\n")
    return findings_from_watchdog(read_nccl_log(path))


def test_silent_rank_is_late(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, *[timeout(rank) for rank in range(8) if rank != 5])
    assert found.late_ranks == (5,)
    assert found.cause == "hang"
    assert "ALLREDUCE" in found.title


def test_rank_behind_in_sequence_is_late(tmp_path: Path) -> None:
    lines = [timeout(rank, 811 if rank == 3 else 812) for rank in range(8)]
    (found,) = findings(tmp_path, *lines)
    assert found.late_ranks == (3,)


def test_rank_in_another_operation_is_a_mismatch(tmp_path: Path) -> None:
    lines = [timeout(rank, op="BROADCAST" if rank == 6 else "ALLREDUCE") for rank in range(8)]
    (found,) = findings(tmp_path, *lines)
    assert found.late_ranks == (6,)
    assert cause_classes(found) == ("collective_mismatch",)


def test_desync_report_names_the_rank(tmp_path: Path) -> None:
    (found,) = findings(
        tmp_path,
        timeout(0),
        "             [7] finished collective #182, but didn't join collective #183 (count from 1)",
    )
    assert found.late_ranks == (7,)
    assert cause_classes(found) == ("desync_straggler",)


def test_barrier_at_start_with_a_progress_bar_is_work_of_one_rank(tmp_path: Path) -> None:
    (found,) = findings(
        tmp_path,
        "Running tokenizer on dataset:   9%|   | 280000/2969526 [29:55<4:48:08, 155.57 examples/s]",
        *[timeout(rank, 2, numel=1) for rank in (1, 2, 3)],
    )
    assert cause_classes(found)[0] == "wait_on_slow_rank_cpu_work"
    assert found.late_ranks == (0,)


def test_all_ranks_in_the_same_collective_accuse_nobody(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, *[timeout(rank) for rank in range(8)])
    assert found.late_ranks == ()


def test_few_ranks_speaking_accuse_nobody(tmp_path: Path) -> None:
    """Silence of most ranks means that their output is elsewhere."""
    (found,) = findings(tmp_path, timeout(9), timeout(30))
    assert found.late_ranks == ()


def test_groups_count_on_their_own(tmp_path: Path) -> None:
    """Two ranks that time out in another process group, at a lower number, are not behind."""
    lines = []
    for rank in range(7):
        group, number = ("0", 812) if rank < 5 else ("3", 40)
        lines.append(timeout(rank, number))
        lines.append(
            f"[rank{rank}]:[E304 05:06:08.1 ProcessGroupNCCL.cpp:2268] [PG ID {group} PG GUID {group}(g) "
            f"Rank {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last "
            f"enqueued work: {number}, last completed work: {number - 1}"
        )
    comms = [
        f"n0:{r}:1 [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 8 cudaDev {r} busId 1c000 commId 0x9 - Init COMPLETE"
        for r in range(8)
    ]
    (found,) = findings(tmp_path, *comms, *lines)
    assert found.late_ranks == (7,)
