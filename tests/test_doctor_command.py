"""`gpuprof doctor`: the software checks, and what the command prints."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gpuprof import doctor_software
from gpuprof.cli import cli
from gpuprof.doctor import Check


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_machine_without_torch_is_told_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_software, "_version", lambda name: None)
    torch = by_name(doctor_software.probe_software())["torch"]
    assert torch.state == "limited"
    assert "reading traces does not" in torch.why
    assert torch.remedy == "pip install torch"


def test_an_old_torch_is_limited_and_a_new_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, state in (("2.0.1", "limited"), ("2.1.0+cu121", "ok"), ("2.13.0+cpu", "ok")):
        monkeypatch.setattr(
            doctor_software, "_version", lambda name, v=version: v if name == "torch" else None
        )
        assert by_name(doctor_software.probe_software())["torch"].state == state


def test_the_other_gpuprof_is_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_software, "_version", lambda name: "0.7.1")
    other = by_name(doctor_software.probe_software())["gpuprof"]
    assert other.state == "broken"
    assert "pip uninstall gpuprof" in other.remedy


def test_the_command_prints_every_check_and_exits_by_what_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = CliRunner().invoke(cli, ["doctor"])
    assert plain.exit_code == 0, plain.output
    assert "Python" in plain.output
    assert "host" in plain.output
    asked = CliRunner().invoke(cli, ["doctor", "--json"])
    assert {check["name"] for check in json.loads(asked.output)} >= {"Python", "torch", "host"}
    monkeypatch.setattr(
        doctor_software, "probe_software", lambda: [Check("gpuprof", "broken", "two of them")]
    )
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 1
