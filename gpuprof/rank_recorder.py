"""Records one process of a job: its hooks, windows, step log, sampler and record.

Nothing in here reaches the user's loop. A failure is kept in the rank's record and said in one
line, the first only; what can still be recorded is.
"""

from __future__ import annotations

import logging
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import process, run, run_writer
from gpuprof.collectors.torch_profiler import TorchRecorder, Window, WithheldError
from gpuprof.counted import counted
from gpuprof.loader_work import loader_work
from gpuprof.step_times import StepTimes

if TYPE_CHECKING:
    from gpuprof.collectors.callers import Callers
    from gpuprof.collectors.hooks import NamedParts, StepFinder
    from gpuprof.collectors.other_profilers import Others
    from gpuprof.collectors.sampler_client import SamplerHandle
    from gpuprof.collectors.step_log import StepLog

log = logging.getLogger("gpuprof")

WARM_UP_STEPS = 5
"""First steps whose length is not typical: lazy initialization, autotuning, allocator growth."""

MAX_WINDOW_S = 60.0
"""A window is cut to so many seconds: a large model steps in half a minute, and memory for a
window of ten such steps is gigabytes."""

FEWEST_STEPS = 3
"""A window of fewer says nothing of how steps differ."""

KINETO_LOG_LEVEL = "6"
"""Silences what Kineto prints on standard error whenever it starts and stops (2.13 does)."""


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to record, and where. job: "" to find it out. launched: `gpuprof run` leads the job, so
    manifest, sampler and report are its own."""

    folder: Path
    plan: tuple[Window, ...]
    samples: bool = True
    job: str = ""
    launched: bool = False


class RankRecorder:
    """The recording of this process. `record` is what it says of itself."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = options.folder.absolute()
        self.record = run.RankRecord()
        self.began = self.ended = False
        self.own = False
        """Whether the folder is this process's to write into."""
        self._pid = os.getpid()
        self._thread = 0
        self._explicit = False
        self._windows, self._hooks, self._environment = ExitStack(), ExitStack(), ExitStack()
        self._sync: ExitStack | None = None
        self._finder: StepFinder | None = None
        self._others: Others | None = None
        self._parts: NamedParts | None = None
        self._callers: Callers | None = None
        self._torch: TorchRecorder | None = None
        self._log: StepLog | None = None
        self._sampler: SamplerHandle | None = None
        self._last_ns = time.perf_counter_ns()
        self._started_ns = self._last_ns
        self._times = StepTimes()
        self.said = False
        """Whether the user has been told of a failure."""
        self._counted: dict[str, int] = {}

    # ---- start --------------------------------------------------------------------------

    def arm(self) -> None:
        """Puts the hooks in once torch is there; until the first step nothing else happens."""
        from gpuprof.late_import import when_imported

        self._environment.callback(when_imported("torch", self._hook))

    def _hook(self) -> None:
        with self.guard("watch the loop"):
            from gpuprof.collectors import hooks, other_profilers
            from gpuprof.collectors.callers import Callers

            enter = self._hooks.enter_context
            self._callers = Callers()
            self._finder = enter(
                hooks.steps_found(self._found_step, self._callers, self._times.loader.fetching)
            )
            self._parts = enter(hooks.named_parts(self._callers))
            self._others = enter(other_profilers.others_watched(self._other_profiler))

    def forget(self) -> None:
        """Takes everything out, and writes nothing: in a forked child it does nothing anyway."""
        with self.guard("take the hooks out"), self._environment:
            self._hooks.close()

    def begin(self) -> None:
        """Takes the folder, writes the first record and starts what records beside the loop."""
        if self.began:
            return
        self.began = True
        who = process.identity()
        options, record = self.options, self.record
        self._last_ns = self._started_ns = time.perf_counter_ns()
        record.job = options.job or process.job_name()
        record.attempt = process.attempt()
        record.rank, record.local_rank = who.rank, who.local_rank
        record.world_size, record.local_world_size = who.world_size, who.local_world_size
        record.host, record.pid = socket.gethostname(), self._pid
        record.command = process.command_line()
        record.started_unix_s = time.time()
        with self.guard("look at the machine"):
            cores = process.usable_cores(who.local_world_size)
            record.cores, record.affinity_cores = cores.each, cores.affinity
            record.quota_cores = cores.quota
        with self.guard(f"write into {self.folder}"):
            self._take_folder()
            self.own = True
            self._save()
            if record.rank == 0 and not options.launched:
                self._first_manifest()
        if self.own:
            self._start_collectors()

    def _take_folder(self) -> None:
        """Makes the folder ours, and clears what an earlier job left.

        Raises:
            OSError: it can't be written, or another process of this job has this rank.
        """
        record, folder = self.record, self.folder
        run_writer.claim_rank(folder, record.rank, record.job)
        if record.local_rank == 0 and not self.options.launched:
            run_writer.clear_older(folder, process.job_started_unix_s(), process.host_name())

    def _first_manifest(self) -> None:
        record = self.record
        manifest = run.Manifest(
            job=record.job,
            command=record.command,
            world_size=record.world_size,
            started_unix_s=record.started_unix_s,
            hosts=[record.host],
        )
        run_writer.write_record(self.folder / run.MANIFEST, manifest)

    def _start_collectors(self) -> None:
        record, folder = self.record, self.folder
        with self.guard("write the step log"):
            from gpuprof.collectors.step_log import StepLog

            self._log = StepLog(folder, record.rank)
        if self.options.plan:
            self._torch = TorchRecorder(
                folder, self.options.plan, before=self._before, after=self._after
            )
        if not self.options.launched:
            with self.guard("capture NCCL's log"):
                from gpuprof.collectors.nccl_capture import captured

                capture = captured(folder / run.NCCL, os.environ)
                status, why = self._environment.enter_context(capture)
                record.nccl = run.NcclCapture(status=status, why=why)
            if "KINETO_LOG_LEVEL" not in os.environ:
                os.environ["KINETO_LOG_LEVEL"] = KINETO_LOG_LEVEL
                self._environment.callback(os.environ.pop, "KINETO_LOG_LEVEL", None)
        if self.options.samples:
            with self.guard("start the sampler"):
                self._start_sampler()

    def _start_sampler(self) -> None:
        from gpuprof.collectors import sampler_client

        record, out = self.record, self.folder / run.SAMPLES
        if record.local_rank == 0 and not self.options.launched:
            self._sampler = sampler_client.start(out, ranks=[(self._pid, record.rank)])
        else:
            sampler_client.tell_rank(out, self._pid, record.rank)

    # ---- steps --------------------------------------------------------------------------

    def step(self) -> None:
        """The user says that a step has ended: from now on, only the user does."""
        if os.getpid() != self._pid or self.ended:
            return
        if not self._explicit:
            self._explicit = True
            if self.record.steps:
                return  # the optimizer has ended this very step
        self._beat()

    def _found_step(self) -> None:
        if not self._explicit:
            self._beat()

    def _beat(self) -> None:
        now = time.perf_counter_ns()
        thread = threading.get_ident()
        if self.ended or (self._thread and thread != self._thread):
            return
        if not self._thread:
            self._thread = thread
            if self._callers is not None:
                self._callers.thread = thread
            self._first_step(now)
        if not self.own:
            return
        length, torch = now - self._last_ns, self._torch
        self.record.steps += 1
        window = torch.open_window if torch is not None else None
        if self._log is not None:
            self._log.add(length, now)
            if window is not None:
                self._log.flush(now)  # closing a window can take a second, and a kill come in it
        if window is None or torch is None:
            if self.record.steps > WARM_UP_STEPS:
                self._times.outside_ns.append(length)
        elif torch.recording:
            is_last = torch.recorded_steps + 1 >= window.steps
            self._times.in_window(length, counts=not window.stacks, is_last=is_last)
        if self._parts is not None and self._parts.has_news():
            with self.guard("name the job's libraries"):
                self._parts.look()
        if torch is not None and not torch.done:
            with self.guard("record a step"):
                self._step_of_windows(torch)
        opened = torch.open_window if torch is not None else None
        if opened is not None and torch is not None and torch.recording:
            self._times.begin_step(is_first=not torch.recorded_steps)
        self._last_ns = end = time.perf_counter_ns()
        if self.record.steps > 1:  # the first one starts the recording
            self._times.spent(end - now, on_windows=bool(window or opened))

    def _first_step(self, now: int) -> None:
        """A process that turned out to train: only now is its rank certain."""
        with self.guard("start"):
            if not self.began:
                self.begin()
                self._last_ns = now
            if self._torch is not None:
                with self._starting():
                    self._windows.enter_context(self._torch)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """What starts inside is gpuprof's own profiler."""
        if self._others is None:
            yield
            return
        self._others.ours = True
        try:
            yield
        finally:
            self._others.ours = False

    def _step_of_windows(self, torch: TorchRecorder) -> None:
        failed = torch.failure
        with self._starting():
            torch.step()
        wants = torch.recording and torch.open_window is not None and torch.open_window.stacks
        if wants and self._sync is None:
            self._watch_syncs()
        elif not wants and self._sync is not None:
            self._sync.close()
            self._sync = None
        if torch.failure and torch.failure != failed:
            self.said = True  # the recorder has said it
            self.record.fail(torch.failure)
            self._save()

    def _watch_syncs(self) -> None:
        from gpuprof.collectors.sync_lines import SyncCounts, sync_lines

        self._sync = ExitStack()
        counts = SyncCounts()
        self._sync.callback(self._keep_syncs, counts)
        self._sync.enter_context(sync_lines(counts))

    def _keep_syncs(self, counts: Any) -> None:
        for (call, file, line, device), (count, spent_ns) in counts.lines.items():
            place = run.SyncLine(
                call=call,
                file=file,
                line=line,
                device=device,
                count=count,
                total_ms=round(spent_ns / 1e6, 3),
            )
            self.record.sync_lines.append(place)
        self._save()

    def _before(self, window: Window) -> Window:
        """A window is about to open: may it, how long, under which name?"""
        others = self._others
        if others is not None:
            reason = others.active()
            if reason:
                raise WithheldError(_beside(reason))
        self._times.new_window()
        self._tell_gpus()
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
        lengths, core = self._times.window_ns[:steps], self._times.core
        known = core.known and bool(lengths)
        self.record.windows.append(
            run.WindowRecord(
                kind="attribution" if window.stacks else "timing",
                file=path.name,
                first_step=self.record.steps - steps,
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
        self._save()

    def _other_profiler(self, reason: str) -> None:
        """A profiler of the user's own starts: ours makes room before it does."""
        torch = self._torch
        if torch is None or torch.done or self.ended:
            return
        torch.abandon(_beside(reason))
        self._say(torch.failure)
        self.record.fail(torch.failure)
        self._save()

    def _tell_gpus(self) -> None:
        """The GPUs that the loop uses, once it has touched them."""
        if self.record.gpus:
            return
        self.record.gpus = process.gpus()
        uuids = [gpu.uuid for gpu in self.record.gpus if gpu.uuid]
        if uuids and self.options.samples:
            from gpuprof.collectors.sampler_client import tell_rank

            tell_rank(self.folder / run.SAMPLES, self._pid, self.record.rank, uuids)

    # ---- end ----------------------------------------------------------------------------

    def end(self, ended_by: str = "") -> None:
        """Stops everything, undoes every hook and writes the last record.

        Args:
            ended_by: Name of the exception that ended the loop, "" where none did.
        """
        if self.ended or os.getpid() != self._pid:
            return
        self.ended = True
        with self.guard("write the last window"):
            self._windows.close()
            if self._torch is not None and self._torch.failure:
                self.record.fail(self._torch.failure)
                self.said = True
        if self._sync is not None:
            with self.guard("unwatch the loop"):
                self._sync.close()
        self.forget()
        if self._log is not None:
            self._log.close()
            if self._log.failed:
                self._failed("write the step log", self._log.failed)
        if self._sampler is not None and self._sampler.problem():
            self._failed("sample", self._sampler.problem())
        if self.own:
            self._last_record(ended_by)
        if self.own and self.options.samples:
            with self.guard("leave the sampler"):
                self._leave_sampler()

    def _leave_sampler(self) -> None:
        from gpuprof.collectors import sampler_client

        sampler_client.let_go(self.folder / run.SAMPLES, self._pid, self._sampler)

    def _last_record(self, ended_by: str) -> None:
        record = self.record
        record.state = "failed" if ended_by else "finished"
        record.ended_by, record.ended_unix_s = ended_by, time.time()
        finder = self._finder
        record.steps_source = (
            "session" if self._explicit else finder.source if finder is not None else "none"
        )
        record.python, record.torch, record.cuda = process.versions()
        if not record.torch:
            record.notes.append("torch was not imported: no step and no operator was seen")
        elif not record.steps:
            record.notes.append(
                "no step was seen: no optimizer of torch stepped and no DataLoader was read;"
                " call prof.step() at the end of each"
            )
        elif self.options.plan and not record.windows and not record.failures:
            record.notes.append(
                f"the loop ended after {counted(record.steps, 'step')}, before the first window"
                " was recorded"
            )
        record.overhead = self._times.overhead(time.perf_counter_ns() - self._started_ns)
        with self.guard("look at the GPUs"):
            record.gpus = record.gpus or process.gpus()
        self._save()

    # ---- failures -----------------------------------------------------------------------

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Keeps whatever goes wrong inside away from the user's loop."""
        try:
            yield
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._failed(what, reason)

    def _failed(self, what: str, reason: str) -> None:
        text = f"could not {what}: {reason}"
        if self.record.fail(text):
            self._say(text)

    def _say(self, text: str) -> None:
        """One line for the user; only the first, the others are in the record."""
        log.log(
            logging.DEBUG if self.said else logging.WARNING, "gpuprof: %s; training goes on", text
        )
        self.said = True

    def _save(self) -> None:
        if self._callers is not None:
            self.record.call_lines = self._callers.as_lines()
        if self.own:
            with self.guard(f"write into {self.folder}"):
                run_writer.write_record(self.folder / run.rank_file(self.record.rank), self.record)


def _has_device() -> bool:
    """Whether allocations can be recorded: for the CPU's allocator torch only warns of them."""
    import torch

    return bool(torch.cuda.is_available())


def _beside(reason: str) -> str:
    return f"{reason}: gpuprof runs none beside it and records only samples of GPU and host"
