"""The planted workloads run as a user would run them, planted and repaired."""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "workloads"
SCRIPTS = sorted(p.name for p in FOLDER.glob("*.py") if p.name not in ("__init__.py", "parts.py"))
SAME_ARITHMETIC = ("item_sync.py", "blocking_checkpoint.py")
WRITERS = ("slow_loader.py", "blocking_checkpoint.py")
RANKS = {"imbalance.py": 2, "late_rank.py": 2}
RESULT = re.compile(
    r"^median_step_ms=\S+ mean_step_ms=\S+ core_ms=\S+ ready_ms=\S+ steps=(\d+)"
    r" final_loss=(\S+)$",
    re.M,
)


def train(script: str, *arguments: str, scratch: Path) -> tuple[int, str]:
    """Runs a workload on the CPU; the steps that it took, and its last loss as text."""
    ranks = RANKS.get(script, 1)
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = subprocess.run(
        [
            *(sys.executable, *(torchrun if ranks > 1 else ()), str(FOLDER / script)),
            *("--device", "cpu", "--steps", "4", *arguments),
        ],
        env={**os.environ, "GPUPROF_SCRATCH": str(scratch), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = RESULT.findall(done.stdout)
    assert len(found) == 1, done.stdout
    return int(found[0][0]), found[0][1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_runs_planted_and_fixed(script: str, tmp_path: Path) -> None:
    """Both forms take the steps asked for; where the repair leaves the arithmetic alone, it
    trains the very same model: one that trained something else would be no repair."""
    planted, fixed = (
        train(script, *switch, scratch=tmp_path / "s") for switch in ((), ("--fixed",))
    )
    assert (planted[0], fixed[0]) == (4, 4)
    assert math.isfinite(float(planted[1]))
    assert math.isfinite(float(fixed[1]))
    if script in SAME_ARITHMETIC:
        assert planted == fixed
    assert not (tmp_path / "s").exists() or script not in WRITERS


@pytest.mark.parametrize("variant", ["too-few-workers", "slow-worker", "collate", "disk"])
def test_loader_variants_run(variant: str, tmp_path: Path) -> None:
    """Each other way to starve, and its repair."""
    for switch in ((), ("--fixed",)):
        train("slow_loader.py", "--variant", variant, *switch, scratch=tmp_path / "scratch")


def test_a_plan_made_once_trains_the_same_model(tmp_path: Path) -> None:
    """The repair moves the planning, and computes what was computed before."""
    planted, fixed = (
        train("python_overhead.py", "--variant", "plan", *switch, scratch=tmp_path / "scratch")
        for switch in ((), ("--fixed",))
    )
    assert planted == fixed


@pytest.mark.parametrize("script", SCRIPTS)
def test_knows_nothing_of_the_profiler(script: str) -> None:
    """A workload is a plain train.py: from gpuprof it takes only its own parts."""
    tree = ast.parse((FOLDER / script).read_text(encoding="utf-8"))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)} | {
        alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    }
    ours = {module for module in modules if module and module.startswith("gpuprof")}
    assert ours <= {"gpuprof.workloads.parts"}
    assert not any(module and "profiler" in module for module in modules)
