"""Paths that can't be meant, and those that are meant twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprof.cli import cli
from gpuprof.errors import InputError
from gpuprof.inputs import gather


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze", ""], "an empty path; check the variable"),
        (["compare", "x.json", ""], "an empty path"),
        (["gate", "", "--max", "memcpy=1%"], "an empty path"),
        (["watch", ""], "an empty path"),
        (["report", "", "-o", "x.html"], "an empty path"),
        (["analyze", "x.json", "--out", ""], "an empty path"),
        (["watch", __file__], "is a file, not a folder"),
        (["analyze", "x.json", "--out", __file__], "is a file, not a folder"),
    ],
)
def test_a_path_that_can_not_be_meant_is_refused(arguments: list[str], said: str) -> None:
    """An unset variable must not stand for the folder that one is in."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_folder_and_a_file_in_it_name_one_file(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}')
    inputs = gather([tmp_path, trace, tmp_path / ".." / tmp_path.name / trace.name])
    assert inputs.traces == [trace]
    with pytest.raises(InputError, match="an empty path"):
        gather([""])
