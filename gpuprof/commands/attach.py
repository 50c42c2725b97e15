"""`gpuprof attach`: records a job that runs already, from outside, and gives the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.commands.output import APath, format_option, lang_option
from gpuprof.counted import counted
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.attach.access import Access
    from gpuprof.attach.record import Recorded, Wanted
    from gpuprof.attach.targets import Target

OBSERVED_S = 10.0
"""How long --no-inject observes where no --duration is given."""
LONGEST_S = 60.0
"""The agent's own bound of a window."""


@click.command()
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    help="The process, or its launcher (torchrun, accelerate, mpirun): all ranks below it."
    " May be given several times.",
)
@click.option("--all-gpus", is_flag=True, help="The processes that compute on this machine's GPUs.")
@click.option(
    "--steps",
    type=click.IntRange(min=1, max=1000),
    help="Steps to record.  [default: 10]",
)
@click.option(
    "--duration",
    type=click.FloatRange(min=0.1, max=LONGEST_S),
    help="Seconds to record, in whole steps, instead of --steps.",
)
@click.option(
    "-o",
    "--out",
    type=APath(file_okay=False),
    help="Run directory.  [default: gpuprof-runs/TIME-PID]",
)
@click.option(
    "--no-inject",
    is_flag=True,
    help="Put nothing into the process: samples from outside, no trace.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--repeat",
    type=click.IntRange(min=1, max=100),
    default=1,
    show_default=True,
    help="Windows to record, some seconds apart.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=1, max=3600),
    default=4,
    show_default=True,
    help="Seconds for which a rank must stand in a collective to be called stuck.",
)
@click.option("--no-attribution", is_flag=True, help="Record no window with stacks and shapes.")
@format_option
@lang_option
def attach(
    pids: tuple[int, ...],
    all_gpus: bool,
    steps: int | None,
    duration: float | None,
    out: str | None,
    no_inject: bool,
    dry_run: bool,
    repeat: int,
    patience: float,
    no_attribution: bool,
    form: str,
    lang: str,
) -> None:
    """Record a job that runs already and knows nothing of gpuprof.

    The job goes on as if nothing had been: what is put into it is taken out again. Needs the right
    to trace the process (the same user, or root); docs/attach.md says what is read and written.
    On a terminal each rank's steps, the GPUs and the host are shown while it is recorded.

    \b
    Examples:
      gpuprof attach --pid 4711
      gpuprof attach --pid $(pgrep torchrun) --steps 20
      gpuprof attach --pid 4711 --dry-run
    """
    if steps is not None and duration is not None:
        raise click.UsageError("--steps and --duration exclude each other")
    if all_gpus == bool(pids):
        raise click.UsageError("name processes with --pid, or all of them with --all-gpus")
    from gpuprof.attach import access
    from gpuprof.attach.record import Wanted
    from gpuprof.process import default_folder

    found = _found(pids)
    ways = [access.look(target) for target in found]
    if dry_run:
        from gpuprof.attach.plan import plan

        for target, way in zip(found, ways, strict=True):
            for line in plan(target, way, inject=not no_inject):
                _say(line, err=False)
        return
    folder = Path(out) if out else default_folder()
    if _stands_still(found, folder, patience):
        return
    for way in ways:
        if not way.trains:
            raise GpuprofError(way.why, hint=way.remedy)
    wanted = Wanted(
        steps=steps or 10,
        seconds=duration or 0.0,
        repeat=repeat,
        attribution=not no_attribution,
    )
    closed = [way for way in ways if way.way == access.NONE]
    if no_inject or closed:
        for way in [] if no_inject else closed:
            _say(_less(way))
        _from_outside(found, ways, folder, wanted)
    else:
        _record(found, ways, folder, wanted)


def _found(pids: Sequence[int]) -> list[Target]:
    from gpuprof.attach.on_gpus import find_on_gpus
    from gpuprof.attach.targets import find

    if not pids:
        return find_on_gpus()
    return [target for pid in dict.fromkeys(pids) for target in find(pid)]


def _stands_still(found: Sequence[Target], folder: Path, patience_s: float) -> bool:
    """Answers for a job whose ranks wait for each other; False for one that goes on."""
    from gpuprof.attach.stuck import answer_if_stuck
    from gpuprof.commands.output import progress

    with progress() as told:
        stuck = answer_if_stuck(found, folder, patience_s, told or _nothing)
    if stuck:
        # Before the report is made: whoever waits for a job that stands has waited long enough.
        _say(f"{stuck}. Nothing was put into the job.")
        _verdict(folder)
    return bool(stuck)


def _less(way: Access) -> str:
    """Which step is taken down, what is lost by it, and what would allow more."""
    more = f"; for more: {way.remedy}" if way.remedy else ""
    return f"Nothing can be put into it: {way.why}. Steps and waits are not seen from inside{more}."


def _record(found: Sequence[Target], ways: Sequence[Access], folder: Path, wanted: Wanted) -> None:
    from gpuprof.attach.enter import RecordsItselfError, SilentError
    from gpuprof.attach.record import record
    from gpuprof.attach.stuck import add_if_stuck
    from gpuprof.commands.watch import watching
    from gpuprof.conclude import complete_manifest

    _say(_said(found, ways))
    try:
        with watching(folder, _given("lang")) as told:
            done = record(found, ways, folder, wanted, told or _nothing)
    except SilentError:
        if not add_if_stuck(found, folder):
            raise
        _verdict(folder)
        return
    except RecordsItselfError as error:
        from gpuprof.run import load

        if not load(error.folder).traces:
            raise
        _say(f"{error.message}; the verdict of what is in {error.folder} so far:")
        _verdict(error.folder)
        return
    complete_manifest(folder)
    problem = _problem(done)
    if done.stuck and not done.has_trace and add_if_stuck(found, folder):
        _verdict(folder)
        return
    if not done.has_trace:
        raise GpuprofError(problem or "no step was recorded", hint=f"what was seen is in {folder}")
    for line in _stops(done):
        _say(line)
    _verdict(folder)
    if problem:
        raise GpuprofError(problem, hint="the verdict is of the steps until then")


def _verdict(folder: Path) -> None:
    from gpuprof.api import analyze_paths
    from gpuprof.commands.output import deliver, progress

    with progress() as told:
        analysis = analyze_paths(folder, progress=told)
    deliver(analysis, str(folder), None, _given("form"), files=True, lang=_given("lang"))


def _given(option: str) -> str:
    """What this call of `attach` was given for an option of how the verdict is shown."""
    value = click.get_current_context().params[option]
    assert isinstance(value, str)
    return value


def _said(found: Sequence[Target], ways: Sequence[Access]) -> str:
    names = ", ".join(str(target.pid) for target in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    what = "process" if len(found) == 1 else f"{len(found)} processes"
    return f"Attaching to {what} {names}{more} by {ways[0].way}; Ctrl-C ends it early."


def _stops(done: Recorded) -> list[str]:
    """What it cost the job."""
    if not done.stopped_ns:
        return []
    longest = max(done.stopped_ns) / 1e6
    stall = max((one.overhead.windows_ms for one in done.records), default=0.0)
    return [
        f"One thread stood still for {longest:.1f} ms; starting and stopping the profiler held"
        f" the loop up for {stall:.0f} ms in all. The job goes on without gpuprof."
    ]


def _problem(done: Recorded) -> str:
    """What went wrong, in one line; "" where nothing did."""
    if done.unwritten:
        return f"what was recorded could not be written into {done.folder}: {done.unwritten}"
    if done.gone:
        steps = max((sum(w.steps for w in one.windows) for one in done.records), default=0)
        seen = counted(steps, "recorded step")
        pid, how = next(iter(done.gone.items()))
        return f"process {pid} {how} inside the window, after {seen}"
    if done.removed:
        return f"{done.removed[0]}, through which the job is spoken to, has been removed"
    if done.stuck:
        where = f"; its main thread was in {done.lines[0][1]}" if done.lines else ""
        return f"process {done.stuck[0]} has ended no step for a minute{where}"
    if done.interrupted and not done.has_trace:
        return "interrupted before a step was recorded"
    failures = [failure.text for one in done.records for failure in one.failures]
    return "" if done.has_trace else next(iter(failures), "")


def _from_outside(
    found: Sequence[Target], ways: Sequence[Access], folder: Path, wanted: Wanted
) -> None:
    """With nothing put into the job: through Kineto's own door, else by looking on."""
    from gpuprof.attach.outside import observe
    from gpuprof.commands.watch import watching
    from gpuprof.conclude import complete_manifest

    done = _by_door(found, folder, wanted)
    if done is not None:
        complete_manifest(folder)
        if not done.has_trace:
            raise GpuprofError(
                _problem(done) or "no step was recorded", hint=f"what was seen is in {folder}"
            )
        _verdict(folder)
        return
    with watching(folder, _given("lang")) as told:
        lines = observe(found, ways, folder, wanted.seconds or OBSERVED_S, told or _nothing)
    complete_manifest(folder)
    for line in lines:
        _say(line, err=False)
    _verdict(folder)


def _by_door(found: Sequence[Target], folder: Path, wanted: Wanted) -> Recorded | None:
    """What Kineto recorded by itself; None, and why, where it can't be asked to."""
    from gpuprof.attach.by_door import record_by_door
    from gpuprof.attach.kineto_door import DoorError, why_closed
    from gpuprof.commands.watch import watching

    why = next((reason for target in found if (reason := why_closed(target))), "")
    if not why:
        _say("Asking the job's own Kineto, as a daemon would: nothing is put in.")
        try:
            with watching(folder, _given("lang")) as told:
                done = record_by_door(found, folder, wanted, told or _nothing)
        except DoorError as error:
            why = error.message
        else:
            if done is not None:
                return done
            why = "the job's Kineto did not ask for work"
    _say(
        f"No trace either: {why}. Looking on from outside, with stacks and counters only; for a"
        " trace without entering, start the job with KINETO_USE_DAEMON=1, or with gpuprof run."
    )
    return None


def _say(line: str, *, err: bool = True) -> None:
    """One line of what goes on, in the language that was asked for, its indent kept."""
    from gpuprof.reports.words import speaker

    text = line.lstrip(" ")
    click.echo(" " * (len(line) - len(text)) + speaker(_given("lang"))(text), err=err)


def _nothing(what: str, done: int, total: int) -> None:
    pass
