"""`gate`: it fails on what is known to be too much, says so in a line, and on nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from fixtures.diagnoses import hostile_diagnosis, sample_diagnosis
from fixtures.runs import training
from gpuprof.analyzers.compare import compare_runs
from gpuprof.analyzers.gate import LIMITED, Check, check_run
from gpuprof.cli import main
from gpuprof.diagnosis import Diagnosis, NotJudged, Place, to_json
from gpuprof.reports.gate import to_text
from gpuprof.reports.junit import to_junit
from gpuprof.reports.sarif import to_sarif


def lengths(*step_ms: float, **changes: Any) -> Diagnosis:
    base = sample_diagnosis()
    rank = msgspec.structs.replace(base.ranks[0], step_ms=step_ms)
    mean = sum(step_ms) / len(step_ms)
    steps = msgspec.structs.replace(base.run.steps, count=len(step_ms), mean_ms=mean)
    run = msgspec.structs.replace(base.run, steps=steps)
    return msgspec.structs.replace(base, ranks=(rank,), run=run, **changes)


def slowdown(before: Diagnosis, after: Diagnosis, allowed: float = 0.0) -> Check:
    return check_run(after, {}, compare_runs(before, after), allowed)[-1]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "diagnosis.json"
    path.write_bytes(to_json(sample_diagnosis()))
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in ("gate", *arguments)])
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err


def test_a_cause_above_its_limit_breaks_it_and_below_does_not() -> None:
    share = sample_diagnosis().findings[0].share
    cause = sample_diagnosis().findings[0].cause
    above, below = (
        check_run(sample_diagnosis(), {cause: limit})[0] for limit in (share - 0.01, share + 0.01)
    )
    assert (above.state, below.state) == ("broken", "passed")
    assert above.value == below.value == share


def test_a_cause_too_small_to_be_named_is_still_measured() -> None:
    """A limit of 2 % is broken by 4 %, though nothing under 5 % is a finding."""
    base = sample_diagnosis()
    budget = {**base.budget, "input": 0.04, "compute": 0.96}
    quiet = msgspec.structs.replace(base, findings=(), not_judged=(), budget=budget)
    assert check_run(quiet, {"dataloader": 0.02})[0].state == "broken"
    assert check_run(quiet, {"dataloader": 0.05})[0].state == "passed"
    assert check_run(quiet, {"imbalance": 0.0})[0].state == "passed"


def test_what_could_not_be_judged_is_unknown_and_breaks_only_a_strict_gate() -> None:
    missing = NotJudged(cause="checkpoint", missing="no checkpoint in the window")
    run = msgspec.structs.replace(sample_diagnosis(), findings=(), not_judged=(missing,))
    checks = check_run(run, {"checkpoint": 0.01})
    assert checks[0].state == "unknown" and "no checkpoint" in checks[0].why
    assert to_text(checks, strict=False).startswith("UNKNOWN")
    assert to_text(checks, strict=True).startswith("FAILED")
    assert 'failures="0"' in to_junit(checks) and 'skipped="1"' in to_junit(checks)
    assert 'failures="1"' in to_junit(checks, strict=True)


def test_a_slowdown_breaks_only_beyond_noise_and_beyond_the_allowance() -> None:
    fast, slow = lengths(100, 101, 99, 100, 100), lengths(120, 121, 119, 120, 120)
    restless = lengths(90, 150, 100, 140, 120)
    assert slowdown(fast, slow).state == "broken"
    assert slowdown(fast, slow, allowed=0.25).state == "passed"
    assert slowdown(slow, fast).state == "passed"
    assert slowdown(fast, fast).state == "passed"
    assert slowdown(fast, restless).state == "passed"
    assert "noise" in slowdown(fast, restless).why
    assert slowdown(lengths(100), lengths(200)).state == "unknown"


def test_sarif_points_at_the_users_lines() -> None:
    places = (
        Place(file="/work/a b/train.py", line=45, code="for x in loader:"),
        Place(file="x.py"),
    )
    base = sample_diagnosis()
    finding = msgspec.structs.replace(base.findings[0], where=places)
    run = msgspec.structs.replace(base, findings=(finding, *base.findings[1:]))
    checks = check_run(run, {finding.cause: 0.0})
    document = json.loads(to_sarif(run, checks, root=Path("/work")))
    assert document["version"] == "2.1.0"
    results = document["runs"][0]["results"]
    rules = {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in results} == rules
    assert results[0]["level"] == "error"
    location = results[0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "a%20b/train.py", "uriBaseId": "%SRCROOT%"}
    assert location["region"]["startLine"] == 45
    assert [r["ruleId"] for r in results].count(finding.cause) == 1, "not as a warning again"
    other = json.loads(to_sarif(run, checks, root=Path("/else")))["runs"][0]["results"][0]
    assert other["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith(
        "file:///"
    )


def test_hostile_texts_make_valid_documents() -> None:
    """Control characters are not allowed in XML at all."""
    hostile = hostile_diagnosis()
    checks = check_run(hostile, dict.fromkeys(LIMITED, 0.0))
    ElementTree.fromstring(to_junit(checks, strict=True))
    json.loads(to_sarif(hostile, checks, root=Path.cwd()))
    assert to_text(checks, strict=True).count("\n") == len(checks)


def test_the_command_fails_with_3_and_one_line_a_reason(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(capsys, kept, "--max", "dataloader=5%", "--max", "checkpoint=1")
    assert (status, err) == (3, "")
    assert out.startswith("FAILED")
    assert len([line for line in out.splitlines() if line.startswith("FAILED")]) == 1
    assert "dataloader takes" in out
    status, out, _ = call(capsys, kept, "--max", "dataloader=0.9")
    assert status == 0 and out.startswith("passed")


def test_the_command_writes_what_ci_reads(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, sarif = tmp_path / "gate.xml", tmp_path / "gate.sarif"
    files = ("--junit", junit, "--sarif", sarif, "--format", "json")
    status, out, _ = call(capsys, kept, "--baseline", kept, "--max", "dataloader=5%", *files)
    assert status == 3
    document = json.loads(out)
    assert document["passed"] is False
    assert [check["state"] for check in document["checks"]] == ["broken", "passed"]
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert json.loads(sarif.read_text())["runs"]


def test_recordings_are_gated_against_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = training(6, load_us=4_000).trace.write(tmp_path / "slow.json.gz")
    fast = training(6, load_us=300).trace.write(tmp_path / "fast.json.gz")
    assert call(capsys, slow, "--baseline", fast)[0] == 3
    assert call(capsys, fast, "--baseline", slow)[0] == 0
    assert call(capsys, fast, "--baseline", fast, "--format", "md")[1].startswith("# gpuprof gate")


@pytest.mark.parametrize(
    "arguments",
    [(), ("--max", "dataloader"), ("--max", "nothing=5%"), ("--max", "dataloader=500%"),
     ("--max", "dataloader=nan"), ("--max-slowdown", "5"), ("--baseline", "missing.json")],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_status_2(
    kept: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    status, out, err = call(capsys, kept, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("percent", ["nan", "inf"])
def test_a_limit_that_allows_everything_is_refused(
    percent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that can't fail is no gate."""
    with pytest.raises(SystemExit) as ended:
        main(["gate", "run.json", "--baseline", "old.json", "--max-slowdown", percent])
    assert ended.value.code == 2
    assert "give a percentage" in capsys.readouterr().err
