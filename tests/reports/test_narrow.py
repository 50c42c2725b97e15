"""Terminals that are narrow, or have few letters."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fixtures.runs import diagnosed, training
from gpuprof.analyzers.compare import compare_runs, samples_of
from gpuprof.analyzers.gate import check_run
from gpuprof.api import Analysis
from gpuprof.commands.output import show
from gpuprof.reports import columns
from gpuprof.reports import comparison as compared
from gpuprof.reports import gate as gated
from gpuprof.reports.terminal import render


def solid(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize("width", [40, 72])
def test_compare_and_gate_wrap_as_the_verdict_does(lang: str, width: int) -> None:
    before, after = diagnosed(training(6, load_us=4_000)), diagnosed(training(6))
    comparison = compare_runs(before, after, samples_of(before), samples_of(after))
    checks = check_run(after, {"dataloader": 0.05, "memcpy": 0.01}, comparison)
    wide = compared.to_text(comparison, lang=lang), gated.to_text(checks, strict=True, lang=lang)
    narrow = (
        compared.to_text(comparison, lang=lang, width=width),
        gated.to_text(checks, strict=True, lang=lang, width=width),
    )
    for told, folded in zip(wide, narrow, strict=True):
        assert max(map(columns.cells, folded.splitlines())) <= width
        assert solid(told) == solid(folded)


def test_what_goes_to_another_program_keeps_one_line_a_reason() -> None:
    checks = check_run(diagnosed(training(6)), {"dataloader": 0.05})
    assert len(gated.to_text(checks, strict=True).splitlines()) == len(checks)


def test_a_terminal_without_chinese_letters_gets_english_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr("sys.stdout", out)
    show(Analysis(diagnosed(training(5, load_us=4_000)), ()), "text", "zh-CN")
    out.flush()
    told = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "What to change" in told and "?" not in told
    assert "has no letters for zh-CN" in capsys.readouterr().err


def test_a_terminal_in_a_chinese_encoding_keeps_its_letters() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="gb18030")
    render(diagnosed(training(5, load_us=4_000)), Console(file=out, width=80), lang="zh-CN")
    out.flush()
    assert "优化建议" in out.buffer.getvalue().decode("gb18030")  # type: ignore[attr-defined]
