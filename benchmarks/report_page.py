"""The report in a real browser: size, speed, accessibility, screenshots.

    python benchmarks/report_page.py speed TRACE [--events 1000000] [--ranks 1] [--max-mb 8]
    python benchmarks/report_page.py axe REPORT.html... --axe node_modules/axe-core/axe.min.js
    python benchmarks/report_page.py shots OUT_FOLDER TRACE_OR_FOLDER...

`speed` enlarges a trace with noise to so many complete events on so many ranks, diagnoses it, opens
the report several times and tells medians: first content, timeline ready (both from
the start of navigation, both as the page itself measures them), and the frames of a script that
zooms and pans, beside those of an empty page that animates on the same machine. A machine without a
GPU paints in software, so frames are to be read as a ratio to the empty page's.

`axe` needs axe-core (npm install axe-core in a folder of its own); it runs over every report in the
light and the dark theme, wide and narrow, with everything unfolded. It ends with status 1 where a
violation is serious or critical.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fixtures.browser import Browser, Page, program

FRAMES = """new Promise((done) => {
  const gaps = []; const work = []; let spent = 0; let last = 0; let left = %d; let turn = 0;
  const plain = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) => plain((now) => {
    const begun = performance.now(); draw(now); spent += performance.now() - begun; });
  const step = (now) => {
    if (last) { gaps.push(now - last); work.push(spent); }
    last = now; spent = 0;
    if (left-- <= 0) { window.requestAnimationFrame = plain; done([gaps, work]); return; }
    (%s)(turn++);
    plain(step);
  };
  plain(step);
})"""
"""Times between frames while a script does something in each, and what the page's own drawing took
of each."""

MOVE = """(turn) => {
  const key = ['w', 'w', 'd', 'd', 's', 'a', 'w', 's'][Math.floor(turn / 8) % 8];
  document.getElementById('gp-canvas').dispatchEvent(
    new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
}"""

STILL = "(turn) => { document.body.firstChild.style.opacity = turn % 2 ? 1 : 0.9; }"
EMPTY = "<!doctype html><title>empty</title><body><p>.</p>"
COUNT = 240


@contextmanager
def browser() -> Iterator[Browser]:
    found = program()
    if found is None:
        raise SystemExit("no Chromium on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = Browser(found, Path(profile))
        try:
            yield running
        finally:
            running.close()


def p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def frames(page: Page, what: str) -> tuple[list[float], list[float]]:
    """Milliseconds between frames, and those that drawing took."""
    gaps, work = page.eval(FRAMES % (COUNT, what))
    return [float(gap) for gap in gaps], [float(one) for one in work]


def speed(path: str, events: int, ranks: int, max_mb: float, runs: int) -> None:
    from benchmarks.enlarged_trace import enlarge
    from gpuprof.analyzers.diagnose import Recorded, diagnose
    from gpuprof.readers.kineto import read_trace
    from gpuprof.reports.html import write_html

    small = read_trace(Path(path))
    traces = tuple(
        enlarge(small, events // ranks, rank=rank, world_size=ranks) for rank in range(ranks)
    )

    with tempfile.TemporaryDirectory() as folder:
        report, empty = Path(folder, "report.html"), Path(folder, "empty.html")
        empty.write_text(EMPTY, encoding="utf-8")
        begun = time.perf_counter()
        diagnosis, view = diagnose(Recorded(traces), "benchmark")
        analyzed = time.perf_counter()
        assert view is not None
        summary = write_html(
            diagnosis, traces, report, max_bytes=int(max_mb * 1e6), accounts=view.ranks
        )
        written = time.perf_counter()
        print(f"{ranks} ranks, {summary.events:,} events, {summary.drawn:,} drawn")
        print(f"analyzed in {analyzed - begun:.1f} s, written in {written - analyzed:.1f} s")
        print(f"file {summary.size_bytes / 1e6:.2f} MB (limit {max_mb:g} MB)")
        rows = []
        for _ in range(runs):
            with browser() as chromium:  # a new one each time: nothing is warm
                with chromium.open(report) as page:
                    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
                    told = page.eval("""JSON.stringify({
                      paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
                      ready: performance.getEntriesByName('gp-ready')[0]?.startTime})""")
                    times = json.loads(told)
                    page.eval("document.getElementById('gp-canvas').focus()")
                    page.eval("document.getElementById('gp-all').click()")
                    moving, drawing = frames(page, MOVE)
                    assert page.problems == [], page.problems
                with chromium.open(empty, settled="true") as page:
                    still, _ = frames(page, STILL)
                medians = statistics.median(moving), statistics.median(still)
                rows.append(
                    (
                        times["paint"],
                        times["ready"],
                        p95(moving),
                        p95(still),
                        *medians,
                        p95(drawing),
                    )
                )
        names = ("first content ms", "timeline ready ms", "frame p95 ms", "empty page's p95 ms",
                 "frame p50 ms", "empty page's p50 ms", "drawing p95 ms")  # fmt: skip
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            known = [float(value) for value in values]
            print(f"{name:22} median {statistics.median(known):8.1f}   of {len(known)}:"
                  f" {min(known):.1f} to {max(known):.1f}")  # fmt: skip
        ratios = [row[2] / row[3] for row in rows]
        print(f"{'frame p95 ratio':22} median {statistics.median(ratios):8.2f}")


def axe(reports: list[Path], library: Path) -> int:
    source = library.read_text(encoding="utf-8")
    bad = 0
    with browser() as chromium:
        for report in reports:
            for dark in (False, True):
                for width in (1280, 390):
                    with chromium.open(report, dark=dark, width=width) as page:
                        page.eval("document.querySelectorAll('details').forEach((d) => "
                                  "{ d.open = true; })")  # fmt: skip
                        page.eval("document.getElementById('gp-sum-view')?.click()")
                        page.eval(f"{source}\n0")
                        told = page.eval("""axe.run(document, {resultTypes: ['violations']}).then(
                          (r) => JSON.stringify(r.violations.map((v) => ({id: v.id,
                            impact: v.impact, nodes: v.nodes.length,
                            first: v.nodes[0].html.slice(0, 160) + ' | ' +
                              (v.nodes[0].any[0]?.message || '')}))))""")
                        theme = "dark" if dark else "light"
                        found = json.loads(told)
                        print(f"{report.name} {theme} {width} px: {len(found)} violations")
                        for violation in found:
                            print(f"  {violation}")
                            bad += violation["impact"] in ("serious", "critical")
    return 1 if bad else 0


def shots(folder: Path, paths: list[str]) -> None:
    from gpuprof.api import analyze_paths, write_page

    folder.mkdir(parents=True, exist_ok=True)
    analysis = analyze_paths(*paths)
    with browser() as chromium:
        for lang in ("en", "zh-CN"):
            report = write_page(analysis, folder / f"report-{lang}.html", lang=lang)
            for name, more in {
                "light": {},
                "dark": {"dark": True},
                "narrow": {"width": 390, "height": 844},
                "no-script": {"script": False},
            }.items():
                with chromium.open(report, **more) as page:
                    page.screenshot(folder / f"{lang}-{name}.png")
            with chromium.open(report) as page:
                printed = page.call("Page.printToPDF", printBackground=True)
                (folder / f"{lang}-print.pdf").write_bytes(b64decode(printed["data"]))
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("speed")
    one.add_argument("trace")
    one.add_argument("--events", type=int, default=1_000_000)
    one.add_argument("--ranks", type=int, default=1)
    one.add_argument("--max-mb", type=float, default=8)
    one.add_argument("--runs", type=int, default=5)
    one = commands.add_parser("axe")
    one.add_argument("reports", nargs="+", type=Path)
    one.add_argument("--axe", type=Path, required=True)
    one = commands.add_parser("shots")
    one.add_argument("folder", type=Path)
    one.add_argument("paths", nargs="+")
    options = parser.parse_args()
    if options.command == "speed":
        speed(options.trace, options.events, options.ranks, options.max_mb, options.runs)
    elif options.command == "axe":
        sys.exit(axe(options.reports, options.axe))
    else:
        shots(options.folder, options.paths)


if __name__ == "__main__":
    main()
