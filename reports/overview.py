"""The page's curves over the whole run, with the findings' stretches and the traced one marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuprof.diagnosis import Diagnosis
from gpuprof.reports import charts, text
from gpuprof.reports.curves import Curve, GpuCurves, amount, column_means, mean_and_peak
from gpuprof.reports.words import Catalog
from gpuprof.trace import Trace

COLUMNS = 400
"""Columns of a curve: one for two or three pixels, 3 kB at most."""

MAX_MARKS = 64
"""Stretches of one GPU that are marked; more would cover the curve."""

MAX_DRAWN = 16
"""GPUs whose curves stand in the page: the timeline and the charts have them all."""


def section(
    diagnosis: Diagnosis, traces: Sequence[Trace], gpus: Sequence[GpuCurves], words: Catalog
) -> list[dict[str, Any]]:
    """One figure a GPU, those of late ranks first: title, span, marks and panels for the template.

    Returns:
        [] where nothing was sampled.
    """
    late = {rank for finding in diagnosis.findings for rank in finding.late_ranks}
    ordered = sorted(gpus, key=lambda gpu: gpu.rank not in late)[:MAX_DRAWN]
    return [_figure(gpu, diagnosis, traces, gpu.rank in late, words) for gpu in ordered]


def _figure(
    gpu: GpuCurves, diagnosis: Diagnosis, traces: Sequence[Trace], late: bool, words: Catalog
) -> dict[str, Any]:
    from markupsafe import Markup

    start, end = gpu.span_ns
    marks = _marks(gpu, diagnosis, traces, start, max(end - start, 1))
    numbers = sorted({mark.number for mark in marks if mark.number})
    said = words.several(str(number) for number in numbers)
    key = "curve.marks" if len(numbers) > 1 else "curve.marks.one"
    title = words.say(key, numbers=said) if numbers else ""
    return {
        "title": gpu.label,
        "late": late,
        "span": words.say("curve.span", span=text.milliseconds((end - start) / 1e6))
        if gpu.timed
        else words.say("curve.untimed"),
        "numbers": Markup(charts.mark_row(marks, title)),
        "marks": title,
        "traced": words.say("curve.traced") if any(not mark.number for mark in marks) else "",
        "panels": [_panel(curve, start, end, marks, words) for curve in gpu.curves],
    }


def _panel(
    curve: Curve, start: int, end: int, marks: Sequence[charts.Mark], words: Catalog
) -> dict[str, Any]:
    from markupsafe import Markup

    mean, peak = mean_and_peak(curve)
    name = words.say(f"curve.{curve.key}")
    numbers = words.say(
        "curve.numbers", mean=amount(mean, curve.unit), peak=amount(peak, curve.unit)
    )
    top = words.say("curve.top", top=amount(curve.top, curve.unit))
    shares = column_means(curve, start, end, COLUMNS)
    svg = charts.run_curve(np.asarray(shares), marks, words.labelled(name, numbers))
    return {"name": name, "numbers": numbers, "top": top, "svg": Markup(svg)}


def _marks(
    gpu: GpuCurves, diagnosis: Diagnosis, traces: Sequence[Trace], start: int, span: int
) -> list[charts.Mark]:
    """What the run's clock lets us place: windows of findings, and what the traces cover."""
    if not gpu.epoch or not gpu.timed:
        return []
    found = []
    for trace in traces:
        if len(trace) and trace.meta.epoch and gpu.rank in (None, trace.meta.rank):
            last = int((trace.start_ns + trace.dur_ns).max())
            found.append((int(trace.start_ns[0]), last, 0))
    for number, finding in enumerate(diagnosis.findings, 1):
        for evidence in finding.evidence:
            for window in evidence.windows:
                if window.rank is None or gpu.rank in (None, window.rank):
                    found.append((window.start_ns, window.end_ns, number))
    marks = []
    for first, last, number in found:
        a, b = max(first - start, 0), min(last - start, span)
        whole = number and b - a >= span  # a mark over everything marks nothing
        if b > a and not whole:
            marks.append(charts.Mark(a / span, (b - a) / span, number))
    return marks[:MAX_MARKS]
