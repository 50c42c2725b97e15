"""`gpuprof.compare`: reads two runs, or diagnoses that were kept, and compares them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuprof.analyzers.compare import RunSamples, compare_runs, samples_of, samples_of_accounts
from gpuprof.api import JSON_NAME, Analysis, analyze_paths
from gpuprof.comparison import Comparison
from gpuprof.diagnosis import SCHEMA_VERSION, Diagnosis, from_json
from gpuprof.errors import InputError

Progress = Callable[[str, int, int], None]
PathLike = str | os.PathLike[str]

MAX_DIAGNOSIS_BYTES = 64 << 20
"""A diagnosis of thousands of ranks takes a few MB; what is larger is something else."""

REPORT_FILES = frozenset({JSON_NAME, "report.html", "charts.html"})
"""A folder that holds nothing else is what `gpuprof analyze --out` wrote."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A run to compare: its diagnosis and its steps."""

    diagnosis: Diagnosis
    samples: RunSamples


def compare(before: PathLike, after: PathLike) -> Comparison:
    """Compares two runs: did the step change, by how much, and what of it moved?

    Args:
        before, after: What `gpuprof.analyze` takes, a `diagnosis.json`, or the folder that
            `gpuprof analyze` wrote it into.

    Raises:
        InputError: one of them can't be read as anything known.
    """
    first, second = load_run(before), load_run(after)
    return compare_runs(first.diagnosis, second.diagnosis, first.samples, second.samples)


def load_run(path: PathLike, progress: Progress | None = None) -> Compared:
    """Reads a kept diagnosis, or analyzes a recording.

    Args:
        path: As for `compare`.
        progress: Told what is done, how far, of how many.

    Raises:
        InputError: the path can't be read as anything known.
    """
    kept = kept_diagnosis(Path(path))
    if kept is not None:
        return Compared(kept, samples_of(kept))
    return of_analysis(analyze_paths(path, progress=progress))


def of_analysis(analysis: Analysis) -> Compared:
    """An analysis as a run to compare."""
    if analysis.accounts:
        return Compared(analysis.diagnosis, samples_of_accounts(analysis.accounts))
    return Compared(analysis.diagnosis, samples_of(analysis.diagnosis))


def kept_diagnosis(path: Path) -> Diagnosis | None:
    """The diagnosis in a `diagnosis.json`, or in a folder that holds nothing but a report; None
    where the path is something else.

    Raises:
        InputError: it is a diagnosis, but one that can't be read.
    """
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        if JSON_NAME not in names or not names <= REPORT_FILES:
            return None
        path = path / JSON_NAME
    if not path.is_file() or path.suffix != ".json" or path.stat().st_size > MAX_DIAGNOSIS_BYTES:
        return None
    with path.open("rb") as file:
        start = file.read(200)
    if b'"schema"' not in start or b'"gpuprof"' not in start:
        return None
    try:
        diagnosis = from_json(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} is no diagnosis that this version reads ({error})",
            hint="analyze the recording again",
        ) from error
    if diagnosis.schema != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema {diagnosis.schema}, this version reads {SCHEMA_VERSION}",
            hint="analyze the recording again",
        )
    return diagnosis
