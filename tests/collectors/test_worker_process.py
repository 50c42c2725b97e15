"""Keeping a worker running that crashes, babbles or does not want to end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprof.collectors.worker_process import MAX_CRASHES_IN_A_ROW, WorkerProcess

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def worker(folder: Path, code: str) -> WorkerProcess:
    return WorkerProcess([], folder / "log", [sys.executable, "-c", code])


def poll_until(process: WorkerProcess, done: Callable[[list[bytes], list[str]], bool]) -> None:
    lines: list[bytes] = []
    events: list[str] = []
    until = time.monotonic() + 30
    while not done(lines, events):
        assert time.monotonic() < until, (lines, events)
        new, happened = process.poll()
        lines += new
        events += [happened] if happened else []
        time.sleep(0.01)


def test_only_whole_lines_are_relayed_and_its_errors_go_to_the_log(tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.stderr.write('oops'); sys.stdout.write('a\\nb\\nhal');"
        "sys.stdout.flush(); time.sleep(0.2); sys.stdout.write('f\\n'); sys.stdout.flush();"
        "sys.stdin.read()"
    )
    process = worker(tmp_path, code)
    poll_until(process, lambda lines, _: lines == [b"a\n", b"b\n", b"half\n"])
    process.stop()
    assert (tmp_path / "log").read_text() == "oops"


def test_what_it_was_told_is_told_to_its_successor(tmp_path: Path) -> None:
    code = "import sys; print('got', sys.stdin.readline().strip(), flush=True); sys.exit(3)"
    process = worker(tmp_path, code)
    process.tell(b"hello\n")
    poll_until(process, lambda lines, _: lines.count(b"got hello\n") == 2)
    process.stop()
    assert process.generation == 2


def test_a_worker_that_always_crashes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprof.collectors.worker_process.FIRST_PAUSE_S", 0.0)
    process = worker(tmp_path, "import os; os.kill(os.getpid(), 11)")
    process._pause_s = 0.0
    poll_until(process, lambda _, events: any("given up" in text for text in events))
    assert process.generation == MAX_CRASHES_IN_A_ROW
    assert process.gave_up
    assert process.poll() == ([], "")


def test_a_worker_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    process = worker(tmp_path, code)
    poll_until(process, lambda lines, _: lines == [b"up\n"])
    pid = process.pid
    process.stop()
    assert not Path(f"/proc/{pid}").exists()
