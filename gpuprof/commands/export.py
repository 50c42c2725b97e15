"""The forms of `gpuprof report` that other programs open: files, not text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.api import Analysis

EXPORTS = ("perfetto", "tensorboard", "charts")
TENSORBOARD_NAME = "gpuprof-tensorboard"
CHARTS_NAME = "charts.html"
PERFETTO_NAME = "perfetto-trace.json.gz"


def export(analysis: Analysis, form: str, out: str | None, lang: str = "en") -> Path:
    """Writes an export and says where it is.

    Raises:
        GpuprofError: it can't be written.
    """
    if form == "perfetto":
        from gpuprof.reports.perfetto import write_perfetto

        summary = write_perfetto(
            analysis.diagnosis,
            analysis.accounts,
            out or PERFETTO_NAME,
            lang=lang,
            samples=analysis.samples,
        )
        return summary.path
    if form == "charts":
        from gpuprof.reports.charts_page import write_charts

        path = out or CHARTS_NAME
        return write_charts(analysis.diagnosis, path, samples=analysis.samples, lang=lang)
    from gpuprof.reports.tensorboard import write_tensorboard

    return write_tensorboard(
        analysis.diagnosis,
        analysis.traces,
        out or TENSORBOARD_NAME,
        lang=lang,
        accounts=analysis.accounts,
        samples=analysis.samples,
    )
