"""The page in a real browser: quiet, inert, usable by keyboard, readable without script."""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fixtures.diagnoses import (
    T0_NS,
    hostile_diagnosis,
    hostile_traces,
    sample_diagnosis,
    sample_traces,
)
from fixtures.runs import Job, diagnosed, training, view
from fixtures.samples import run_samples
from gpuprof.reports.html import write_html

if TYPE_CHECKING:
    from typing import Any

KEY = """((key, more = {}) => document.getElementById('gp-canvas').dispatchEvent(
  new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true, ...more})))"""
DETAIL = "document.getElementById('gp-detail').textContent"
# Colour of a canvas pixel at (x, y) in CSS pixels.
PIXEL = """((x, y) => { const c = document.getElementById('gp-canvas');
  const k = c.width / c.clientWidth;
  return [...c.getContext('2d').getImageData(x * k, y * k, 1, 1).data].slice(0, 3).join(); })"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(sample_diagnosis(3), sample_traces(3), path)
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_html(hostile_diagnosis(), hostile_traces(), path)
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_hostile_names_do_nothing(browser: Any, hostile: Path, dark: bool) -> None:
    with browser.open(hostile, dark=dark) as page:
        page.eval("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.eval("document.getElementById('gp-theme').click()")
        for _ in range(6):
            page.eval(f"{KEY}('ArrowRight'); {KEY}('ArrowDown')")
        assert "<img src=x onerror=alert(2)>" in page.eval(DETAIL)
        page.eval("document.querySelector('.goto').click()")
        page.eval("new Promise((done) => setTimeout(done, 200))")
        assert page.problems == []
        assert page.requests == [hostile.resolve().as_uri()]
        assert (
            page.eval("document.querySelectorAll('img, iframe, object, svg[onload]').length") == 0
        )


def test_the_page_makes_one_request_and_logs_nothing(browser: Any, report: Path) -> None:
    with browser.open(report) as page:
        assert page.eval("document.documentElement.dataset.timeline") == "ready"
        assert page.eval("document.getElementById('gp-static').hidden")
        assert page.problems == []
        assert page.requests == [report.resolve().as_uri()]


@pytest.mark.parametrize("width", [390, 800, 1000, 1280])
def test_nothing_scrolls_sideways(browser: Any, report: Path, hostile: Path, width: int) -> None:
    for path in (report, hostile):
        with browser.open(path, width=width, height=844) as page:
            page.eval("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert page.eval("document.documentElement.scrollWidth <= innerWidth")


def test_without_script_the_strip_stands_in_and_no_button_is_dead(
    browser: Any, report: Path
) -> None:
    with browser.open(report, script=False) as page:
        # DevTools still evaluates; only the page's own script is off.
        assert page.eval("document.getElementById('gp-timeline').offsetParent === null")
        assert page.eval("document.querySelectorAll('#gp-static svg').length") == 6
        assert page.eval(
            "[...document.querySelectorAll('button')].every((b) => b.offsetParent === null)"
        )
        assert "num_workers=4" in page.eval("document.body.innerText")
        assert page.problems == []


def test_all_events_are_walked_to_by_keyboard(browser: Any, report: Path) -> None:
    with browser.open(report) as page:
        assert page.eval(f"/[0-9],[0-9]{{3}} events in 15 lanes/.test({DETAIL})")
        page.eval(f"{KEY}('0'); {KEY}('ArrowRight')")
        first = page.eval(DETAIL)
        assert "Rank 0, Stream 7" in first
        page.eval(f"{KEY}('ArrowRight')")
        assert page.eval(DETAIL) != first
        page.eval(f"for (let i = 0; i < 2; i++) {KEY}('ArrowDown')")
        assert "Rank 0, thread 8118" in page.eval(DETAIL)
        page.eval(f"{KEY}('f'); {KEY}('w'); {KEY}('d'); {KEY}('PageDown')")
        page.eval(f"{KEY}('Escape')")
        assert "events in 15 lanes" in page.eval(DETAIL)
        assert page.problems == []


def test_search_counts_and_steps_through_every_match(browser: Any, report: Path) -> None:
    with browser.open(report) as page:
        page.eval("""{ const s = document.getElementById('gp-search'); s.value = 'AllReduce';
          s.dispatchEvent(new Event('input', {bubbles: true})); }""")
        found = page.eval("document.getElementById('gp-found').textContent")
        assert found.startswith("18 events, ")
        seen = []
        page.eval(f"{KEY}('0')")
        for _ in range(19):
            page.eval("document.getElementById('gp-next').click()")
            seen.append(page.eval(DETAIL))
        assert all("ncclDevKernel_AllReduce" in text for text in seen)
        assert len(set(seen)) == 18


def test_a_finding_shows_its_window_with_the_ranks_lanes_open(browser: Any, report: Path) -> None:
    with browser.open(report) as page:
        page.eval("document.querySelector('.goto').click()")
        assert page.eval("document.activeElement.id") == "gp-canvas"
        page.eval(f"{KEY}('ArrowRight')")
        start = page.eval(DETAIL)
        assert "starts 2" in start or "starts 3" in start  # step 2 begins at 350 ms


def test_every_pixel_of_a_covered_row_is_filled_at_full_zoom_out(
    browser: Any, tmp_path: Path
) -> None:
    """A long event that starts in the pixel of a short one must not vanish with it."""
    path = tmp_path / "report.html"
    write_html(sample_diagnosis(), sample_traces(), path)
    with browser.open(path) as page:
        page.eval(f"{KEY}('0')")
        page.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        colours = page.eval(f"""(() => {{
          const seen = {{}};
          for (let x = 200; x < document.getElementById('gp-canvas').clientWidth - 8; x += 7) {{
            const c = {PIXEL}(x, 26 + 2 * 24 + 1); // top edge of the first thread's first row
            seen[c] = (seen[c] || 0) + 1;
          }}
          return seen; }})()""")
        annotation = colours.get("92,91,0", 0)
        assert annotation >= 0.9 * sum(colours.values()), colours


def test_the_theme_button_repaints_page_and_canvas(browser: Any, report: Path) -> None:
    with browser.open(report) as page:
        settle = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        assert page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        light = page.eval(f"{PIXEL}(5, 5)")
        page.eval("document.getElementById('gp-theme').click()")
        page.eval(settle)
        assert page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
        assert page.eval(f"{PIXEL}(5, 5)") != light


def test_damaged_timeline_data_leaves_the_static_page(browser: Any, report: Path) -> None:
    source = report.read_text(encoding="utf-8")
    at = source.index('id="gp-events">') + len('id="gp-events">')
    broken = report.with_name("broken.html")
    broken.write_text(source[:at] + "AAAA" + source[at + 4 :], encoding="utf-8")
    with browser.open(broken) as page:
        assert page.eval("document.documentElement.dataset.timeline") == "failed"
        assert not page.eval("document.getElementById('gp-static').hidden")
        assert page.eval("document.getElementById('gp-timeline').hidden")


def test_printing_opens_every_finding_on_white_and_restores_the_page(
    browser: Any, report: Path
) -> None:
    with browser.open(report, dark=True) as page:
        closed = "document.querySelectorAll('.findings details:not([open])').length"
        assert page.eval(closed) == 1
        page.call("Page.printToPDF", printBackground=True)
        # Drawn at once: no frame comes between this event and the paper.
        assert (
            page.eval(f"dispatchEvent(new Event('beforeprint')); {PIXEL}(5, 40)") == "245,246,248"
        )
        page.call("Emulation.setEmulatedMedia", media="print")
        page.eval("new Promise((done) => setTimeout(done, 100))")
        assert page.eval(closed) == 0
        assert page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.eval("dispatchEvent(new Event('afterprint'))")
        assert page.eval(closed) == 1
        assert page.problems == []


def test_paper_holds_what_is_folded_away_on_the_screen(browser: Any, tmp_path: Path) -> None:
    """All ranks and files are on it, code wraps, and a mangled name takes two lines at most."""
    path = tmp_path / "report.html"
    sample = sample_diagnosis(16)
    long = msgspec.structs.replace(sample.kernels[0], name=f"void f<{'int, ' * 900}int>(long)")
    write_html(msgspec.structs.replace(sample, kernels=(long,)), sample_traces(1), path)
    with browser.open(path, width=640) as page:
        page.eval("dispatchEvent(new Event('beforeprint'))")
        page.call("Emulation.setEmulatedMedia", media="print")
        page.wait("matchMedia('print').matches")
        assert page.eval("document.querySelectorAll('.quiet:not([open])').length") == 0
        assert page.eval("""[...document.querySelectorAll('.ranks li')]
          .filter((li) => li.getClientRects().length).length""") == 16  # fmt: skip
        assert page.eval("document.querySelector('.keys-help').getClientRects().length") == 0
        assert page.eval("""[...document.querySelectorAll('pre')]
          .every((pre) => pre.scrollWidth <= pre.clientWidth)""")  # fmt: skip
        assert page.eval("document.querySelector('.name > code').offsetHeight") < 40
        assert page.eval("document.documentElement.scrollWidth <= innerWidth")


def test_no_table_column_is_squeezed_to_a_letter(browser: Any, report: Path) -> None:
    with browser.open(report, width=1100) as page:
        heights = page.eval(
            "[...document.querySelectorAll('tbody tr')].map((row) => row.offsetHeight)"
        )
        assert max(heights) < 110


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, accounted, that meet in collectives; with their GPUs' samples."""
    jobs = []
    for rank in range(2):
        job = Job(rank=rank, world_size=2)
        job.now += 700 * rank
        jobs.append(training(5, load_us=4_000, collective_us=900, job=job))
    accounts = view(*jobs).ranks
    traces = [account.trace for account in accounts]
    begun = min(int(trace.start_ns[0]) for trace in traces) - 10**9
    path = tmp_path_factory.mktemp("sampled") / "report.html"
    write_html(
        diagnosed(*jobs), traces, path, accounts=accounts, samples=[run_samples(2, begun, 4.0)]
    )
    return path


def test_a_collective_is_joined_with_itself_on_the_other_rank(browser: Any, sampled: Path) -> None:
    with browser.open(sampled) as page:
        page.eval("""{ const s = document.getElementById('gp-search'); s.value = 'AllReduce';
          s.dispatchEvent(new Event('input', {bubbles: true})); }""")
        page.eval(f"{KEY}('0')")
        for _ in range(3):
            page.eval("document.getElementById('gp-next').click()")
        told = page.eval(DETAIL)
        assert "the same collective on 2 ranks; Rank 1 came last, 700" in told
        first = "Rank 0" in told.split("the same")[0]
        page.eval(f"{KEY}('c')")
        assert ("Rank 0" in page.eval(DETAIL).split("the same")[0]) != first
        assert page.problems == []


def test_a_counter_tells_its_value_and_its_mean_over_a_stretch(browser: Any, sampled: Path) -> None:
    with browser.open(sampled) as page:
        page.eval(f"{KEY}('0'); {KEY}('ArrowRight')")
        seen = []
        for _ in range(14):
            page.eval(f"{KEY}('ArrowDown')")
            seen.append(page.eval(DETAIL))
        assert any("Power · " in told and "W from" in told for told in seen)
        page.eval(f"{KEY}('m')")
        summed = page.eval("document.getElementById('gp-sum').innerText")
        assert "Rank 0 · Power" in summed and "ampere_sgemm" in summed
        page.eval(f"{KEY}('Escape')")
        assert page.eval("document.getElementById('gp-sum').hidden")


def test_a_stretch_is_summed_exactly_as_it_was_recorded(browser: Any, tmp_path: Path) -> None:
    """Between two selected events the sum counts what lies inside, and the parts that stick in."""
    [account] = view(training(4, load_us=3_000)).ranks
    path = tmp_path / "report.html"
    write_html(diagnosed(training(4, load_us=3_000)), [account.trace], path, accounts=[account])
    with browser.open(path) as page:
        page.eval("document.getElementById('gp-all').click()")
        page.eval("document.getElementById('gp-sum-view').click()")
        rows = page.eval("""[...document.querySelectorAll('#gp-sum tr')].map((row) =>
          [...row.cells].map((cell) => cell.textContent))""")
        busy = {row[0]: row for row in rows}
        device = account.trace.device.rows
        total_ms = account.trace.dur_ns[device].sum() / 1e6
        assert busy["Stream 7"][1] == f"{len(device)} events"
        assert float(busy["Stream 7"][2].split("\u00a0")[0]) == pytest.approx(total_ms, abs=0.01)


def saved_trace(page: Any) -> dict[str, Any]:
    """What the page's button saves, caught on its way to the file."""
    page.eval("""window.caught = new Promise((done) => {
      URL.createObjectURL = (blob) => { blob.arrayBuffer().then((bytes) => done(
        btoa(String.fromCharCode(...new Uint8Array(bytes))))); return '#'; }; }); 0""")
    page.eval("document.getElementById('gp-save').click()")
    document: dict[str, Any] = json.loads(gzip.decompress(b64decode(page.eval("window.caught"))))
    return document


def test_the_saved_trace_holds_every_event_and_finding(browser: Any, sampled: Path) -> None:
    with browser.open(sampled) as page:
        document = saved_trace(page)
        assert page.requests == [sampled.resolve().as_uri()]
    events = document["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X" and "AllReduce" in e["name"]]
    assert len(kernels) == 10 and {e["pid"] for e in kernels} == {1, 2}
    assert any(e["ph"] == "X" and e["cat"] == "gpuprof" for e in events)
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"Power W", "Utilization %"}


def test_hostile_names_are_text_in_the_saved_trace(browser: Any, hostile: Path) -> None:
    with browser.open(hostile) as page:
        document = saved_trace(page)
    assert any("<img src=x onerror=alert(2)>" in e.get("name", "") for e in document["traceEvents"])


def test_perfetto_is_spoken_to_only_after_the_click_and_only_at_its_own_address(
    browser: Any, sampled: Path
) -> None:
    """The page's half of the handshake; `benchmarks/report_page.py` plays it with Perfetto."""
    with browser.open(sampled) as page:
        page.eval("""window.told = []; window.opened = [];
          window.open = (address) => { window.opened.push(address);
            const postMessage = (what, to) => window.told.push([what, to]);
            return {closed: false, postMessage}; }; 0""")
        assert page.eval("window.opened.length") == 0
        page.eval("document.getElementById('gp-perfetto').click()")
        page.wait("window.told.length > 1")
        assert page.eval("window.opened") == ["https://ui.perfetto.dev"]
        assert page.eval("window.told.every(([what, to]) => what === 'PING'"
                         " && to === 'https://ui.perfetto.dev')")  # fmt: skip
        answer = "dispatchEvent(new MessageEvent('message', {data: 'PONG', origin: '%s'}))"
        page.eval(answer % "https://evil.example")
        assert not page.eval("window.told.some(([what]) => what.perfetto)")
        page.eval(answer % "https://ui.perfetto.dev")
        page.wait("window.told.some(([what]) => what.perfetto)")
        sent = page.eval("""(() => { const [what, to] = window.told.find(([one]) => one.perfetto);
          return [what.perfetto.buffer.byteLength > 100, to]; })()""")
        assert sent == [True, "https://ui.perfetto.dev"]
        assert page.requests == [sampled.resolve().as_uri()] and page.problems == []


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_axe_finds_nothing_serious(browser: Any, tmp_path: Path, lang: str) -> None:
    """With axe-core at GPUPROF_AXE (npm install axe-core); `benchmarks/report_page.py axe` has
    further widths and reports."""
    library = os.environ.get("GPUPROF_AXE", "")
    if not library:
        pytest.skip("GPUPROF_AXE names no axe.min.js")
    path = tmp_path / "report.html"
    begun = T0_NS - 12 * 10**9
    write_html(
        sample_diagnosis(3), sample_traces(3), path, lang=lang, samples=[run_samples(3, begun)]
    )
    source = Path(library).read_text(encoding="utf-8")
    for dark in (False, True):
        with browser.open(path, dark=dark) as page:
            page.eval("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            page.eval("document.getElementById('gp-sum-view').click()")
            page.eval(f"{source}\n0")
            found = page.eval("""axe.run().then((r) => r.violations.map((v) =>
              [v.id, v.impact, v.nodes.length]))""")
            assert [one for one in found if one[1] in ("serious", "critical")] == []


def press(page: Any, key: str, code: int, shift: bool = False) -> None:
    """A key as the browser gets it from a keyboard, not as a script makes it up."""
    more = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
    if key == "Enter":
        more["text"] = "\r"
    page.call("Input.dispatchKeyEvent", type="keyDown", **more)
    page.call("Input.dispatchKeyEvent", type="keyUp", **more)


def test_all_findings_are_read_with_the_keyboard_alone(browser: Any, report: Path) -> None:
    """From the top of the page with Tab and Enter: every finding opens, its window is shown."""
    where = """(() => { const e = document.activeElement; const li = e.closest('.findings > li');
      return [e.tagName, e.className || e.id, li ? [...li.parentNode.children].indexOf(li) : -1,
        e.closest('details') ? e.closest('details').open : null]; })()"""
    with browser.open(report) as page:
        count = page.eval("document.querySelectorAll('.findings > li').length")
        seen, shown = set(), False
        for _ in range(120):
            press(page, "Tab", 9)
            tag, name, finding, is_open = page.eval(where)
            if tag == "SUMMARY" and finding >= 0:
                if not is_open:
                    press(page, "Enter", 13)
                    assert page.eval(where)[3] is True
                seen.add(finding)
                # What has the focus can be seen to have it.
                assert page.eval("getComputedStyle(document.activeElement).outlineStyle") != "none"
            if name == "goto" and not shown:
                press(page, "Enter", 13)
                page.wait("document.activeElement.id === 'gp-canvas'")
                press(page, "ArrowRight", 39)
                assert "starts" in page.eval(DETAIL)
                shown = True
                page.eval("document.querySelectorAll('.goto')[0].focus()")
            if len(seen) == count and shown:
                break
        assert seen == set(range(count)) and shown
        assert page.problems == []
