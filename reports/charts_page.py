"""`charts.html`: every figure of a diagnosis in one file that opens offline, plotly included.

A page of its own, because plotly sets styles that the report's policy forbids. The policy here
names the two scripts by hash and allows inline styles; no network either.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from gpuprof.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.reports import text
from gpuprof.reports.figures import figures
from gpuprof.reports.html import safe_json, source_hash
from gpuprof.reports.words import catalog, localized
from gpuprof.samples import Samples

SHOW = """'use strict';
const dark = matchMedia('(prefers-color-scheme: dark)');
const options = {displaylogo: false, responsive: true};
for (const block of document.querySelectorAll('script[type="application/json"]')) {
  const figure = JSON.parse(block.textContent);
  const place = document.getElementById(`chart-${block.dataset.name}`);
  const colour = () => ({'font.color': getComputedStyle(document.body).color});
  figure.layout.font = {color: colour()['font.color']};
  Plotly.newPlot(place, figure.data, figure.layout, options);
  dark.addEventListener('change', () => Plotly.relayout(place, colour()));
}
document.documentElement.dataset.charts = 'ready';
"""

CSS = """:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 32px 64px; background: #ffffff;
  color: #1b1d21; font: 15px/1.6 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { body { background: #14161a; color: #e6e8eb; } }
section { margin-top: 28px; }
"""


def write_charts(
    diagnosis: Diagnosis,
    path: str | os.PathLike[str],
    *,
    samples: Sequence[Samples] = (),
    lang: str = "en",
) -> Path:
    """Writes the figures, replacing the file only when the new one is whole; 5 MB are plotly's.

    Raises:
        GpuprofError: the file cannot be written, or the language is unknown.
    """
    from plotly.offline import get_plotlyjs

    words = catalog(lang)
    made = figures(diagnosis, samples, lang=lang)
    diagnosis = localized(diagnosis, lang)
    library = get_plotlyjs()
    policy = (
        f"default-src 'none'; script-src {source_hash(library)} {source_hash(SHOW)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(text.clean(diagnosis.headline, 240) or words.say("untitled"))
    parts = [
        f'<!doctype html>\n<html lang="{words.language}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · gpuprof</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{title}</h1>\n"
    ]
    for name, figure in made.items():
        label = html.escape(str(figure.layout.title.text or name))
        parts.append(
            f'<section aria-label="{label}"><div id="chart-{name}"></div></section>\n'
            f'<script type="application/json" data-name="{name}">'
            f"{safe_json(figure.to_json())}</script>\n"
        )
    if not made:
        parts.append(f"<p>{html.escape(words.say('chart.none'))}</p>\n")
    parts.append(
        f"</main>\n<script>{library}</script>\n<script>{SHOW}</script>\n</body>\n</html>\n"
    )
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x", encoding="utf-8", errors="replace") as file:
                file.writelines(parts)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise GpuprofError(
            f"cannot write the charts {target}: {error.strerror or error}",
            hint="choose another place with --out",
        ) from error
    return target
