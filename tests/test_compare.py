"""`gpuprof compare` and `gpuprof.compare`: what changed between two runs, what is only noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuprof
from fixtures.runs import training
from gpuprof.cli import cli

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "traces"


def recorded(folder: Path, name: str, **planted: float) -> Path:
    path = folder / f"{name}.json.gz"
    training(8, **planted).trace.write(path)  # type: ignore[arg-type]
    return path


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    path = recorded(tmp_path, "run", load_us=400)
    told = CliRunner().invoke(cli, ["compare", str(path), str(path)])
    assert told.exit_code == 0, told.output
    assert "No difference beyond noise" in told.output


def test_a_removed_wait_is_named_with_its_size(tmp_path: Path) -> None:
    """The step gets shorter by the wait, and the cause is gone."""
    before = recorded(tmp_path, "before", load_us=2000)
    after = recorded(tmp_path, "after", load_us=0)
    told = CliRunner().invoke(cli, ["compare", str(before), str(after)])
    assert told.exit_code == 0, told.output
    assert "Waiting for input" in told.output
    assert "gone" in told.output
    assert gpuprof.compare(before, after) is not None


def test_json_alone_goes_to_standard_output(tmp_path: Path) -> None:
    path = recorded(tmp_path, "run")
    told = CliRunner().invoke(cli, ["compare", str(path), str(path), "--json", "-"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled recordings are not here")
def test_the_labelled_pair_says_what_the_workers_changed() -> None:
    before, after = CASES / "resnet50-workers0", CASES / "resnet50-workers4"
    told = CliRunner().invoke(cli, ["compare", str(before), str(after)])
    assert told.exit_code == 0, told.output
    assert "44.7 ms less" in told.output
    assert "loader: in the training process → worker processes" in told.output
