"""What a notebook shows when a cell ends in a diagnosis: the verdict, without script and styles.

The front end of a notebook is somebody else's page, so this is a fragment of plain elements, and
the drawings carry their colours as attributes. The whole report is a file of its own.
"""

from __future__ import annotations

from html import escape

from gpuprof.diagnosis import Diagnosis, Finding
from gpuprof.reports import budget, charts, gains, story, text
from gpuprof.reports.words import Catalog, catalog, localized

MOST_FINDINGS = 8
"""Findings in a cell; the report has all."""


def to_html(diagnosis: Diagnosis, *, lang: str = "en") -> str:
    """The diagnosis as an HTML fragment."""
    words = catalog(lang)
    diagnosis = localized(diagnosis, lang)

    def safe(value: object) -> str:
        return escape(text.glue(text.clean(value)))

    step = diagnosis.run.steps.length_ms
    rows = budget.rows(diagnosis.budget, step) if budget.has_account(diagnosis) else []
    parts = [
        f"<h3>{safe(diagnosis.headline or words.say('untitled'))}</h3>",
        f"<p>{safe(' · '.join(story.run_facts(diagnosis, words)))}</p>",
        f"<p>{safe(gains.of_all(diagnosis, words))}</p>",
    ]
    if rows:
        parts.append(charts.stacked_bar(rows, words, height=18))
        cells = "".join(
            f"<tr><th>{safe(words.name('bucket', row.bucket))}</th>"
            f"<td>{safe(text.milliseconds(row.ms)) if row.ms is not None else ''}</td>"
            f"<td>{safe(text.percent(row.share))}</td></tr>"
            for row in rows
        )
        parts.append(f"<table>{cells}</table>")
    if not diagnosis.findings:
        parts.append(f"<p>{safe(story.nothing_found(diagnosis, words))}</p>")
    else:
        found = [_finding(f, diagnosis, words) for f in diagnosis.findings[:MOST_FINDINGS]]
        items = "".join(
            f"<li><b>{safe(title)}</b>{f': {safe(saving)}' if saving else ''}<br>{safe(more)}</li>"
            for title, saving, more in found
        )
        parts.append(f"<ol>{items}</ol>")
    for key, causes in (
        ("section.ruled_out", [item.cause for item in diagnosis.ruled_out]),
        ("section.not_judged", [item.cause for item in diagnosis.not_judged]),
    ):
        if causes:
            names = words.several(words.name("cause", cause) for cause in causes)
            parts.append(f"<p>{safe(words.labelled(words.say(key), names))}</p>")
    return "\n".join(parts)


def _finding(finding: Finding, diagnosis: Diagnosis, words: Catalog) -> tuple[str, str, str]:
    """Title, saving, and where it is with what to change."""
    saving = ""
    if finding.gain is not None:
        saving = gains.saving(finding.gain, diagnosis, words)
    more = []
    for place in finding.where[:1]:
        more.append(place.file + (f":{place.line}" if place.line is not None else ""))
    more += [fix.title for fix in finding.fixes[:1]]
    return finding.title, saving, " → ".join(more)
