"""`gpuprof.session`: records the loop inside a `with`, and says at the end what holds it back."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.collectors.torch_profiler import Window
    from gpuprof.rank_recorder import RankRecorder

log = logging.getLogger("gpuprof")

RUN_FOLDER = "GPUPROF_RUN_FOLDER"
"""Set by `gpuprof run` for the job: its run directory, where sessions of the job record too."""
RUN_JOB = "GPUPROF_RUN_JOB"
RUN_OPTIONS = "GPUPROF_RUN_OPTIONS"


class Session:
    """A recording of one loop; made by `session`. `path` is the run directory."""

    current: Session | None = None
    """The session that records in this process."""

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        steps: int = 10,
        windows: Sequence[Window] | None = None,
        attribution: bool = True,
        samples: bool = True,
        report: bool = True,
        quiet: bool = False,
    ) -> None:
        self.path: Path | None = Path(out) if out is not None else None
        self._steps, self._windows = steps, windows
        self._attribution, self._samples = attribution, samples
        self._report, self._quiet = report, quiet
        self._recorder: RankRecorder | None = None
        self._outer: Session | None = None
        self._entered = 0
        self._armed = False

    def step(self) -> None:
        """Ends a step of the loop. Optional: without it steps are found from the optimizer."""
        if self._recorder is not None:
            self._recorder.step()
        elif self._outer is not None:
            self._outer.step()

    def arm(self) -> None:
        """Records from the first step on, if this process ever makes one; nothing until then."""
        if Session.current is None and self._recorder is None:
            self._armed = True
            self._start()

    def arm_forked(self) -> bool:
        """In a child that was just forked: arms again, where the parent had not begun to record.

        Returns:
            Whether it is armed; a parent that records keeps its rank to itself.
        """
        before = self._recorder
        if Session.current is not self or not self._armed or before is None or before.began:
            return False
        before.forget()
        self._recorder = Session.current = None
        self.arm()
        return self._recorder is not None

    def disarm(self) -> bool:
        """Gives way to a session of the script's own; False when steps are being recorded."""
        if self._recorder is None or self._recorder.began:
            return False
        self._recorder.end()
        self._recorder = None
        Session.current = None
        return True

    def __enter__(self) -> Session:
        self._entered += 1
        if self._entered > 1 or self._recorder is not None:
            log.warning("gpuprof: this session has been entered before; it records once")
            return self
        outer = Session.current
        if outer is not None and not (outer._armed and outer.disarm()):
            self._outer = outer
            log.warning(
                "gpuprof: a session records already into %s; this one adds nothing", outer.path
            )
            return self
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            self.close(kind.__name__ if kind is not None else "")
            self._entered = 1  # the next entry is a second one

    def close(self, ended_by: str = "") -> None:
        """Ends the recording and, on rank 0, gives the verdict. What goes wrong is one line.

        Args:
            ended_by: Name of the exception that ended the loop, "" where none did.
        """
        recorder, self._outer = self._recorder, None
        if recorder is None or recorder.ended:
            return
        if Session.current is self:
            Session.current = None
        recorder.end(ended_by)
        notes = recorder.notes
        if not notes.own or recorder.options.launched or notes.record.rank != 0:
            return
        try:
            from gpuprof.conclude import conclude

            conclude(notes.folder, notes.record, report=self._report, quiet=self._quiet)
        except Exception as error:
            level = logging.DEBUG if notes.said else logging.WARNING  # one line is enough
            text = "gpuprof: no verdict: %s (the recording is in %s)"
            log.log(level, text, error, notes.folder)

    def _start(self) -> None:
        from gpuprof import process

        try:
            if process.is_worker():
                return
            recorder = self._make_recorder()
            self._recorder, Session.current = recorder, self
            recorder.arm()
            if not self._armed and process.identity().known:
                recorder.begin()
        except Exception as error:
            log.warning("gpuprof: could not start: %s; training goes on without it", error)

    def _make_recorder(self) -> RankRecorder:
        from gpuprof.leader import RUN_LEADER, is_gone
        from gpuprof.process import default_folder, of_attempt
        from gpuprof.rank_recorder import Options, RankRecorder
        from gpuprof.rank_windows import standard_plan
        from gpuprof.run import has_ended

        launched = os.environ.get(RUN_FOLDER)
        leader = os.environ.get(RUN_LEADER, "")
        if launched and not self._armed and (has_ended(Path(launched)) or is_gone(leader)):
            launched = ""  # the variable has outlived its job, and nobody reports there any more
        if launched:
            self.path = Path(launched)
        elif self.path is None:
            self.path = default_folder()
        plan = self._windows
        if plan is None:
            plan = standard_plan(self._steps, attribution=self._attribution)
        return RankRecorder(
            Options(
                folder=self.path,
                plan=tuple(plan),
                samples=self._samples,
                job=of_attempt(os.environ.get(RUN_JOB, "")) if launched else "",
                launched=bool(launched),
            )
        )


def session(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int = 10,
    windows: Sequence[Window] | None = None,
    attribution: bool = True,
    samples: bool = True,
    report: bool = True,
    quiet: bool = False,
) -> Session:
    """Records the loop inside a `with` and gives the verdict at its end.

        with gpuprof.session(out="runs/mine") as prof:
            for batch in loader:
                train_step(batch)
                prof.step()          # optional

    Nothing of it reaches the loop: its results stay the same to the bit, its exceptions pass, and
    what gpuprof fails at is one line and an entry in the manifest. Under a launcher every rank
    enters it, and all of them record into one directory.

    Args:
        out: The run directory; what an earlier run left there is replaced. Default:
            `gpuprof-runs/JOB` in the working directory.
        steps: Steps of a timing window.
        windows: The plan of windows in place of the standard one; an empty one records samples and
            step lengths only.
        attribution: Whether one more window records stacks, shapes and memory, for lines of code.
        samples: Whether GPUs and host are sampled by a process beside the job.
        report: Whether rank 0 analyzes the recording at the end and writes the report.
        quiet: Whether the verdict is not printed.
    """
    return Session(
        out,
        steps=steps,
        windows=windows,
        attribution=attribution,
        samples=samples,
        report=report,
        quiet=quiet,
    )
