"""`gpuprof report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.commands.export import EXPORTS, export
from gpuprof.commands.output import APath, as_text, lang_option, progress, show, write

if TYPE_CHECKING:
    from gpuprof.api import Analysis

FORMATS = ("text", "json", "md")


@click.command()
@click.argument("run", nargs=-1, required=True, type=APath())
@click.option(
    "--format",
    "form",
    type=click.Choice(("html", *FORMATS, *EXPORTS)),
    default="html",
    show_default=True,
    help="html: the report, one file that opens offline. text, json, md: the diagnosis."
    " perfetto: all ranks as one trace for ui.perfetto.dev. tensorboard: a log directory."
    " charts: every statistic as an interactive figure, offline as well.",
)
@click.option(
    "-o",
    "--out",
    type=APath(),
    help="Where to write it.  [default: report.html, charts.html, perfetto-trace.json.gz or"
    " gpuprof-tensorboard; text, json and md go to standard output]",
)
@lang_option
def report(run: tuple[str, ...], form: str, out: str | None, lang: str) -> None:
    """Show a run in another form: a file of its own, or text on standard output.

    RUN is what `analyze` takes: a run directory, a trace, a folder of traces. A diagnosis.json that
    was kept, or the folder it lies in, does for all forms that need no events. Forms that are
    files print where they are.

    \b
    Examples:
      gpuprof report runs/mine -o mine.html
      gpuprof report runs/mine --lang zh-CN -o mine.html
      gpuprof report runs/mine --format md >> "$GITHUB_STEP_SUMMARY"
      gpuprof report runs/mine --format perfetto -o mine.json.gz
      gpuprof report runs/mine --format tensorboard -o logs/mine
      gpuprof report runs/mine --format charts -o charts.html
    """
    from gpuprof.api import analyze_paths, write_page

    kept = _kept(run[0], form) if len(run) == 1 else None
    if kept is not None:
        analysis = kept
    else:
        with progress() as told:
            analysis = analyze_paths(*run, progress=told)
    if form in EXPORTS:
        click.echo(click.format_filename(export(analysis, form, out, lang)))
    elif form == "html":
        click.echo(click.format_filename(write_page(analysis, out or "report.html", lang=lang)))
    elif out:
        write(Path(out), as_text(analysis, form, lang))
    else:
        show(analysis, form, lang)


def _kept(path: str, form: str) -> Analysis | None:
    """What `analyze` wrote, without its traces; None where the path is a recording.

    Raises:
        InputError: it can't be read, or the form draws events, which are only in a recording.
    """
    from gpuprof.api import Analysis
    from gpuprof.compare_runs import kept_diagnosis
    from gpuprof.errors import InputError

    try:
        diagnosis = kept_diagnosis(Path(path))
    except (OSError, ValueError):  # what is wrong with the path itself is said by `analyze_paths`
        return None
    if diagnosis is None:
        return None
    if form in ("perfetto", "tensorboard"):
        raise InputError(
            f"{path} holds a diagnosis without the events that {form} shows",
            hint="give the trace or the run directory that `gpuprof analyze` read",
        )
    return Analysis(diagnosis, ())
