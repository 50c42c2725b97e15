"""The verdict on a terminal, in thirty lines at most.

What is said is thinned until it fits: first the evidence of the later findings goes, then warnings
and reasons become counts, then findings become names and what gains depend on goes before the first
evidence does. The page has it all.

Everything from the diagnosis is printed as plain text: rich's markup is off, and `text.clean` takes
escape sequences out of names. Colours follow the console, which honours `NO_COLOR`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis import Diagnosis, Finding
from gpuprof.reports import budget, columns, gains, story, text
from gpuprof.reports.words import Catalog, catalog, localized

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MAX_LINES = 30
"""Lines of the verdict: what a person sees without scrolling, in 40 columns or more."""

MIN_NAME = 8
"""Columns of a bucket's name below which its milliseconds go instead: the share says more."""

BAR_WIDTH = 28
"""Columns of a full bar in a wide terminal."""

EVIDENCE_OF_STOPS = 4


@dataclass(frozen=True, slots=True)
class _Detail:
    """How much is said.

    findings: that are spelled out, the rest is one line. evidence: findings with their first
    evidence. notes: warnings that are printed. why: whether the bound has its reason. titles:
    whether what is in the one line has its title, or only its cause's name. ruled_out: whether
    those causes are listed. limits: whether gains have on what they depend; "up to" stays.
    """

    findings: int
    evidence: int
    notes: int
    why: bool = True
    titles: bool = True
    ruled_out: bool = True
    limits: bool = True


_DETAILS = (
    _Detail(3, 3, 3),
    _Detail(3, 1, 2),
    _Detail(3, 1, 1, titles=False),
    _Detail(3, 1, 0, titles=False),
    _Detail(2, 1, 0, titles=False),
    _Detail(2, 1, 0, why=False, titles=False),
    _Detail(2, 1, 0, why=False, titles=False, limits=False),
    _Detail(2, 0, 0, why=False, titles=False, limits=False),
    _Detail(2, 0, 0, why=False, titles=False, ruled_out=False, limits=False),
    _Detail(1, 0, 0, why=False, titles=False, ruled_out=False, limits=False),
)

_STYLES = {
    "compute": "blue",
    "communication": "dark_orange",
    "copy": "cyan",
    "critical": "bold red",
    "warning": "yellow",
    "info": "default",
}


_PLAIN = {"–": "-", "−": "-", "µ": "u", "×": "x", "…": "...", "·": "-"}
"""What stands for characters that an encoding has not."""


class _Printer:
    """Makes wrapped lines with a hanging indent, in the width and encoding of a console."""

    def __init__(self, console: Console, detail: _Detail) -> None:
        self.detail = detail
        self.lines: list[Text] = []
        self.width = max(20, console.width)
        self.encoding = console.encoding or "ascii"
        self.unicode = self.encoding.lower().startswith("utf")

    def plain(self, value: str) -> str:
        value = text.glue(text.clean(value))
        if self.unicode:
            return value
        for fancy, ascii_ in _PLAIN.items():
            if not text.fits(fancy, self.encoding):
                value = value.replace(fancy, ascii_)
        words = value.split(text.NBSP)
        shown = (word.encode(self.encoding, "replace").decode(self.encoding) for word in words)
        return text.NBSP.join(shown)

    def line(self, value: str, style: str = "", indent: int = 0, first: str = "") -> None:
        """One paragraph. `first` stands in the indent of its first line."""
        from rich.text import Text

        begin = columns.pad(self.plain_keep(first), indent)
        lines = columns.wrap(self.plain(value), self.width, begin, indent)
        for item in lines or [""]:
            self.lines.append(Text(self.spaced(item), style))

    def parts(self, parts: list[tuple[str, str]]) -> None:
        """One line of differently styled parts, cut at the width."""
        from rich.text import Text

        line = Text.assemble(
            *((self.spaced(self.plain_keep(value)), style) for value, style in parts)
        )
        line.truncate(self.width)
        line.rstrip()
        self.lines.append(line)

    def spaced(self, value: str) -> str:
        """Plain spaces for those that only kept a number and its unit on one line."""
        return value.replace(text.NBSP, " ")

    def plain_keep(self, value: str) -> str:
        """Like `plain`, but keeps the spaces that align columns."""
        stripped = value.strip(" ")
        if not stripped:
            return value
        at = value.index(stripped)
        return value[:at] + self.plain(stripped) + value[at + len(stripped) :]

    def gap(self) -> None:
        from rich.text import Text

        self.lines.append(Text())


def _budget(diagnosis: Diagnosis, out: _Printer, words: Catalog) -> None:
    step = diagnosis.run.steps.length_ms
    rows = budget.rows(diagnosis.budget, step)
    if not rows:
        out.line(words.say("budget.none"))
        return
    names = [words.name("bucket", row.bucket) for row in rows]
    lengths = [
        f"{text.number(row.ms, 2 if step and step < 10 else 1)} ms" if row.ms is not None else ""
        for row in rows
    ]
    shares = [f"{text.number(100 * row.share, 1)} %" for row in rows]
    ms_width, share_width = (1 + max(map(len, each)) for each in (lengths, shares))
    room = out.width - 2 - ms_width - share_width
    if room < MIN_NAME:
        lengths, room = [""] * len(rows), room + ms_width
        ms_width = 0
    first = min(max(columns.cells(name) for name in names), 24, room)
    bar = max(0, min(BAR_WIDTH, out.width - first - 24))
    full = "█" if out.unicode else "#"
    title = words.say(gains.whole(diagnosis, "section.budget"))
    if step is not None:
        title = words.aside(title, text.milliseconds(step))
    out.line(title, "bold")
    for row, name, length, share in zip(rows, names, lengths, shares, strict=True):
        filled = round(row.exact * bar) if bar >= 8 else 0
        parts = [(f"  {columns.pad(columns.shorten(name, first), first)}", "")]
        if bar >= 8:
            mark = full if not row.idle else ("░" if out.unicode else ".")
            shown = mark * max(filled, 1)
            parts.append((f" {shown.ljust(bar)}", _STYLES.get(row.bucket, "dim")))
            ms_width, share_width = max(ms_width, 11), max(share_width, 8)
        parts += [(length.rjust(ms_width), ""), (share.rjust(share_width), "")]
        out.parts(parts)


def _finding(
    number: int,
    finding: Finding,
    diagnosis: Diagnosis,
    out: _Printer,
    words: Catalog,
    told: set[str],
) -> None:
    """One finding. told: limits of gains that earlier ones have said."""
    gain = finding.gain
    saving = words.say("finding.gain.none")
    if gain is not None:
        saving = gains.saving(gain, diagnosis, words)
    stops = finding.cause in story.STOPS and gain is None
    unpriced = stops or (gain is None and not diagnosis.run.steps.count)
    title = finding.title if unpriced else words.labelled(finding.title, saving)
    out.line(title, _STYLES.get(finding.severity, ""), indent=3, first=f"{number}.")
    # A note is told by its title, unless notes are all there is.
    grave = finding.severity != "info" or all(f.severity == "info" for f in diagnosis.findings)
    if grave and number <= out.detail.evidence:
        for item in finding.evidence[: EVIDENCE_OF_STOPS if stops else 1]:
            out.line(item.text, indent=3)
    if finding.late_ranks:
        out.line(story.late(finding.late_ranks, words), indent=3)
    for place in finding.where[:1]:
        spot = text.clean(place.file, 300) + (f":{place.line}" if place.line is not None else "")
        code = f"  {text.clean(place.code, 120)}" if place.code else ""
        out.line(f"{words.say('terminal.at')} {spot}{code}", "dim", indent=3)
    for fix in finding.fixes[:1]:
        arrow = "→" if out.unicode else "->"
        out.line(fix.title, "green", indent=4 + len(arrow), first=f"   {arrow} ")
    # Last: on what a gain depends is no reason to believe in the cause.
    if out.detail.limits and gain is not None and gain.limit and gain.limit not in told:
        out.line(text.sentence(gain.limit), indent=3)
        told.add(gain.limit)


def _together(diagnosis: Diagnosis, words: Catalog) -> str:
    """As `gains.of_all`, in one line."""
    best, step = diagnosis.together, diagnosis.run.steps.length_ms
    saved = gains.saved_ms(best, diagnosis) if best is not None else None
    if best is None or step is None or saved is None:
        return gains.of_all(diagnosis, words)
    return words.say(
        gains.whole(diagnosis, "terminal.together"),
        saved=text.milliseconds(saved),
        step=text.milliseconds(step),
        share=text.percent(best.reduction),
    )


def render(diagnosis: Diagnosis, console: Console, *, lang: str = "en") -> None:
    """Prints the verdict.

    Args:
        console: where to; its width, encoding and colour settings are followed.

    Raises:
        GpuprofError: the language is unknown.
    """
    words = catalog(lang)
    diagnosis = localized(diagnosis, lang)
    for detail in _DETAILS:
        out = _Printer(console, detail)
        _verdict(diagnosis, out, words)
        if len(out.lines) <= MAX_LINES:
            break
    for line in out.lines:
        console.print(line, soft_wrap=True)


def _verdict(diagnosis: Diagnosis, out: _Printer, words: Catalog) -> None:
    out.line(diagnosis.headline or words.say("untitled"), "bold")
    facts = [*story.run_facts(diagnosis, words)]
    out.line(" · ".join(facts), "dim")
    stands = story.stands(diagnosis)
    together = "" if stands else _together(diagnosis, words)
    if together:
        out.line(together)
    bound = diagnosis.bound
    verdict = words.say("terminal.bound", bound=words.name("bound", bound.class_).lower())
    if bound.class_ == "unknown":
        verdict = words.say("terminal.unbound")
    if bound.also:
        also = words.several(words.name("bound", item).lower() for item in bound.also)
        verdict = words.aside(verdict, words.say(story.near(bound.class_), also=also))
    if bound.class_ != "unknown":
        sure = words.say("key.confidence", percent=text.percent(bound.confidence))
        verdict = words.clauses((verdict, sure))
    if not stands:  # a job that does not go on is bound by nothing
        why = text.sentence(bound.why) if bound.why and out.detail.why else ""
        stop = words.say("points.stop") + words.say("points.between")
        out.line(f"{verdict}{stop}{why}".rstrip())
    out.gap()
    if budget.has_account(diagnosis):
        _budget(diagnosis, out, words)
        out.gap()
    if diagnosis.findings:
        told: set[str] = set()
        title = words.say("section.findings")
        if story.ordered(diagnosis):
            title = words.aside(title, words.say("section.findings.order")[:-1].lower())
        out.line(title, "bold")
        full = out.detail.findings
        for number, finding in enumerate(diagnosis.findings[:full], 1):
            _finding(number, finding, diagnosis, out, words, told)
        rest = diagnosis.findings[full:]
        if rest:
            names = words.say("points.more").join(
                finding.title if out.detail.titles else words.name("cause", finding.cause)
                for finding in rest
            )
            out.line(words.say("terminal.more", count=len(rest), names=names), indent=3)
    else:
        out.line(story.nothing_found(diagnosis, words), "bold")
    out.gap()
    for key, causes in (
        (
            "section.ruled_out",
            [item.cause for item in diagnosis.ruled_out] if out.detail.ruled_out else [],
        ),
        ("section.not_judged", [item.cause for item in diagnosis.not_judged]),
    ):
        if causes:
            names = words.several(words.name("cause", cause).lower() for cause in causes)
            out.line(words.labelled(words.say(key), names) + words.say("points.stop"), "dim")
    notes = out.detail.notes
    for warning in diagnosis.warnings[:notes]:
        out.line(text.sentence(warning), "yellow", indent=2, first="!")
    more = len(diagnosis.warnings) - notes
    if more > 0:
        said = words.say("data.more", count=text.count(more))
        out.line(said if notes else story.warnings_line(diagnosis, words), indent=2)
