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
from gpuprof.diagnosis import Diagnosis, NotJudged, Place, RuledOut, to_json
from gpuprof.reports.gate import to_json as to_json_gate
from gpuprof.reports.gate import to_markdown, to_text
from gpuprof.reports.junit import to_junit
from gpuprof.reports.sarif import to_sarif
from gpuprof.reports.words import speaker


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
    assert "of the step, which is more" in above.why


def test_without_steps_a_share_is_one_of_the_recording() -> None:
    base, cause = sample_diagnosis(), sample_diagnosis().findings[0].cause
    steps = msgspec.structs.replace(base.run.steps, source="none")
    bare = msgspec.structs.replace(base, run=msgspec.structs.replace(base.run, steps=steps))
    assert "of the recording, which is more" in check_run(bare, {cause: 0.01})[0].why
    assert "占整个记录的" in speaker("zh-CN")(check_run(bare, {cause: 0.01})[0].why)


def test_a_cause_too_small_to_be_named_is_still_measured() -> None:
    """A limit of 2 % is broken by 4 %, though nothing under 5 % is a finding."""
    base = sample_diagnosis()
    ruled_out = (RuledOut(cause="dataloader", why="", share=0.04),)
    quiet = msgspec.structs.replace(base, findings=(), not_judged=(), ruled_out=ruled_out)
    assert check_run(quiet, {"dataloader": 0.02})[0].state == "broken"
    assert check_run(quiet, {"dataloader": 0.05})[0].state == "passed"
    assert check_run(quiet, {"imbalance": 0.0})[0].state == "passed"


def test_what_could_not_be_judged_is_unknown_and_breaks_only_a_strict_gate() -> None:
    missing = NotJudged(cause="checkpoint", missing="no checkpoint in the window")
    run = msgspec.structs.replace(sample_diagnosis(), findings=(), not_judged=(missing,))
    checks = check_run(run, {"checkpoint": 0.01, "throttling": 0.5})
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
    restless = slowdown(fast, restless, allowed=0.05)
    assert "the noise could hide" in restless.why


def test_a_slowdown_that_no_noise_explains_fails_though_noise_was_not_measured() -> None:
    """One step a side. Within twice as long it is told and passes, beyond it is broken."""
    could_be, can_not = (slowdown(lengths(100), lengths(now)) for now in (195, 540))
    assert (could_be.state, could_be.blocks) == ("unknown", False)
    assert to_text([could_be], strict=False).startswith("UNKNOWN")
    assert (can_not.state, can_not.blocks) == ("broken", True)
    assert "5.4 times as long" in can_not.why
    assert slowdown(lengths(100), lengths(540), allowed=2.0).state == "unknown"
    assert slowdown(lengths(540), lengths(100)).state == "passed"


def test_a_baseline_that_can_not_be_compared_holds_the_run_up() -> None:
    """Else the gate would watch nothing from then on, and nobody would know."""
    run = lengths(100, 101, 99)
    other = msgspec.structs.replace(
        run, run=msgspec.structs.replace(run.run, devices=("NVIDIA H100",))
    )
    more = msgspec.structs.replace(run, run=msgspec.structs.replace(run.run, world_size=8))
    whole = msgspec.structs.replace(
        run,
        run=msgspec.structs.replace(
            run.run, steps=msgspec.structs.replace(run.run.steps, count=0, source="none")
        ),
    )
    for before, said in ((other, "ran on NVIDIA H100"), (more, "8 ranks"), (whole, "one side")):
        check = slowdown(msgspec.structs.replace(before, files=()), run)
        assert (check.state, check.blocks) == ("unknown", True)
        assert said in check.why
        assert to_text([check], strict=False).startswith("FAILED")
    without = msgspec.structs.replace(run, ranks=(), files=())
    assert slowdown(without, run).blocks


def test_what_holds_a_run_up_is_a_failure_in_every_form() -> None:
    """And what is only unknown is a warning in every form."""
    run = lengths(100)
    ranks = msgspec.structs.replace(run.run, world_size=8)
    more = msgspec.structs.replace(run, run=ranks, files=())
    shut, open_ = slowdown(more, run), slowdown(lengths(90), run)
    assert 'failures="1"' in to_junit([shut]) and 'skipped="1"' in to_junit([open_])
    levels = [
        [r["level"] for r in json.loads(to_sarif(run, [c], root=Path("/")))["runs"][0]["results"]
         if r["ruleId"] == "slowdown"]
        for c in (shut, open_)
    ]  # fmt: skip
    assert levels == [["error"], ["warning"]]
    assert to_markdown([shut], strict=False).startswith("# gpuprof gate failed")
    assert "**failed: unknown**" in to_markdown([shut], strict=False)
    assert to_markdown([open_], strict=False).startswith(
        "# gpuprof gate passed; one rule could not be checked"
    )
    assert [json.loads(to_json_gate([c], strict=False))["passed"] for c in (shut, open_)] == [
        False,
        True,
    ]


def test_a_run_without_an_account_passes_no_limit() -> None:
    """A recording that lost its GPU must not switch the gate off; nor one rule that can't be
    judged, where it is all that is asked for."""
    base = sample_diagnosis()
    missing = tuple(NotJudged(cause=c, missing="no kernel") for c in ("memcpy", "checkpoint"))
    found = base.findings[0]
    some = msgspec.structs.replace(base, not_judged=missing)
    checks = check_run(some, {"checkpoint": 0.1, found.cause: 1.0})
    assert [(c.state, c.blocks) for c in checks] == [("unknown", False), ("passed", False)]
    assert check_run(some, {"checkpoint": 0.1})[0].blocks
    lost = msgspec.structs.replace(some, budget={"unknown": 1.0})
    assert [c.blocks for c in check_run(lost, {"checkpoint": 0.1, found.cause: 1.0})] == [
        True,
        False,
    ]


def test_a_cause_is_held_to_what_its_rule_measured() -> None:
    """Exposed copies take 13.5 % of this step, those of the cause 1.8 %: the finding's definition
    is the gate's."""
    base = sample_diagnosis()
    ruled_out = RuledOut(cause="memcpy", why="copies …", share=0.018)
    run = msgspec.structs.replace(
        base,
        findings=(),
        ruled_out=(ruled_out,),
        not_judged=(),
        budget={**base.budget, "copy": 0.135},
    )
    check = check_run(run, {"memcpy": 0.05})[0]
    assert (check.state, check.value) == ("passed", 0.018)
    assert check_run(run, {"memcpy": 0.01})[0].state == "broken"


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
     ("--max", "dataloader=nan"), ("--max-slowdown", "5"), ("--baseline", "missing.json"),
     ("--max", "dataloader=5%", "--max", "dataloader=50%")],
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
