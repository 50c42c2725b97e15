"""`gpuprof report`."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.commands.export import EXPORTS, export
from gpuprof.commands.output import as_text, lang_option, progress, show, write

FORMATS = ("text", "json", "md")


@click.command()
@click.argument("run", nargs=-1, required=True, type=click.Path())
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
    type=click.Path(),
    help="Where to write it.  [default: report.html, charts.html, perfetto-trace.json.gz or"
    " gpuprof-tensorboard; text, json and md go to standard output]",
)
@lang_option
def report(run: tuple[str, ...], form: str, out: str | None, lang: str) -> None:
    """Show a run in another form: a file of its own, or text on standard output.

    RUN is what `analyze` takes: a run directory, a trace, a folder of traces. Forms that are files
    print where they are.

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
