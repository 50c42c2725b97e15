# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""Of many warnings the first cause is named, with line, rank, and the rest folded under it."""

from __future__ import annotations

from pathlib import Path

from gpuprof.analyzers.nccl.evidence import cause_classes, decisive_line, rank_list
from gpuprof.analyzers.nccl.first_cause import findings_from_events
from gpuprof.api import analyze
from gpuprof.diagnosis import Finding
from gpuprof.readers.nccl_log import read_nccl_log


def findings(tmp_path: Path, *lines: str) -> list[Finding]:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return findings_from_events(read_nccl_log(path))


CLOSED = "node0:10:11 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<4>"
FULL = "node1:20:21 [3] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes, error: No space left on device (28)"
COMM = "node1:20:21 [3] NCCL INFO comm 0xab rank 11 nranks 16 cudaDev 3 busId 1c000 commId 0x9 - Init START"


def test_local_cause_wins_over_earlier_consequence(tmp_path: Path) -> None:
    """Without times, a closed connection printed first does not hide the rank that died."""
    (found,) = findings(tmp_path, COMM, CLOSED, FULL)
    assert cause_classes(found) == ("shm_too_small",)
    assert decisive_line(found) == 3
    assert found.ranks == (11,)
    assert any("1 closed connections" in item.text for item in found.evidence)
    assert found.number is None and found.gain is None


def test_earliest_time_wins_when_all_causes_carry_one(tmp_path: Path) -> None:
    """A network error an hour before a full /dev/shm is the first cause."""
    late = FULL.replace("node1", "[2026-01-02 06:00:00] node1", 1)
    early = (
        "[2026-01-02 05:00:00] node0:10:11 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got "
        "completion with error 12, opcode 1, len 0, vendor err 129"
    )
    (found,) = findings(tmp_path, late, early)
    assert decisive_line(found) == 2
    assert any("Taken for a consequence" in item.text for item in found.evidence)


def test_times_within_a_second_are_ordered_by_what_can_cause_what(tmp_path: Path) -> None:
    stamp = "[2026-01-02 05:00:00] node0:10:11 [0] "
    (found,) = findings(
        tmp_path,
        stamp + "include/alloc.h:228 NCCL WARN Cuda failure 800 'operation not permitted'",
        stamp + "mnnvl.cc:67 NCCL WARN MNNVL (cliqueSize 8) is available but not working",
    )
    assert cause_classes(found) == ("imex",)
    assert decisive_line(found) == 2


def test_only_consequences_name_the_silent_rank(tmp_path: Path) -> None:
    comms = [
        f"node0:{10 + r}:1 [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 4 cudaDev {r} busId 1c000 commId 0x9 - Init COMPLETE"
        for r in range(4)
    ]
    closed = [
        f"node0:{10 + r}:1 [{r}] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<4>"
        for r in (0, 1, 3)
    ]
    (found,) = findings(tmp_path, *comms, *closed)
    assert cause_classes(found)[0] == "peer_died"
    assert found.late_ranks == (2,)


def test_closed_connections_after_destroy_are_no_finding(tmp_path: Path) -> None:
    assert not findings(
        tmp_path,
        "node0:10:11 [0] NCCL INFO comm 0xab rank 0 nranks 2 cudaDev 0 busId 1c000 commId 0x9 - Init COMPLETE",
        "node0:10:11 [0] NCCL INFO comm 0xab rank 0 nranks 2 cudaDev 0 busId 1c000 - Destroy COMPLETE",
        CLOSED,
    )


def test_unknown_warning_is_a_lead_only_when_the_job_failed(tmp_path: Path) -> None:
    warn = "node0:10:11 [0] some/new.cc:1 NCCL WARN A text that no release had before"
    assert not findings(tmp_path, warn)
    error = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error, NCCL version 2.99.1"
    (found,) = findings(tmp_path, warn, error)
    assert cause_classes(found) == ("unknown_warning",)
    assert found.confidence < 0.5


def test_second_communicator_with_invalid_usage_is_a_duplicate_gpu(tmp_path: Path) -> None:
    (found,) = findings(
        tmp_path,
        "node0:10:11 [0] NCCL INFO comm 0xab rank 0 nranks 3 cudaDev 0 busId 1c000 - Init COMPLETE",
        "RuntimeError: NCCL error in: /x/ProcessGroupNCCL.cpp:825, invalid usage, NCCL version 2.7.8",
        "node0:10:12 [0] include/socket.h:421 NCCL WARN Call to recv failed : Broken pipe",
    )
    assert cause_classes(found) == ("duplicate_gpu",)
    assert decisive_line(found) == 2


def test_rank_lists_read_well() -> None:
    assert rank_list([3]) == "rank 3"
    assert rank_list([2, 0, 1, 7]) == "ranks 0–2, 7"
    assert rank_list([1, 2]) == "ranks 1, 2"
    assert rank_list([]) == "no rank"


def test_failed_probe_at_info_level_is_no_cause_while_the_job_works(tmp_path: Path) -> None:
    """NCCL 2.26 tries cuMem host memory out, and falls back."""
    probe = "node0:10:11 [0] NCCL INFO Cuda failure 217 'peer access is not supported between these two devices'"
    assert not findings(tmp_path, probe)
    error = "RuntimeError: NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.26.2"
    (found,) = findings(tmp_path, probe, error)
    assert cause_classes(found) == ("cumem_host",)


def test_a_warning_that_no_rule_knows_is_no_finding_and_not_all_well(tmp_path: Path) -> None:
    """With NCCL_DEBUG=WARN nothing follows that would tell whether the job failed."""
    path = tmp_path / "nccl.log"
    path.write_text("node0:10:11 [0] new.cc:7 NCCL WARN The frobnicator is tired\n")
    diagnosis = analyze(path)
    assert not diagnosis.findings
    assert diagnosis.headline.startswith("NCCL warned of something")
    (said,) = diagnosis.warnings
    assert "nccl.log:1" in said and "The frobnicator is tired" in said
    path.write_text("node0:10:11 [0] NCCL INFO Using network IB\n")
    assert analyze(path).headline == "Nothing is wrong in what was given."
