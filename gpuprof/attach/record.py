"""The whole of an attachment: agents in, windows, agents out, one run directory."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof import run
from gpuprof.attach import access, assemble, enter
from gpuprof.attach.enter import Entered
from gpuprof.attach.mailbox import Mailbox
from gpuprof.attach.targets import Target
from gpuprof.attach.together import common_start
from gpuprof.collectors.sampler_client import SamplerHandle, launch, tell_rank
from gpuprof.errors import GpuprofError
from gpuprof.live import Progress, end_progress, note_progress
from gpuprof.run_writer import write_record

RENEW_S = 0.3
POLL_S = 0.1
BEFORE_STEPS = 3
"""Ends of steps that are seen before a window: two steps to compare it with."""
SILENT_S = 60.0
"""No step for so long: the job hangs, or its steps are longer than a recording of them is worth."""
ALIGN_S = 20.0
"""Ranks that have made no three steps within this time start each by itself."""
ATTRIBUTED_STEPS = 2
SETTLE_S = 0.0
APART_S = 5.0
"""Between two windows of --repeat."""

Told = Callable[[str, int, int], None]

_SAMPLER = (
    "import ctypes, signal, sys;"
    " ctypes.CDLL(None).prctl(1, int(signal.SIGTERM));"
    " sys.path[:] = __import__('json').loads(sys.argv.pop(1));"
    " from gpuprof.collectors.sampler import main; code = main();"
    " import os; os._exit(code)"
)
"""Ends with this process, however that ends: the job must not be sampled for ever."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to record. steps: of a window, 0 where seconds counts. repeat: timing windows."""

    steps: int = 10
    seconds: float = 0.0
    repeat: int = 1
    attribution: bool = True

    def windows(self) -> list[dict[str, object]]:
        """The windows in order: times, then stacks and shapes, then times again."""
        timing = {
            "kind": "timing",
            "steps": 0 if self.seconds else self.steps,
            "seconds": self.seconds,
            "stacks": False,
            "shapes": False,
        }
        plan: list[dict[str, object]] = [{**timing, "file": "trace-1.json", "apart": 0}]
        if self.attribution:
            plan.append(
                {
                    "kind": "attribution",
                    "file": "attribution-1.json",
                    "steps": ATTRIBUTED_STEPS,
                    "seconds": 0,
                    "stacks": True,
                    "shapes": True,
                    "apart": SETTLE_S,
                }
            )
        for number in range(2, self.repeat + 1):
            plan.append({**timing, "file": f"trace-{number}.json", "apart": APART_S})
        return plan


@dataclass(slots=True)
class Recorded:
    """How it went. gone: targets that ended inside the window or became another program, and which
    of both. stuck: those that made no step. removed: folders in which agents were spoken to, and
    which somebody has removed. unwritten: why the run directory could not be written, "" where it
    could. interrupted: by Ctrl-C."""

    folder: Path
    records: list[run.RankRecord]
    stopped_ns: list[int] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)
    stuck: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unwritten: str = ""
    interrupted: bool = False
    lines: list[tuple[float, str]] = field(default_factory=list)

    @property
    def has_trace(self) -> bool:
        return any(record.windows for record in self.records)


def start_folder(folder: Path, job: str, targets: Sequence[Target]) -> None:
    """Makes the run directory.

    Raises:
        GpuprofError: it can't be written, or holds another recording.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise GpuprofError(f"{folder} is not empty", hint="name another folder with --out")
        manifest = run.Manifest(
            job=job,
            launched_by="attach",
            started_unix_s=time.time(),
            world_size=max(1, len(targets)),
        )
        write_record(folder / run.MANIFEST, manifest)
    except OSError as error:
        raise GpuprofError(
            f"cannot write into {folder}: {error.strerror or error}",
            hint="name another folder with --out",
        ) from error


def sample(folder: Path, records: Sequence[run.RankRecord]) -> SamplerHandle | None:
    """Starts a sampler of GPUs and host, which ends with this process."""
    import json

    out = folder / run.SAMPLES
    members = [f"{record.pid}:{record.rank}:" for record in records]
    paths = json.dumps([os.fspath(Path(path).resolve()) for path in sys.path])
    command = [sys.executable, "-c", _SAMPLER, paths, "--out", str(out), "--pids", *members]
    try:
        return launch(command, out, new_session=True)
    except OSError:
        return None


def end_sampling(sampler: SamplerHandle | None, records: Sequence[run.RankRecord]) -> None:
    """Ends the sampler of this attachment, also one that is only starting: nobody shares it."""
    if sampler is None:
        return
    with suppress(OSError):
        sampler.stop([one.pid for one in records])
    if sampler.process.poll() is None:
        sampler.process.terminate()


def record(
    targets: Sequence[Target],
    ways: Sequence[access.Access],
    folder: Path,
    wanted: Wanted,
    told: Told,
) -> Recorded:
    """Records from inside all targets.

    Args:
        targets, ways: The processes, and how each is entered.
        folder: The run directory; made here.
        wanted: What to record.
        told: Told what goes on, how far, of how much.

    Raises:
        GpuprofError: one of them could not be entered, or nothing came of it. All are as before.
    """
    job = f"attach-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    start_folder(folder, job, targets)
    records = [assemble.describe(target, job) for target in targets]
    result = Recorded(folder, records)
    sampler = sample(folder, records)
    entered: list[Entered] = []
    over = threading.Event()
    try:
        threading.Thread(target=_renew, args=(entered, over), daemon=True).start()
        for target, way, one in zip(targets, ways, records, strict=True):
            told("attaching", len(entered), len(targets))
            entered.append(enter.enter(target, way.way, {"windows": wanted.windows()}))
            assemble.take_status(one, entered[-1].status)
            assemble.take_cores(one)
        number_ranks(records)
        for one in records:
            uuids = [gpu.uuid for gpu in one.gpus if gpu.uuid]
            tell_rank(folder / run.SAMPLES, one.pid, one.rank, uuids)
        result.stopped_ns = [each.injection.stopped_ns for each in entered if each.injection]
        _watch(entered, result, told)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        over.set()
        _out(entered, records, folder, result)
        with suppress(OSError):
            end_progress(folder)
        end_sampling(sampler, records)
    if not entered:
        raise KeyboardInterrupt
    return result


def _renew(entered: Sequence[Entered], over: threading.Event) -> None:
    """Tells all agents that somebody is there, whatever else is waited for."""
    while not over.wait(RENEW_S):
        for each in list(entered):
            each.box.renew()


def number_ranks(records: Sequence[run.RankRecord]) -> None:
    """Processes that know of no job are ranks by their order."""
    if len({one.rank for one in records}) < len(records):
        for number, one in enumerate(records):
            one.rank, one.world_size = number, len(records)
            one.notes.append("this process knows no rank: processes were numbered by pid")


def _watch(entered: Sequence[Entered], result: Recorded, told: Told) -> None:
    """Starts the windows together and waits for their end."""
    began = moved = time.monotonic()
    last: dict[int, tuple[int, int]] = {}
    started = False
    while True:
        alive = [each for each in entered if each.target.alive()]
        result.gone = {
            each.target.pid: each.target.how_gone() for each in entered if each not in alive
        }
        if not alive or result.gone:
            return  # the others of its job will not step on either
        result.removed = [each.box.there for each in alive if each.box.is_removed()]
        if result.removed:
            return
        words = {each.target.pid: each.box.get("progress") or {} for each in alive}
        now = time.monotonic()
        if not started:
            started = _start(alive, words, now - began)
            moved = now if started else moved
        state = {pid: (word.get("steps", 0), word.get("left", 1)) for pid, word in words.items()}
        if state != last:
            last, moved = state, now
        elif now - moved > SILENT_S:
            result.stuck = list(words)
            return
        if started and words and all(word.get("left", 1) == 0 for word in words.values()):
            return
        _tell(words, told)
        _note(entered, words, result)
        time.sleep(POLL_S)


def _start(alive: Sequence[Entered], words: dict[int, Any], waited_s: float) -> bool:
    """Sends everybody off, at one step where there are several."""
    if len(alive) == 1:
        steps: dict[int, int] | None = {alive[0].target.pid: BEFORE_STEPS}
    else:
        beats = {pid: (word.get("steps", 0), word.get("beats", [])) for pid, word in words.items()}
        steps = common_start(beats)
        if steps is None and waited_s > ALIGN_S:
            steps = dict.fromkeys(words, 0)
    if steps is None:
        return False
    for each in alive:
        each.box.put("start", {"step": steps[each.target.pid]})
    return True


def _tell(words: dict[int, Any], told: Told) -> None:
    if not words:
        return
    word = min(words.values(), key=lambda one: one.get("steps", 0))
    what = f"recording ({word['open']})" if word.get("open") else "waiting for steps"
    told(what, int(word.get("in_window", 0)), 0)


def _note(entered: Sequence[Entered], words: dict[int, Any], result: Recorded) -> None:
    """Keeps the present in the run directory, for whoever watches it."""
    ranks = []
    for each, one in zip(entered, result.records, strict=False):
        word = words.get(each.target.pid) or {}
        ends = [beat for beat in word.get("beats", []) if isinstance(beat, int)]
        ranks.append(Progress(one.rank, one.host, int(word.get("steps", 0)), ends))
    with suppress(OSError):  # it is only looked at
        note_progress(result.folder, ranks)


def _out(
    entered: Sequence[Entered],
    records: Sequence[run.RankRecord],
    folder: Path,
    result: Recorded,
) -> None:
    """Takes the agents out, whatever has happened, and keeps what they brought."""
    for each in entered:
        enter.ask_to_leave(each)
    for each, one in zip(entered, records, strict=False):
        observed, left = enter.see_off(each)
        _keep(one, each.box, observed, result)
        assemble.take_errors(one, observed.get("errors") or [])
        result.lines = result.lines or assemble.busiest_lines(observed)
        if not left and not result.removed:
            one.fail("the agent has not left yet: it goes when the main thread runs Python again")
        gone = not each.target.alive() or observed.get("why") == "exit"
        if gone:
            result.gone.setdefault(each.target.pid, each.target.how_gone())
        with suppress(OSError):
            assemble.finish(one, folder, "exit" if gone else "")
        enter.clear(each)


def _keep(one: run.RankRecord, box: Mailbox, observed: dict[str, Any], result: Recorded) -> None:
    """Keeps what one agent brought. The job goes on also where there is no room for it."""
    try:
        assemble.take_windows(one, box, observed, result.folder)
        assemble.take_calls(one, observed)
        assemble.take_steps(one, observed, result.folder)
        assemble.take_stacks(one, observed, result.folder)
    except OSError as error:
        result.unwritten = error.strerror or str(error)
