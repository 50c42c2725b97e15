"""The page's drawings as inline SVG: no script, no style attribute, printable, a few kB each.

Shapes carry both a colour of their own and a class: the class follows the page's theme, the
attribute is what remains where a viewer (mail, CI) strips the style sheet. Widths are percentages,
so a drawing never shrinks its own text.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.reports.budget import BudgetRow
from gpuprof.reports.words import Catalog

FILLS: dict[str, str] = {
    "compute": "#275dd2",
    "communication": "#ee6500",
    "copy": "#1ea386",
}
"""Light-theme colours of busy buckets: at least 3 : 1 on white and apart for every kind of colour
vision (searched in OKLCH; the style sheet holds the dark ones)."""

IDLE_FILL = "#8d949e"
"""Idle is no work and gets no hue; every idle bucket is named beside its bar."""

MAX_BARS = 120
"""Bars in one strip of step times: more would be thinner than a pixel on a phone."""

FEW_BARS = 14
"""Up to here bars fit the narrowest column at a fixed width."""


def _fill(bucket: str) -> str:
    if bucket in FILLS:
        return f'fill="{FILLS[bucket]}" class="f-{bucket}"'
    return f'fill="{IDLE_FILL}" class="f-idle"'


def _svg(css: str, label: str, body: str, height: int) -> str:
    role = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    return f'<svg class="{css}" width="100%" height="{height}" {role}>{body}</svg>'


def stacked_bar(rows: Sequence[BudgetRow], words: Catalog, *, height: int = 28) -> str:
    """One step as one bar: busy parts in colour, idle parts grey, a hairline between parts."""
    label = words.several(
        f"{words.name('bucket', row.bucket)} {100 * row.share:.1f} %" for row in rows
    )
    body = "".join(
        f'<rect x="{100 * row.offset:.3f}%" width="{100 * row.exact:.3f}%" height="{height}" '
        f"{_fill(row.bucket)}/>"
        for row in rows
    )
    body += "".join(
        f'<rect x="{100 * row.offset:.3f}%" width="1.5" height="{height}" fill="#fff" '
        'class="f-page"/>'
        for row in rows[1:]
    )
    return _svg("stacked", label, body, height)


def waterfall_bar(row: BudgetRow, *, height: int = 18) -> str:
    """The bar of one row of the waterfall: it starts where the row above ends."""
    body = (
        f'<rect width="100%" height="{height}" fill="#f5f6f8" class="f-soft"/>'
        f'<rect x="{100 * row.offset:.3f}%" width="{max(100 * row.exact, 0.25):.3f}%" '
        f'height="{height}" rx="1.5" {_fill(row.bucket)}/>'
    )
    return _svg("waterfall", "", body, height)


def share_bar(share: float, *, height: int = 6) -> str:
    """A thin bar beside a share in a table."""
    width = 100 * min(max(share, 0.0), 1.0)
    body = (
        f'<rect width="100%" height="{height}" fill="#eceef1" class="f-track"/>'
        f'<rect width="{width:.2f}%" height="{height}" fill="#275dd2" class="f-compute"/>'
    )
    return _svg("share", "", body, height)


def gain_bar(reduction: float, low: float, high: float, *, height: int = 16) -> str:
    """The step as a track, the part of it that goes, and the range of that part."""
    ends = [100 * min(max(value, 0.0), 1.0) for value in (reduction, low, high)]
    gain, first, last = ends
    middle = height / 2
    body = (
        f'<rect y="{middle - 4}" width="100%" height="8" fill="#eceef1" class="f-track"/>'
        f'<rect y="{middle - 4}" width="{gain:.2f}%" height="8" fill="#0b6b43" class="f-gain"/>'
        f'<line x1="{first:.2f}%" x2="{last:.2f}%" y1="{middle}" y2="{middle}" stroke="#1b1d21" '
        'stroke-width="1.5" class="s-text"/>'
    )
    body += "".join(
        f'<line x1="{end:.2f}%" x2="{end:.2f}%" y1="{middle - 5}" y2="{middle + 5}" '
        'stroke="#1b1d21" stroke-width="1.5" class="s-text"/>'
        for end in (first, last)
    )
    return _svg("range", "", body, height)


def step_strip(step_ms: Sequence[float], top_ms: float, label: str, *, height: int = 34) -> str:
    """One bar a step, on a scale from 0 to `top_ms`. Long runs are thinned to their maxima."""
    values = [max(float(value), 0.0) for value in step_ms]
    if len(values) > MAX_BARS:
        parts = np.array_split(np.array(values), MAX_BARS)
        values = [float(part.max()) for part in parts]
    if not values or top_ms <= 0:
        return ""
    # A few bars as wide as the page allows would be boxes: they get a fixed pitch in pixels.
    pitch, unit = (14.0, "") if len(values) <= FEW_BARS else (100 / len(values), "%")
    wide = 0.72 if len(values) <= 40 else 0.9
    body = "".join(
        f'<rect x="{index * pitch:.3f}{unit}" y="{height * (1 - min(value / top_ms, 1)):.1f}" '
        f'width="{pitch * wide:.3f}{unit}" height="{height * min(value / top_ms, 1):.1f}" '
        'fill="#6b7280" class="f-step"/>'
        for index, value in enumerate(values)
    )
    return _svg("steps", label, body, height)


def busy_strip(shares: NDArray[np.float64], label: str, *, height: int = 22) -> str:
    """The busy share of a stream over time as a filled step curve."""
    bins = len(shares)
    levels = np.round(height * (1 - shares), 1)
    path = [f"M0 {height}"]
    last = float(height)
    for index, level in enumerate(levels.tolist()):
        if level != last:
            path.append(f"H{index}V{level:g}")
            last = level
    path.append(f"H{bins}V{height}Z")
    role = f'role="img" aria-label="{html.escape(label)}"'
    return (
        f'<svg class="busy" width="100%" height="{height}" viewBox="0 0 {bins} {height}" '
        f'preserveAspectRatio="none" {role}>'
        f'<rect width="{bins}" height="{height}" fill="#eceef1" class="f-track"/>'
        f'<path d="{"".join(path)}" fill="#275dd2" class="f-compute"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of a drawing that something points at: its place and width as shares of 1.

    number: of the finding; 0 for the stretch that was traced.
    """

    start: float
    width: float
    number: int


def run_curve(
    shares: NDArray[np.float64], marks: Sequence[Mark], label: str, *, height: int = 44
) -> str:
    """A curve over the run as a filled step curve, with the stretches that findings point at.

    Args:
        shares: height of each column as a share of 1, NaN where nothing is known.
    """
    bins = len(shares)
    levels = np.round(height * (1 - shares), 1)
    path: list[str] = []
    open_ = False
    last = float("nan")
    for index, level in enumerate(levels.tolist()):
        if np.isnan(level):  # a hole
            path.append(f"H{index}V{height}Z" if open_ else "")
            open_ = False
        elif not open_:
            path.append(f"M{index} {height}V{level:g}")
            open_ = True
        elif level != last:
            path.append(f"H{index}V{level:g}")
        last = level
    if open_:
        path.append(f"H{bins}V{height}Z")
    body = f'<rect width="100%" height="{height}" fill="#eceef1" class="f-track"/>'
    body += (
        f'<svg width="100%" height="{height}" viewBox="0 0 {bins} {height}" '
        f'preserveAspectRatio="none"><path d="{"".join(path)}" fill="#275dd2" class="f-compute"/>'
        "</svg>"
    )
    for mark in marks:
        width = max(100 * mark.width, 0.35)
        x = min(100 * mark.start, 100 - width)
        if mark.number:
            body += (
                f'<rect x="{x:.2f}%" width="{width:.2f}%" height="{height}" fill="#b3261e" '
                'fill-opacity=".28" class="f-mark"/>'
            )
        else:
            body += (
                f'<rect x="{x:.2f}%" width="{width:.2f}%" y="{height - 3}" height="3" '
                'fill="#1b1d21" class="f-text"/>'
            )
    return _svg("curve", label, body, height)


def mark_row(marks: Sequence[Mark], label: str, *, height: int = 16) -> str:
    """The numbers of the findings above a curve, each where its stretch begins."""
    body = ""
    until = -1.0
    for mark in sorted(marks, key=lambda mark: mark.start):
        x = min(100 * mark.start, 97.5)
        if not mark.number or x < until:
            continue  # the number of its neighbour stands there
        body += (
            f'<text x="{x:.2f}%" y="{height - 4}" font-size="11.5" fill="#b3261e" '
            f'class="t-mark">{mark.number}</text>'
        )
        until = x + 2.2
    return _svg("marks", label, body, height) if body else ""
