"""The Python door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpuprof
from fixtures.runs import Job, training
from gpuprof.api import JSON_NAME, REPORT_NAME, analyze_paths, write_reports
from gpuprof.diagnosis import from_json
from gpuprof.errors import GpuprofError, InputError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training(5, load_us=3_000).trace.write(tmp_path / "trace.json.gz")


def test_analyze_answers_with_a_diagnosis(trace: Path) -> None:
    diagnosis = gpuprof.analyze(trace)
    assert isinstance(diagnosis, gpuprof.Diagnosis)
    assert diagnosis.findings[0].cause == "dataloader"
    assert diagnosis.gpuprof == gpuprof.__version__
    assert diagnosis.inputs == (str(trace),)
    (file,) = diagnosis.files
    assert file.size_bytes == trace.stat().st_size
    assert file.kind == "kineto"


def test_a_path_may_be_text_or_a_folder(trace: Path) -> None:
    assert gpuprof.analyze(str(trace)).findings == gpuprof.analyze(trace.parent).findings


def test_cores_reach_the_advice(trace: Path) -> None:
    fix = gpuprof.analyze(trace, cores=2).findings[0].fixes[0]
    assert "num_workers=2" in fix.code


def test_nothing_to_analyze_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to analyze"):
        gpuprof.analyze()


def test_progress_is_told(tmp_path: Path) -> None:
    paths = [
        training(2, job=Job(rank=rank, world_size=2)).trace.write(tmp_path / f"{rank}.json")
        for rank in (0, 1)
    ]
    told: list[tuple[str, int, int]] = []
    analysis = analyze_paths(*paths, progress=lambda *what: told.append(what))
    assert [t for t in told if t[0] == "reading"] == [("reading", 0, 2), ("reading", 1, 2)]
    assert [t for t in told if t[0] == "accounting"] == [("accounting", 0, 2), ("accounting", 1, 2)]
    assert len(analysis.traces) == 2


def test_a_broken_window_with_stacks_is_only_a_lost_nicety(trace: Path) -> None:
    good = (trace.parent / "attribution-rank0.json").resolve()
    training(2).trace.write(good)
    data = good.read_bytes()
    good.write_bytes(data[:200])
    assert gpuprof.analyze(trace.parent).findings[0].cause == "dataloader"


def test_lines_of_a_window_with_stacks_are_used(trace: Path) -> None:
    lines = Job()
    for number in range(4):
        with lines.step(number), lines.python("train.py(7): main"):
            lines.load(3_000)
            lines.kernel("k", 500)
            lines.synchronize()
    lines.trace.write(trace.parent / "attribution-rank0.json.gz")
    where = gpuprof.analyze(trace.parent).findings[0].where
    assert [(place.file, place.line) for place in where] == [("train.py", 7)]


def test_reports_are_written(trace: Path, tmp_path: Path) -> None:
    analysis = analyze_paths(trace)
    html, data = write_reports(analysis, tmp_path / "deep" / "out")
    assert (html.name, data.name) == (REPORT_NAME, JSON_NAME)
    assert from_json(data.read_bytes()) == analysis.diagnosis
    assert b"<html" in html.read_bytes()[:2_000]


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_report_leaves_nothing_half(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Ctrl-C while the page is made: no diagnosis.json without its page; an older one stays."""
    out = tmp_path / "out"
    analysis = analyze_paths(trace)
    if there:
        out.mkdir()
        (out / JSON_NAME).write_text("older")

    def interrupted(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuprof.api.write_page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_reports(analysis, out)
    assert out.exists() == there
    if there:
        assert [(p.name, p.read_text()) for p in out.iterdir()] == [(JSON_NAME, "older")]


@pytest.mark.parametrize("name", ["out", "o" * 300])
def test_a_place_that_can_not_be_written_is_the_users_fault(trace: Path, name: str) -> None:
    """A file stands where the folder should be, or nobody can even ask whether it is there."""
    place = trace / name if name == "out" else trace.parent / name
    with pytest.raises(GpuprofError, match="cannot write to") as caught:
        write_reports(analyze_paths(trace), place)
    assert "--out" in caught.value.hint


def test_public_names_are_loaded_when_used() -> None:
    assert set(dir(gpuprof)) >= {"analyze", "Diagnosis", "GpuprofError"}
    assert gpuprof.GpuprofError is GpuprofError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpuprof.nothing


def test_importing_gpuprof_imports_nothing_heavy() -> None:
    code = (
        "import sys, gpuprof; heavy = {'torch', 'pandas', 'plotly', 'numpy', 'rich', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("count", [2, 3])
def test_copies_of_one_trace_are_not_taken_for_ranks_in_silence(
    trace: Path, tmp_path: Path, count: int
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(count):
        (folder / f"rank{rank}.json").write_bytes(trace.read_bytes())
    warned = [text for text in gpuprof.analyze(folder).warnings if "the same file" in text]
    assert len(warned) == 1
    assert ("and 1 more" in warned[0]) == (count == 3)


def test_a_trace_alone_is_no_copy(trace: Path) -> None:
    assert not [text for text in gpuprof.analyze(trace).warnings if "the same file" in text]
