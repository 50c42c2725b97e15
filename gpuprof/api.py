"""The Python door to what the command line does: `analyze` and what it answers with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuprof import __version__
from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.diagnose import Recorded, diagnose
from gpuprof.diagnosis import Diagnosis, to_json
from gpuprof.errors import GpuprofError, InputError
from gpuprof.inputs import Inputs, gather
from gpuprof.memory import give_back
from gpuprof.others import read_others
from gpuprof.pause import without_gc
from gpuprof.readers.kineto import read_trace
from gpuprof.readers.step_log import read_step_log
from gpuprof.samples import Samples
from gpuprof.trace import Trace

Progress = Callable[[str, int, int], None]

REPORT_NAME = "report.html"
JSON_NAME = "diagnosis.json"


@dataclass(frozen=True, slots=True)
class Analysis:
    """A diagnosis with the traces that it was made from, which the report draws.

    accounts: of the ranks, in the order of `traces`; empty where the traces were not accounted for.
    samples: what was sampled over the run, one a node.
    """

    diagnosis: Diagnosis
    traces: tuple[Trace, ...]
    accounts: tuple[RankAccount, ...] = ()
    samples: tuple[Samples, ...] = ()


def analyze(*paths: str | os.PathLike[str], cores: int | None = None) -> Diagnosis:
    """Diagnoses what was recorded.

    Args:
        paths: Traces, folders of traces, run directories; several are joined into one diagnosis.
        cores: CPU cores that a process of the run may use, where that is known (default: as a run
            directory says).

    Raises:
        InputError: a path can't be read as anything known.
    """
    analysis = analyze_paths(*paths, cores=cores)
    return analysis.diagnosis.with_samples(analysis.samples)


@without_gc()
def analyze_paths(
    *paths: str | os.PathLike[str], cores: int | None = None, progress: Progress | None = None
) -> Analysis:
    """As `analyze`, and keeps the traces for the report.

    Args:
        paths: As for `analyze`.
        cores: As for `analyze`.
        progress: Told what is done, how far, of how many.
    """
    if not paths:
        raise InputError("nothing to analyze", hint="give a trace, a folder or a run directory")
    inputs = gather(paths)
    recorded = Recorded(
        traces=tuple(_read_all(inputs.traces, progress, "reading")),
        attribution=_attribution(inputs, progress),
        cores=cores if cores is not None else inputs.cores,
        other=read_others(inputs),
        records=inputs.records,
        step_us={rank: read_step_log(paths) for rank, paths in inputs.step_logs.items()},
    )
    give_back()
    diagnosis, view = diagnose(recorded, __version__, progress)
    give_back()
    added = (*inputs.warnings, *_copies(recorded.traces))
    if added:
        warnings = dict.fromkeys((*diagnosis.warnings, *added))
        diagnosis = msgspec.structs.replace(diagnosis, warnings=tuple(warnings))
    accounts = view.ranks if view is not None else ()
    traces = tuple(account.trace for account in accounts)
    return Analysis(diagnosis, traces, tuple(accounts), recorded.other.samples)


def _copies(traces: Sequence[Trace]) -> Iterator[str]:
    """Warns of traces that are the same file: what differs between ranks can't show in copies."""
    paths: dict[str, list[str]] = {}
    for trace in traces:
        paths.setdefault(trace.meta.sha256, []).append(trace.meta.path)
    for same in paths.values():
        if len(same) > 1:
            yield (
                f"{same[0]} and {same[1]}{f' (and {len(same) - 2} more)' if len(same) > 2 else ''}"
                " are the same file: what is said of ranks needs the file of each"
            )


@without_gc()
def write_reports(
    analysis: Analysis, out: str | os.PathLike[str], *, lang: str = "en"
) -> tuple[Path, Path]:
    """Writes `report.html` and `diagnosis.json` into a folder, both or neither: who interrupts it
    keeps what was there.

    Returns:
        Their paths.

    Raises:
        GpuprofError: the folder can't be written.
    """
    folder = Path(out)
    json_path = folder / JSON_NAME
    new = folder / f".{JSON_NAME}.{os.getpid()}"
    made = begun = False
    try:
        made = not folder.exists()  # raises where a folder above may not be looked into
        folder.mkdir(parents=True, exist_ok=True)
        with new.open("xb") as file:  # never through a link that somebody left there
            begun = True
            file.write(to_json(analysis.diagnosis))
        page = write_page(analysis, folder / REPORT_NAME, lang=lang)
        new.replace(json_path)
        begun = made = False
    except OSError as error:
        raise GpuprofError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="choose another place with --out",
        ) from error
    finally:
        if begun:
            new.unlink(missing_ok=True)
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return page, json_path


def write_page(analysis: Analysis, path: str | os.PathLike[str], *, lang: str = "en") -> Path:
    """Writes the report as one HTML file and says where it is.

    Raises:
        GpuprofError: the file can't be written.
    """
    from gpuprof.reports.html import write_html

    return write_html(
        analysis.diagnosis,
        analysis.traces,
        path,
        lang=lang,
        accounts=analysis.accounts,
        samples=analysis.samples,
    ).path


def _read_all(paths: list[Path], progress: Progress | None, what: str) -> list[Trace]:
    traces = []
    for done, path in enumerate(paths):
        if progress is not None:
            progress(what, done, len(paths))
        traces.append(read_trace(path))
    return traces


def _attribution(inputs: Inputs, progress: Progress | None) -> dict[int, Trace]:
    """Traces of attribution windows by rank; one that can't be read is only a lost nicety."""
    found: dict[int, Trace] = {}
    for path in inputs.attribution:
        try:
            trace = read_trace(path)
        except InputError:
            continue
        found[trace.meta.rank or 0] = trace
    return found
