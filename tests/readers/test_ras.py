"""Answers of NCCL's RAS: who is behind, who does not answer; a job that goes on is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpuprof
from gpuprof.analyzers.nccl.ras import findings_from_ras
from gpuprof.errors import InputError
from gpuprof.inputs import kind_of
from gpuprof.readers.ras import read_ras

HEAD = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {state}

"""
BEHIND = """Errors
======


Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation {ahead}
  Rank 7 has launched up to operation {behind} -- GPU 3 managed by process 1650386 on node n1

"""
LISTED = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 2 -- GPU 2 managed by process 483074 on node 10.0.0.2
  Rank 3 -- GPU 3 managed by process 483075 on node 10.0.0.2
"""
GONE = """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 10.0.0.3 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 3487984 on node 10.0.0.3
"""


def answer(rest: str, state: str = "MISMATCH") -> str:
    return HEAD.format(state=state) + rest


def read(tmp_path: Path, *answers: str) -> Path:
    path = tmp_path / "ras.txt"
    path.write_text("\n".join(answers))
    return path


def test_a_rank_that_stays_behind(tmp_path: Path) -> None:
    """Asked twice, nothing has changed: rank 7 is the one that the others wait for."""
    one = answer(BEHIND.format(ahead=64, behind=63))
    path = read(tmp_path, one, one)
    assert kind_of(path) == "ras"
    (found,) = gpuprof.analyze(path).findings
    assert (found.cause, found.late_ranks, found.severity) == ("hang", (7,), "critical")
    assert "AllReduce" in found.title


def test_a_rank_behind_in_a_job_that_goes_on(tmp_path: Path) -> None:
    """A difference of one that moves on is how a healthy job looks."""
    first, second = (answer(BEHIND.format(ahead=n + 1, behind=n)) for n in (60, 70))
    assert findings_from_ras(read_ras(read(tmp_path, first, second))) == []
    assert findings_from_ras(read_ras(read(tmp_path, first))) == []


def test_far_behind_in_one_answer_is_a_warning(tmp_path: Path) -> None:
    """Whether it hangs can't be told from one answer; that it is late can."""
    (found,) = findings_from_ras(
        read_ras(read(tmp_path, answer(BEHIND.format(ahead=64, behind=4))))
    )
    assert (found.late_ranks, found.severity) == ((7,), "warning")


def test_ranks_that_are_listed_below_their_count(tmp_path: Path) -> None:
    """NCCL 2.24 and 2.25 do not tell collectives apart."""
    (found,) = findings_from_ras(read_ras(read(tmp_path, answer(LISTED), answer(LISTED))))
    assert found.late_ranks == (2, 3)
    assert "node 10.0.0.2" in " ".join(item.text for item in found.evidence)


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    """It no longer answers: it, and not who waits, is the cause."""
    (found,) = findings_from_ras(read_ras(read(tmp_path, answer(GONE, "INCOMPLETE"))))
    assert found.late_ranks == (5,)
    assert "Process 3487984" in " ".join(item.text for item in found.evidence)


def test_a_healthy_job(tmp_path: Path) -> None:
    """Nothing is said of it."""
    assert findings_from_ras(read_ras(read(tmp_path, answer("Errors\n======\n", "OK")))) == []


def test_json_of_newer_versions_also_without_its_comma(tmp_path: Path) -> None:
    """NCCL 2.28.9 forgets one before the status of a missing rank."""
    ranks = [
        {"rank": n, "host": "n0", "pid": n, "collective_counts": {"AllReduce": 12 - (n == 1)}}
        for n in range(4)
    ]
    found = {
        "nccl_version": "2.28.9", "communicators_count": 1,
        "communicators": [{"hash": "0xae94", "size": 4, "ranks": ranks}],
    }  # fmt: skip
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(found))
    assert kind_of(path) == "ras"
    (mismatch,) = read_ras(path).communicators
    assert [(c.operations, c.count) for c in mismatch.counts] == [(12, 3), (11, 1)]
    missing = {"rank": 5, "host": "n1", "pid": 7, "nvml_dev": 0, "status": {"unresponsive": True}}
    found["communicators"] = [
        {"hash": "0xae94", "size": 6, "ranks": [], "missing_ranks": [missing]}
    ]
    text = json.dumps(found, indent=1).replace('"nvml_dev": 0,', '"nvml_dev": 0')
    path.write_text(text)
    (incomplete,) = read_ras(path).communicators
    assert [one.rank for one in incomplete.missing] == [5]


def test_something_else(tmp_path: Path) -> None:
    """One line that says so."""
    path = tmp_path / "ras.txt"
    for text in ("hello", "{", '{"communicators": 3}', "[" * 9999):
        path.write_text(text)
        with pytest.raises(InputError):
            read_ras(path)
