"""What the commands that end in a diagnosis share: progress, files, and what is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.api import Analysis

LANGUAGES = ("en", "zh-CN")
"""Those of `gpuprof.reports.words`, which a `--help` need not load; a test compares them."""

FORMATS = ("text", "json", "md")

format_option: Callable[[Any], Any] = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="What is printed.",
)

lang_option: Callable[[Any], Any] = click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    envvar="GPUPROF_LANG",
    default="en",
    show_default=True,
    show_envvar=True,
    help="Language of what is written for people. JSON stays English.",
)


class APath(click.Path):
    """A path that the user names. An empty one, which a variable leaves that was never set, would
    stand for the folder that one is in."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not os.fspath(value):
            self.fail("an empty path; check the variable that it came from", param, ctx)
        if not self.file_okay and Path(os.fsdecode(value)).is_file():
            self.fail(f"{os.fsdecode(value)} is a file, not a folder", param, ctx)
        return super().convert(value, param, ctx)


def deliver(
    analysis: Analysis,
    out: str,
    json_file: str | None,
    form: str,
    *,
    files: bool,
    lang: str | None = None,
    charts: bool = False,
) -> None:
    """Prints what was asked for and writes the files.

    Args:
        out: folder of the report.
        json_file: where else the JSON goes, "-" for standard output and nothing else.
        form: what is printed: text, json or md.
        files: whether the report is written.
        lang: None: as the environment says.
        charts: whether `charts.html` is written beside the report.

    Raises:
        GpuprofError: a file can't be written; what was to be printed is printed all the same.
    """
    from gpuprof.diagnosis import to_json
    from gpuprof.reports.words import catalog, language_of_environment

    lang = lang or language_of_environment()
    problem: GpuprofError | None = None
    report_path = None
    try:
        if files:
            from gpuprof.api import write_reports

            report_path, _ = write_reports(analysis, out, lang=lang)
        if charts:
            _write_charts(analysis, Path(out), lang)
        if json_file and json_file != "-":
            write(Path(json_file), to_json(analysis.diagnosis).decode())
    except GpuprofError as error:
        problem = error  # the verdict is worth more than the file
    if json_file == "-":
        click.echo(to_json(analysis.diagnosis).decode(), nl=False)
    else:
        show(analysis, form, lang)
        if report_path is not None and form == "text":
            said = catalog(lang).say("terminal.report", path=click.format_filename(report_path))
            click.echo(f"\n{said}")
    if problem is not None:
        raise problem


def _write_charts(analysis: Analysis, folder: Path, lang: str) -> None:
    from gpuprof.commands.export import CHARTS_NAME
    from gpuprof.reports.charts_page import write_charts

    write_charts(analysis.diagnosis, folder / CHARTS_NAME, samples=analysis.samples, lang=lang)


def as_text(analysis: Analysis, form: str, lang: str) -> str:
    """The diagnosis as text, json or md, for a file."""
    if form == "json":
        from gpuprof.diagnosis import to_json

        return to_json(analysis.diagnosis).decode()
    if form == "md":
        from gpuprof.reports.markdown import to_markdown

        return to_markdown(analysis.diagnosis, lang=lang)
    import io

    from rich.console import Console

    from gpuprof.reports.terminal import render

    plain = io.StringIO()
    render(analysis.diagnosis, Console(file=plain, width=100), lang=lang)
    return plain.getvalue()


def show(analysis: Analysis, form: str, lang: str) -> None:
    """Prints on standard output; text follows the terminal's width and colours."""
    if form != "text":
        click.echo(as_text(analysis, form, lang), nl=False)
        return
    from rich.console import Console

    from gpuprof.reports.terminal import render
    from gpuprof.reports.text import fits
    from gpuprof.reports.words import catalog

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the program here, with status 1."""
            raise BrokenPipeError

    console = Terminal()
    if console.width < 1:  # COLUMNS=0: no width is known, and rich would print nothing
        console = Terminal(width=80)
    if lang != "en" and not fits(catalog(lang).say("section.findings"), console.encoding):
        said = f"the encoding of this terminal, {console.encoding}, has no letters for {lang}"
        click.echo(f"gpuprof: {said}: set LANG=C.UTF-8; this is in English", err=True)
        lang = "en"
    render(analysis.diagnosis, console, lang=lang)


def width_of_output() -> int:
    """Columns to wrap to: those of the terminal, or what COLUMNS says. 0 where output goes to a
    file or another program, which reads a line as one."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns


def write(path: Path, text: str) -> None:
    """Writes a file that the user named.

    Raises:
        GpuprofError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}"
        raise GpuprofError(why, hint="choose another place") from error


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar on standard error, only for people."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield told
