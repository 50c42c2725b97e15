"""Ranks joined to GPUs by UUID, and nvitop's view of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.nvml.build import environment
from fixtures.nvml.scenario import Scenario
from fixtures.nvml.testing import needs_stand_in
from gpuprof.collectors.gpu_view import rank_environ, rank_uuids, visible_uuids

ALL = ["GPU-aa", "GPU-ab", "GPU-c", "GPU-d"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ALL),
        ("", []),
        ("2,0", ["GPU-c", "GPU-aa"]),
        ("GPU-c", ["GPU-c"]),
        ("0,9,1", ["GPU-aa"]),  # CUDA stops at the first one that is not there
        ("GPU-a", []),  # ambiguous
        ("1,1,2", ["GPU-ab"]),
        (" 3 , 2 ", ["GPU-d", "GPU-c"]),
    ],
)
def test_visible_devices_are_read_as_cuda_does(value: str | None, shown: list[str]) -> None:
    assert visible_uuids(value, ALL) == shown


def test_the_local_rank_tells_ranks_apart_that_see_all() -> None:
    assert rank_uuids({"LOCAL_RANK": "2"}, ALL)[0] == "GPU-c"
    assert rank_uuids({"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "1"}, ALL) == ["GPU-ab"]


def test_only_a_few_variables_are_taken(tmp_path: Path) -> None:
    """The environment holds secrets; what is not needed is not read on."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(b"TOKEN=x\0LOCAL_RANK=1\0BROKEN\0RANK=9\0")
    assert rank_environ(7, tmp_path) == {"LOCAL_RANK": "1", "RANK": "9"}
    assert rank_environ(8, tmp_path) == {}


@needs_stand_in
def test_nvitop_lists_who_uses_which_gpu(tmp_path: Path) -> None:
    scenario = Scenario(2).curve(lambda t, g: 50, until_s=60)
    scenario.process(1, os.getpid(), mem_mib=100)
    code = (
        "import json, msgspec; from gpuprof.collectors.gpu_view import process_view;"
        "print(json.dumps([[r.scope, [list(p) for p in r.p]] for r in process_view()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(scenario.write(tmp_path / "s")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (first, second) = json.loads(done.stdout)
    assert first == ["gpu:0", []]
    (row,) = second[1]
    assert row[:2] == [os.getpid(), 100 * 2**20]
