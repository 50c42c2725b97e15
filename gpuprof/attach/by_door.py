"""Records jobs that ask for it themselves (see `kineto_door`), with nothing put into them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof import run
from gpuprof.attach import assemble, kineto_door, mailbox
from gpuprof.attach.mailbox import Mailbox
from gpuprof.attach.record import (
    Recorded,
    Told,
    Wanted,
    end_sampling,
    number_ranks,
    sample,
    start_folder,
)
from gpuprof.attach.targets import Target

ASKS_S = 40.0
"""A process asks every 5 s, or every 15 s where nobody has answered so far."""
TOGETHER_AFTER_S = 8.0
"""Several ranks start together this long after the last one was heard: each asks once more until
then, 5 s later at most, and Kineto wants 2 s of notice."""
NOTICE_MS = 2000
TOGETHER_S = 5.0
"""For so long they are recorded where no time is given: each counts its own steps."""
WRITES_S = 90.0
"""A window of steps, and the writing of it."""
POLL_S = 0.05
LOST = (
    "recorded without anything put into the job: stacks between the windows, waits for the loader"
    " and the lengths of other steps are not known"
)


@dataclass(slots=True)
class _Asking:
    """A process at the door. plan: windows to come, the first one under way once `asked_s` is
    set; done: those that are written."""

    target: Target
    record: run.RankRecord
    box: Mailbox
    plan: list[dict[str, Any]]
    done: list[dict[str, Any]] = field(default_factory=list)
    heard: bool = False
    asked_s: float = 0.0

    @property
    def file(self) -> Path:
        return self.box.here / kineto_door.written(self.plan[0]["file"], self.target.inner_pid)


def record_by_door(
    targets: Sequence[Target], folder: Path, wanted: Wanted, told: Told
) -> Recorded | None:
    """Records processes through Kineto's own door; None where one of them never asked.

    Raises:
        DoorError: another daemon answers them.
        GpuprofError: the run directory can't be written.
    """
    job = f"attach-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    with ExitStack() as stack:
        places = {target.environment.get(kineto_door.FOLDER, "") for target in targets}
        daemons = [kineto_door.Daemon(place) for place in sorted(places)]
        for daemon in daemons:
            stack.callback(daemon.close)
        asking = []
        for target in targets:
            box = mailbox.make(target.pid, "", target.environment.get(kineto_door.TRACES, ""))
            stack.callback(box.remove)
            plan = [dict(window) for window in wanted.windows()]
            asking.append(_Asking(target, assemble.describe(target, job), box, plan))
        if not _wait_for_questions(asking, daemons, told):
            return None
        start_folder(folder, job, targets)
        records = [one.record for one in asking]
        number_ranks(records)
        for record in records:
            record.notes.append(LOST)
            assemble.take_cores(record)
        result = Recorded(folder, records)
        sampler = sample(folder, records)
        try:
            _serve(asking, daemons, wanted, result, told)
        except KeyboardInterrupt:
            result.interrupted = True
        for one in asking:
            with suppress(OSError):
                assemble.take_windows(one.record, one.box, {"windows": one.done}, folder)
                assemble.finish(one.record, folder, "" if one.target.alive() else "exit")
        end_sampling(sampler, records)
        return result


def _wait_for_questions(
    asking: Sequence[_Asking], daemons: Sequence[kineto_door.Daemon], told: Told
) -> bool:
    """Whether all processes ask. A variable may have been set for another program of the job."""
    by_pid = {one.target.pid: one for one in asking}
    until = time.monotonic() + ASKS_S
    while time.monotonic() < until:
        for daemon in daemons:
            for question in daemon.questions():
                if question.pid in by_pid:
                    by_pid[question.pid].heard = True
                daemon.answer(question, "")
        heard = sum(one.heard for one in asking)
        if heard == len(asking):
            return True
        if not all(one.target.alive() for one in asking):
            return False
        told("waiting until Kineto asks", heard, len(asking))
        time.sleep(POLL_S)
    return False


def _serve(
    asking: Sequence[_Asking],
    daemons: Sequence[kineto_door.Daemon],
    wanted: Wanted,
    result: Recorded,
    told: Told,
) -> None:
    """Hands out window after window until all are written."""
    by_pid = {one.target.pid: one for one in asking}
    start_ms, seconds = _together(wanted, len(asking))
    while any(one.plan for one in asking):
        result.gone = {
            one.target.pid: one.target.how_gone() for one in asking if not one.target.alive()
        }
        if result.gone:
            return
        for daemon in daemons:
            for question in daemon.questions():
                one = by_pid.get(question.pid)
                due = one is not None and one.plan and not one.asked_s and question.free
                text = ""
                if one is not None and due:
                    file = f"{one.box.there}/{one.plan[0]['file']}"
                    text = kineto_door.configuration(
                        file, one.plan[0], start_ms=start_ms, seconds=seconds
                    )
                if daemon.answer(question, text) and one is not None and due:
                    one.asked_s = time.monotonic()
        for one in asking:
            _look(one, seconds)
        if start_ms and time.time() * 1e3 > start_ms - NOTICE_MS:  # for the next window
            start_ms, seconds = _together(wanted, len(asking))
        done = min(len(one.done) for one in asking)
        told("recording by Kineto", done, done + max(len(one.plan) for one in asking))
        time.sleep(POLL_S)


def _together(wanted: Wanted, ranks: int) -> tuple[int, float]:
    """When and for how long several ranks record; one rank begins at its next step."""
    if ranks == 1:
        return 0, wanted.seconds
    return round(1e3 * (time.time() + TOGETHER_AFTER_S)), wanted.seconds or TOGETHER_S


def _look(one: _Asking, seconds: float) -> None:
    """Takes a window that is written, or gives up one that never comes."""
    if not one.asked_s or not one.plan:
        return
    window = one.plan[0]
    if one.file.exists():  # renamed into place when it is complete
        steps = 0 if seconds else window["steps"]
        one.done.append({**window, "file": one.file.name, "recorded": steps})
        one.plan.pop(0)
        one.asked_s = 0.0
    elif time.monotonic() - one.asked_s > WRITES_S + TOGETHER_AFTER_S + seconds:
        one.record.fail(
            "Kineto wrote no trace: a profiler of the program's own may be running, or no step ends"
        )
        one.plan.clear()
