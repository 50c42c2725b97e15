"""Several jobs in one log: what they differ in is no fault; what ranks of one differ in is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.nccl_faults import Plan
from fixtures.nccl_logs import Job, build_log, start_up
from gpuprof.analyzers.nccl_causes import findings_from_commlog
from gpuprof.diagnosis import Finding
from gpuprof.readers.nccl_log import read_nccl_log


def job_log(
    version: str,
    seed: int,
    pids_from: int,
    *,
    setting: str = "",
    first_node: int = 0,
    launcher: str = "none",
    plan: Plan | None = None,
    **shape: int,
) -> str:
    """A job's log, healthy without a plan; `setting` is a variable that every rank names, with its
    value; `first_node` the number of its first host."""
    job = OnNodes(version, seed=seed, steps=3, launcher=launcher, **shape)  # type: ignore[arg-type]
    job.first_node = first_node
    job.pids = [pids_from + rank for rank in range(job.size)]
    name, _, value = setting.partition("=")
    said = f"{name} set by environment to {value}."
    lines = [job.info(rank, said) for rank in range(job.size)] if setting else []
    if plan is not None:
        there = [rank for rank in range(job.size) if rank not in plan.absent]
        lines += [line for r in there for line in start_up(job, r, plan)]
        return "\n".join(lines) + "\n"
    return "\n".join([*lines, build_log(job)[0]]) + "\n"


class OnNodes(Job):
    """A job whose hosts count from another number than 0."""

    first_node = 0

    def host(self, rank: int) -> str:
        return f"node{self.first_node + rank // self.gpus}"


def findings(tmp_path: Path, *logs: str) -> list[Finding]:
    path = tmp_path / "nccl.log"
    path.write_text("".join(logs))
    return findings_from_commlog(read_nccl_log(path))


def titles(tmp_path: Path, *logs: str) -> list[str]:
    return [one.title for one in findings(tmp_path, *logs)]


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


DIFFER = "Ranks run different NCCL versions"


def interleaved(*logs: str) -> str:
    """As of two jobs that write into one file at the same time."""
    lines = [log.split("\n") for log in logs]
    most = max(map(len, lines))
    return "\n".join(one[n] for n in range(most) for one in lines if n < len(one)) + "\n"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("gpus", [8, 4])
def test_two_jobs_on_different_hosts_may_differ(tmp_path: Path, mixed: bool, gpus: int) -> None:
    """Each came up as a whole, so no communicator joins ranks of both."""
    first = job_log("2.22.3", 1, 1000, setting="NCCL_ALGO=Ring")
    second = job_log("2.27.7", 2, 2000, setting="NCCL_ALGO=Tree", first_node=2, gpus=gpus)
    assert titles(tmp_path, interleaved(first, second) if mixed else first + second) == []


def test_two_jobs_of_which_one_failed_are_not_compared(tmp_path: Path) -> None:
    """A rank of the second job never came: that is what is found, and nothing of the first job."""
    second = job_log(
        "2.27.7", 2, 2000, first_node=2, plan=Plan(absent={9}, stop_before_complete=True)
    )
    found = titles(tmp_path, job_log("2.22.3", 1, 1000), second)
    assert found and DIFFER not in found


def test_ranks_with_one_label_are_of_two_jobs(tmp_path: Path) -> None:
    """Both jobs started and neither came up; the launcher numbered the ranks of both from 0."""
    plan = Plan(stop_before_complete=True)
    first = job_log("2.22.3", 1, 1000, launcher="mpi", plan=plan)
    second = job_log("2.27.7", 2, 2000, launcher="mpi", first_node=2, plan=plan)
    assert DIFFER not in titles(tmp_path, first, second)


def test_what_may_be_two_jobs_is_a_lead_and_no_verdict(tmp_path: Path) -> None:
    """Two communicators of all ranks' numbers, neither whole, and no label: the log cannot tell."""
    plan = Plan(stop_before_complete=True)
    first = job_log("2.22.3", 1, 1000, plan=plan)
    second = job_log("2.27.7", 2, 2000, first_node=2, plan=plan)
    (found,) = (one for one in findings(tmp_path, first, second) if one.title == DIFFER)
    assert found.confidence < 0.5 and found.severity == "warning"
    assert any("if they are of two jobs, this is no fault" in item.text for item in found.evidence)


def test_halves_of_one_job_that_name_it_differently_are_one(tmp_path: Path) -> None:
    """Ranks 0 to 7 and 8 to 15, each of 16: a job whose nodes do not agree even on its identity."""
    plan = Plan(stop_before_complete=True)
    halves = []
    for node, version in enumerate(("2.22.3", "2.27.7")):
        job = Job(version, seed=node)
        ranks = range(8 * node, 8 * node + 8)
        halves.append(
            "\n".join(line for rank in ranks for line in start_up(job, rank, plan)) + "\n"
        )
    found = {one.title: one.confidence for one in findings(tmp_path, *halves)}
    assert found[DIFFER] == 0.9


def test_nodes_of_two_jobs_may_have_different_numbers_of_nics(tmp_path: Path) -> None:
    first = job_log("2.27.7", 1, 1000)
    second = job_log("2.27.7", 2, 2000, first_node=2, plan=Plan(nics={0: 4, 1: 4}))
    assert "Nodes differ in the number of usable NICs" not in titles(tmp_path, first, second)
