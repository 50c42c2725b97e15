"""What gpuprof's own recorder says of the window that is analyzed, beside its trace.

A trace holds no word of what recording it cost, nor of whether the machine was busy with other
work; the rank's record in the run directory does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuprof.analyzers.wording import microseconds, milliseconds, percent, significant
from gpuprof.diagnosis import Place
from gpuprof.run import CallLine, LoaderWork, RankRecord, SyncLine

WAITING = "waiting for a core"
"""The fact of a diagnosis that `core_wait_frac` reads back."""

READY_FROM = 0.05
"""From this share of its time without a core that it could have used, a thread's steps are those of
a busy machine. An idle one shows less than 1 %."""

SLOWED_FROM = 0.20
"""From this much longer steps inside a window than outside, a reader should know."""

FEWEST_OUTSIDE = 5
"""Steps outside the windows from which their median says what a step takes."""


FLUSH = "os.fsync"
MOST_LINES = 5
LEAST_OF_TIME = 0.05
"""As many lines as `gpuprof.analyzers.places` names, and no smaller ones."""

Line = TypeVar("Line", SyncLine, CallLine)


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """The analyzed window of one rank. ms a step, None where it is not known.

    step_ms: in the window. outside_ms: median outside all windows. core_ms, ready_ms: what of a
    step in the window the loop's thread was on a core, and stood ready for one. call_us: gpuprof's
    own work a step outside the windows. windows_ms: starting, stopping and writing all windows.
    run_ms: the whole recording.
    sync_lines: lines that read a tensor's values, counted in the window with stacks. call_lines:
    lines that save, or ask for the next batch. loader: what its worker processes did. steps:
    in the window.
    """

    rank: int
    step_ms: float | None
    outside_ms: float | None
    core_ms: float | None
    ready_ms: float | None
    call_us: float | None
    windows_ms: float
    run_ms: float
    sync_lines: tuple[SyncLine, ...] = ()
    call_lines: tuple[CallLine, ...] = ()
    loader: LoaderWork | None = None
    steps: int = 0

    @property
    def lasted_ms(self) -> float:
        """The recorded run without its windows' overhead; 0 where it did not end in order."""
        return max(self.run_ms - self.windows_ms, 0.0)

    @property
    def saving_ms(self) -> float:
        """Time that the loop's thread was inside saves, over the whole run."""
        return sum(line.total_ms for line in self.call_lines if line.kind == "checkpoint")

    @property
    def saves(self) -> int:
        """How many: a flush to the disk is a part of one, and alone it is none."""
        calls = [line for line in self.call_lines if line.kind == "checkpoint"]
        return sum(line.count for line in calls if line.call != FLUSH)

    @property
    def saving_frac(self) -> float:
        return self.saving_ms / self.lasted_ms if self.lasted_ms else 0.0

    @property
    def ready_frac(self) -> float:
        if not self.ready_ms or not self.step_ms:
            return 0.0
        return min(self.ready_ms / self.step_ms, 1.0)

    @property
    def slept_frac(self) -> float | None:
        """Share of the step in which the loop's thread waited for anything but a core; None where
        that was not recorded."""
        if self.core_ms is None or self.ready_ms is None or not self.step_ms:
            return None
        return max(1.0 - (self.core_ms + self.ready_ms) / self.step_ms, 0.0)


def recorded_window(record: RankRecord, trace_path: str) -> RecordedWindow:
    """What a rank's record says of the window in this file.

    Args:
        record: The rank's record.
        trace_path: The trace that is analyzed.
    """
    name = Path(trace_path).name
    window = next((w for w in record.windows if w.file == name), None)
    traced = sum(w.steps + 1 for w in record.windows)
    cost = record.overhead
    known = cost.step_ms is not None and record.steps - traced >= FEWEST_OUTSIDE
    return RecordedWindow(
        rank=record.rank,
        step_ms=window.step_ms or None if window is not None else None,
        outside_ms=cost.step_ms if known else None,
        core_ms=window.core_ms if window is not None else None,
        ready_ms=window.ready_ms if window is not None else None,
        call_us=cost.step_call_us,
        windows_ms=cost.windows_ms,
        run_ms=cost.run_ms,
        sync_lines=tuple(record.sync_lines),
        call_lines=tuple(record.call_lines),
        loader=window.loader if window is not None else None,
        steps=window.steps if window is not None else 0,
    )


def with_called_lines(
    places: Sequence[Place], told: Mapping[int, RecordedWindow], rank: int, kind: str
) -> tuple[Place, ...]:
    """Places from stacks, or where these have no line the ones that the recorder noted.

    Args:
        places: From stacks.
        told: What the recorder noted.
        rank: Whose lines.
        kind: "input", "checkpoint" or "sync".
    """
    if any(place.line for place in places) or rank not in told:
        return tuple(places)
    window = told[rank]
    if kind == "sync":
        waits = [line for line in window.sync_lines if line.device not in ("cpu", "meta")]
        noted = [Place(file=s.file, line=s.line) for s in _longest(waits)]
    else:
        calls = [line for line in window.call_lines if line.kind == kind]
        noted = [Place(file=c.file, line=c.line, function=c.function) for c in _longest(calls)]
    return tuple(noted) or tuple(places)


def _longest(lines: Sequence[Line]) -> list[Line]:
    """The few that took most of the time."""
    ranked = sorted(lines, key=lambda line: -line.total_ms)
    whole = sum(line.total_ms for line in ranked)
    return [line for line in ranked[:MOST_LINES] if line.total_ms >= LEAST_OF_TIME * whole]


def window_warnings(told: Mapping[int, RecordedWindow]) -> list[str]:
    """What a reader should know before trusting the times: at most one line of a kind."""
    found = []
    busy = max(told.values(), key=lambda w: w.ready_frac, default=None)
    if busy is not None and busy.ready_frac >= READY_FROM:
        found.append(
            f"rank {busy.rank}: the training thread stood ready without a core"
            f" {percent(busy.ready_frac)} of the recorded time, other processes had it: steps and"
            " predictions are those of a busy machine"
        )
    slowed = [w for w in told.values() if _slowed(w) >= SLOWED_FROM]
    if slowed:
        worst = max(slowed, key=_slowed)
        found.append(
            f"rank {worst.rank}: a step takes {milliseconds(worst.step_ms or 0.0)} in the recorded"
            f" window and {milliseconds(worst.outside_ms or 0.0)} outside it: the profiler slows"
            " this run down, and shares of host work are larger here than without it"
        )
    return found


def _slowed(window: RecordedWindow) -> float:
    if not window.step_ms or not window.outside_ms:
        return 0.0
    return window.step_ms / window.outside_ms - 1.0


def recording_cost(told: Mapping[int, RecordedWindow]) -> dict[str, str]:
    """What recording cost the run, as facts for people: of the first rank."""
    if not told:
        return {}
    window = told[min(told)]
    facts: dict[str, str] = {}
    if window.call_us is not None and window.outside_ms:
        share = window.call_us / 1e3 / window.outside_ms
        facts["cost of gpuprof outside the windows"] = (
            f"{microseconds(window.call_us)} a step ({significant(100 * share, 2)} %)"
        )
    if window.step_ms and window.outside_ms:
        facts["step in the recorded window"] = (
            f"{milliseconds(window.step_ms)}; {milliseconds(window.outside_ms)} outside the windows"
        )
    if window.windows_ms and window.run_ms:
        facts["starting and writing the windows"] = (
            f"{significant(window.windows_ms / 1e3, 2)} s of"
            f" {significant(window.run_ms / 1e3)} s recorded"
        )
    if window.ready_ms is not None:
        facts[WAITING] = f"{percent(window.ready_frac)} of the recorded time"
    return facts


def core_wait_frac(facts: Mapping[str, str]) -> float | None:
    """The share of the recorded time that the training thread stood ready without a core, as
    `recording_cost` wrote it into a diagnosis; None where nothing is known of it."""
    found = re.search(r"\d+(?:\.\d+)?", facts.get(WAITING, ""))
    return min(float(found[0]) / 100, 1.0) if found else None
