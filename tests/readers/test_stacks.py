"""Stacks of ranks: what is written is read back, and what is damaged does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuprof
from fixtures.stacks import call, own, rank, waiting
from gpuprof.attach.standstill import write
from gpuprof.errors import InputError
from gpuprof.inputs import kind_of
from gpuprof.readers.stacks import read_stacks

SPY = """Process 4711: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:51)
    <module> (train.py:60)
Thread 4712 (idle): "loader"
    wait (threading.py:324)
"""


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """The stack, for how long it stood, its counters, and what the kernel counted."""
    one = waiting(3, values={"step": "20"}, environment={"MASTER_PORT": "29500"})
    gone = rank(1, ended="has ended")
    write([one, gone], tmp_path)
    found = read_stacks(tmp_path / "stacks-rank00003.jsonl")
    assert found.header == one.header
    assert found.stack == one.stack
    assert found.stood_s == one.stood_s
    assert found.watched == one.watched
    assert found.values == {"step": "20"}
    assert read_stacks(tmp_path / "stacks-rank00001.jsonl").ended == "has ended"


def test_the_diagnosis_is_that_of_the_files_alone(tmp_path: Path) -> None:
    """What attach leaves can be analyzed anywhere, later."""
    asleep = rank(1, own(15, "save"), own(32), kernel="sleep")
    write([waiting(0), asleep, waiting(2), waiting(3)], tmp_path)
    diagnosis = gpuprof.analyze(tmp_path)
    assert [(f.cause, f.late_ranks) for f in diagnosis.findings] == [("hang", (1,))]
    assert diagnosis.run.world_size == 4
    assert diagnosis.run.ranks == (0, 1, 2, 3)


def test_dumps_of_py_spy(tmp_path: Path) -> None:
    """One a rank, with the rank in the file's name."""
    for number in range(3):
        text = SPY if number != 1 else SPY.replace("all_reduce", "broadcast").replace(":51", ":54")
        (tmp_path / f"rank{number}.txt").write_text(text)
    assert kind_of(tmp_path / "rank0.txt") == "stacks"
    one = read_stacks(tmp_path / "rank0.txt")
    assert (one.rank, one.header.pid, one.stack[0].function) == (0, 4711, "all_reduce")
    assert [name for name, _ in one.others] == ["loader"]
    (found,) = gpuprof.analyze(tmp_path).findings
    assert (found.cause, found.late_ranks) == ("hang", (1,))


def test_a_file_that_is_cut_off_or_damaged(tmp_path: Path) -> None:
    """Lines that make no sense are skipped; those before them count."""
    write([rank(0, call("all_reduce"), own(5))], tmp_path)
    path = tmp_path / "stacks-rank00000.jsonl"
    data = path.read_bytes()
    for junk in (
        b"\x00\xff", b"[" * 5000, b'{"frame": {}, "at": 3}', b'{"stack": ["x"]}',
        b'{"t": "x", "thread": 1, "stack": [0]}', b'{"watched": 7}', b'{"frame": 9, "at": [1, 2]}',
    ):  # fmt: skip
        path.write_bytes(data + junk + b"\n")
        assert read_stacks(path).stack[0].function == "all_reduce"
    for end in range(len(data.split(b"\n")[0]) + 1, len(data), 37):
        path.write_bytes(data[:end])
        read_stacks(path)


@pytest.mark.parametrize(
    "data", [b'{"format": "gpuprof-stacks", "version": 99}\n', b'{"format": 1}\n', b"hello\n"]
)
def test_what_is_something_else_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    """A newer version, and files of another kind."""
    path = tmp_path / "stacks-rank00000.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_stacks(path)
    assert "\n" not in str(caught.value)


def test_run_directories_of_several_nodes_are_one_hang(tmp_path: Path) -> None:
    """Each node's own answer names nobody; together the rank is found that did not come."""
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    asleep = rank(3, own(15, "save"), kernel="sleep", host="node1")
    for folder, ranks in zip(
        nodes, ([waiting(0), waiting(1)], [waiting(2, host="node1"), asleep]), strict=True
    ):
        folder.mkdir()
        write(ranks, folder)
    (alone,) = gpuprof.analyze(nodes[0]).findings
    assert alone.late_ranks == ()
    (found,) = gpuprof.analyze(*nodes).findings
    assert (found.late_ranks, found.ranks) == ((3,), (0, 1, 2))
