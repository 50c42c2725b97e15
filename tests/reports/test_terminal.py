"""The verdict fits any terminal and prints nothing but plain text."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from fixtures.diagnoses import hostile_diagnosis, sample_diagnosis
from gpuprof.diagnosis import Diagnosis
from gpuprof.reports.terminal import MAX_LINES, render


def printed(diagnosis: Diagnosis, *, width: int = 80, encoding: str = "utf-8", **how: bool) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    render(diagnosis, Console(file=file, width=width, **how))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_lines_fit_the_width_and_hold_the_verdict(width: int) -> None:
    shown = printed(sample_diagnosis(), width=width)
    lines = shown.splitlines()
    assert all(len(line) <= width for line in lines)
    flat = " ".join(shown.split())
    for part in (
        "The GPU waits for data in a third of each step",
        "Bound by input, 93 % confidence",
        "Waiting for input",
        "58.9 ms",
        "33.6 %",
        "−59.4 ms (31–36 %)",
        "train.py:45",
        "Load batches in worker processes",
        "Could not be judged: checkpointing",
    ):
        assert part in flat
    assert len(lines) <= MAX_LINES
    # A share is never cut at the edge.
    assert sum(line.endswith(" %") for line in lines) == 6  # the parts that have a share


def bounded(limit: str) -> Diagnosis:
    """All gains depend on something."""
    diagnosis = sample_diagnosis()
    limited = tuple(
        msgspec.structs.replace(
            finding,
            gain=msgspec.structs.replace(finding.gain, at_most=True, limit=limit)
            if finding.gain is not None
            else None,
        )
        for finding in diagnosis.findings
    )
    return msgspec.structs.replace(diagnosis, findings=limited)


def test_a_gain_that_is_a_bound_says_so_and_why_once() -> None:
    flat = " ".join(printed(bounded("if the loader keeps up"), width=100).split())
    assert "up to −59.4 ms (31–36 %)" in flat
    assert flat.count("If the loader keeps up.") == 1


def test_evidence_comes_before_what_a_gain_depends_on_and_outlives_it() -> None:
    """A caveat alone under a finding reads as its proof."""
    evidence = " ".join(sample_diagnosis().findings[0].evidence[0].text.split()[:4])
    flat = " ".join(printed(bounded("if the loader keeps up"), width=120).split())
    fix = sample_diagnosis().findings[0].fixes[0].title
    assert 0 < flat.index(evidence) < flat.index(fix) < flat.index("If the loader keeps up.")
    crowded = printed(bounded("if the loader keeps up " * 40), width=120)
    flat = " ".join(crowded.split())
    assert evidence in flat and "up to −59.4 ms" in flat and "If the loader" not in flat
    assert len(crowded.splitlines()) <= MAX_LINES


def test_a_terminal_too_narrow_for_milliseconds_still_has_the_shares() -> None:
    for width in (20, 24, 30):
        lines = printed(sample_diagnosis(), width=width).splitlines()
        assert any(line.startswith("  Waiting") and line.endswith(" 33.6 %") for line in lines)
        assert all(len(line) <= width for line in lines)


def test_a_dumb_terminal_and_a_pipe_get_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(sample_diagnosis(), force_terminal=True)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in printed(sample_diagnosis())


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    for width in range(50, 110, 7):
        for line in printed(sample_diagnosis(), width=width).splitlines():
            assert not line.lstrip().startswith(("% ", "ms ", "%;", "%,"))


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = printed(sample_diagnosis(), force_terminal=True)
    assert "\x1b[3" not in shown.replace("\x1b[3m", "")  # no colour; italics would be no colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in printed(sample_diagnosis(), force_terminal=True)


def test_no_escape_sequence_and_no_markup_of_a_name_gets_through() -> None:
    text = "\x1b]0;owned\x07[bold red]x[/bold red]\u202e"
    shown = printed(hostile_diagnosis(text), force_terminal=False)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "[bold red]" in shown


def test_an_ascii_terminal_gets_ascii() -> None:
    shown = printed(sample_diagnosis(), encoding="ascii")
    assert "-59.4 ms (31-36 %)" in " ".join(shown.split())


def test_nothing_known_is_said_and_does_not_crash() -> None:
    diagnosis = msgspec.structs.replace(
        sample_diagnosis(),
        budget={},
        findings=(),
        together=None,
        ranks=(),
        headline="",
        run=msgspec.structs.replace(
            sample_diagnosis().run,
            steps=msgspec.structs.replace(sample_diagnosis().run.steps, count=0, median_ms=None),
        ),
    )
    shown = printed(diagnosis)
    assert "no steps found" in shown
    assert "does not allow an account" in shown


def test_many_findings_and_warnings_are_folded() -> None:
    sample = sample_diagnosis()
    many = msgspec.structs.replace(
        sample, findings=sample.findings * 4, warnings=tuple(f"warning {i}" for i in range(9))
    )
    shown = printed(many)
    assert "6 more:" in shown
    assert "9 warnings about the data" in shown
    assert len(shown.splitlines()) <= MAX_LINES
    assert "and 6 more" in printed(msgspec.structs.replace(many, findings=()))
