"""`charts.html`: every figure of a diagnosis in one file that opens offline, plotly included.

A page of its own, because plotly sets styles that the report's policy forbids. The policy here
names the two scripts by hash and allows inline styles; no network either.
"""

from __future__ import annotations

import html
import json
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

DARK = {
    "#275dd2": "#81b9f0",
    "#ee6500": "#e87a4e",
    "#1ea386": "#b0f7db",
    "#c2185b": "#ff7eb0",
    "#8a5200": "#f0b860",
    "#00796b": "#4fc3b0",
    "#5e35b1": "#b39ddb",
    "#b35900": "#f0955a",
    "#7e57c2": "#c3a6f5",
    "#b8bec7": "#5c636d",
    "#0b6b43": "#6fd3a4",
}
"""What the figures' colours for white paper become on a dark page, as in the report."""

SHOW = """'use strict';
const NARROW = 600, LABEL = 22; // px of a figure; characters of a bar's name on a phone
const dark = matchMedia('(prefers-color-scheme: dark)');
const DARK = JSON.parse(document.getElementById('gp-dark').textContent);
const options = {displaylogo: false, responsive: true};
let printing = false;

// Labels are escaped for plotly: cut what is read, not half of an entity.
const entities = {'&lt;': '<', '&gt;': '>', '&quot;': '"', '&#x27;': "'", '&amp;': '&'};
const escapes = {'<': '&lt;', '>': '&gt;', '&': '&amp;'};
function short(label) {
  const read = [...String(label).replace(/&(?:lt|gt|quot|#x27|amp);/g, (one) => entities[one])];
  const kept = read.length > LABEL ? [...read.slice(0, LABEL - 1), '…'] : read;
  return kept.join('').replace(/[<>&]/g, (one) => escapes[one]);
}
const tint = (colour) => Array.isArray(colour) ? colour.map(tint) : DARK[colour] || colour;

// The figure as it fits the width and the theme that the page has now.
function fitted(figure, width, isDark) {
  const narrow = width < NARROW;
  const [text, line, back] = isDark ? ['#e6e8eb', '#2c3037', '#1b1e23']
    : ['#1b1d21', '#e1e4e8', '#ffffff'];
  const data = figure.data.map((one) => ({...one}));
  const layout = {...figure.layout, width, font: {color: text, size: narrow ? 11 : 12},
    hoverlabel: {bgcolor: back, bordercolor: line, font: {color: text}},
    margin: {l: narrow ? 44 : 80, r: narrow ? 22 : 30, t: 34, b: narrow ? 48 : 60}};
  for (const name of ['xaxis', 'yaxis']) layout[name] = {...layout[name], gridcolor: line,
    zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true};
  delete layout.title; // the page's own heading wraps
  if (narrow) layout.legend = {orientation: 'h', y: -0.25};
  for (const one of data) {
    if (isDark && one.marker) one.marker = {...one.marker, color: tint(one.marker.color)};
    if (isDark && one.error_x) one.error_x = {...one.error_x, color: text};
    if (!narrow || one.orientation !== 'h') continue;
    const texts = one.text || [];
    layout.yaxis.tickvals = one.y;
    layout.yaxis.ticktext = one.y.map((name, at) =>
      short(name) + (texts[at] ? `<br>${texts[at]}` : ''));
    if (texts.length) {
      one.textposition = 'none';
      layout.xaxis.range = [0, 106];
      layout.height = 90 + 40 * one.y.length;
    }
  }
  return [data, layout];
}

const shown = [...document.querySelectorAll('script[type="application/json"][data-name]')].map(
  (block) => [document.getElementById(`chart-${block.dataset.name}`),
    JSON.parse(block.textContent)]);
const draw = () => Promise.all(shown.map(([place, figure]) => Plotly.react(place,
  ...fitted(figure, printing ? 680 : place.clientWidth, dark.matches && !printing), options)));
dark.addEventListener('change', draw);
let wide = document.documentElement.clientWidth;
addEventListener('resize', () => {
  if (document.documentElement.clientWidth !== wide) draw();
  wide = document.documentElement.clientWidth;
});
addEventListener('beforeprint', () => { printing = true; draw(); });
addEventListener('afterprint', () => { printing = false; draw(); });
draw().then(() => { document.documentElement.dataset.charts = 'ready'; });
"""

CSS = """:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 32px 64px; background: #ffffff;
  color: #1b1d21; font: 15px/1.6 system-ui, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC",
  sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(22px, 4vw, 32px); line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 17px; line-height: 1.4; margin: 0; }
section { margin-top: 32px; }
section > div { overflow: hidden; }
@media (max-width: 600px) { body { padding: 14px 16px 40px; } }
@media (prefers-color-scheme: dark) { body { background: #14161a; color: #e6e8eb; } }
@media print {
  body { max-width: none; padding: 0; background: #ffffff; color: #1b1d21; }
  section { break-inside: avoid; }
  .modebar { display: none; }
}
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
        # As a figure of plotly it has this title in its drawing; a heading of the page wraps.
        heading = html.escape(html.unescape(str(figure.layout.title.text or name)))
        parts.append(
            f'<section aria-labelledby="head-{name}"><h2 id="head-{name}">{heading}</h2>'
            f'<div id="chart-{name}"></div></section>\n'
            f'<script type="application/json" data-name="{name}">'
            f"{safe_json(figure.to_json())}</script>\n"
        )
    needs = html.escape(words.say("chart.noscript"))
    parts.append(f"<noscript><p>{needs}</p></noscript>\n")
    parts.append(
        f'<script type="application/json" id="gp-dark">{safe_json(json.dumps(DARK))}</script>\n'
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
