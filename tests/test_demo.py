"""The demo records what it planted, on this machine, and fails in one line where it cannot."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprof import demo
from gpuprof.diagnosis import CAUSES
from gpuprof.errors import GpuprofError

pytest.importorskip("torch")


def spans(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]


def share_of_steps(path: Path, prefix: str) -> float:
    """Time in spans of this name, as a share of the time in steps."""
    events = spans(path)
    inside = sum(e["dur"] for e in events if e["name"].startswith(prefix))
    return float(inside / sum(e["dur"] for e in events if e["name"].startswith("ProfilerStep#")))


def test_every_cause_has_a_planted_fault_and_its_script() -> None:
    """The names of the faults are the names of the causes."""
    assert list(demo.FAULTS) == list(CAUSES)
    for name, fault in demo.FAULTS.items():
        assert fault.cause == name
        assert (Path(demo.__file__).parent / "workloads" / fault.script).is_file()


def test_default_fault_is_recorded(tmp_path: Path) -> None:
    """The loader takes a large part of each traced step; progress counts up to the end."""
    seen: list[tuple[str, int, int]] = []
    recorded = demo.record_demo("dataloader", tmp_path, lambda *now: seen.append(now), steps=4)
    assert [path.name for path in recorded.traces] == ["trace-rank00000.json.gz"]
    assert [path.name for path in recorded.attribution] == ["attribution-rank00000.json.gz"]
    assert share_of_steps(recorded.traces[0], "enumerate(DataLoader)") > 0.15
    assert recorded.median_step_ms > 0
    assert recorded.device
    assert seen[0] == ("starting PyTorch", 0, 0)
    assert seen[-1][1] == seen[-1][2]
    assert not (tmp_path / "scratch").exists()
    assert "median_step_ms=" in recorded.log.read_text()


def test_fixed_workload_does_not_have_the_fault(tmp_path: Path) -> None:
    """With workers the loop no longer decodes; it only takes what is ready."""
    recorded = demo.record_demo("dataloader", tmp_path, fixed=True, steps=4)
    waits = [e["name"] for e in spans(recorded.traces[0]) if "DataLoader)#" in e["name"]]
    assert waits
    assert all("MultiProcessing" in name for name in waits)


def test_several_ranks_give_a_trace_each(tmp_path: Path) -> None:
    """One file a rank, each of which knows its rank and the others."""
    recorded = demo.record_demo("nccl-wait", tmp_path, steps=3)
    told = []
    for path in recorded.traces:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            info = json.load(file)["distributedInfo"]
        told.append((info["rank"], info["world_size"]))
    assert told == [(0, 2), (1, 2)]


def test_checkpoint_is_drawn_by_its_name(tmp_path: Path) -> None:
    """The save is named in the trace, and so is the wait for the disk."""
    recorded = demo.record_demo("checkpoint", tmp_path, steps=8)
    named = {e["name"] for e in spans(recorded.traces[0])}
    assert {"torch.save", "os.fsync"} <= named


def test_earlier_traces_go_and_other_files_stay(tmp_path: Path) -> None:
    """A second demo in the same folder never mixes its traces with the first one's."""
    (tmp_path / "trace-rank00007.json.gz").write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("mine")
    demo._empty(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "workload.log"}


def test_unknown_fault_names_the_known_ones(tmp_path: Path) -> None:
    """One line that says what may be chosen."""
    with pytest.raises(GpuprofError, match="choose one of dataloader"):
        demo.record_demo("gremlins", tmp_path)


def test_fault_that_needs_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the fault would not be there, so nothing is recorded under its name."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(GpuprofError, match="needs a GPU"):
        demo.record_demo("memcpy", tmp_path)


def test_missing_torch_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo needs torch; `analyze` does not."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GpuprofError, match="needs PyTorch"):
        demo.record_demo("dataloader", tmp_path)


def test_failing_workload_keeps_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user is told where to look."""
    broken = demo.Fault(cause="broken", script="slow_loader.py", summary="", arguments=("--what",))
    monkeypatch.setitem(demo.FAULTS, "broken", broken)
    with pytest.raises(GpuprofError, match=r"exit status 2.*workload\.log"):
        demo.record_demo("broken", tmp_path)
    assert "unrecognized arguments" in (tmp_path / "workload.log").read_text()


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """No traceback for a wrong --out."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(GpuprofError, match="name another folder"):
        demo.record_demo("dataloader", tmp_path / "file" / "out")


def test_importing_the_demo_imports_no_torch() -> None:
    """The parent process stays light: torch lives in the child."""
    code = "import sys, gpuprof.demo, gpuprof.demo_child; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
