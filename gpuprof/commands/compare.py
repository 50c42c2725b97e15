"""`gpuprof compare`."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.commands.output import (
    APath,
    format_option,
    lang_option,
    progress,
    width_of_output,
    write,
)


@click.command()
@click.argument("before", type=APath())
@click.argument("after", type=APath())
@click.option(
    "--json",
    "json_file",
    type=APath(dir_okay=False, allow_dash=True),
    help="Also write the comparison as JSON to FILE; '-' prints it, and nothing else.",
    metavar="FILE|-",
)
@format_option
@lang_option
def compare(before: str, after: str, json_file: str | None, form: str, lang: str) -> None:
    """Compare two runs: did the step change, by how much, and what of it moved?

    BEFORE and AFTER are what `analyze` takes, or a diagnosis.json that was kept. A change is only
    claimed when it is beyond noise; "no difference" is an answer.

    \b
    Examples:
      gpuprof compare runs/before runs/after
      gpuprof compare baseline/diagnosis.json runs/mine --format md >> "$GITHUB_STEP_SUMMARY"
    """
    from gpuprof.analyzers.compare import compare_runs
    from gpuprof.compare_runs import load_run
    from gpuprof.comparison import to_json
    from gpuprof.reports.comparison import to_markdown, to_text

    with progress() as told:
        first, second = load_run(before, told), load_run(after, told)
    comparison = compare_runs(first.diagnosis, second.diagnosis, first.samples, second.samples)
    document = to_json(comparison).decode()
    if json_file == "-":
        click.echo(document, nl=False)
        return
    if json_file:
        write(Path(json_file), document)
    if form == "json":
        click.echo(document, nl=False)
        return
    if form == "md":
        click.echo(to_markdown(comparison, lang=lang), nl=False)
    else:
        click.echo(to_text(comparison, lang=lang, width=width_of_output()), nl=False)
