"""Several jobs in one log: what they differ in is no fault; what ranks of one differ in is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.nccl_faults import Plan
from fixtures.nccl_logs import Job, build_log, start_up
from gpuprof.analyzers.nccl_causes import findings_from_commlog
from gpuprof.readers.nccl_log import read_nccl_log


def job_log(version: str, seed: int, pids_from: int, *, setting: str = "", **shape: int) -> str:
    """A healthy job's log; `setting` is a variable that every rank names, with its value."""
    job = Job(version, seed=seed, steps=3, **shape)  # type: ignore[arg-type]
    job.pids = [pids_from + rank for rank in range(job.size)]
    name, _, value = setting.partition("=")
    said = f"{name} set by environment to {value}."
    lines = [job.info(rank, said) for rank in range(job.size)] if setting else []
    return "\n".join([*lines, build_log(job)[0]]) + "\n"


def titles(tmp_path: Path, *logs: str) -> list[str]:
    path = tmp_path / "nccl.log"
    path.write_text("".join(logs))
    return [one.title for one in findings_from_commlog(read_nccl_log(path))]


@pytest.mark.parametrize("version", ["2.4.8", "2.18.5", "2.30.7"])
@pytest.mark.parametrize("gpus", [8, 4])
def test_a_sweep_of_settings_is_no_difference(tmp_path: Path, version: str, gpus: int) -> None:
    """Benchmarks that try one value after the other write into one file."""
    first = job_log(version, 1, 1000, setting="NCCL_ALGO=Ring")
    second = job_log(version, 2, 2000, setting="NCCL_ALGO=Tree", gpus=gpus)
    assert titles(tmp_path, first, second) == []


@pytest.mark.parametrize("pids_from", [2000, 1000])
def test_a_job_after_an_update_is_no_difference(tmp_path: Path, pids_from: int) -> None:
    """Also in containers, whose processes have the same numbers each time."""
    assert titles(tmp_path, job_log("2.22.3", 1, 1000), job_log("2.27.7", 2, pids_from)) == []


def test_ranks_of_one_job_that_differ_are_named_beside_another_job(tmp_path: Path) -> None:
    """The second job has a node with another library: the first does not hide it."""
    first = job_log("2.22.3", 1, 1000)
    jobs = {0: Job("2.27.7", seed=2), 1: Job("2.30.7", seed=2)}
    second = [
        line
        for rank in range(16)
        for line in start_up(jobs[rank // 8], rank, Plan())
    ]  # fmt: skip
    (found,) = titles(tmp_path, first, "\n".join(second) + "\n")
    assert found == "Ranks run different NCCL versions"


def test_ranks_without_a_communicator_are_compared(tmp_path: Path) -> None:
    """A job that never came up, behind one that did."""
    late = Job("2.27.7", seed=3)
    lines = [
        late.info(rank, f"NCCL version {'2.27.7' if rank else '2.26.2'}+cuda12.8")
        for rank in range(late.size)
    ]
    found = titles(tmp_path, job_log("2.27.7", 1, 1000), "\n".join(lines) + "\n")
    assert found == ["Ranks run different NCCL versions"]
