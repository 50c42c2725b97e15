"""The step log: every step in order, whatever became of the end of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprof.readers.step_log import read_step_log

HEAD = b'{"format":"gpuprof-steps","version":1,"rank":0}\n'
FIRST = b'{"n":0,"t":1764438690123456789,"us":[8312,8290]}\n'
SECOND = b'{"n":2,"t":1764438690223456789,"us":[9000]}\n'


def test_segments_are_joined_in_order_of_the_steps(tmp_path: Path) -> None:
    """The older one is compressed, the other still being written."""
    old, new = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    old.write_bytes(gzip.compress(HEAD + FIRST))
    new.write_bytes(HEAD + SECOND)
    assert read_step_log([new, old]).tolist() == [8312, 8290, 9000]


def test_what_the_recorder_writes_is_read(tmp_path: Path) -> None:
    """Both halves know the same format."""
    from gpuprof.collectors.step_log import StepLog

    log = StepLog(tmp_path, 4)
    for number in range(700):
        log.add((1_000 + number) * 1_000, 0)
    log.close()
    assert read_step_log(sorted(tmp_path.glob("steps-*"))).tolist() == list(range(1_000, 1_700))


@pytest.mark.parametrize("cut", [0, 5, len(FIRST) - 3, len(FIRST) + 10])
def test_a_cut_off_end_loses_only_itself(tmp_path: Path, cut: int) -> None:
    """A SIGKILL comes in the middle of a line, or of a compressed file."""
    path = tmp_path / "a.jsonl"
    path.write_bytes((FIRST + SECOND)[:cut])
    assert read_step_log([path]).tolist() == ([8312, 8290] if cut >= len(FIRST) else [])
    path.write_bytes(gzip.compress(FIRST)[:-12])
    assert read_step_log([path, tmp_path / "missing.jsonl"]).tolist() in ([], [8312, 8290])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_are_survived(data: bytes, tmp_path: Path) -> None:
    """What lies in its place is not ours to trust."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data + b"\n" + SECOND)
    assert read_step_log([path]).tolist()[-1:] in ([9000], [])


@pytest.mark.parametrize("us", ["-1", "1e99", '"x"', "null", "99999999999999999999"])
def test_numbers_that_are_no_lengths_are_left_out(tmp_path: Path, us: str) -> None:
    """Neither do they reach an account, nor do they overflow."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":0,"t":1,"us":[' + us.encode() + b"]}\n" + SECOND)
    assert read_step_log([path]).tolist() == [9000]
