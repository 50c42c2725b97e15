"""`gpuprof watch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.commands.output import APath, lang_option

if TYPE_CHECKING:
    from rich.console import Group

    from gpuprof.reports.words import Catalog


@click.command()
@click.argument("run", required=False, type=APath(file_okay=False))
@click.option("--once", is_flag=True, help="Show the present once and end, for scripts.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2, max=60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often the view is brought up to date.",
)
@lang_option
def watch(run: str | None, once: bool, interval: float, lang: str) -> None:
    """Watch a job while `gpuprof run`, `attach` or a session records it.

    Shows each rank's latest steps, the GPUs and the host, from what is on disk: the job is not
    touched. RUN is its run directory, the newest below gpuprof-runs/ where it is left out. Ends
    with the job, or with Ctrl-C, which stops the view and nothing else. `attach` shows the same
    while it records; `run` leaves the terminal to its job, and this is its live view.

    \b
    Examples:
      gpuprof run -- python train.py        in one terminal
      gpuprof watch                         in another
      gpuprof watch runs/mine --once
    """
    from rich.console import Console
    from rich.live import Live as Screen

    from gpuprof.live import look, newest
    from gpuprof.reports.words import catalog

    folder = Path(run) if run else newest()
    words = catalog(lang)
    console = Console()
    if once or not console.is_terminal:
        console.print(_view(folder, words, console.width))
        return
    with Screen(_view(folder, words, console.width), console=console, auto_refresh=False) as screen:
        while not look(folder).over:
            time.sleep(interval)
            screen.update(_view(folder, words, console.width), refresh=True)


def _view(folder: Path, words: Catalog, width: int) -> Group:
    from gpuprof.live import look
    from gpuprof.reports.live_view import render

    now = look(folder)
    title = f"{folder.name}  {' '.join(now.command)}"
    return render(title, now.ranks, now.gpus, now.host_busy, words, width)


@contextmanager
def watching(folder: Path, lang: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """The live view on standard error while something is recorded into a folder, with one line of
    what goes on; yields who is told that. None, and no view, where nobody looks."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console, Group
    from rich.live import Live as Screen
    from rich.text import Text

    from gpuprof.errors import GpuprofError
    from gpuprof.reports.words import catalog, speaker

    words, said = catalog(lang), speaker(lang)
    console = Console(stderr=True)
    now = Text("")

    def view() -> Group:
        try:
            return Group(now, _view(folder, words, console.width))
        except (GpuprofError, OSError):  # the folder is not there yet
            return Group(now)

    def told(what: str, done: int, total: int) -> None:
        amount = f" {done}/{total}" if total else f" {done}" if done else ""
        now.plain = f"{said(what)}{amount}"

    with Screen(console=console, get_renderable=view, refresh_per_second=2, transient=True):
        yield told
