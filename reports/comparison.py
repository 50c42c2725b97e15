"""A comparison in words: the answer first, then what shrank and what surfaced, then the tables."""

from __future__ import annotations

from gpuprof.comparison import Comparison, KernelChange, PartChange, StepChange
from gpuprof.reports import text
from gpuprof.reports.markdown import escape, inline_code
from gpuprof.reports.words import Catalog, catalog

FEW_KERNELS = 5
"""Kernels in the text for a terminal; the JSON and the Markdown hold more."""

SHOWN_PART_FRAC = 0.005
"""A part of the step that moved by less than this share of it gets no row."""

_STATES = {
    "gone": "gone",
    "smaller": "smaller",
    "same": "no difference beyond noise",
    "larger": "larger",
    "new": "new",
    "unknown": "could not be judged on both sides",
}


def signed(value: float) -> str:
    """A difference in ms with its sign."""
    sign = "−" if value < 0 else "+"
    return f"{sign}{text.milliseconds(abs(value))}"


def _signed_percent(share: float) -> str:
    return f"{'−' if share < 0 else '+'}{text.percent(abs(share))}"


def _interval(step: StepChange) -> str:
    if step.low_ms is None or step.high_ms is None:
        return ""
    return f"{text.percent(step.level)} interval {signed(step.low_ms)} to {signed(step.high_ms)}"


def headline(comparison: Comparison) -> str:
    """One sentence: whether the step changed, and by how much."""
    step, before, after = comparison.step, comparison.before, comparison.after
    if step is None or before.step_ms is None or after.step_ms is None:
        return "The runs can't be compared: the length of a step is not known on both sides."
    what = "The recording" if before.source == "none" and after.source == "none" else "A step"
    lengths = (
        f"{text.milliseconds(before.step_ms)} before, {text.milliseconds(after.step_ms)} after"
    )
    interval = _interval(step)
    if comparison.verdict == "no difference":
        return (
            f"No difference beyond noise: {lengths}"
            f" ({signed(step.change_ms)}, {_signed_percent(step.change)}; {interval})."
        )
    length = text.milliseconds(abs(step.change_ms))
    way = "less" if step.change_ms < 0 else "more"
    tail = f"; {interval}" if interval else ""
    said = f"{what} takes {length} {way}: {lengths} ({_signed_percent(step.change)}{tail})."
    if comparison.verdict == "unknown":
        said += " Whether that is beyond noise is not known from so few steps."
    return said


def movements(comparison: Comparison, words: Catalog) -> list[str]:
    """Which parts of the step shrank, which surfaced, and what of the saving came back."""
    parts = {part.bucket: part for part in comparison.parts}
    lines = []
    for title, buckets in (("Shrank", comparison.shrank), ("Surfaced", comparison.surfaced)):
        if buckets:
            lines.append(f"{title}: {'; '.join(_moved(parts[b], words) for b in buckets)}.")
    step = comparison.step
    lost = -sum(parts[bucket].change_ms for bucket in comparison.shrank)
    if step is None or step.change_ms >= 0 or not comparison.shrank:
        return lines
    back = lost + step.change_ms
    grown = sorted((p for p in comparison.parts if p.change_ms > 0), key=lambda p: -p.change_ms)
    if back > 0 and back >= 0.05 * lost and grown:
        names = ", ".join(
            f"{words.name('bucket', p.bucket)} {signed(p.change_ms)}" for p in grown[:3]
        )
        lines.append(
            f"Of the {text.milliseconds(lost)} that went, {text.milliseconds(back)} came back as"
            f" other time that had run beside it: {names}."
        )
    return lines


def _moved(part: PartChange, words: Catalog) -> str:
    return (
        f"{words.name('bucket', part.bucket)} {signed(part.change_ms)}"
        f" ({text.milliseconds(part.before_ms)} → {text.milliseconds(part.after_ms)})"
    )


def _bound(comparison: Comparison, words: Catalog) -> str:
    old, new = (words.name("bound", side.bound) for side in (comparison.before, comparison.after))
    return f"Bound by: {old}, before and after." if old == new else f"Bound by: {old} → {new}."


def _shown(comparison: Comparison) -> list[PartChange]:
    least = SHOWN_PART_FRAC * (comparison.before.step_ms or 0.0)
    return [
        p
        for p in comparison.parts
        if max(p.before_ms, p.after_ms) > least or p.beyond_noise is True
    ]


def _noise(beyond: bool | None) -> str:
    return {True: "beyond noise", False: "within noise", None: "noise unknown"}[beyond]


def _length(value: float | None) -> str:
    return "?" if value is None else text.milliseconds(value)


def _calls(row: KernelChange) -> str:
    if row.before_calls is None or row.after_calls is None:
        return ""
    return f"{row.before_calls:g} → {row.after_calls:g}"


def to_text(comparison: Comparison, *, lang: str = "en") -> str:
    """The comparison for a terminal, with a final newline."""
    words = catalog(lang)
    lines = [headline(comparison), *movements(comparison, words)]
    if comparison.step is not None:
        lines += [_bound(comparison, words), "", "Part of the step, ms before → after"]
        for part in _shown(comparison):
            name = words.name("bucket", part.bucket)
            lengths = f"{part.before_ms:9.2f} → {part.after_ms:8.2f}  {part.change_ms:+9.2f}"
            lines.append(f"  {name:24} {lengths}  {_noise(part.beyond_noise)}")
    if comparison.causes:
        lines += ["", "Causes, cost of a step"]
        for cause in comparison.causes:
            name = words.name("cause", cause.cause)
            lengths = f"{_length(cause.before_ms)} → {_length(cause.after_ms)}"
            lines.append(f"  {name:24} {lengths:>22}  {_STATES[cause.state]}")
    if comparison.kernels:
        lines += ["", "Device work that changed most, ms of a step (calls)"]
        for row in comparison.kernels[:FEW_KERNELS]:
            name = text.short_kernel_name(row.name, 44)
            lengths = f"{row.before_ms or 0.0:8.2f} → {row.after_ms or 0.0:8.2f}"
            lines.append(f"  {name:44} {lengths}  ({_calls(row)})")
    if comparison.different:
        lines += ["", "The runs differ in"]
        lines += [
            f"  {text.clean(name, 60)}: {text.clean(old, 80)} → {text.clean(new, 80)}"
            for name, (old, new) in comparison.different.items()
        ]
    if comparison.warnings:
        lines += ["", *(f"Note: {text.clean(warning)}" for warning in comparison.warnings)]
    return "\n".join(lines).replace(text.NBSP, " ").replace("\u202f", " ") + "\n"


def to_markdown(comparison: Comparison, *, lang: str = "en") -> str:
    """The comparison as GitHub-flavoured Markdown, with a final newline."""
    words = catalog(lang)
    lines = [f"# {escape(headline(comparison))}", ""]
    lines += [f"- {escape(line)}" for line in movements(comparison, words)]
    if comparison.step is not None:
        lines += [f"- {escape(_bound(comparison, words))}", ""]
        lines += [
            "| Part of the step | before | after | change | |",
            "| :-- | --: | --: | --: | :-- |",
        ]
        for part in _shown(comparison):
            cells = [
                escape(words.name("bucket", part.bucket)),
                text.milliseconds(part.before_ms),
                text.milliseconds(part.after_ms),
                signed(part.change_ms),
                _noise(part.beyond_noise),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    if comparison.causes:
        lines += ["", "| Cause | before | after | |", "| :-- | --: | --: | :-- |"]
        for cause in comparison.causes:
            name = escape(words.name("cause", cause.cause))
            lengths = f"{_length(cause.before_ms)} | {_length(cause.after_ms)}"
            lines.append(f"| {name} | {lengths} | {_STATES[cause.state]} |")
    if comparison.kernels:
        lines += ["", "| Device work | before | after | change | calls |"]
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
        lines += ["", "| The runs differ in | before | after |", "| :-- | :-- | :-- |"]
        lines += [
            f"| {escape(name)} | {escape(old)} | {escape(new)} |"
            for name, (old, new) in comparison.different.items()
        ]
    lines += ["", *(f"- {escape(text.sentence(warning))}" for warning in comparison.warnings)]
    if comparison.step is not None:
        lines += ["", f"{escape(text.sentence(comparison.step.method))}"]
    return "\n".join(lines).rstrip() + "\n"
