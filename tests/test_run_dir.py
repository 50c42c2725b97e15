"""The run directory: readable whatever happened to it, and only by its own names."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.errors import InputError
from gpuprof.inputs import gather
from gpuprof.run import (
    MANIFEST,
    SCHEMA,
    Manifest,
    NcclCapture,
    RankRecord,
    WindowRecord,
    is_run,
    load,
    rank_file,
)
from gpuprof.run_writer import claim_rank, clear_older, write_record

TRACE = {"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}


def add_trace(folder: Path, name: str) -> Path:
    path = folder / name
    with gzip.open(path, "wt") as file:
        json.dump(TRACE, file)
    return path


def add_rank(folder: Path, rank: int, *windows: tuple[str, int], **facts: object) -> RankRecord:
    record = RankRecord(job="j", rank=rank, world_size=2, state="finished")
    for name, value in facts.items():
        setattr(record, name, value)
    for name, steps in windows:
        record.windows.append(WindowRecord(kind="timing", file=name, first_step=0, steps=steps))
        add_trace(folder, name)
    write_record(folder / rank_file(rank), record)
    return record


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_reads_what_was_written(tmp_path: Path) -> None:
    """Both kinds of records come back as they were, and nothing unfinished stays."""
    manifest = Manifest(job="j", command=["python", "train.py"], world_size=2)
    write_record(tmp_path / MANIFEST, manifest)
    records = [add_rank(tmp_path, rank) for rank in (0, 1)]
    run = load(tmp_path)
    assert run.manifest == manifest
    assert list(run.ranks.values()) == records
    assert run.warnings == ()
    assert all(not p.name.startswith(".") for p in tmp_path.iterdir())


def test_one_timing_window_is_analyzed_the_same_for_all_ranks(tmp_path: Path) -> None:
    """The latest of the fullest that every rank has: ranks are compared on the same steps."""
    add_rank(tmp_path, 0, ("trace-rank00000.json.gz", 10), ("trace-2-rank00000.json.gz", 10))
    add_rank(tmp_path, 1, ("trace-rank00001.json.gz", 10), ("trace-2-rank00001.json.gz", 10))
    add_trace(tmp_path, "trace-3-rank00001.json.gz")
    chosen = names(load(tmp_path).best_traces())
    assert chosen == ["trace-2-rank00000.json.gz", "trace-2-rank00001.json.gz"]


def test_a_window_that_was_cut_short_is_not_chosen(tmp_path: Path) -> None:
    """The loop ended in the second window: the first one has more steps."""
    add_rank(tmp_path, 0, ("trace-rank00000.json.gz", 10), ("trace-2-rank00000.json.gz", 3))
    assert names(load(tmp_path).best_traces()) == ["trace-rank00000.json.gz"]


def test_inputs_come_from_the_run_directory(tmp_path: Path) -> None:
    """`analyze RUN` takes one window a rank, the cores, the warnings, and no record for a trace."""
    add_rank(tmp_path, 0, ("trace-rank00000.json.gz", 10), cores=3.0)
    add_rank(tmp_path, 1, ("trace-rank00001.json.gz", 10), cores=2.5, notes=["something"])
    add_trace(tmp_path, "attribution-rank00000.json.gz")
    (tmp_path / "trace-rank00000.json.gz.tmp").write_bytes(b"half")
    inputs = gather([tmp_path])
    assert names(inputs.traces) == ["trace-rank00000.json.gz", "trace-rank00001.json.gz"]
    assert names(inputs.attribution) == ["attribution-rank00000.json.gz"]
    assert inputs.cores == 2
    assert inputs.warnings == [
        "manifest.json is missing: the recording was cut off",
        "rank 1: something",
    ]


def test_missing_ranks_and_missed_logs_are_said(tmp_path: Path) -> None:
    """What is not there is named, so that nobody takes a part for the whole."""
    missed = NcclCapture(status="missed", why="NCCL_DEBUG is set by the user")
    write_record(tmp_path / MANIFEST, Manifest(world_size=3))
    add_rank(tmp_path, 0, nccl=missed)
    told = " | ".join(load(tmp_path).warnings)
    assert "2 of 3 ranks (1, 2)" in told
    assert "NCCL_DEBUG is set by the user" in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "damaged"),
        (b'{"schema": 1, "ra', "damaged"),
        (b"[]", "damaged"),
        (b'{"schema": 1, "ranks": 3}', "damaged"),
        (b"\xff\xfe", "damaged"),
        (b'{"schema": %d}' % (SCHEMA + 1), "newer"),
    ],
)
def test_a_damaged_manifest_loses_only_itself(tmp_path: Path, content: bytes, told: str) -> None:
    """The ranks' own records and traces are still read."""
    (tmp_path / MANIFEST).write_bytes(content)
    add_rank(tmp_path, 0, ("trace-rank00000.json.gz", 4))
    run = load(tmp_path)
    assert list(run.ranks) == [0]
    assert names(run.best_traces()) == ["trace-rank00000.json.gz"]
    assert any(told in warning for warning in run.warnings)


def test_a_damaged_record_keeps_its_rank_s_trace(tmp_path: Path) -> None:
    """Half a record, whole trace."""
    write_record(tmp_path / MANIFEST, Manifest())
    add_trace(tmp_path, "trace-rank00000.json.gz")
    (tmp_path / rank_file(0)).write_bytes(b"{")
    run = load(tmp_path)
    assert names(run.best_traces()) == ["trace-rank00000.json.gz"]
    assert "rank-00000.json is damaged" in run.warnings


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    """Nothing recorded is an error of the input, not an empty answer."""
    (tmp_path / MANIFEST).write_text('{"name": "a web application"}')
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="holds no recording"):
        load(tmp_path / "b")
    with pytest.raises(InputError, match="is no folder"):
        load(tmp_path / "c")
    assert not is_run(tmp_path / "b")


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=200), cut=st.integers(0, 400))
def test_random_bytes_never_escape_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    """Whatever lies in the place of a record, load reads around it."""
    folder = tmp_path_factory.mktemp("run")
    whole = msgspec.json.encode(RankRecord(job="j", rank=0))
    (folder / rank_file(0)).write_bytes(whole[:cut] + data)
    (folder / MANIFEST).write_bytes(data)
    (folder / "steps-rank00000-0000.jsonl").write_bytes(data)
    assert load(folder).steps.keys() == {0}


def test_a_record_of_a_million_million_ranks_takes_no_memory(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, ("trace-rank00000.json.gz", 10), world_size=10**12)
    (told,) = [w for w in load(tmp_path).warnings if "nothing was recorded of" in w]
    assert told.endswith(f"of {10**12 - 1} of {10**12} ranks (1, 2, 3, 4, 5, 6, 7, 8, …)")


def test_ranks_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    """A launcher that comes back with fewer workers leaves files of ranks that are no more."""
    for rank, attempt in ((0, 2), (1, 2), (2, 1)):
        add_rank(tmp_path, rank, (f"trace-rank0000{rank}.json.gz", 10), attempt=attempt)
    run = load(tmp_path)
    assert list(run.ranks) == list(run.traces) == [0, 1]
    assert any("anew 2 times" in warning for warning in run.warnings)


def test_a_rank_belongs_to_one_process(tmp_path: Path) -> None:
    """A second process of the same job that takes itself for rank 0 does not overwrite it."""
    claim_rank(tmp_path, 0, "job")
    claim_rank(tmp_path, 0, "job")  # the same process may come back
    (tmp_path / ".rank-00000.json.job.claim").write_text("1")
    with pytest.raises(FileExistsError, match="another process"):
        claim_rank(tmp_path, 0, "job")
    claim_rank(tmp_path, 0, "next-job")
    assert not (tmp_path / ".rank-00000.json.job.claim").exists()


def test_only_older_files_of_known_names_are_cleared(tmp_path: Path) -> None:
    """What this job has written already, other nodes' samples and the user's files stay."""
    (tmp_path / "samples").mkdir()
    stale = ["rank-00001.json", "trace-2-rank00009.json.gz", "samples/me-0000.jsonl"]
    kept = ["model.pt", "trace.json.gz", "samples/other-0000.jsonl", "steps-rank00002-0000.jsonl"]
    for name in (*stale, *kept):
        (tmp_path / name).write_bytes(b"x")
        age = 1.0 if name != kept[-1] else 3.0
        os.utime(tmp_path / name, (age, age))
    clear_older(tmp_path, 2.0, "me")
    assert [name for name in (*stale, *kept) if (tmp_path / name).exists()] == kept


def test_a_killed_job_leaves_a_readable_directory(tmp_path: Path) -> None:
    """SIGKILL at a random moment; the benchmark `run_dir_kills.py` does it 50 times.

    The loop itself says when each round began. The last one may not be over; those before it that
    are not on the disk began within a second, however little time the loop was given.
    """
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import gpuprof, os, time, torch\n"
        "began = os.open('began', os.O_CREAT | os.O_RDWR)\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with gpuprof.session('run', report=False, steps=2):\n"
        "    for n in range(500_000):\n"
        "        os.pwrite(began, time.time_ns().to_bytes(8, 'little'), 8 * n)\n"
        "        model(torch.ones(4, 8)).sum().backward()\n"
        "        optimizer.step()\n"
    )
    child = subprocess.Popen([sys.executable, script], cwd=tmp_path)
    while child.poll() is None:  # until steps are on the disk
        logs = (tmp_path / "run").glob("steps-*")
        if any(log.read_bytes().count(b"\n") > 1 for log in logs):
            break
        time.sleep(0.05)
    time.sleep(random.random())
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    run = load(tmp_path / "run")
    assert run.ranks[0].state == "recording"
    lines = (run.steps[0][-1]).read_bytes().splitlines()
    last = json.loads(lines[-1])
    began = np.fromfile(tmp_path / "began", dtype="<i8")
    lost = began[last["n"] + len(last["us"]) : -1]
    assert not len(lost) or lost[-1] - lost[0] < 1e9
