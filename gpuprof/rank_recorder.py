"""Records one process of a job: its hooks, steps, sampler and what stands beside its windows.

Nothing in here reaches the user's loop: `RankNotes` keeps what fails.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof import process, run
from gpuprof.collectors.torch_profiler import Window
from gpuprof.counted import counted
from gpuprof.rank_notes import RankNotes
from gpuprof.rank_windows import WARM_UP_STEPS, RankWindows
from gpuprof.step_times import StepTimes

if TYPE_CHECKING:
    from gpuprof.collectors.callers import Callers
    from gpuprof.collectors.hooks import NamedParts, StepFinder
    from gpuprof.collectors.sampler_client import SamplerHandle
    from gpuprof.collectors.step_log import StepLog

KINETO_LOG_LEVEL = "6"
"""Silences what Kineto prints on standard error whenever it starts and stops (2.13 does)."""


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
    """The recording of this process. `notes` holds what it says of itself."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.notes = RankNotes(options.folder)
        self.began = self.ended = False
        self._record = self.notes.record
        self._pid = os.getpid()
        self._thread = 0
        self._explicit = False
        self._hooks, self._environment = ExitStack(), ExitStack()
        self._finder: StepFinder | None = None
        self._parts: NamedParts | None = None
        self._callers: Callers | None = None
        self._log: StepLog | None = None
        self._sampler: SamplerHandle | None = None
        self._last_ns = time.perf_counter_ns()
        self._started_ns = self._last_ns
        self._times = StepTimes()
        self._windows = RankWindows(self.notes, self._times, self._tell_gpus)

    # ---- start --------------------------------------------------------------------------

    def arm(self) -> None:
        """Puts the hooks in once torch is there; until the first step nothing else happens."""
        from gpuprof.late_import import when_imported

        self._environment.callback(when_imported("torch", self._hook))

    def _hook(self) -> None:
        with self.notes.guard("watch the loop"):
            from gpuprof.collectors import hooks, other_profilers
            from gpuprof.collectors.callers import Callers

            enter, windows = self._hooks.enter_context, self._windows
            self._callers = Callers()
            self.notes.called_lines = self._callers.as_lines
            self._finder = enter(
                hooks.steps_found(self._found_step, self._callers, self._times.loader.fetching)
            )
            self._parts = enter(hooks.named_parts(self._callers))
            windows.others = enter(other_profilers.others_watched(windows.other_profiler))

    def forget(self) -> None:
        """Takes everything out, and writes nothing: in a forked child it does nothing anyway."""
        with self.notes.guard("take the hooks out"), self._environment:
            self._hooks.close()

    def begin(self) -> None:
        """Takes the folder, writes the first record and starts what records beside the loop."""
        if self.began:
            return
        self.began = True
        who = process.identity()
        notes, record = self.notes, self._record
        self._last_ns = self._started_ns = time.perf_counter_ns()
        record.job = self.options.job or process.job_name()
        record.attempt = process.attempt()
        record.rank, record.local_rank = who.rank, who.local_rank
        record.world_size, record.local_world_size = who.world_size, who.local_world_size
        record.host, record.pid = socket.gethostname(), self._pid
        record.command = process.command_line()
        record.started_unix_s = time.time()
        with notes.guard("look at the machine"):
            cores = process.usable_cores(who.local_world_size)
            record.cores, record.affinity_cores = cores.each, cores.affinity
            record.quota_cores = cores.quota
        with notes.guard(f"write into {notes.folder}"):
            notes.take_folder(launched=self.options.launched)
        if notes.own:
            self._start_collectors()

    def _start_collectors(self) -> None:
        notes, folder = self.notes, self.notes.folder
        with notes.guard("write the step log"):
            from gpuprof.collectors.step_log import StepLog

            self._log = StepLog(folder, self._record.rank)
        self._windows.plan(self.options.plan)
        if not self.options.launched:
            with notes.guard("capture NCCL's log"):
                from gpuprof.collectors.nccl_capture import captured

                capture = captured(folder / run.NCCL, os.environ)
                status, why = self._environment.enter_context(capture)
                self._record.nccl = run.NcclCapture(status=status, why=why)
            if "KINETO_LOG_LEVEL" not in os.environ:
                os.environ["KINETO_LOG_LEVEL"] = KINETO_LOG_LEVEL
                self._environment.callback(os.environ.pop, "KINETO_LOG_LEVEL", None)
        if self.options.samples:
            with notes.guard("start the sampler"):
                self._start_sampler()

    # ---- sampler ------------------------------------------------------------------------

    def _start_sampler(self) -> None:
        from gpuprof.collectors import sampler_client

        record, out = self._record, self.notes.folder / run.SAMPLES
        if record.local_rank == 0 and not self.options.launched:
            self._sampler = sampler_client.start(out, ranks=[(self._pid, record.rank)])
        else:
            sampler_client.tell_rank(out, self._pid, record.rank)

    def _tell_gpus(self) -> None:
        """The GPUs that the loop uses, once it has touched them."""
        record = self._record
        if record.gpus:
            return
        record.gpus = process.gpus()
        uuids = [gpu.uuid for gpu in record.gpus if gpu.uuid]
        if uuids and self.options.samples:
            from gpuprof.collectors.sampler_client import tell_rank

            tell_rank(self.notes.folder / run.SAMPLES, self._pid, record.rank, uuids)

    def _leave_sampler(self) -> None:
        from gpuprof.collectors import sampler_client

        sampler_client.let_go(self.notes.folder / run.SAMPLES, self._pid, self._sampler)

    # ---- steps --------------------------------------------------------------------------

    def step(self) -> None:
        """The user says that a step has ended: from now on, only the user does."""
        if os.getpid() != self._pid or self.ended:
            return
        if not self._explicit:
            self._explicit = True
            if self._record.steps:
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
        if not self.notes.own:
            return
        length, torch, record = now - self._last_ns, self._windows.torch, self._record
        record.steps += 1
        window = torch.open_window if torch is not None else None
        if self._log is not None:
            self._log.add(length, now)
            if window is not None:
                self._log.flush(now)  # closing a window can take a second, and a kill come in it
        if window is None or torch is None:
            if record.steps > WARM_UP_STEPS:
                self._times.outside_ns.append(length)
        elif torch.recording:
            is_last = torch.recorded_steps + 1 >= window.steps
            self._times.in_window(length, counts=not window.stacks, is_last=is_last)
        if self._parts is not None and self._parts.has_news():
            with self.notes.guard("name the job's libraries"):
                self._parts.look()
        if torch is not None and not torch.done:
            with self.notes.guard("record a step"):
                self._windows.step(torch)
        opened = torch.open_window if torch is not None else None
        if opened is not None and torch is not None and torch.recording:
            self._times.begin_step(is_first=not torch.recorded_steps)
        self._last_ns = end = time.perf_counter_ns()
        if record.steps > 1:  # the first one starts the recording
            self._times.spent(end - now, on_windows=bool(window or opened))

    def _first_step(self, now: int) -> None:
        """A process that turned out to train: only now is its rank certain."""
        with self.notes.guard("start"):
            if not self.began:
                self.begin()
                self._last_ns = now
            self._windows.start()

    # ---- end ----------------------------------------------------------------------------

    def end(self, ended_by: str = "") -> None:
        """Stops everything, undoes every hook and writes the last record.

        Args:
            ended_by: Name of the exception that ended the loop, "" where none did.
        """
        if self.ended or os.getpid() != self._pid:
            return
        self.ended = True
        notes = self.notes
        with notes.guard("write the last window"):
            self._windows.close()
        with notes.guard("unwatch the loop"):
            self._windows.unwatch_syncs()
        self.forget()
        if self._log is not None:
            self._log.close()
            if self._log.failed:
                notes.failed("write the step log", self._log.failed)
        if self._sampler is not None and self._sampler.problem():
            notes.failed("sample", self._sampler.problem())
        if notes.own:
            self._last_record(ended_by)
        if notes.own and self.options.samples:
            with notes.guard("leave the sampler"):
                self._leave_sampler()

    def _last_record(self, ended_by: str) -> None:
        record = self._record
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
        with self.notes.guard("look at the GPUs"):
            record.gpus = record.gpus or process.gpus()
        self.notes.save()
