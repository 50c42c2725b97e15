"""The end of a recording: wait for the other ranks, complete the manifest, give the verdict.

The analysis runs in a process of its own: it needs memory and libraries that the job has no use
for, and whatever happens in there does not happen to the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gpuprof import run
from gpuprof.errors import GpuprofError
from gpuprof.run_writer import write_record

WAIT_S = 30.0
"""How long rank 0 waits for the other ranks' last records."""
WAIT_AFTER_FAILURE_S = 3.0
"""After an exception the others may be stuck in a collective that will never end."""
POLL_S = 0.1
ANALYSIS_S = 900.0
"""Traces of a thousand ranks take minutes."""

PLAIN_WIDTH = 100

_CHILD = (
    "import sys; sys.path[:] = __import__('json').loads(sys.argv[4]);"
    " from gpuprof.conclude import analyze_here; sys.exit(analyze_here(*sys.argv[1:4]))"
)


def conclude(folder: Path, record: run.RankRecord, *, report: bool, quiet: bool) -> None:
    """What rank 0 does when its session ends.

    Args:
        folder: The run directory.
        record: Rank 0's record.
        report: Whether to analyze and to write the report.
        quiet: Whether to print nothing.

    Raises:
        GpuprofError: the analysis failed; it says why.
        OSError: the run directory can't be written.
    """
    patience = WAIT_AFTER_FAILURE_S if record.state == "failed" else WAIT_S
    others = set(range(record.world_size)) - {record.rank}
    wait_for_ranks(folder, record.job, others, patience)
    complete_manifest(folder)
    if not report:
        return
    text = verdict(folder, sys.stdout)
    if not quiet:
        sys.stdout.write(text)
        sys.stdout.flush()


def wait_for_ranks(folder: Path, job: str, ranks: set[int], patience_s: float) -> list[int]:
    """Waits until the last record of each of these ranks is there.

    Returns:
        The ranks that have not ended, or never recorded, within the time.
    """
    until = time.monotonic() + patience_s
    waiting = set(ranks)
    while True:
        for rank in sorted(waiting):
            found = run.read_rank(folder, rank)
            if found is not None and found.job == job and found.state != "recording":
                waiting.discard(rank)
        if not waiting or time.monotonic() > until:
            return sorted(waiting)
        time.sleep(POLL_S)


def complete_manifest(
    folder: Path, *, exit_status: int | None = None, notes: Sequence[str] = ()
) -> run.Manifest:
    """Folds the ranks' records into the manifest.

    Args:
        folder: The run directory.
        exit_status: The job's, where it is known.
        notes: Further lines for the manifest.

    Raises:
        OSError: it can't be written.
    """
    loaded = run.load(folder)
    manifest = loaded.manifest
    manifest.ranks = list(loaded.ranks.values())
    manifest.hosts = sorted({record.host for record in manifest.ranks} or set(manifest.hosts))
    manifest.world_size = max([manifest.world_size, *(r.world_size for r in manifest.ranks)])
    manifest.missing_ranks = sorted(set(range(manifest.world_size)) - set(loaded.ranks))
    manifest.ended_unix_s = time.time()
    manifest.exit_status = exit_status
    manifest.notes += notes
    write_record(folder / run.MANIFEST, manifest)
    return manifest


def verdict(folder: Path, stream: TextIO) -> str:
    """Analyzes a run directory in another process, which writes the report into it.

    Returns:
        The verdict as text for the stream: coloured and as wide as it where it is a terminal.

    Raises:
        GpuprofError: the analysis failed; it says why.
    """
    width, colour = _looks(stream)
    folder = folder.resolve()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_RUN_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    paths = json.dumps([os.fspath(Path(p).resolve()) for p in sys.path])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, os.fspath(folder), str(width), colour, paths],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANALYSIS_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GpuprofError(
            f"the analysis took longer than {ANALYSIS_S:.0f} s",
            hint=f"run gpuprof analyze {folder}",
        ) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GpuprofError(why[-1] if why else f"the analysis ended with status {done.returncode}")
    return text


def _looks(stream: TextIO) -> tuple[int, str]:
    """Width of the stream, and "colour" or "plain"."""
    isatty = getattr(stream, "isatty", None)
    if isatty is None or not isatty():
        return PLAIN_WIDTH, "plain"
    try:
        return os.get_terminal_size(stream.fileno()).columns, "colour"
    except (OSError, ValueError):
        return PLAIN_WIDTH, "colour"


def analyze_here(folder: str, width: str, colour: str) -> int:
    """Analyzes a run directory in this process, writes the report, prints the verdict."""
    from rich.console import Console

    from gpuprof.api import analyze_paths, write_reports
    from gpuprof.reports.terminal import render
    from gpuprof.reports.words import catalog, language_of_environment

    lang = language_of_environment()
    try:
        analysis = analyze_paths(folder)
        report_path, _ = write_reports(analysis, folder, lang=lang)
    except GpuprofError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    is_plain = colour != "colour"
    console = Console(width=int(width), force_terminal=not is_plain, no_color=is_plain or None)
    render(analysis.diagnosis, console, lang=lang)
    sys.stdout.write(f"\n{catalog(lang).say('terminal.report', path=report_path)}\n")
    return 0
