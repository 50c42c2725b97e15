"""Names, paths and logs are text in every form that gpuprof writes: the corpus, form by form.

The page itself is in `test_html.py` (no element) and `test_browser.py` (nothing runs).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fixtures.diagnoses import hostile_diagnosis, hostile_traces
from fixtures.injections import INJECTIONS
from fixtures.samples import hostile_samples
from gpuprof.analyzers.gate import check_run
from gpuprof.reports.charts_page import write_charts
from gpuprof.reports.gate import to_markdown as gate_markdown
from gpuprof.reports.html import write_html
from gpuprof.reports.junit import to_junit
from gpuprof.reports.markdown import to_markdown
from gpuprof.reports.notebook import to_html
from gpuprof.reports.sarif import to_sarif
from gpuprof.reports.terminal import render

ids = [str(number) for number in range(len(INJECTIONS))]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize("text", INJECTIONS, ids=ids)
def test_a_terminal_gets_no_escape_sequence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    render(hostile_diagnosis(text, 2), Console(width=90, no_color=True, force_terminal=False))
    assert not CONTROL.search(capsys.readouterr().out)


@pytest.mark.parametrize("text", INJECTIONS, ids=ids)
def test_markdown_gets_no_html_no_link_and_no_heading(text: str) -> None:
    bad, plain = to_markdown(hostile_diagnosis(text)), to_markdown(hostile_diagnosis("x"))

    def headings(document: str) -> list[str]:
        outside = re.sub(r"^\s*(`{3,}).*?^\s*\1$", "", document, flags=re.M | re.S)
        return re.findall(r"^#+ ", outside, re.M)

    assert headings(bad) == headings(plain)
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", bad, flags=re.S)
    assert not re.search(r"(?<!\\)<\w", outside)
    assert not re.search(r"(?<!\\)\]\(", outside)
    assert not CONTROL.search(bad)


@pytest.mark.parametrize("text", INJECTIONS, ids=ids)
def test_machine_formats_stay_whole(text: str) -> None:
    diagnosis = hostile_diagnosis(text)
    checks = check_run(diagnosis, {"dataloader": 0.01, "checkpoint": 0.1}, None, 0.0)
    ElementTree.fromstring(to_junit(checks))
    document = json.loads(to_sarif(diagnosis, checks, root=Path("/work")))
    for result in document["runs"][0]["results"]:
        for place in result.get("locations", ()):
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*", uri)
            assert not uri.lower().startswith(("javascript:", "data:"))
    assert "\n# " not in gate_markdown(checks, strict=True)[2:]


@pytest.mark.parametrize("text", INJECTIONS, ids=ids)
def test_a_notebook_gets_no_element_of_it(text: str) -> None:
    def tags(document: str) -> list[str]:
        return re.findall(r"<(\w+)", document)

    assert tags(to_html(hostile_diagnosis(text))) == tags(to_html(hostile_diagnosis("x")))


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_nothing_of_the_corpus_runs_in_a_browser(browser: Any, tmp_path: Path, lang: str) -> None:
    """All of it in every text of the page and of the charts, unfolded and walked through."""
    together = " ".join(text[:120] for text in INJECTIONS)[:1_900]
    path = tmp_path / "report.html"
    write_html(
        hostile_diagnosis(together, 2), hostile_traces(together), path, lang=lang,
        samples=[hostile_samples(together)],
    )  # fmt: skip
    with browser.open(path) as page:
        page.eval("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.eval("document.getElementById('gp-sum-view').click()")
        page.eval("for (const button of document.querySelectorAll('.goto')) button.click()")
        page.eval("new Promise((done) => setTimeout(done, 100))")
        assert page.problems == [] and page.requests == [path.resolve().as_uri()]
    charts = write_charts(
        hostile_diagnosis(together, 2), tmp_path / "charts.html",
        samples=[hostile_samples(together)], lang=lang,
    )  # fmt: skip
    with browser.open(charts, settled="!!document.documentElement.dataset.charts") as page:
        assert page.problems == []
        assert all(
            request.startswith("data:") or request == charts.resolve().as_uri()
            for request in page.requests
        )
