"""What a run directory holds while the job still writes into it: steps, states, GPUs.

Reads only what is needed to show the present: the last segment of each step log and of each node's
samples. Nothing is written, and nothing is asked of the job.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuprof import run
from gpuprof.errors import GpuprofError, InputError
from gpuprof.readers.samples import SEGMENT_NAME, read_samples
from gpuprof.samples import Samples, Series

RUNS_FOLDER = "gpuprof-runs"
"""Where runs are recorded that are not told where (`process.default_folder`)."""

RECENT_STEPS = 60
"""Steps that the present is told from."""

RECENT_SAMPLES = 60

MAX_LOG_BYTES = 4 << 20
"""A segment of a step log is 1 MiB; a larger file is not one."""


PROGRESS = "progress.json"
"""What an attachment knows of the ranks while it records them; gone when it ends."""

MOST_BEATS = 64


class Progress(msgspec.Struct):
    """One rank in the middle of an attachment. steps: seen so far. ends_ns: when the latest of them
    ended, oldest first."""

    rank: int
    host: str = ""
    steps: int = 0
    ends_ns: list[int] = []


class _Steps(msgspec.Struct):
    """A line of a step log; its first line has neither field."""

    n: int = -1
    us: list[int] = []


@dataclass(frozen=True, slots=True)
class LiveRank:
    """One rank now. step_ms: the latest steps, oldest first. steps: how many it has taken.
    now: "recording" until its record says that it ended. windows: traced so far."""

    rank: int
    host: str
    now: str
    steps: int
    step_ms: tuple[float, ...]
    windows: int

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.step_ms) if self.step_ms else None


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """One GPU now; NaN where it was not read. util: shares of 1, oldest first."""

    label: str
    util: tuple[float, ...]
    power_w: float
    clock_mhz: float
    memory_bytes: float
    memory_total_bytes: float


@dataclass(frozen=True, slots=True)
class Live:
    """A run directory now. over: whether the job has ended."""

    folder: Path
    command: tuple[str, ...]
    ranks: tuple[LiveRank, ...]
    gpus: tuple[LiveGpu, ...]
    host_busy: tuple[float, ...]
    over: bool


def newest(parent: Path | None = None) -> Path:
    """The run directory that was begun last below `gpuprof-runs`.

    Raises:
        InputError: there is none.
    """
    folder = parent or Path(RUNS_FOLDER)
    found = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    if not found:
        raise InputError(f"no run in {folder}", hint="name the run directory: gpuprof watch RUN")
    return max(found, key=lambda path: path.stat().st_mtime)


def look(folder: Path) -> Live:
    """Reads a run directory as it is now.

    Raises:
        InputError: the folder is missing.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder", hint="name a run directory")
    try:
        found = run.load(folder)
    except InputError:  # the job has only begun
        return Live(folder, (), (), (), (), False)
    ranks = [] if found.steps else _attached(folder)
    for rank in sorted({*found.ranks, *found.steps} - {one.rank for one in ranks}):
        record = found.ranks.get(rank)
        count, latest = _latest(found.steps.get(rank, ()))
        ranks.append(
            LiveRank(
                rank=rank,
                host=record.host if record is not None else "",
                now=record.state if record is not None else "recording",
                steps=max(count, record.steps if record is not None else 0),
                step_ms=tuple(us / 1e3 for us in latest[-RECENT_STEPS:]),
                windows=len(record.windows) if record is not None else 0,
            )
        )
    nodes = _samples(folder / run.SAMPLES)
    return Live(
        folder,
        tuple(found.manifest.command),
        tuple(ranks),
        tuple(gpu for node in nodes for gpu in _gpus(node)),
        _host_busy(nodes[0]) if nodes else (),
        found.manifest.ended_unix_s > 0,
    )


def note_progress(folder: Path, ranks: Sequence[Progress]) -> None:
    """Says in a run directory how far an attachment is.

    Raises:
        OSError: it can't be written.
    """
    temporary = folder / f".{PROGRESS}"
    temporary.write_bytes(msgspec.json.encode(list(ranks)))
    temporary.replace(folder / PROGRESS)


def end_progress(folder: Path) -> None:
    """Takes that away again."""
    for name in (PROGRESS, f".{PROGRESS}"):
        (folder / name).unlink(missing_ok=True)


def _attached(folder: Path) -> list[LiveRank]:
    """The ranks of an attachment that is under way, by what it notes."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            noted = msgspec.json.decode(file.read(MAX_LOG_BYTES), type=list[Progress])
    except (OSError, msgspec.DecodeError):
        return []
    return [
        LiveRank(
            rank=one.rank,
            host=one.host,
            now="recording",
            steps=one.steps,
            step_ms=tuple((b - a) / 1e6 for a, b in itertools.pairwise(one.ends_ns[-MOST_BEATS:])),
            windows=0,
        )
        for one in noted
    ]


def _latest(logs: Iterable[Path]) -> tuple[int, list[int]]:
    """Steps taken, and the lengths of the latest in µs, from the end of a rank's log."""
    plain = [path for path in logs if path.suffix == ".jsonl"]
    if not plain:
        return 0, []
    path = max(plain, key=lambda one: one.name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES)
    except OSError:
        return 0, []
    count, lengths = 0, []
    for line in data.split(b"\n")[:-1]:  # the last line may be half written
        try:
            part = msgspec.json.decode(line, type=_Steps)
        except msgspec.DecodeError:
            continue
        lengths += part.us
        if part.n >= 0:
            count = part.n + len(part.us)
    return count, lengths


def _samples(folder: Path) -> list[Samples]:
    """The last segment of each node's samples."""
    last: dict[str, Path] = {}
    for path in run.files_in(folder) if folder.is_dir() else []:
        match = SEGMENT_NAME.fullmatch(path.name)
        if match and (match[1] not in last or path.name > last[match[1]].name):
            last[match[1]] = path
    nodes = []
    for path in last.values():
        try:
            nodes += read_samples(path)
        except GpuprofError:
            continue  # its first line is still being written
    return nodes


def _gpus(node: Samples) -> list[LiveGpu]:
    found = []
    for scope in node.scopes("gpu"):
        device = node.device(scope)
        total = device.number("mem_total_bytes") if device is not None else None
        label = f"GPU {scope.partition(':')[2]}"
        if device is not None and device.name:
            label += f" · {device.name}"
        found.append(
            LiveGpu(
                label=label,
                util=_values(node.get("util_frac", scope))[-RECENT_SAMPLES:],
                power_w=_last(node.get("power_w", scope)),
                clock_mhz=_last(node.get("sm_clock_mhz", scope)),
                memory_bytes=_last(node.get("mem_used_bytes", scope)),
                memory_total_bytes=float("nan") if total is None else total,
            )
        )
    return found


def _host_busy(node: Samples) -> tuple[float, ...]:
    """Cores of the node that were busy, between samples."""
    busy = node.get("cpu_busy_s", "host")
    if busy is None:
        return ()
    return tuple(float(rate) for rate in busy.rate_per_s()[1][-RECENT_SAMPLES:])


def _values(series: Series | None) -> tuple[float, ...]:
    return () if series is None else tuple(float(value) for value in series.good()[1])


def _last(series: Series | None) -> float:
    values = _values(series)
    return values[-1] if values else float("nan")
