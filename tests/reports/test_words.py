"""One catalogue, two languages: the same keys and values, nothing left out, nothing made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fixtures.diagnoses import sample_diagnosis
from fixtures.runs import Job, diagnosed, training
from gpuprof.commands.output import LANGUAGES as OFFERED
from gpuprof.diagnosis import Diagnosis, from_json, to_json
from gpuprof.errors import GpuprofError
from gpuprof.reports import columns
from gpuprof.reports.comparison import to_text
from gpuprof.reports.html import write_html
from gpuprof.reports.markdown import to_markdown
from gpuprof.reports.sentences import Translator
from gpuprof.reports.terminal import render
from gpuprof.reports.words import LANGUAGES, catalog, localized, translator
from gpuprof.reports.words_en import ENGLISH

REPORTS = Path(__file__).resolve().parents[2] / "reports"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
ENGLISH_WORDS = re.compile(r"(?<![\w./=_`(])[a-z]{3,}(?![\w./=_`(])")


def fields(template: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template))


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])
def test_every_text_has_its_translation_with_the_same_fields(language: str) -> None:
    other = LANGUAGES[language]
    assert list(other) == list(ENGLISH)
    assert [key for key in ENGLISH if fields(ENGLISH[key]) != fields(other[key])] == []


def test_the_command_line_offers_what_the_catalogue_has() -> None:
    assert tuple(OFFERED) == tuple(LANGUAGES)
    with pytest.raises(GpuprofError, match="no wording for the language"):
        catalog("tlh")


def test_no_text_is_kept_that_nobody_says() -> None:
    """A key is written out somewhere, or built from its group and a name."""
    files = [
        *REPORTS.rglob("*.py"),
        *REPORTS.rglob("*.j*"),
        *REPORTS.parent.rglob("gpuprof/**/*.py"),
    ]
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if not path.name.startswith(("words_", "sentences_"))
    )
    built = ("bucket.", "about.", "cause.", "bound.", "limit.", "severity.", "confidence.",
             "source.", "class.", "curve.", "compare.", "gate.", "live.state.")  # fmt: skip
    # The script asks for `timeline.` and `perfetto.` keys by what follows the point; some keys
    # have a second form for recordings without steps, or for many.
    left = [
        key
        for key in ENGLISH
        if not key.startswith(built)
        and key not in source
        and f"'{key.partition('.')[2]}'" not in source
        and key.removesuffix(".whole") not in source
    ]
    assert left == []


def runs() -> Iterator[Diagnosis]:
    """Diagnoses whose sentences the analyzers wrote themselves."""
    yield diagnosed(training(5, load_us=4_000))
    yield diagnosed(training(5, items=6, kernels=[50.0] * 20))
    yield diagnosed(training(5, work_us=900, kernels=[40.0] * 12, grid=8))
    jobs = [
        training(5, load_us=3_000 * rank, collective_us=900, job=Job(rank=rank, world_size=2))
        for rank in range(2)
    ]
    yield diagnosed(*jobs)


def texts(diagnosis: Diagnosis) -> list[str]:
    found = [diagnosis.headline, diagnosis.bound.why, *diagnosis.warnings]
    for finding in diagnosis.findings:
        found += [finding.title, *(item.text for item in finding.evidence)]
        found += [part for fix in finding.fixes for part in (fix.title, fix.detail, fix.cost)]
        found += [finding.gain.how] if finding.gain is not None else []
    found += [item.why for item in diagnosis.ruled_out]
    return found + [item.missing for item in diagnosis.not_judged]


def test_the_analyzers_sentences_are_said_in_chinese_with_the_same_numbers() -> None:
    said = []
    for diagnosis in runs():
        chinese = localized(diagnosis, "zh-CN")
        for before, after in zip(texts(diagnosis), texts(chinese), strict=True):
            assert sorted(NUMBER.findall(before)) == sorted(NUMBER.findall(after)), (before, after)
            said += [after] if before else []
        assert from_json(to_json(chinese)) == chinese

    left = [one for one in said if len(ENGLISH_WORDS.findall(one)) > 3]
    # A sentence that is reworded is English until its translation follows; most must have one.
    assert len(left) <= 0.15 * len(said), left


def test_names_code_and_numbers_stay_as_they_are() -> None:
    diagnosis = sample_diagnosis(3)
    chinese = localized(diagnosis, "zh-CN")
    assert [f.where for f in chinese.findings] == [f.where for f in diagnosis.findings]
    assert [fix.code for f in chinese.findings for fix in f.fixes] == [
        fix.code for f in diagnosis.findings for fix in f.fixes
    ]
    assert [f.share for f in chinese.findings] == [f.share for f in diagnosis.findings]
    assert localized(diagnosis, "en") is diagnosis


def test_what_nobody_translated_stays_english_and_the_rest_is_not_bent() -> None:
    said = Translator(
        [("Load with {n} processes", "用 {n} 个进程加载"), ("ranks {a} and {b}", "rank {a} 和 {b}")]
    ).say
    assert said("Load with 4 processes") == "用 4 个进程加载"
    assert said("Load with\u00a04 processes.") == "用 4 个进程加载。"
    assert said("Load it with 4 processes") == "Load it with 4 processes"
    assert (
        said("Load with 4 processes. Nobody knows this.") == "用 4 个进程加载。Nobody knows this."
    )
    assert said("") == ""
    assert said("rank 3: Load with 4 processes") == "rank 3：用 4 个进程加载"
    assert said("rank 3: nobody knows this") == "rank 3：nobody knows this"
    hostile = "Load with {n}{0}{__class__} processes"
    assert said(hostile) == "用 {n}{0}{__class__} 个进程加载"


def test_a_hostile_sentence_takes_no_time() -> None:
    """Patterns with several fields must not try all ways to cut a long text."""
    say = translator("zh-CN")
    assert say is not None
    for bad in ("a ms " * 199, "Rank 1 " * 140, "and " * 249, ", 1 × " * 160):
        say.say(bad)


def test_the_page_is_chinese_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    job = training(5, load_us=4_000)
    write_html(diagnosed(job), [job.trace.trace()], path, lang="zh-CN")
    page = path.read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in page
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    for english in ("Where one step goes", "What to change", "Show in timeline", "Ruled out"):
        assert english not in body
    assert "一步的时间去了哪里" in body and "在等下一批数据" in body


def test_columns_stand_straight_when_a_character_takes_two(capsys: pytest.CaptureFixture) -> None:
    console = Console(width=60, no_color=True)
    render(sample_diagnosis(3), console, lang="zh-CN")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(columns.cells, lines)) <= 60
    bars = [line for line in lines if "█" in line or "░" in line]
    assert len({columns.cells(line.rstrip()) for line in bars}) == 1


@pytest.mark.parametrize("width", [20, 33, 60])
def test_wide_text_wraps_without_losing_a_character(width: int) -> None:
    said = "设备 waits 33 % 的时间，等待下一批数据：这是一次重放，不是求和（10 ms）。" * 4
    lines = columns.wrap(said, width, "1. ", 3)
    assert "".join(lines).replace(" ", "") == "1." + said.replace(" ", "")
    assert all(columns.cells(line) <= width + 2 for line in lines)
    assert not any(line.strip()[0] in "，。：" for line in lines)


def test_markdown_and_comparison_follow_the_language() -> None:
    from gpuprof.analyzers.compare import compare_runs, samples_of

    assert "## 应当改什么" in to_markdown(sample_diagnosis(), lang="zh-CN")
    before, after = diagnosed(training(6, load_us=4_000)), diagnosed(training(6))
    comparison = compare_runs(before, after, samples_of(before), samples_of(after))
    said = to_text(comparison, lang="zh-CN")
    assert said.startswith("一步少用") and "等待输入数据" in said
    assert len(ENGLISH_WORDS.findall(said)) <= 6, said
