"""The report as one HTML file that opens offline.

The static part is rendered from `assets/report.html.j2` with autoescape on; the timeline's data
follows as two data blocks and one script. A Content-Security-Policy that names this file's own
script and style by hash forbids everything else, the network included.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.analyzers.account import RankAccount
from gpuprof.diagnosis import Diagnosis, Window
from gpuprof.errors import GpuprofError
from gpuprof.reports import page, text, timeline
from gpuprof.reports.curves import gpu_curves
from gpuprof.reports.words import catalog, localized
from gpuprof.samples import Samples
from gpuprof.trace import Trace

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("decode.js", "draw.js", "select.js", "viewer.js", "export.js", "page.js")
"""In this order, inside one function, so that nothing leaks into the page."""

MAX_WINDOWS = 64
"""Decisive windows that the timeline keeps in full; a finding shows a handful."""

MIN_TIMELINE_BYTES = 20_000
"""A timeline under a smaller budget would hold names and no events."""

ESTIMATE_SHARE = 0.1
"""From this part of the budget on, the static page is rendered to learn its size."""

NOTES_BYTES = 4_000
"""What a timeline's notes and controls add to a page that was measured without them."""


@dataclass(frozen=True, slots=True)
class HtmlSummary:
    """What was written.

    events: complete events in the traces. drawn: events and merged blocks in the page's timeline,
    0 when it holds none. notes: what the timeline leaves out, the sentences that the page shows.
    """

    path: Path
    size_bytes: int
    events: int
    drawn: int
    notes: tuple[str, ...]


def safe_json(document: str) -> str:
    """JSON text that is inert inside a script element: no `<`, `>`, `&`, U+2028 or U+2029."""
    for character in "<>&\u2028\u2029":
        document = document.replace(character, f"\\u{ord(character):04x}")
    return document


def source_hash(source: str) -> str:
    """A script or style sheet as a Content-Security-Policy names it."""
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{b64encode(digest).decode('ascii')}'"


def script_source() -> str:
    """The one script of a report, which its policy names by hash."""
    parts = [(ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();"


def decisive_windows(diagnosis: Diagnosis) -> list[tuple[int, Window]]:
    """The windows of all evidence with their finding's place in the list (from 1), in that order.

    The first window of each evidence comes first, so that no finding is cut for another's details.
    """
    found = [
        (order, number, window)
        for number, finding in enumerate(diagnosis.findings, 1)
        for evidence in finding.evidence
        for order, window in enumerate(evidence.windows)
    ]
    found.sort(key=lambda item: item[0])
    return [(number, window) for _, number, window in found[:MAX_WINDOWS]]


def _pieces(
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    max_bytes: int,
    lang: str,
    accounts: Sequence[RankAccount],
    samples: Sequence[Samples],
) -> tuple[Iterator[str], timeline.Timeline | None, tuple[str, ...]]:
    """The page in parts, its timeline, and the timeline's notes."""
    words = catalog(lang)
    diagnosis = localized(diagnosis, lang)
    script = script_source()
    css = (ASSETS / "report.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(css)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    windows = decisive_windows(diagnosis)
    gpus = gpu_curves(samples, words)

    def static(drawn: timeline.Timeline | None, notes: Sequence[str]) -> str:
        return page.render(
            diagnosis,
            traces,
            words,
            template=(ASSETS / "report.html.j2").read_text(encoding="utf-8"),
            css=css,
            policy=policy,
            windows=windows,
            has_timeline=drawn is not None,
            thinned=drawn is not None and drawn.shortest_ns > 0,
            notes=notes,
            gpus=gpus,
        )

    estimate = page.size_estimate(diagnosis, traces, gpus)
    if estimate > ESTIMATE_SHARE * max_bytes:  # long texts are cut on the page: measure it
        estimate = len(static(None, ()).encode("utf-8", errors="replace")) + NOTES_BYTES
    room = max_bytes - len(script) - len(css) - estimate
    drawn = None
    notes: tuple[str, ...] = ()
    if room >= MIN_TIMELINE_BYTES:
        drawn = timeline.pack(
            traces,
            windows,
            words,
            limit_bytes=room,
            file_bytes=max_bytes,
            accounts=accounts,
            gpus=gpus,
        )
    if drawn is not None:
        notes = drawn.notes
    elif sum(len(trace) for trace in traces):
        notes = (words.say("note.no_timeline", limit=text.size(max_bytes)),)

    def pieces() -> Iterator[str]:
        yield static(drawn, notes)
        if drawn is not None:
            yield f'<script type="application/json" id="gp-meta">{safe_json(drawn.meta)}</script>'
            yield f'<script type="application/octet-stream" id="gp-events">{drawn.data}</script>'
        yield f"<script>{script}</script>\n</body>\n</html>\n"

    return pieces(), drawn, notes


def write_html(
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 8_000_000,
    lang: str = "en",
    accounts: Sequence[RankAccount] = (),
    samples: Sequence[Samples] = (),
) -> HtmlSummary:
    """Writes the report, replacing the file only when the new one is whole.

    Args:
        traces: the traces that the diagnosis was made from, one per rank; they may be empty.
        max_bytes: size that the file stays under. The timeline is thinned out for it; the
            diagnosis itself is never cut for it.
        lang: one of `words.LANGUAGES`.
        accounts: of the traces, in their order: what held gaps, which collectives are the same.
        samples: what was sampled over the run, one a node.

    Raises:
        GpuprofError: the file cannot be written, or the language is unknown.
    """
    target = Path(path)
    parts, drawn, notes = _pieces(diagnosis, traces, max_bytes, lang, accounts, samples)
    size = 0
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.{os.getpid()}")
        with new.open("xb") as file:  # never through a link that somebody left there
            temporary = new
            for part in parts:
                size += file.write(part.encode("utf-8", errors="replace"))
        temporary.replace(target)
        temporary = None
    except OSError as error:
        raise GpuprofError(
            f"cannot write the report {target}: {error.strerror or error}",
            hint="choose another place with --out",
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return HtmlSummary(
        path=target,
        size_bytes=size,
        events=sum(len(trace) for trace in traces),
        drawn=drawn.drawn if drawn is not None else 0,
        notes=notes,
    )
