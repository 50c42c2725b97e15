"""Recordings with labels: the verdict on each is right (see benchmarks/accuracy.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuprof.api import analyze

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT.parent / "shared" / "cases" / "traces"


def accuracy() -> ModuleType:
    """benchmarks/ is no package: its module is loaded by path."""
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[Any]:
    """The labelled cases, or one that is skipped where they are not at hand."""
    if not (CASES / "cases.jsonl").is_file():
        return [pytest.param(None, marks=pytest.mark.skip(reason="no labelled recordings here"))]
    return [pytest.param(case, id=case["id"]) for case in accuracy().read_cases(CASES)]


@pytest.mark.parametrize("case", cases())
def test_the_verdict_on_a_labelled_recording(case: dict[str, Any]) -> None:
    diagnosis = analyze(*(CASES / name for name in case["files"]))
    assert accuracy().faults_of(diagnosis, case["expect"]) == []


def test_a_fault_of_a_verdict_is_seen() -> None:
    """The judge itself: a wrong bound, a missed and an accused cause, a gain out of range."""
    from fixtures.runs import diagnosed, training

    diagnosis = diagnosed(training(6, load_us=4_000, settled=True))
    expect = {
        "bound": ["compute"],
        "must": ["memcpy"],
        "must_not": ["dataloader"],
        "gain": {"dataloader": [0.1, 0.2]},
        "late_ranks": [3],
    }
    faults = "; ".join(accuracy().faults_of(diagnosis, expect))
    for words in (
        "bound input, not compute",
        "misses memcpy",
        "accuses dataloader",
        "gain of dataloader 0.799, not 0.1 to 0.2",
        "late ranks [], not [3]",
    ):
        assert words in faults
