"""Hangs from flight-recorder dumps: who did not come, through groups that wait for each other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.flight_recorder import dump, entry, records
from gpuprof.analyzers.nccl.evidence import cause_classes
from gpuprof.analyzers.nccl.flight import findings_from_flight
from gpuprof.readers.flight_recorder import read_flight_recorder

WORLD = {"0": range(4)}


def test_rank_that_did_not_issue_the_collective_is_named(tmp_path: Path) -> None:
    frames = [{"name": "step", "filename": "/home/me/train.py", "line": 45}]
    dumps = {
        rank: dump(
            groups=WORLD,
            entries=[
                entry("0", 6, state="completed", frames=frames),
                *([entry("0", 7)] if rank != 2 else []),
            ],
        )
        for rank in range(4)
    }
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (2,)
    assert "collective 7 of group 0" in found.evidence[0].text
    assert "nothing in flight" in found.evidence[1].text
    assert (found.where[0].file, found.where[0].line) == ("/home/me/train.py", 45)


def test_a_dump_alone_asks_for_the_others(tmp_path: Path) -> None:
    """That the others ended is a guess while theirs may lie on other nodes."""
    mine = dump(groups=WORLD, entries=[entry("0", 7)])
    (found,) = findings_from_flight(records({1: mine}, tmp_path))
    assert found.evidence[0].text.startswith("Rank 1 waits in collective 7")
    assert found.fixes[0].title == "Give the dumps of ranks 0, 2, 3 as well, if there are any"
    assert found.confidence < 0.5
    most = dict.fromkeys(range(3), mine)
    (tmp_path / "most").mkdir()
    (found,) = findings_from_flight(records(most, tmp_path / "most"))
    assert found.fixes[0].title == "Find out how rank 3 ended" and found.confidence > 0.5


def test_healthy_dumps_accuse_nobody(tmp_path: Path) -> None:
    dumps = {r: dump(groups=WORLD, entries=[entry("0", 7, state="completed")]) for r in range(4)}
    assert findings_from_flight(records(dumps, tmp_path)) == []


def test_all_ranks_inside_one_collective_accuse_nobody(tmp_path: Path) -> None:
    dumps = {r: dump(groups=WORLD, entries=[entry("0", 7)]) for r in range(4)}
    assert findings_from_flight(records(dumps, tmp_path)) == []


def test_blame_follows_groups_that_wait_for_each_other(tmp_path: Path) -> None:
    """Rank 0 waits for 1 in one group, 1 waits for 2 in another: 2 is the root."""
    groups = {"a": [0, 1], "b": [1, 2]}
    dumps = {
        0: dump(groups={"a": [0, 1]}, entries=[entry("a", 5, created_ns=3_000)]),
        1: dump(
            groups=groups,
            entries=[entry("a", 4, state="completed"), entry("b", 9, created_ns=2_000)],
        ),
        2: dump(groups={"b": [1, 2]}, entries=[entry("b", 8, state="completed")]),
    }
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (2,)
    assert "group b" in found.evidence[0].text


def test_device_that_stands_still_is_told_from_a_host_that_does_not_come(tmp_path: Path) -> None:
    """All hosts issued the same calls, one device finished fewer of them."""
    dumps = {
        rank: dump(
            groups=WORLD,
            entries=[entry("0", n) for n in range(5 if rank == 3 else 8, 10)],
            status={"0": (9, 4 if rank == 3 else 7)},
        )
        for rank in range(4)
    }
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (3,)
    assert cause_classes(found)[0] == "gpu_stalled"


def test_majority_decides_who_called_another_collective(tmp_path: Path) -> None:
    dumps = {
        rank: dump(groups=WORLD, entries=[entry("0", 7, sizes=[[512 if rank == 0 else 1024]])])
        for rank in range(4)
    }
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (0,)
    assert cause_classes(found) == ("collective_mismatch",)


def test_all_to_all_of_different_sizes_is_no_mismatch(tmp_path: Path) -> None:
    dumps = {
        rank: dump(
            groups=WORLD, entries=[entry("0", 7, operation="nccl:all_to_all", sizes=[[100 + rank]])]
        )
        for rank in range(4)
    }
    assert findings_from_flight(records(dumps, tmp_path)) == []


def test_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    dumps = {r: dump(groups=WORLD, entries=[entry("0", 7)]) for r in range(3)}
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (3,)
    assert cause_classes(found)[0] == "rank_died"


def test_status_speaks_for_a_rank_without_entries(tmp_path: Path) -> None:
    """A rank whose buffer shows nothing of the group may have passed the collective."""
    dumps = {r: dump(groups=WORLD, entries=[entry("0", 7)], status={"0": (7, 6)}) for r in range(3)}
    dumps[3] = dump(groups=WORLD, entries=[], status={"0": (6, 6)})
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (3,)


def test_send_to_an_idle_peer(tmp_path: Path) -> None:
    send = entry("0", 3, operation="nccl:send 0->2", is_p2p=True)
    dumps = {r: dump(groups=WORLD, entries=[send] if r == 0 else []) for r in range(4)}
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert found.late_ranks == (2,)


def test_wait_that_just_began_is_said_with_doubt(tmp_path: Path) -> None:
    """Dumps of a running job catch ranks at different calls."""
    now = time.time_ns()
    dumps = {
        r: dump(groups=WORLD, entries=[entry("0", 7, created_ns=now)] if r else [])
        for r in range(4)
    }
    (found,) = findings_from_flight(records(dumps, tmp_path))
    assert (found.severity, found.late_ranks) == ("warning", (0,))
    assert any("merely behind" in item.text for item in found.evidence)


def test_real_dumps_of_gloo(tmp_path: Path) -> None:
    """Three real processes; the last one skips an all-reduce. PyTorch records gloo from 2.8 on."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch has no flight recorder for gloo")
    code = tmp_path / "job.py"
    code.write_text(JOB)
    jobs = [
        subprocess.Popen(
            [sys.executable, str(code), str(rank), str(tmp_path)], stderr=subprocess.PIPE
        )
        for rank in range(3)
    ]
    for rank, job in enumerate(jobs):
        # How a rank ends is no matter: gloo's thread may die of the peer that went first.
        _, error = job.communicate(timeout=300)
        assert (tmp_path / f"trace_{rank}").exists(), error.decode()[-500:]
    (found,) = findings_from_flight(read_flight_recorder(tmp_path))
    assert found.late_ranks == (2,)
    assert "collective 4" in found.evidence[0].text


JOB = """
import os, sys, time
import torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
store = dist.FileStore(folder + "/store.rendezvous", 3)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
values = torch.ones(10)
for _ in range(3):
    dist.all_reduce(values)
if rank != 2:
    work = dist.all_reduce(values, async_op=True)
store.set(f"issued{rank}", "1")
store.wait(["issued0", "issued1", "issued2"])
with open(f"{folder}/trace_{rank}", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace())
store.set(f"dumped{rank}", "1")
store.wait(["dumped0", "dumped1", "dumped2"])
os._exit(0)
"""
