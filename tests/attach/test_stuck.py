"""A real job of gloo that stands still: `gpuprof attach` names the rank and the line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.attach import job_ranks, standstill, targets

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "fixtures" / "hanging.py"
LINES = PROGRAM.read_text().splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A job of three ranks under torchrun, all of which have come to their last step."""
    if standstill.spy_program() is None:
        pytest.skip("py-spy is not installed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", str(PROGRAM), request.param]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("wb") as log:
        launcher = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("at-*"))) < 3 and time.monotonic() < until:
            assert launcher.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield launcher
    finally:
        launcher.terminate()
        launcher.wait()


def wait_until_still(pid: int) -> None:
    """Until the kernel has given no main thread of the three ranks a processor for a second."""
    until = time.monotonic() + 60
    before: dict[int, object] = {}
    while time.monotonic() < until:
        members = job_ranks.members_of(targets.find(pid))
        now = {one.pid: standstill._count(one.pid) for one in members}
        same = [
            p for p, count in now.items()
            if (old := before.get(p)) is not None and count is not None and count.is_same(old)  # type: ignore[arg-type]
        ]  # fmt: skip
        if len(same) >= 3:
            return
        before = dict(now)
        time.sleep(1)


@pytest.mark.parametrize("job", ["sleep"], indirect=True)
def test_the_rank_that_sleeps_is_named_with_its_line(
    job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """From the launcher's pid alone; the run directory then gives the same answer again."""
    wait_until_still(job.pid)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "gpuprof", "attach", "--pid", str(job.pid), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = line_of("time.sleep(3600)")
    assert f"Rank 1 did not come to all_reduce: it sleeps at hanging.py:{line}" in done.stdout
    diagnosis = json.loads((out / "diagnosis.json").read_text())
    (found,) = diagnosis["findings"]
    assert (found["cause"], found["late_ranks"], found["ranks"]) == ("hang", [1], [0, 2])
    assert found["where"][0]["line"] == line
    assert "hanging.py" in (out / "report.html").read_text()
    assert job.poll() is None
    again = subprocess.run(
        [sys.executable, "-m", "gpuprof", "analyze", str(out), "--json", "-"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(again.stdout)["findings"] == diagnosis["findings"]


@pytest.mark.parametrize("job", ["none"], indirect=True)
def test_a_job_that_goes_on_is_not_stuck(job: subprocess.Popen[bytes]) -> None:
    """Whatever its ranks wait for in between."""
    assert standstill.watch(targets.find(job.pid), patience_s=60) == []
