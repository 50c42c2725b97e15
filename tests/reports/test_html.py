"""The page is complete without script, inert whatever the names say, and keeps its byte budget."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fixtures.diagnoses import (
    HOSTILE,
    T0_NS,
    hostile_diagnosis,
    hostile_traces,
    make_trace,
    sample_diagnosis,
    sample_trace,
    sample_traces,
)
from fixtures.injections import INJECTIONS
from fixtures.samples import hostile_samples
from gpuprof.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.reports import page
from gpuprof.reports.html import safe_json, write_html
from gpuprof.trace import Category, Lane, Trace

VOID = {"meta", "input", "br", "img", "link", "rect", "path", "line"}


class Elements(HTMLParser):
    """Elements with their attributes, text outside of scripts, and contents of raw elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.raw: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.raw.append((self.open[-1], data))
        else:
            self.text.append(data)


def written(
    tmp_path: Path, diagnosis: Diagnosis, traces: tuple[Trace, ...], **how: int
) -> tuple[str, Elements]:
    path = tmp_path / "report.html"
    write_html(diagnosis, traces, path, **how)
    source = path.read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(source)
    elements.close()
    assert not elements.open, "an element is not closed"
    return source, elements


def tags(elements: Elements) -> list[str]:
    return [tag for tag, _ in elements.elements]


def test_hostile_text_adds_no_element_and_no_attribute(tmp_path: Path) -> None:
    _, plain = written(tmp_path, sample_diagnosis(2), (sample_trace(steps=2, kernels=20),))
    source, hostile = written(tmp_path, hostile_diagnosis(world_size=2), hostile_traces())
    # Names with and without a poison differ in one way: all are longer than their short form now.
    without_names = [t for t in tags(hostile) if t not in ("details", "summary", "code")]
    assert without_names == [t for t in tags(plain) if t not in ("details", "summary", "code")]
    assert tags(hostile).count("script") == 3
    assert tags(hostile).count("img") == 0
    for tag, attributes in hostile.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        assert "style" not in attributes, tag
        assert not (attributes.get("href") or "#").lower().startswith(("javascript", "http")), tag
        assert not (attributes.get("src") or ""), tag
    shown = "".join(hostile.text)
    assert "{{7*7}}${7*7}" in shown, "a template expression in a name is not evaluated"
    assert "<img src=x onerror=alert(2)>" in shown, "it is shown, not dropped"
    assert "\x1b" not in source
    assert "\x00" not in source


def injected(folder: Path, text: str) -> Elements:
    """The page with a text in every free text of the diagnosis and every name of what was read."""
    path = folder / "report.html"
    diagnosis, traces = hostile_diagnosis(text, 2), hostile_traces(text)
    write_html(diagnosis, traces, path, samples=[hostile_samples(text)])
    found = Elements()
    found.feed(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def inert(tmp_path_factory: pytest.TempPathFactory) -> Elements:
    return injected(tmp_path_factory.mktemp("inert"), "x")


@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
def test_no_injection_makes_an_element(tmp_path: Path, inert: Elements, text: str) -> None:
    found = injected(tmp_path, text)
    folded = {"details", "summary", "code"}  # long names are folded, whatever is in them
    shown = [[tag for tag in tags(one) if tag not in folded] for one in (found, inert)]
    assert shown[0] == shown[1]
    assert {name for _, one in found.elements for name in one} == {
        name for _, one in inert.elements for name in one
    }


def test_data_blocks_hold_no_character_that_html_reads(tmp_path: Path) -> None:
    source, _ = written(tmp_path, hostile_diagnosis(), hostile_traces())
    meta = re.search(r'id="gp-meta">(.*?)</script>', source, re.DOTALL)
    assert meta is not None
    assert not set(meta[1]) & set("<>&\u2028\u2029")
    assert "alert(1)" in json.dumps(json.loads(meta[1])["names"])


def test_safe_json_reads_back_the_same() -> None:
    document = json.dumps({"a": HOSTILE}, ensure_ascii=False)
    assert json.loads(safe_json(document)) == {"a": HOSTILE}
    assert "<" not in safe_json(document)


def test_the_policy_allows_this_script_and_this_style_only(tmp_path: Path) -> None:
    _, elements = written(tmp_path, sample_diagnosis(), sample_traces())
    policy = next(
        a["content"]
        for tag, a in elements.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None

    def digest(source: str) -> str:
        return "sha256-" + b64encode(hashlib.sha256(source.encode()).digest()).decode()

    style = next(data for tag, data in elements.raw if tag == "style")
    script = [data for tag, data in elements.raw if tag == "script"][-1]
    assert policy == (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    first_script = next(i for i, (tag, _) in enumerate(elements.elements) if tag == "script")
    assert all(a.get("http-equiv") is None for _, a in elements.elements[first_script:])


def test_no_script_writes_markup() -> None:
    from gpuprof.reports.html import ASSETS, SCRIPTS

    for name in SCRIPTS:
        source = (ASSETS / name).read_text(encoding="utf-8")
        for forbidden in ("innerHTML", "outerHTML", "document.write", "eval(", "fetch(", "XMLHttp"):
            assert forbidden not in source, name


def test_the_static_page_holds_the_whole_diagnosis(tmp_path: Path) -> None:
    sample = sample_diagnosis(4)
    _, elements = written(tmp_path, sample, sample_traces(4))
    shown = " ".join("".join(elements.text).split())
    wanted = [sample.headline, sample.bound.why, *sample.warnings, "not a sum", "100.0 %"]
    for finding in sample.findings:
        wanted += [finding.title, *(item.text for item in finding.evidence)]
        wanted += [place.code for place in finding.where]
        for fix in finding.fixes:
            wanted += [fix.title, fix.detail, fix.cost, " ".join(fix.code.split())]
        if finding.gain:
            wanted.append(finding.gain.how)
    wanted += [item.why for item in sample.ruled_out]
    for missing in sample.not_judged:
        wanted += [missing.missing, missing.command.replace("`", "")]
    wanted += [part for file in sample.files for part in (file.path, file.sha256, *file.notes)]
    wanted += [row.name for row in sample.kernels]
    wanted += ["Rank 3 late", "The interactive timeline needs JavaScript"]
    for part in wanted:
        assert " ".join(part.split()) in shown, part


def test_dead_controls_are_hidden_without_script(tmp_path: Path) -> None:
    _, elements = written(tmp_path, sample_diagnosis(), sample_traces())
    for tag, attributes in elements.elements:
        identity = attributes.get("id")
        if identity in ("gp-timeline", "gp-theme", "gp-intro") or attributes.get("class") == "goto":
            assert "hidden" in attributes, (tag, identity)
        if identity == "gp-static":
            assert "hidden" not in attributes


def test_the_first_finding_is_open_and_buttons_name_known_windows(tmp_path: Path) -> None:
    source, elements = written(tmp_path, sample_diagnosis(), sample_traces())
    findings = [
        a
        for tag, a in elements.elements
        if tag == "details" and (a.get("id") or "").startswith("f")
    ]
    assert ["open" in attributes for attributes in findings] == [True, False]
    match = re.search(r'id="gp-meta">(.*?)</script>', source, re.DOTALL)
    assert match is not None
    windows = json.loads(match[1])["windows"]
    buttons = [int(a["data-window"] or -1) for _, a in elements.elements if "data-window" in a]
    assert sorted(buttons) == list(range(len(windows)))


@pytest.mark.parametrize("limit", [140_000, 200_000])
def test_the_file_stays_under_its_byte_budget(tmp_path: Path, limit: int) -> None:
    rng = np.random.default_rng(5)
    at = T0_NS + np.cumsum(rng.integers(1_000, 90_000, 40_000))
    length = rng.integers(500, 60_000, 40_000)
    lane = Lane(pid=0, tid=7, device=0, stream=7, name="stream 7")
    rows = [
        (int(start), int(ns), Category.KERNEL, f"kernel_{ns % 97}", 0, 0)
        for start, ns in zip(at, length, strict=True)
    ]
    path = tmp_path / "report.html"
    summary = write_html(sample_diagnosis(), (make_trace(rows, [lane]),), path, max_bytes=limit)
    assert summary.size_bytes == path.stat().st_size <= limit
    assert 0 < summary.drawn < summary.events == 40_000
    assert any("merged" in note for note in summary.notes)
    assert "merged into blocks" in path.read_text(encoding="utf-8")


def test_a_budget_too_small_for_a_timeline_leaves_the_static_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    summary = write_html(sample_diagnosis(), sample_traces(), path, max_bytes=1_000)
    assert summary.drawn == 0
    assert any("left out" in note for note in summary.notes)
    source = path.read_text(encoding="utf-8")
    assert 'gp-events">' not in source
    assert "left out" in source


def test_endless_texts_are_cut_and_the_timeline_stays(tmp_path: Path) -> None:
    endless = msgspec.structs.replace(
        sample_diagnosis(),
        headline="A" * 1_000_000,
        warnings=tuple("w" * 10_000 for _ in range(500)),
    )
    summary = write_html(endless, sample_traces(), tmp_path / "r.html", max_bytes=1_000_000)
    assert summary.drawn > 4_000
    assert summary.size_bytes < 500_000


def test_no_traces_and_an_empty_diagnosis_make_a_page(tmp_path: Path) -> None:
    sample = sample_diagnosis()
    steps = msgspec.structs.replace(sample.run.steps, count=0, median_ms=None, source="none")
    bare = msgspec.structs.replace(
        sample,
        headline="",
        budget={},
        findings=(),
        ruled_out=(),
        not_judged=(),
        warnings=(),
        together=None,
        ranks=(),
        kernels=(),
        files=(),
        facts={},
        run=msgspec.structs.replace(sample.run, steps=steps, devices=()),
        replay=msgspec.structs.replace(
            sample.replay, measured_ms=None, replayed_ms=None, error=None, trusted=False
        ),
    )
    _, elements = written(tmp_path, bare, ())
    shown = "".join(elements.text)
    assert "does not allow an account of the step" in shown
    assert "There are no events to draw" in shown


def test_many_ranks_fold_away_behind_the_late_ones(tmp_path: Path) -> None:
    sample = sample_diagnosis(40)
    source, elements = written(tmp_path, sample, ())
    assert source.index("Rank 39") < source.index("Rank 0")
    shown = "".join(elements.text)
    assert "28 more ranks" in shown
    assert "28 more files" in shown
    assert all(f"Rank {rank}" in shown for rank in range(40))


def test_untrusted_replay_says_why_no_gain_is_quoted(tmp_path: Path) -> None:
    sample = sample_diagnosis()
    findings = tuple(msgspec.structs.replace(f, gain=None) for f in sample.findings)
    untrusted = msgspec.structs.replace(
        sample,
        findings=findings,
        together=None,
        replay=msgspec.structs.replace(sample.replay, error=0.071, trusted=False),
    )
    _, elements = written(tmp_path, untrusted, sample_traces())
    assert "misses the measured step by 7.1" in "".join(elements.text)


def test_of_a_job_that_stands_no_time_is_told(tmp_path: Path) -> None:
    """Nothing was measured: a busy share of 0 % would be a lie, an order of gains has no gains."""
    sample = sample_diagnosis()
    hang = msgspec.structs.replace(sample.findings[0], cause="hang", gain=None, share=0.0)
    steps = msgspec.structs.replace(sample.run.steps, count=0, median_ms=None, mean_ms=None)
    lacking = [
        msgspec.structs.replace(sample.not_judged[0], cause=cause, missing="a trace", command="")
        for cause in ("dataloader", "memcpy")
    ]
    diagnosis = msgspec.structs.replace(
        sample,
        budget={"unknown": 1.0},
        findings=(hang,),
        together=None,
        ranks=(),
        kernels=(),
        not_judged=tuple(lacking),
        run=msgspec.structs.replace(sample.run, steps=steps),
    )
    path = tmp_path / "report.html"
    write_html(diagnosis, [], path)
    page_text = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.S)
    for absent in ("Device busy", "Idle, not explained", "Most gain first", "No gain is quoted",
                   "no gain quoted", "priced gain", "Bound by", "no events to draw"):  # fmt: skip
        assert absent not in page_text, absent
    assert "Data loading, Memory copies" in page_text


def test_an_old_report_survives_a_failed_write(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.mkdir()
    with pytest.raises(GpuprofError, match="cannot write the report"):
        write_html(sample_diagnosis(), sample_traces(), target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_the_size_estimate_is_on_the_large_side(tmp_path: Path) -> None:
    for ranks in (1, 8):
        sample, traces = sample_diagnosis(ranks), sample_traces(ranks)
        summary = write_html(sample, traces, tmp_path / "r.html", max_bytes=1_000)
        scripts = 45_000  # script and style, counted apart
        assert summary.size_bytes < page.size_estimate(sample, traces) + scripts
