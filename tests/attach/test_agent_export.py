"""Traces are written without the GIL where that is safe, and by torch elsewhere."""

from __future__ import annotations

import ctypes
import json
import resource
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuprof.attach import agent_export  # noqa: E402
from gpuprof.attach.agent_windows import lean  # noqa: E402


def recorded(operations: int = 1) -> Any:
    """A stopped profiler with some operators."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=lean(torch)
    ) as profile:
        for _ in range(operations):
            torch.ones(8, 8) @ torch.ones(8, 8)
    return profile


def is_exported() -> bool:
    library = agent_export._library()
    return bool(library) and hasattr(ctypes.CDLL(library), agent_export.SAVE)


def operators(path: Path) -> list[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return [e["name"] for e in events if e.get("cat") == "cpu_op"]


def test_without_the_gil_it_is_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its name is too long to lie inside a std::string itself, and where it is short."""
    if not is_exported():
        pytest.skip("this torch does not export the function")
    monkeypatch.chdir(tmp_path)
    for name in ("t", "a-name-of-more-than-fifteen-characters.json"):
        assert agent_export.save_without_gil(recorded().profiler.kineto_results, name)
        assert "aten::mm" in operators(tmp_path / name)


@pytest.mark.parametrize("wrong", [object(), 7, "text", [1, 2, 3]])
def test_what_is_not_torchs_object_is_left_alone(tmp_path: Path, wrong: object) -> None:
    """Nothing is called with an address that is not certain."""
    assert not agent_export.save_without_gil(wrong, str(tmp_path / "trace"))


@pytest.mark.parametrize("missing", ["symbol", "library"])
def test_elsewhere_torch_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Another torch, another C++ library: slower, and the same."""
    if missing == "symbol":
        monkeypatch.setattr(agent_export, "SAVE", "_ZN4nope")
    else:
        monkeypatch.setattr(agent_export, "_library", lambda: "")
    profile = recorded()
    agent_export.save_trace(profile, str(tmp_path / "trace.json"))
    assert "aten::mm" in operators(tmp_path / "trace.json")
    assert profile.profiler is None


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """torch itself says nothing: what it left would be taken for a damaged trace."""
    profile = recorded(operations=500)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    try:
        with pytest.raises(OSError, match="disk full"):
            agent_export.save_trace(profile, str(tmp_path / "trace.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_was_cut_off_is_not_whole(tmp_path: Path) -> None:
    """As an older Kineto leaves it."""
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X"},')
    assert not agent_export.is_whole(str(path))
    path.write_text('{"traceEvents": [{"ph": "X"}]}\n')
    assert agent_export.is_whole(str(path))
