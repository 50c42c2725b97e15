"""The run directory: what a recording leaves on disk, and the only thing that analyzers get.

    RUN/
      manifest.json                    what is here, in which schema; written at start and end
      rank-00000.json                  what one rank says of itself; renewed after each window
      trace-rank00000.json.gz          first timing window, as torch.profiler wrote it
      trace-2-rank00000.json.gz        later ones
      attribution-rank00000.json.gz    the window with stacks and shapes
      steps-rank00000-0000.jsonl       length of every step, appended as the job runs
      samples/NODE-0000.jsonl          GPUs and host, by the sampler
      nccl/HOST.PID.log                NCCL's own log
      stacks-rank00000.jsonl           Python stacks, by gpuprof attach (see gpuprof.stacks)
      flight/rank00000                 what PyTorch's flight recorder left of a job that stood still
      ras.txt                          what NCCL's RAS said of it

A file is either appended to line by line, or written beside its place and renamed into it, so a
SIGKILL at any moment leaves all of it readable. Every rank writes only files of its own name; the
manifest is rank 0's (or that of `gpuprof run`). `load` reads whatever of it there is;
`gpuprof.run_writer` writes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuprof import __version__
from gpuprof.errors import InputError

SCHEMA = 1
MANIFEST = "manifest.json"
SAMPLES = "samples"
NCCL = "nccl"
FLIGHT = "flight"
RAS = "ras.txt"
MAX_RECORD_BYTES = 8 << 20
"""A manifest of ten thousand ranks is smaller; what is larger is not ours."""
MAX_FILES = 200_000
MAX_FAILURES = 100
"""Failures kept a rank: enough to see what went wrong, bounded if it goes wrong every step."""

TRACE_NAME = re.compile(r"trace(?:-(\d+))?-rank(\d{5,})\.json\.gz")
ATTRIBUTION_NAME = re.compile(r"attribution(?:-(\d+))?-rank(\d{5,})\.json\.gz")
_STACKS_NAME = re.compile(r"stacks-rank(\d{5,})\.jsonl")
_RANK_NAME = re.compile(r"rank-(\d{5,})\.json")
_STEPS_NAME = re.compile(r"steps-rank(\d{5,})-\d{4,}\.jsonl(\.gz)?")
MOST_SHOWN = 8
"""Ranks that a warning names."""

_SEGMENT_NAME = re.compile(r".+-\d{4,}\.jsonl(\.gz)?")

T = TypeVar("T", bound=msgspec.Struct)


class Gpu(msgspec.Struct, kw_only=True):
    """A GPU that a rank uses. index: torch's ordinal. uuid: "" where torch does not say."""

    index: int
    name: str
    uuid: str = ""


class LoaderWork(msgspec.Struct, kw_only=True):
    """What the worker processes of a DataLoader did in a window.

    span_ms: how long it was looked at. busy_frac: share of it that a worker's main thread was on a
    core, or ready for one, on average; waits for storage or network are none of it. fetches: how
    often torch could tell how many batches had been asked for and were not there yet. in_making:
    of these as many as there are workers, on average; null where torch does not tell. filled: by
    how many batches the stock grew meanwhile. read_bytes: from storage, by all workers together.
    """

    workers: int
    span_ms: float
    busy_frac: float
    fetches: int = 0
    in_making: float | None = None
    filled: float = 0.0
    read_bytes: int | None = None


class WindowRecord(msgspec.Struct, kw_only=True):
    """A window that was recorded.

    file: name in the run directory. first_step: number of the first recorded step, from 0.
    step_ms: mean length of its steps; without any, of the whole window. core_ms, ready_ms: what of
    it the thread of the loop was on a core, and stood ready for one that others had; null where
    that is not known. loader: what the loader's worker processes did; null without any.
    """

    kind: str
    file: str
    first_step: int
    steps: int
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    step_ms: float = 0.0
    core_ms: float | None = None
    ready_ms: float | None = None
    loader: LoaderWork | None = None
    size_bytes: int = 0


class Failure(msgspec.Struct, kw_only=True):
    """Something that gpuprof could not do. unix_s: when. text: one line."""

    unix_s: float
    text: str


class SyncLine(msgspec.Struct, kw_only=True):
    """A line of the user's code that forced the host to wait for the device.

    call: how it is spelled. count, total_ms: in the attribution window. device: of the tensor;
    on "cpu" nothing waits.
    """

    call: str
    file: str
    line: int
    device: str
    count: int
    total_ms: float


class CallLine(msgspec.Struct, kw_only=True):
    """A line of the user's code that calls what a step may wait in.

    kind: "checkpoint" or "input". call: what it calls. count, total_ms: in the whole run, on the
    loop's own thread.
    """

    kind: str
    call: str
    file: str
    line: int
    function: str
    count: int
    total_ms: float


class NcclCapture(msgspec.Struct, kw_only=True):
    """Whether NCCL's log is in the run directory: "captured", "not used" or "missed", and why."""

    status: str
    why: str = ""


class Overhead(msgspec.Struct, kw_only=True):
    """What the recording cost this rank.

    step_ms: median of the steps outside all windows. window_step_ms: mean inside the timing
    windows. step_call_us: mean cost of gpuprof's own work at a step outside the windows.
    windows_ms: starting, stopping and writing windows, all together. run_ms: the whole recording.
    """

    step_ms: float | None = None
    window_step_ms: float | None = None
    step_call_us: float | None = None
    windows_ms: float = 0.0
    run_ms: float = 0.0


class RankRecord(msgspec.Struct, kw_only=True):
    """What one rank says of itself.

    job: the same for all ranks of one start. attempt: how often the launcher had started the
    workers anew before. state: "recording", "finished" (the session ended by
    itself) or "failed" (an exception ended it; `ended_by` is its type). cores: what this process
    can count on, its node's ranks sharing what they may use; affinity_cores and quota_cores are
    what that was made from. steps_source: "session", "optimizer", "loader" or "none".
    """

    schema: int = SCHEMA
    gpuprof: str = __version__
    job: str = ""
    attempt: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    host: str = ""
    pid: int = 0
    python: str = ""
    torch: str = ""
    cuda: str = ""
    command: list[str] = []
    state: str = "recording"
    ended_by: str = ""
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    cores: float | None = None
    affinity_cores: int | None = None
    quota_cores: float | None = None
    gpus: list[Gpu] = []
    steps: int = 0
    steps_source: str = "none"
    windows: list[WindowRecord] = []
    sync_lines: list[SyncLine] = []
    call_lines: list[CallLine] = []
    overhead: Overhead = msgspec.field(default_factory=Overhead)
    nccl: NcclCapture | None = None
    notes: list[str] = []
    failures: list[Failure] = []

    def fail(self, text: str) -> bool:
        """Keeps a failure; False where the same one is kept already."""
        text = " ".join(text.split())
        if any(known.text == text for known in self.failures):
            return False
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(Failure(unix_s=time.time(), text=text))
        return True


class Manifest(msgspec.Struct, kw_only=True):
    """What the run directory holds, as its writer knew it. launched_by: "session", "run" or
    "attach"."""

    schema: int = SCHEMA
    gpuprof: str = __version__
    job: str = ""
    launched_by: str = "session"
    command: list[str] = []
    world_size: int = 1
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    exit_status: int | None = None
    hosts: list[str] = []
    ranks: list[RankRecord] = []
    missing_ranks: list[int] = []
    nccl: NcclCapture | None = None
    notes: list[str] = []
    failures: list[Failure] = []


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory as it was found.

    ranks: by rank. traces: rank -> its timing windows, oldest first. attribution: rank -> its
    windows with stacks. steps: rank -> segments of its step log. warnings: what is damaged or
    missing, one line each.
    """

    path: Path
    manifest: Manifest
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    traces: dict[int, list[Path]] = field(default_factory=dict)
    attribution: dict[int, list[Path]] = field(default_factory=dict)
    steps: dict[int, list[Path]] = field(default_factory=dict)
    samples: Path | None = None
    nccl_logs: list[Path] = field(default_factory=list)
    stacks: dict[int, Path] = field(default_factory=dict)
    flight_records: list[Path] = field(default_factory=list)
    ras: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def cores(self) -> int | None:
        """CPU cores that each process of the run may use, the fewest over its ranks."""
        known = [record.cores for record in self.ranks.values() if record.cores]
        return max(1, int(min(known))) if known else None

    def best_traces(self) -> list[Path]:
        """One timing window a rank, the same one for all where they have one in common.

        Of those that all ranks have, the one with most steps, and of these the latest: the farther
        from the start, the more it is like the rest of the run.
        """
        numbers = [{_number(path): path for path in paths} for paths in self.traces.values()]
        common = set.intersection(*map(set, numbers)) if numbers else set()
        if not common:
            return [paths[0] for _, paths in sorted(self.traces.items())]
        best = max(common, key=lambda number: (self._fewest_steps(number), number))
        return [next(p for p in self.traces[r] if _number(p) == best) for r in sorted(self.traces)]

    def _fewest_steps(self, number: int) -> int:
        steps = {w.file: w.steps for record in self.ranks.values() for w in record.windows}
        names = [p.name for paths in self.traces.values() for p in paths if _number(p) == number]
        return min((steps.get(name, 0) for name in names), default=0)


def _number(path: Path) -> int:
    match = TRACE_NAME.fullmatch(path.name)
    return int(match[1] or 1) if match else 0


def rank_file(rank: int) -> str:
    """Name of a rank's own record."""
    return f"rank-{rank:05d}.json"


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory, also one that was cut off early."""
    if not path.is_dir():
        return False
    if (path / MANIFEST).is_file():
        record = _read(path / MANIFEST, Manifest)
        # Other programs write a manifest.json, too: ours names its job.
        if isinstance(record, Manifest) and record.job:
            return True
    ranks = (p for p in files_in(path) if _RANK_NAME.fullmatch(p.name))
    return any(isinstance(r := _read(p, RankRecord), RankRecord) and r.job for p in ranks)


def load(path: str | os.PathLike[str]) -> Run:
    """Reads a run directory; a damaged one yields what it holds, and says what is missing.

    Raises:
        InputError: the folder is missing, or holds nothing of a run.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder", hint="name a run directory")
    warnings: list[str] = []
    manifest = _manifest(folder, warnings)
    run = Run(path=folder, manifest=manifest or Manifest())
    run.ranks.update({record.rank: record for record in run.manifest.ranks})
    for file in files_in(folder):
        _take(file, run, warnings)
    warnings += _without_earlier_starts(run)
    for paths in (*run.traces.values(), *run.attribution.values(), *run.steps.values()):
        paths.sort(key=lambda p: (_number(p), p.name))
    samples = folder / SAMPLES
    has_samples = any(_SEGMENT_NAME.fullmatch(p.name) for p in files_in(samples))
    run.nccl_logs.extend(p for p in files_in(folder / NCCL) if p.stat().st_size)
    run.flight_records.extend(p for p in files_in(folder / FLIGHT) if p.stat().st_size)
    if not (manifest or run.ranks or run.traces or run.attribution or run.steps or has_samples):
        raise InputError(
            f"{folder} holds no recording",
            hint="the job may have ended before its first step; record again for longer",
        )
    if manifest is None:
        warnings.append(f"{MANIFEST} is missing: the recording was cut off")
    warnings += _told(run)
    return Run(
        path=folder,
        manifest=run.manifest,
        ranks=dict(sorted(run.ranks.items())),
        traces=dict(sorted(run.traces.items())),
        attribution=dict(sorted(run.attribution.items())),
        steps=dict(sorted(run.steps.items())),
        samples=samples if has_samples else None,
        nccl_logs=sorted(run.nccl_logs),
        stacks=dict(sorted(run.stacks.items())),
        flight_records=sorted(run.flight_records),
        ras=folder / RAS if (folder / RAS).is_file() else None,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def read_rank(folder: Path, rank: int) -> RankRecord | None:
    """What a rank last said of itself; None where it said nothing that can be read."""
    found = _read(folder / rank_file(rank), RankRecord)
    return found if isinstance(found, RankRecord) else None


def has_ended(folder: Path) -> bool:
    """Whether the run in this folder is over, or there is none."""
    manifest = _manifest(folder, [])
    return manifest is None or manifest.ended_unix_s > 0


def _manifest(folder: Path, warnings: list[str]) -> Manifest | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    found = _read(path, Manifest)
    if isinstance(found, str):
        warnings.append(found)
        return None
    return found


def _take(file: Path, run: Run, warnings: list[str]) -> None:
    """Puts a file of the run directory where it belongs."""
    if match := TRACE_NAME.fullmatch(file.name):
        run.traces.setdefault(int(match[2]), []).append(file)
    elif match := ATTRIBUTION_NAME.fullmatch(file.name):
        run.attribution.setdefault(int(match[2]), []).append(file)
    elif match := _STEPS_NAME.fullmatch(file.name):
        run.steps.setdefault(int(match[1]), []).append(file)
    elif match := _STACKS_NAME.fullmatch(file.name):
        run.stacks[int(match[1])] = file
    elif match := _RANK_NAME.fullmatch(file.name):
        record = _read(file, RankRecord)
        if isinstance(record, str):
            warnings.append(record)
            return
        known = run.ranks.get(int(match[1]))
        if known is None or known.job != record.job or known.state == "recording":
            run.ranks[int(match[1])] = record


def _without_earlier_starts(run: Run) -> list[str]:
    """Leaves out ranks that only an earlier start of the workers had, and says that there was one.

    A launcher that starts workers anew may come back with fewer of them.
    """
    last = max((record.attempt for record in run.ranks.values()), default=0)
    if not last:
        return []
    times = "once" if last == 1 else f"{last} times"
    told = f"the launcher started the workers anew {times}; this is what the last ones recorded"
    older = [rank for rank, record in run.ranks.items() if record.attempt < last]
    files: tuple[dict[int, Any], ...] = (run.ranks, run.traces, run.attribution, run.steps)
    for kept in files:
        for rank in older:
            kept.pop(rank, None)
    return [told]


def _told(run: Run) -> Iterator[str]:
    """What the records themselves say went wrong."""
    for failure in run.manifest.failures:
        yield failure.text
    yield from run.manifest.notes
    if run.manifest.nccl is not None and run.manifest.nccl.status == "missed":
        yield f"NCCL's log was not recorded: {run.manifest.nccl.why}"
    several = len(run.ranks) > 1
    for rank, record in sorted(run.ranks.items()):
        where = f"rank {rank}: " if several else ""
        for failure in record.failures:
            yield where + failure.text
        for note in record.notes:
            yield where + note
        if record.nccl is not None and record.nccl.status == "missed":
            yield f"{where}NCCL's log was not recorded: {record.nccl.why}"
    world_size = max([run.manifest.world_size, *(r.world_size for r in run.ranks.values())])
    n_missing = world_size - sum(0 <= rank < world_size for rank in run.ranks)
    if n_missing > 0 and run.ranks:
        # A damaged record can speak of any number of ranks: only the first are looked for.
        first = islice((r for r in range(world_size) if r not in run.ranks), MOST_SHOWN)
        shown = ", ".join(map(str, first)) + (", …" if n_missing > MOST_SHOWN else "")
        yield f"nothing was recorded of {n_missing} of {world_size} ranks ({shown})"


def _read(path: Path, kind: type[T]) -> T | str:
    """The record in a file, or one line that says what is wrong with it."""
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            return f"{path.name} is too large to be a record of a run"
        record = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        return f"{path.name} can't be read: {error.strerror or error}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"{path.name} is damaged"
    schema = getattr(record, "schema", 0)
    if schema > SCHEMA:
        return f"{path.name} is of schema {schema}, newer than this gpuprof reads ({SCHEMA})"
    return record


def rank_of(name: str) -> int | None:
    """The rank whose file this is by its name; None for files of no rank."""
    for pattern, group in (
        (TRACE_NAME, 2),
        (ATTRIBUTION_NAME, 2),
        (_STEPS_NAME, 1),
        (_STACKS_NAME, 1),
        (_RANK_NAME, 1),
    ):
        if match := pattern.fullmatch(name):
            return int(match[group])
    return None


def files_in(folder: Path) -> list[Path]:
    """Regular files in a folder, hidden ones left out, by name; none where there is no folder."""
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= MAX_FILES:
                    break
                if entry.is_file() and not entry.name.startswith("."):
                    found.append(Path(entry.path))
    except OSError:
        return []
    return sorted(found)
