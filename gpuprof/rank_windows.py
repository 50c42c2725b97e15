"""The traced windows of one process: when one may open, how long it is, and what became of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof import run, run_writer
from gpuprof.collectors.torch_profiler import TorchRecorder, Window, WithheldError
from gpuprof.loader_work import loader_work
from gpuprof.rank_notes import RankNotes
from gpuprof.step_times import StepTimes

if TYPE_CHECKING:
    from gpuprof.collectors.other_profilers import Others
    from gpuprof.collectors.sync_lines import SyncCounts

WARM_UP_STEPS = 5
"""First steps whose length is not typical: lazy initialization, autotuning, allocator growth."""

MAX_WINDOW_S = 60.0
"""A window is cut to so many seconds: a large model steps in half a minute, and memory for a
window of ten such steps is gigabytes."""

FEWEST_STEPS = 3
"""A window of fewer says nothing of how steps differ."""


def standard_plan(steps: int = 10, *, attribution: bool = True) -> list[Window]:
    """The windows of a session: times right after warm-up, then stacks, then times again later.

    Later windows show the run as it is once caches, loaders and clocks have settled; of all timing
    windows the verdict uses one. Those with stacks, shapes and memory are slower and used for
    places in the code only.

    Args:
        steps: Steps of each timing window.
        attribution: Whether to record the one with stacks.
    """
    plan = [Window(kind="trace", skip=WARM_UP_STEPS, steps=steps)]
    if attribution:
        with_all = Window(
            kind="attribution", skip=1, steps=2, stacks=True, shapes=True, memory=True
        )
        plan.append(with_all)
    return [*plan, *(Window(kind="trace", skip=skip, steps=steps) for skip in (50, 500))]


class RankWindows:
    """Opens and closes the windows, and puts each into the record.

    torch: what records them, None until the recording has begun or where none is planned. others:
    what watches for the user's own profilers, once torch is there.
    """

    def __init__(
        self, notes: RankNotes, times: StepTimes, before_first: Callable[[], None]
    ) -> None:
        self.torch: TorchRecorder | None = None
        self.others: Others | None = None
        self._notes, self._times = notes, times
        self._before_first = before_first
        self._entered = ExitStack()
        self._sync: ExitStack | None = None
        self._counted: dict[str, int] = {}
        self._over = False

    def plan(self, windows: tuple[Window, ...]) -> None:
        """Sets what is to be recorded into the folder."""
        if windows:
            folder = self._notes.folder
            self.torch = TorchRecorder(folder, windows, before=self._before, after=self._after)

    def start(self) -> None:
        """The loop has begun."""
        if self.torch is not None:
            with self._starting():
                self._entered.enter_context(self.torch)

    def step(self, torch: TorchRecorder) -> None:
        """A step has ended: a window may open, go on, or close."""
        failed = torch.failure
        with self._starting():
            torch.step()
        wants = torch.recording and torch.open_window is not None and torch.open_window.stacks
        if wants and self._sync is None:
            self._watch_syncs()
        elif not wants:
            self.unwatch_syncs()
        if torch.failure and torch.failure != failed:
            self._notes.failed_as_said(torch.failure)
            self._notes.save()

    def close(self) -> None:
        """Ends the window that is open, if one is."""
        self._over = True
        self._entered.close()
        if self.torch is not None and self.torch.failure:
            self._notes.failed_as_said(self.torch.failure)

    def other_profiler(self, reason: str) -> None:
        """A profiler of the user's own starts: ours makes room before it does."""
        torch, notes = self.torch, self._notes
        if torch is None or torch.done or self._over:
            return
        torch.abandon(_beside(reason))
        notes.say(torch.failure)
        notes.record.fail(torch.failure)
        notes.save()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """What starts inside is gpuprof's own profiler."""
        if self.others is None:
            yield
            return
        self.others.ours = True
        try:
            yield
        finally:
            self.others.ours = False

    # ---- calls that wait for the device -------------------------------------------------

    def _watch_syncs(self) -> None:
        from gpuprof.collectors.sync_lines import SyncCounts, sync_lines

        self._sync = ExitStack()
        counts = SyncCounts()
        self._sync.callback(self._keep_syncs, counts)
        self._sync.enter_context(sync_lines(counts))

    def unwatch_syncs(self) -> None:
        """Keeps what was counted of a window with stacks, if one is open."""
        sync, self._sync = self._sync, None
        if sync is not None:
            sync.close()

    def _keep_syncs(self, counts: SyncCounts) -> None:
        for (call, file, line, device), (count, spent_ns) in counts.lines.items():
            place = run.SyncLine(
                call=call,
                file=file,
                line=line,
                device=device,
                count=count,
                total_ms=round(spent_ns / 1e6, 3),
            )
            self._notes.record.sync_lines.append(place)
        self._notes.save()

    # ---- one window ---------------------------------------------------------------------

    def _before(self, window: Window) -> Window:
        """A window is about to open: may it, how long, under which name?"""
        reason = self.others.active() if self.others is not None else ""
        if reason:
            raise WithheldError(_beside(reason))
        self._times.new_window()
        self._before_first()
        number = self._counted[window.kind] = self._counted.get(window.kind, 0) + 1
        return replace(
            window,
            kind=run_writer.window_kind(window.kind, number),
            steps=self._fitting(window),
            memory=window.memory and _has_device(),
        )

    def _fitting(self, window: Window) -> int:
        step_ns = self._times.typical_ns
        if not step_ns:
            return window.steps
        fits = int(1e9 * MAX_WINDOW_S / step_ns)
        return max(min(FEWEST_STEPS, window.steps), min(window.steps, fits))

    def _after(self, window: Window, path: Path, steps: int) -> None:
        record = self._notes.record
        lengths, core = self._times.window_ns[:steps], self._times.core
        known = core.known and bool(lengths)
        record.windows.append(
            run.WindowRecord(
                kind="attribution" if window.stacks else "timing",
                file=path.name,
                first_step=record.steps - steps,
                steps=steps,
                stacks=window.stacks,
                shapes=window.shapes,
                memory=window.memory,
                step_ms=round(statistics.fmean(lengths) / 1e6, 4) if lengths else 0.0,
                core_ms=round(core.on_core_ns / len(lengths) / 1e6, 4) if known else None,
                ready_ms=round(core.ready_ns / len(lengths) / 1e6, 4) if known else None,
                loader=loader_work(self._times.loader.work),
                size_bytes=path.stat().st_size,
            )
        )
        self._notes.save()


def _has_device() -> bool:
    """Whether allocations can be recorded: for the CPU's allocator torch only warns of them."""
    import torch

    return bool(torch.cuda.is_available())


def _beside(reason: str) -> str:
    return f"{reason}: gpuprof runs none beside it and records only samples of GPU and host"
