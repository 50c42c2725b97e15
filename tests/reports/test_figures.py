"""Figures hold the diagnosis' own numbers, and names in them are text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fixtures.diagnoses import T0_NS, hostile_diagnosis, sample_diagnosis
from fixtures.samples import run_samples
from gpuprof.diagnosis import from_json, to_json
from gpuprof.errors import GpuprofError
from gpuprof.reports.charts_page import write_charts
from gpuprof.reports.figures import figures

SAMPLES = (run_samples(3, T0_NS - 12 * 10**9),)


def test_a_diagnosis_draws_all_that_it_has() -> None:
    made = sample_diagnosis(3).with_samples(SAMPLES).figures()
    assert list(made) == [
        "budget", "findings", "resources", "steps", "ranks", "kernels", "roofline",
        "util", "power", "clock", "memory",
    ]  # fmt: skip
    assert "util" not in sample_diagnosis(3).figures()


def test_the_numbers_are_those_of_the_diagnosis() -> None:
    diagnosis = sample_diagnosis(3)
    made = figures(diagnosis, SAMPLES)
    assert sum(made["budget"].data[0].x) == pytest.approx(100, abs=0.01)
    gains = [f.gain.reduction for f in diagnosis.findings if f.gain is not None]
    assert [x / 100 for x in made["findings"].data[0].x] == pytest.approx(gains)
    assert [list(line.y) for line in made["steps"].data] == [
        list(r.step_ms) for r in diagnosis.ranks
    ]
    assert list(made["kernels"].data[0].x) == [row.total_ms for row in diagnosis.kernels]
    power = made["power"].data[0]
    assert max(y for y in power.y if y is not None) == pytest.approx(594)
    assert None in power.y, "a hole in the reads is no line"


def test_samples_are_no_part_of_the_answer() -> None:
    plain = sample_diagnosis()
    carried = plain.with_samples(SAMPLES)
    assert to_json(carried) == to_json(plain)
    assert from_json(to_json(carried)) == plain == carried


def test_names_are_escaped_for_plotly_and_for_the_page(tmp_path: Path) -> None:
    diagnosis = hostile_diagnosis(world_size=3)
    made = figures(diagnosis, SAMPLES)
    for name in ("kernels", "findings"):
        document = json.dumps(made[name].to_plotly_json()["data"], default=list)
        assert "<img" not in document and "<script" not in document
    page = write_charts(diagnosis, tmp_path / "charts.html").read_text(encoding="utf-8")
    body = page[page.index("<main>") : page.index("</main>")]
    assert "<img" not in body and "<svg" not in body and "alert(1)</script>" not in body


def test_a_notebook_shows_the_verdict_without_script_or_style() -> None:
    shown = sample_diagnosis(3)._repr_html_()
    assert "The GPU waits for data" in shown and "<svg" in shown
    hostile = hostile_diagnosis()._repr_html_()
    for bad in ("<script", "<img", "<style", "style=", "<svg onload"):
        assert bad not in hostile


def test_charts_that_cant_be_written_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuprofError, match="cannot write the charts"):
        write_charts(sample_diagnosis(), tmp_path / "file" / "charts.html")


def test_charts_open_offline_and_quietly(browser: Any, tmp_path: Path) -> None:
    path = write_charts(hostile_diagnosis(world_size=3), tmp_path / "charts.html", samples=SAMPLES)
    with browser.open(path, settled="!!document.documentElement.dataset.charts") as page:
        assert page.eval("document.querySelectorAll('.main-svg').length") >= 11
        assert page.problems == []
        assert [r for r in page.requests if not r.startswith("data:")] == [path.resolve().as_uri()]


def test_charts_follow_the_theme_the_width_and_the_paper(browser: Any, tmp_path: Path) -> None:
    path = write_charts(sample_diagnosis(3), tmp_path / "charts.html", samples=SAMPLES)
    label = "getComputedStyle(document.querySelector('#chart-budget .xtick text')).fill"
    bar = "document.querySelector('#chart-findings .point path').style.fill"
    options = {"width": 390, "height": 844, "settled": "!!document.documentElement.dataset.charts"}
    with browser.open(path, dark=True, **options) as page:
        assert page.eval("document.documentElement.scrollWidth <= innerWidth")
        assert page.eval(label) == "rgb(230, 232, 235)"
        assert page.eval(bar) == "rgb(111, 211, 164)"
        # What is written in a figure ends inside of it, also the amounts behind the bars.
        cut = """[...document.querySelectorAll('.main-svg text')].filter((one) => {
          const [inner, outer] = [one, one.closest('section')]
            .map((e) => e.getBoundingClientRect());
          return inner.right > outer.right + 1 || inner.left < outer.left - 1; })
          .map((one) => one.textContent)"""
        assert page.eval(cut) == []
        page.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "light"}])  # fmt: skip
        page.wait(f"{label} === 'rgb(27, 29, 33)'")
        assert page.eval(bar) == "rgb(11, 107, 67)"
        page.call("Emulation.setDeviceMetricsOverride",
                  width=1000, height=800, deviceScaleFactor=1, mobile=False)  # fmt: skip
        page.wait("document.querySelector('#chart-budget .main-svg').clientWidth > 800")
        page.eval("dispatchEvent(new Event('beforeprint'))")
        page.wait("document.querySelector('#chart-budget .main-svg').clientWidth === 680")
        assert page.problems == []


def test_an_empty_diagnosis_has_no_figures(tmp_path: Path) -> None:
    sample = sample_diagnosis()
    bound = msgspec.structs.replace(sample.bound, reductions={})
    empty = msgspec.structs.replace(
        sample, budget={}, findings=(), ranks=(), kernels=(), bound=bound
    )
    assert figures(empty) == {}
    assert "nothing to draw" in write_charts(empty, tmp_path / "c.html").read_text(encoding="utf-8")
