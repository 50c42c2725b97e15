"""One catalogue, two languages: the same keys and values, nothing left out, nothing made up."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fixtures.diagnoses import sample_diagnosis
from fixtures.runs import Job, diagnosed, training
from fixtures.simulator import draw_run, plant, simulate, write_traces
from gpuprof.analyzers.xid_codes import XIDS, meaning
from gpuprof.api import analyze
from gpuprof.commands.output import LANGUAGES as OFFERED
from gpuprof.diagnosis import Diagnosis, from_json, to_json
from gpuprof.errors import GpuprofError
from gpuprof.reports import columns
from gpuprof.reports.comparison import to_text
from gpuprof.reports.html import write_html
from gpuprof.reports.markdown import to_markdown
from gpuprof.reports.sentences import Translator
from gpuprof.reports.terminal import render
from gpuprof.reports.words import LANGUAGES, catalog, localized, speaker, translator
from gpuprof.reports.words_en import ENGLISH

REPORTS = Path(__file__).resolve().parents[2] / "reports"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
DIGITS = re.compile(r"\d+")
FIELD = re.compile(r"\{\w+\}")
ROOT = Path(__file__).resolve().parents[2]
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
             "source.", "class.", "curve.", "origin.", "file.", "points.", "compare.", "gate.",
             "live.state.", "doctor.", "check.", "plan.", "regime.")  # fmt: skip
    # The script asks for `timeline.` and `perfetto.` keys by what follows the point; some keys
    # have a second form for recordings without steps, for many, or for one.
    left = [
        key
        for key in ENGLISH
        if not key.startswith(built)
        and key not in source
        and f"'{key.partition('.')[2]}'" not in source
        and key.removesuffix(".whole").removesuffix(".share") not in source
        and key.removesuffix(".one") not in source
        and f"'{key.partition('.')[2].removesuffix('.one')}'" not in source
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
    with tempfile.TemporaryDirectory() as folder:  # a rank that is late for its own host
        run = plant(draw_run("ddp", 13001, 0.05), "nccl-wait", 0.23, "late-rank")
        write_traces(simulate(run), Path(folder))
        yield analyze(folder)


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

    assert english_in(said) == []


CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
KEPT = re.compile(
    r"all|attention|autocast|autograd|broadcast|collate|compile|copy|cuda|framework|gather|gpuprof|"
    r"graph|item|kineto|killer|memset|nccl|nvidia|profiler|prefetch|rank|reduce|scatter|softmax|"
    r"timestamp|to|token|torch|triton|pipe|broken|rail|id|provider|boot|fabric|manager|wheel"
)
"""Words that a Chinese sentence may hold: names of calls, kinds of collectives, terms of the field
that are said in English."""

WORDS = re.compile(r"(?<![\w./=_`(-])[a-z]{3,}(?![\w./=_`(-])")
QUOTED = re.compile(r"`[^`]*`|“[^”]*”|驱动的说明：.*|num_\w+=\S+|\S*/\S*")
"""Code, paths, and what others wrote."""


def english_in(sentences: Iterable[str]) -> list[str]:
    """The sentences that still hold English words."""
    return [
        one
        for one in sentences
        if any(not KEPT.fullmatch(word) for word in WORDS.findall(QUOTED.sub("", one)))
    ]


def recordings() -> list[Any]:
    """Every labelled recording of every kind, or one that is skipped where none are at hand."""
    folders = [CASES / kind for kind in ("traces", "utilization", "smi", "nccl", "xid", "topo")]
    found = [path for one in folders if one.is_dir() for path in sorted(one.iterdir())]
    found += sorted((CASES / "flight_recorder").glob("*dump_1"))
    found = [path for path in found if path.suffix not in (".md", ".jsonl", ".json")]
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason="no labelled recordings here"))]
    return [pytest.param(path, id=f"{path.parent.name}/{path.name}") for path in found]


@pytest.mark.parametrize("path", recordings())
def test_all_that_is_said_of_a_recording_is_said_in_chinese(path: Path) -> None:
    """A sentence that an analyzer got since has no translation: add the pair to
    `reports/sentences_zh*.py`, and to KEPT what Chinese readers say in English."""
    diagnosis = analyze(path)
    chinese = localized(diagnosis, "zh-CN")
    said = [*texts(chinese), *(row.kind for row in chinese.kernels), *chinese.facts]
    said += [step.why for step in chinese.run.steps.excluded]
    said += [note for file in chinese.files for note in file.notes]
    assert english_in(said) == []
    words = catalog("zh-CN")
    for file in diagnosis.files:
        assert f"file.{file.kind}" in words.texts
    for item in (item for finding in diagnosis.findings for item in finding.evidence):
        assert item.source in ("", "trace", "none") or f"origin.{item.source}" in words.texts
    # No translation may change a number; lists of ranks are written with another comma.
    for before, after in zip(texts(diagnosis), texts(chinese), strict=True):
        assert sorted(DIGITS.findall(before)) == sorted(DIGITS.findall(after)), (before, after)


def test_what_nccls_lines_mean_is_said_in_chinese() -> None:
    """The whole table, since no recording shows all of it."""
    say = speaker("zh-CN")
    table = ROOT / "gpuprof" / "data" / "nccl_causes.json"
    said = []
    for rule in json.loads(table.read_text(encoding="utf-8"))["rules"]:
        said += [rule.get(key, "") for key in ("title", "meaning")]
        said += [fix.get(key, "") for fix in rule.get("fixes", ()) for key in ("title", "detail")]
    said = [one for one in said if one]
    assert len(said) > 200
    same = [one for one in said if say(one) == one]
    assert same == []
    for code in XIDS:
        known = meaning(code)
        assert say(known.what) != known.what, known
        assert not known.action or say(known.action) != known.action, known


def test_every_text_of_the_catalogue_is_chinese() -> None:
    """But for names and formats: NCCL, SHA-256, `{line}`."""
    chinese = LANGUAGES["zh-CN"]
    left = {
        key: line
        for key, line in chinese.items()
        if not re.search("[一-鿿]", line) and WORDS.search(FIELD.sub("", line).replace("rank", ""))
    }
    assert left == {}


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
    assert "每步的时间花在哪里" in body and "在等下一批数据" in body


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

    assert "## 优化建议" in to_markdown(sample_diagnosis(), lang="zh-CN")
    before, after = diagnosed(training(6, load_us=4_000)), diagnosed(training(6))
    comparison = compare_runs(before, after, samples_of(before), samples_of(after))
    said = to_text(comparison, lang="zh-CN")
    assert said.startswith("一步少用") and "等待输入数据" in said
    assert len(ENGLISH_WORDS.findall(said)) <= 6, said


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("See what process 102 does", "查看进程 102 在做什么"),
        ("See what rank 3 does", "查看 rank 3 在做什么"),
        (
            "Process 102 waits for its device at a.py:3 (f); called from a.py:9 (<module>).",
            "进程 102 在等自己的设备，位于 a.py:3 (f)；由 a.py:9 (<module>) 调用。",
        ),
        (
            "Ranks 0, 1 wait in barrier at a.py:3 (f).",
            "Rank 0、1 在 barrier 中等待，位于 a.py:3 (f)。",
        ),
        (
            "Process 104 did not come to barrier: it is held in a debugger at a.py:3 (f)",
            "进程 104 没有到达 barrier：它被调试器停住，位于 a.py:3 (f)",
        ),
        ("Process 102 did not come to all_reduce", "进程 102 没有到达 all_reduce"),
        (
            "3 of 4 processes joined, 1 did not: rank 3.",
            "4 个进程中有 3 个加入，1 个没有：rank 3。",
        ),
        ("No answer came from 10.0.0.7, port 29500.", "10.0.0.7 的端口 29500 没有应答。"),
        (
            "NCCL warned of something that gpuprof does not know: n.log:3, h:7: “foo bar”",
            "NCCL 给出了 gpuprof 不认识的警告：n.log:3, h:7: “foo bar”",
        ),
        (
            "n.log.gz: the gzip stream is cut off, so its end is missing (and 2 more like it)",
            "n.log.gz：gzip 流被截断，所以缺少结尾（另有 2 个同样如此）",
        ),
        (
            "t.xml is no well-formed XML: syntax error; it is left out",
            "t.xml 不是格式正确的 XML：syntax error；已略去",
        ),
    ],
)
def test_what_is_said_of_logs_and_processes_is_said_in_chinese(english: str, chinese: str) -> None:
    say = translator("zh-CN")
    assert say is not None
    assert say.say(english) == chinese
