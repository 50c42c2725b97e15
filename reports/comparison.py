"""A comparison in words: the answer first, then what shrank and what surfaced, then the tables."""

from __future__ import annotations

from gpuprof.comparison import Comparison, KernelChange, PartChange, StepChange
from gpuprof.reports import columns, text
from gpuprof.reports.markdown import escape, inline_code
from gpuprof.reports.words import Catalog, catalog, speaker

FEW_KERNELS = 5
"""Kernels in the text for a terminal; the JSON and the Markdown hold more."""

SHOWN_PART_FRAC = 0.005
"""A part of the step that moved by less than this share of it gets no row."""


def signed(value: float) -> str:
    """A difference in ms with its sign."""
    sign = "−" if value < 0 else "+"
    return f"{sign}{text.milliseconds(abs(value))}"


def _signed_percent(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{text.percent(abs(share))}"


def _interval(step: StepChange, words: Catalog) -> str:
    if step.low_ms is None or step.high_ms is None:
        return ""
    return words.say(
        "compare.interval",
        level=text.percent(step.level),
        low=signed(step.low_ms),
        high=signed(step.high_ms),
    )


def headline(comparison: Comparison, words: Catalog) -> str:
    """One sentence: whether the step changed, and by how much."""
    step, before, after = comparison.step, comparison.before, comparison.after
    if comparison.verdict == "identical":
        if after.step_ms is None:
            return words.say("compare.identical.bare")
        return words.say("compare.identical", length=text.milliseconds(after.step_ms))
    if step is None or before.step_ms is None or after.step_ms is None:
        return words.say("compare.none")
    whole = before.source == "none" and after.source == "none"
    lengths = words.say(
        "compare.lengths",
        before=text.milliseconds(before.step_ms),
        after=text.milliseconds(after.step_ms),
    )
    interval = _interval(step, words)
    share = _signed_percent(step.change)
    if comparison.verdict == "no difference":
        change = signed(step.change_ms)
        return words.say(
            "compare.same", lengths=lengths, change=change, share=share, interval=interval
        )
    said = words.say(
        "compare.less" if step.change_ms < 0 else "compare.more",
        what=words.say("compare.recording" if whole else "compare.step"),
        length=text.milliseconds(abs(step.change_ms)),
        lengths=lengths,
        share=share,
        tail=words.say("points.more") + interval if interval else "",
    )
    if comparison.verdict == "unknown":
        said += words.say("points.between")
        said += words.say("compare.unknown.whole" if whole else "compare.unknown")
    return said


def movements(comparison: Comparison, words: Catalog) -> list[str]:
    """Which parts of the step shrank, which surfaced, and what of the saving came back."""
    parts = {part.bucket: part for part in comparison.parts}
    lines = []
    for key, buckets in (("shrank", comparison.shrank), ("surfaced", comparison.surfaced)):
        if buckets:
            moved = words.say("points.more").join(
                _moved(parts[bucket], words) for bucket in buckets
            )
            lines.append(words.say(f"compare.{key}", parts=moved))
    step = comparison.step
    lost = -sum(parts[bucket].change_ms for bucket in comparison.shrank)
    if step is None or step.change_ms >= 0 or not comparison.shrank:
        return lines
    back = lost + step.change_ms
    grown = sorted((p for p in comparison.parts if p.change_ms > 0), key=lambda p: -p.change_ms)
    if back > 0 and back >= 0.05 * lost and grown:
        names = words.several(
            f"{words.name('bucket', p.bucket)} {signed(p.change_ms)}" for p in grown[:3]
        )
        lines.append(
            words.say(
                "compare.back",
                lost=text.milliseconds(lost),
                back=text.milliseconds(back),
                names=names,
            )
        )
    return lines


def _moved(part: PartChange, words: Catalog) -> str:
    change = f"{words.name('bucket', part.bucket)} {signed(part.change_ms)}"
    return words.aside(
        change, f"{text.milliseconds(part.before_ms)} → {text.milliseconds(part.after_ms)}"
    )


def _bound(comparison: Comparison, words: Catalog) -> str:
    old, new = (words.name("bound", side.bound) for side in (comparison.before, comparison.after))
    if old == new:
        return words.say("compare.bound.same", bound=old)
    return words.say("compare.bound", before=old, after=new)


def _shown(comparison: Comparison) -> list[PartChange]:
    least = SHOWN_PART_FRAC * (comparison.before.step_ms or 0.0)
    return [
        p
        for p in comparison.parts
        if max(p.before_ms, p.after_ms) > least or p.beyond_noise is True
    ]


def _noise(beyond: bool | None, words: Catalog) -> str:
    key = "unknown" if beyond is None else "yes" if beyond else "no"
    return words.say(f"compare.noise.{key}")


def _length(value: float | None) -> str:
    return "?" if value is None else text.milliseconds(value)


def _calls(row: KernelChange) -> str:
    if row.before_calls is None or row.after_calls is None:
        return ""
    return f"{row.before_calls:g} → {row.after_calls:g}"


def _whole(comparison: Comparison, key: str) -> str:
    """The key of the wording that fits: without steps on either side, lengths are of recordings."""
    bare = comparison.before.source == comparison.after.source == "none"
    return f"{key}.whole" if bare else key


def to_text(comparison: Comparison, *, lang: str = "en", width: int = 0) -> str:
    """The comparison for a terminal, with a final newline.

    Args:
        width: columns that lines are wrapped to; 0: not at all.
    """
    words = catalog(lang)
    said = speaker(lang)

    def row(name: str, name_width: int, rest: str) -> str:
        return columns.row(name, name_width, rest, width)

    lines = [columns.fold(headline(comparison, words), width)]
    lines += [columns.fold(line, width) for line in movements(comparison, words)]
    notes = [words.say("compare.note", text=said(text.clean(w))) for w in comparison.warnings]
    notes = [columns.fold(note, width) for note in notes]
    if comparison.verdict == "identical":
        return "\n".join([*lines, *notes]).replace(text.NBSP, " ") + "\n"
    if comparison.step is not None:
        title = words.say(_whole(comparison, "compare.parts"))
        lines += [columns.fold(_bound(comparison, words), width), "", columns.fold(title, width)]
        for part in _shown(comparison):
            name = words.name("bucket", part.bucket)
            lengths = f"{part.before_ms:9.2f} → {part.after_ms:8.2f}  {part.change_ms:+9.2f}"
            lines.append(row(name, 24, f"{lengths}  {_noise(part.beyond_noise, words)}"))
    if comparison.causes:
        lines += ["", columns.fold(words.say(_whole(comparison, "compare.causes")), width)]
        for cause in comparison.causes:
            name = words.name("cause", cause.cause)
            lengths = f"{_length(cause.before_ms)} → {_length(cause.after_ms)}"
            state = words.say(f"compare.state.{cause.state}")
            lines.append(row(name, 24, f"{lengths:>22}  {state}"))
    if comparison.kernels:
        lines += ["", columns.fold(words.say(_whole(comparison, "compare.kernels")), width)]
        for kernel in comparison.kernels[:FEW_KERNELS]:
            name = text.short_kernel_name(kernel.name, 44)
            lengths = f"{kernel.before_ms or 0.0:8.2f} → {kernel.after_ms or 0.0:8.2f}"
            lines.append(row(name, 44, f"{lengths}  ({_calls(kernel)})"))
    if comparison.different:
        lines += ["", columns.fold(words.say("compare.differ"), width)]
        for what, (old, new) in comparison.different.items():
            pair = f"{said(text.clean(old, 80))} → {said(text.clean(new, 80))}"
            line = words.labelled(said(text.clean(what, 60)), pair)
            lines.append(columns.fold(line, width, "  ", 4))
    if notes:
        lines += ["", *notes]
    return "\n".join(lines).replace(text.NBSP, " ") + "\n"


def _head(words: Catalog, *keys: str, last: bool = True) -> str:
    """The head of a table, with an empty last column for remarks."""
    cells = [words.say(f"compare.{key}") for key in keys] + ([""] if last else [])
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def to_markdown(comparison: Comparison, *, lang: str = "en") -> str:
    """The comparison as GitHub-flavoured Markdown, with a final newline."""
    words = catalog(lang)
    said = speaker(lang)
    lines = [f"# {escape(headline(comparison, words))}", ""]
    lines += [f"- {escape(line)}" for line in movements(comparison, words)]
    if comparison.verdict == "identical":
        lines += [f"- {escape(text.sentence(said(warning)))}" for warning in comparison.warnings]
        return "\n".join(lines).rstrip() + "\n"
    if comparison.step is not None:
        lines += [f"- {escape(_bound(comparison, words))}", ""]
        lines += [
            _head(words, _whole(comparison, "part"), "before", "after", "change"),
            "| :-- | --: | --: | --: | :-- |",
        ]
        for part in _shown(comparison):
            cells = [
                escape(words.name("bucket", part.bucket)),
                text.milliseconds(part.before_ms),
                text.milliseconds(part.after_ms),
                signed(part.change_ms),
                _noise(part.beyond_noise, words),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    if comparison.causes:
        lines += ["", _head(words, "cause", "before", "after"), "| :-- | --: | --: | :-- |"]
        for cause in comparison.causes:
            name = escape(words.name("cause", cause.cause))
            lengths = f"{_length(cause.before_ms)} | {_length(cause.after_ms)}"
            lines.append(f"| {name} | {lengths} | {words.say(f'compare.state.{cause.state}')} |")
    if comparison.kernels:
        lines += ["", _head(words, "kernel", "before", "after", "change", "calls", last=False)]
        lines += ["| :-- | --: | --: | --: | --: |"]
        for row in comparison.kernels:
            cells = [
                inline_code(text.short_kernel_name(row.name)),
                _length(row.before_ms),
                _length(row.after_ms),
                signed(row.change_ms),
                _calls(row),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    if comparison.different:
        lines += ["", _head(words, "differ", "before", "after", last=False), "| :-- | :-- | :-- |"]
        lines += [
            f"| {escape(said(name))} | {escape(said(old))} | {escape(said(new))} |"
            for name, (old, new) in comparison.different.items()
        ]
    lines += ["", *(f"- {escape(text.sentence(said(warning)))}" for warning in comparison.warnings)]
    if comparison.step is not None:
        lines += ["", f"{escape(text.sentence(said(comparison.step.method)))}"]
    return "\n".join(lines).rstrip() + "\n"
