"""The statistics of a diagnosis as interactive plotly figures, for notebooks and `charts.html`.

The report itself draws its own SVG: plotly is 5 MB of script and wants styles that a strict policy
forbids. Text from a recording is escaped here, since plotly reads tags in labels.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis import Diagnosis
from gpuprof.reports import budget, text
from gpuprof.reports.curves import gpu_curves
from gpuprof.reports.words import Catalog, catalog, localized
from gpuprof.samples import Samples

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = {
    "compute": "#275dd2",
    "communication": "#ee6500",
    "copy": "#1ea386",
    "input": "#c2185b",
    "sync": "#8a5200",
    "checkpoint": "#00796b",
    "host": "#5e35b1",
    "communication_host": "#b35900",
    "allocator": "#7e57c2",
    "launch": "#8d949e",
    "unknown": "#b8bec7",
}
"""As in the page: what is busy, and idle by what held it."""

MAX_POINTS = 2_000
"""Points of one line: as many as a wide screen has pixels."""

LINE_HEIGHT = 26
"""Pixels of one bar with its label."""


def figures(
    diagnosis: Diagnosis, samples: Sequence[Samples] = (), *, lang: str = "en"
) -> dict[str, Figure]:
    """Every figure that the diagnosis has data for, by name, in the order of the report.

    `budget`, `findings`, `resources`, `steps`, `ranks`, `kernels`, `roofline`, and for each metric
    that was sampled `util`, `power`, `clock`, `memory`.

    Raises:
        GpuprofError: the language is unknown.
    """
    words = catalog(lang)
    diagnosis = localized(diagnosis, lang)
    made = {
        "budget": _budget(diagnosis, words),
        "findings": _findings(diagnosis, words),
        "resources": _resources(diagnosis, words),
        "steps": _steps(diagnosis, words),
        "ranks": _ranks(diagnosis, words),
        "kernels": _kernels(diagnosis, words),
        "roofline": _roofline(diagnosis, words),
        **_curves(samples, words),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _plain(value: object, limit: int = 80) -> str:
    """Text that plotly shows as it is."""
    return html.escape(text.clean(value, limit))


def _figure(title: str, traces: list[Any], *, height: int = 380, **layout: Any) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure(traces)
    figure.update_layout(
        template="none",
        title={"text": title, "x": 0, "xanchor": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8d949e", "activecolor": "#275dd2"},
        height=height,
        margin={"l": 80, "r": 30, "t": 60, "b": 60},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        **layout,
    )
    return figure


def _bars(x: Sequence[Any], y: Sequence[Any], **more: Any) -> Any:
    import plotly.graph_objects as go

    return go.Bar(x=list(x), y=list(y), **more)


def _tall(rows: int) -> int:
    return 140 + LINE_HEIGHT * max(rows, 3)


def _budget(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    step = diagnosis.run.steps.length_ms
    rows = budget.rows(diagnosis.budget, step)
    if not rows or not budget.has_account(diagnosis):
        return None
    names = [words.name("bucket", row.bucket) for row in rows]
    values = [100 * row.share for row in rows]
    labels = [
        text.percent(row.share) + (f" · {text.milliseconds(row.ms)}" if row.ms is not None else "")
        for row in rows
    ]
    colours = [COLOURS.get(row.bucket, "#888888") for row in rows]
    bars = _bars(
        values,
        names,
        base=[100 * row.offset for row in rows],
        orientation="h",
        text=labels,
        textposition="outside",
        cliponaxis=False,
        marker={"color": colours},
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    return _figure(
        words.say("section.budget"),
        [bars],
        height=_tall(len(rows)),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"title": words.say("chart.step_share"), "range": [0, 125]},
    )


def _findings(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    priced = [finding for finding in diagnosis.findings if finding.gain is not None]
    if not priced:
        return None
    gains = [finding.gain for finding in priced if finding.gain is not None]
    names = [
        f"{number}. {_plain(words.name('cause', finding.cause))}"
        for number, finding in enumerate(diagnosis.findings, 1)
        if finding.gain is not None
    ]
    bars = _bars(
        [100 * gain.reduction for gain in gains],
        names,
        orientation="h",
        marker={"color": "#0b6b43"},
        error_x={
            "type": "data",
            "array": [100 * max(gain.high - gain.reduction, 0) for gain in gains],
            "arrayminus": [100 * max(gain.reduction - gain.low, 0) for gain in gains],
        },
        customdata=[_plain(finding.title, 160) for finding in priced],
        hovertemplate="%{customdata}: %{x:.1f} %<extra></extra>",
    )
    return _figure(
        words.say("chart.gains"),
        [bars],
        height=_tall(len(names)),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"title": words.say("chart.step_share"), "rangemode": "tozero"},
    )


def _resources(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    known = [item for item in diagnosis.bound.reductions.items() if item[1] >= 0.0005]
    if not known:
        return None
    known.sort(key=lambda item: -item[1])
    names = [_plain(words.name("bound", name)) for name, _ in known]
    bars = _bars([100 * share for _, share in known], names, orientation="h")
    return _figure(
        words.say("budget.resources").rstrip(":"),
        [bars],
        height=_tall(len(names)),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"title": words.say("chart.step_share"), "rangemode": "tozero"},
    )


def _steps(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    import plotly.graph_objects as go

    lines = []
    for rank in diagnosis.ranks:
        values = rank.step_ms[:MAX_POINTS]
        if values:
            lines.append(
                go.Scatter(
                    y=list(values),
                    x=list(range(1, len(values) + 1)),
                    mode="lines+markers",
                    name=words.say("rank.name", rank=rank.rank),
                    line={"width": 3 if rank.late else 1.5},
                )
            )
    if not lines:
        return None
    return _figure(
        words.say("rank.steps"),
        lines,
        xaxis={"title": words.say("budget.total")},
        yaxis={"title": "ms", "rangemode": "tozero"},
    )


def _ranks(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    if len(diagnosis.ranks) < 2:
        return None
    buckets = [b for b in diagnosis.budget if any(r.budget.get(b, 0) for r in diagnosis.ranks)]
    names = [
        words.say("rank.name", rank=rank.rank)
        + (f" ({words.say('rank.late')})" if rank.late else "")
        for rank in diagnosis.ranks
    ]
    bars = [
        _bars(
            names,
            [100 * rank.budget.get(bucket, 0.0) for rank in diagnosis.ranks],
            name=words.name("bucket", bucket),
            marker={"color": COLOURS.get(bucket, "#888888")},
        )
        for bucket in buckets
    ]
    return _figure(
        words.say("section.ranks"),
        bars,
        barmode="stack",
        yaxis={"title": words.say("chart.step_share")},
    )


def _kernels(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    rows = diagnosis.kernels
    if not rows:
        return None
    names = [_plain(text.short_kernel_name(row.name, 48)) for row in rows]
    bars = _bars(
        [row.total_ms for row in rows],
        [f"{i}. {name}" for i, name in enumerate(names, 1)],
        orientation="h",
        customdata=[
            [_plain(row.name, 300), row.count, text.milliseconds(row.mean_us / 1e3)] for row in rows
        ],
        hovertemplate="%{customdata[0]}<br>%{x:.3f} ms, %{customdata[1]} × %{customdata[2]}"
        "<extra></extra>",
    )
    return _figure(
        words.say("section.kernels"),
        [bars],
        height=_tall(len(rows)),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"title": "ms"},
    )


def _roofline(diagnosis: Diagnosis, words: Catalog) -> Figure | None:
    """How near to the device's peaks the heaviest kernels come, where that is known."""
    known = [row for row in diagnosis.kernels if row.achieved_frac is not None]
    if not known:
        return None
    bars = _bars(
        [100 * (row.achieved_frac or 0.0) for row in known],
        [f"{i}. {_plain(text.short_kernel_name(row.name, 48))}" for i, row in enumerate(known, 1)],
        orientation="h",
        text=[_plain(words.name("limit", row.limit)) if row.limit else "" for row in known],
        marker={"color": [COLOURS["copy" if r.limit == "bandwidth" else "compute"] for r in known]},
    )
    return _figure(
        words.say("chart.peak"),
        [bars],
        height=_tall(len(known)),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"title": "%"},
    )


def _curves(samples: Sequence[Samples], words: Catalog) -> dict[str, Figure]:
    """One figure a metric, one line a GPU, seconds from the first sample."""
    import plotly.graph_objects as go

    lines: dict[str, list[Any]] = {}
    units: dict[str, str] = {}
    gpus = gpu_curves(samples, words)
    zero = min((gpu.span_ns[0] for gpu in gpus), default=0)
    for gpu in gpus:
        for curve in gpu.curves:
            every = max(1, len(curve.time_ns) // MAX_POINTS)
            at, value = curve.time_ns[::every], curve.value[::every]
            holes = np.flatnonzero(np.diff(at) > every * curve.hold_ns) + 1
            seconds = np.insert((at - zero) / 1e9, holes, (at[holes] - zero) / 1e9)
            shown = np.insert(value, holes, np.nan)
            units[curve.key] = curve.unit
            lines.setdefault(curve.key, []).append(
                go.Scatter(
                    x=np.round(seconds, 3).tolist(),
                    y=[None if np.isnan(v) else round(float(v), 2) for v in shown],
                    mode="lines",
                    name=_plain(gpu.label),
                    line={"shape": "hv", "width": 1.4},
                    connectgaps=False,
                )
            )
    return {
        key: _figure(
            words.say(f"curve.{key}"),
            traces,
            xaxis={"title": "s"},
            yaxis={"title": units[key], "rangemode": "tozero"},
        )
        for key, traces in lines.items()
    }
