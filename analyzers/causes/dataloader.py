"""The device waits for the next batch.

What it finds: idle time of the device during which the thread that launches was inside the
loader's `__next__` (or a region named as loading data).

Why it costs: the device has nothing to do until the batch is there. With `num_workers=0` the batch
is made in the training process itself, so nothing else goes on meanwhile; with workers, they make
batches more slowly than the device uses them up.

How it is measured: every idle gap of the device is charged to what the host did since the gap
began. A loader that is slow while the device is busy costs nothing and is not counted. The gain is
the replay of the step with the wait removed; it is smaller than the wait when launch work that hid
behind it comes out.

How to fix: workers, pinned memory, prefetching; then what one batch costs. The number of workers
follows from the time that a batch takes to make and the step without the wait.

Limits: a wait for worker processes is sleep. A recording by gpuprof knows how long the training
thread slept; from a trace alone, one that is put off its core inside the loader looks as if it
waited for data. Which part of making a batch is slow (reading, decoding, collating) shows only
where the loader runs in the recorded process or stacks were recorded.
"""

from __future__ import annotations

import math

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    RECORD_BOTH,
    Cause,
    Verdict,
    confidence,
    explained,
    finding,
    too_little,
)
from gpuprof.analyzers.idle_lines import idle_lines
from gpuprof.analyzers.intervals import Spans
from gpuprof.analyzers.loader_limit import loader_limit
from gpuprof.analyzers.recorded_window import with_called_lines
from gpuprof.analyzers.run_view import ALONE, LEAST_GAIN, RunView
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.counted import agrees, counted
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, RuledOut

ID = "dataloader"

HOW = "the step replayed with every batch ready when it is asked for"

SPARE_WORKERS = 1.3
"""Workers beyond the bare need, so that a slow batch now and then does not stop the device."""

SAMPLE_FETCHES = 8
"""An uneven loader shows in the spread of its waits only with some of them at hand."""

UNEVEN = 4.0
"""The longest wait is this many times the median one: a worker or a batch now and then is slow."""


def judge(run: RunView) -> Verdict:
    """Judges cause 1."""
    share = run.share("input")
    fetches = [_fetches(rank) for rank in run.ranks]
    if not any(len(spans) for spans in fetches):
        return _without_loader(run)
    gain = run.price("input")
    if share < run.named_from:
        return RuledOut(cause=ID, why=_not_waiting(run, fetches[0], share), share=share)
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"the device waits {percent(share)} of the step for data, but without the wait the"
            f" step would be only {percent(gain.reduction)} shorter: other work comes out",
            share=share,
        )
    awake = _without_a_core(run, share)
    if awake is not None:
        return awake
    worst = max(run.ranks, key=lambda rank: run.share_of(rank, "input"))
    spans = _fetches(worst)
    title = f"The device waits {percent(share)} of {run.each_step} for the next batch"
    if not run.has_device:
        title = f"Training waits {percent(share)} of {run.each_step} for the next batch"
    return finding(
        ID,
        title,
        share=share,
        gain=explained(gain, HOW),
        confidence=confidence(run, share, gain),
        evidence=_evidence(run, worst, spans, share),
        fixes=_fixes(run, spans, gain),
        where=with_called_lines(idle_lines(worst.lines, "input"), run.told, worst.rank, "input"),
        ranks=run.ranks_with("input"),
    )


def _without_a_core(run: RunView, share: float) -> Verdict | None:
    """Where worker processes load and the training thread hardly slept: what it waits for inside
    the loader is not a batch, as that would be sleep, but a core that other processes have."""
    slept = [window.slept_frac for window in run.told.values()]
    known = [each for each in slept if each is not None]
    if not run.facts.loader_workers or not known or len(known) < len(run.ranks):
        return None
    asleep = sum(known) / len(known)
    if asleep >= run.named_from:
        return None
    why = (
        f"the training thread is inside the loader {percent(share)} of the step, but waits for"
        f" anything other than a core {percent(asleep)}: other processes had the core"
        f" {percent(run.ready_frac)} of the time"
    )
    # The same wait is a larger part of the shorter step that it would be alone.
    if asleep < run.named_from * (1.0 - run.ready_frac):
        return RuledOut(cause=ID, why=why, share=asleep)
    return NotJudged(cause=ID, missing=why, command=ALONE)


def _fetches(rank: RankAccount) -> Spans:
    """The loader's work or waits on the thread that launches, inside the accounted steps."""
    host = rank.host
    spans = host.spans["input"].get(host.main_lane)
    if spans is None:
        lanes = list(host.spans["input"].values())
        spans = (
            max(lanes, key=len) if lanes else Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))
        )
    steps = rank.main.steps
    if not len(spans) or not len(steps):
        return spans
    inside = (spans.start >= steps.host_start_ns[0]) & (spans.start < steps.end_ns[-1])
    return Spans(spans.start[inside], spans.end[inside])


def _without_loader(run: RunView) -> Verdict:
    """No loader in sight: nothing waited for data, if the host was recorded at all."""
    if not any(rank.host.recorded for rank in run.ranks):
        return NotJudged(
            cause=ID,
            missing="what the host did was not recorded (no operators, no annotations)",
            command=RECORD_BOTH,
        )
    idle = run.share("input", "host", "unknown", "sync")
    if idle < run.named_from:
        return RuledOut(
            cause=ID,
            why=f"the host holds the device up for only {percent(idle)}",
            share=run.share("input"),
        )
    if run.first.trace.meta.with_stack or not run.facts.backward:
        return RuledOut(
            cause=ID, why="no DataLoader and no loading of data was recorded", share=0.0
        )
    return NotJudged(
        cause=ID,
        missing="no DataLoader was seen: data that comes another way looks like any host work",
        command='name it in the code, `with gpuprof.annotate("input"): batch = next_batch()`, and'
        " record again",
    )


def _not_waiting(run: RunView, spans: Spans, share: float) -> str:
    if not len(spans):
        return too_little("waiting for data", share, run)
    each = float(np.mean(spans.lengths)) / 1e6
    return (
        f"waiting for data: {percent(share)} of the step, named from {percent(run.named_from)}"
        f" (the loader takes {milliseconds(each)} a batch on average)"
    )


def _evidence(run: RunView, rank: RankAccount, spans: Spans, share: float) -> list[Evidence]:
    each_ms = float(np.mean(spans.lengths)) / 1e6
    evidence = [
        Evidence(
            text=f"{'The device is idle' if run.has_device else 'Nothing is computed'}"
            f" {run.time_of(share)} while the training loop is inside the loader.",
            value=round(share, 4),
            unit="share of step",
            windows=run.longest_gaps(rank, "input"),
        ),
        Evidence(
            text=f"Fetching a batch takes {milliseconds(each_ms)} on average over {len(spans)}"
            f" fetches (longest {milliseconds(float(spans.lengths.max()) / 1e6)}).",
            value=round(each_ms, 3),
            unit="ms",
        ),
    ]
    if run.facts.loader_workers == 0:
        evidence.append(
            Evidence(
                text="The loader runs in the training process (num_workers=0): nothing is prepared"
                " while the device computes.",
                value=0,
                unit="workers",
            )
        )
    elif run.facts.loader_workers is not None:
        evidence.append(
            Evidence(text="The loader has worker processes, and they do not keep up.", unit="")
        )
    if run.facts.pinned_input is False:
        evidence.append(
            Evidence(text="Batches are copied to the device out of pageable memory.", unit="")
        )
    if _uneven(spans):
        evidence.append(
            Evidence(
                text="Waits are uneven: the median is"
                f" {milliseconds(float(np.median(spans.lengths)) / 1e6)}, the longest"
                f" {milliseconds(float(spans.lengths.max()) / 1e6)}: now and then one batch,"
                " or one worker, is slow.",
                unit="",
            )
        )
    return evidence


def _uneven(spans: Spans) -> bool:
    if len(spans) < SAMPLE_FETCHES:
        return False
    median = float(np.median(spans.lengths))
    return float(spans.lengths.max()) > UNEVEN * max(median, 1.0)


def _workers_needed(run: RunView, spans: Spans, gain: Gain | None) -> int | None:
    """Workers that make batches as fast as the step without the wait uses them up.

    Known only for a loader in the main process, where the time in `__next__` is the time that a
    batch takes to make.
    """
    if run.facts.loader_workers != 0 or gain is None or gain.step_ms <= 0:
        return None
    batch_ms = float(np.mean(spans.lengths)) / 1e6
    return max(2, math.ceil(SPARE_WORKERS * batch_ms / gain.step_ms))


def _workers_are_the_limit(run: RunView) -> bool:
    """Whether worker processes are at work all the time, as far as a recording tells: whatever they
    have ready for some steps, the next ones wait for them."""
    limit = loader_limit(run.told, run.facts.loader_workers, run.step_ms())
    return limit is not None and limit.least_frac > 1.0 - LEAST_GAIN


def _fixes(run: RunView, spans: Spans, gain: Gain | None) -> list[Fix]:
    facts = run.facts
    fixes: list[Fix] = []
    pin = run.has_device and facts.pinned_input is not True
    if facts.loader_workers in (0, None):
        needed = _workers_needed(run, spans, gain)
        cores = facts.cores
        number = needed if needed is not None else (max(2, min(8, cores - 1)) if cores else 4)
        batch_ms = float(np.mean(spans.lengths)) / 1e6
        why = (
            f"A batch takes {milliseconds(batch_ms)} to make and the step without the wait"
            f" {milliseconds(gain.step_ms)}, so {counted(number, 'worker')}"
            f" {agrees(number, 'keeps', 'keep')} up with room to spare."
            if needed is not None and gain is not None
            else "Worker processes prepare batches while the device computes."
        )
        if cores and number > cores:
            why += (
                f" This process may use {counted(cores, 'core')}: with fewer workers than that the"
                " cost of a batch has to come down as well."
            )
            number = max(1, cores)
        arguments = [f"num_workers={number}", "persistent_workers=True", "prefetch_factor=4"]
        if pin:
            arguments.insert(1, "pin_memory=True")
        fixes.append(
            Fix(
                title=f"Load with {counted(number, 'worker process', 'worker processes')}",
                detail=why,
                code="loader = DataLoader(\n    dataset,\n    batch_size=…,  # as now\n    "
                + ",\n    ".join(arguments)
                + ",\n)",
                cost=f"{counted(number, 'process', 'processes')},"
                f" {agrees(number, 'with', 'each with')} its own copy of the data set's state",
            )
        )
    else:
        fixes.append(_more_workers(run, spans, gain, pin))
    if pin:
        fixes.append(
            Fix(
                title="Copy out of pinned memory without waiting",
                detail="With pin_memory=True the copy runs beside the host's work.",
                code="inputs = inputs.to(device, non_blocking=True)\n"
                "targets = targets.to(device, non_blocking=True)",
                cost="page-locked host memory, a few batches",
            )
        )
    fixes.append(
        Fix(
            title="Make a batch cheaper",
            detail="Decode and resize once, ahead of training; keep the result in a format that is"
            " read in large pieces; do augmentations on the device; let collate copy once.",
            code="",
            cost="disk space and a preprocessing run",
        )
    )
    return fixes


def _more_workers(run: RunView, spans: Spans, gain: Gain | None, pin: bool) -> Fix:
    """More workers beside those that there are: whole ones, and no more than cores where these are
    known. How many there are is known only of a recording by gpuprof, not of a bare trace."""
    cores = run.facts.cores
    now = max((w.loader.workers for w in run.told.values() if w.loader is not None), default=0)
    slower = run.step_ms() / gain.step_ms if gain is not None and gain.step_ms > 0 else None
    needed = max(math.ceil((slower or 1.0) * max(now, 1) - 0.05), now + 1, 2)
    is_short = cores is not None and needed > cores
    times = "more" if slower is None else f"{needed} times as many"
    if cores is not None and (now >= cores or cores == 1):
        title, number = "Give the workers more cores", "…,  # no more than there are cores"
    elif cores is not None and (is_short or not now):
        title = f"Use more workers, up to {cores}"
        number = f"{cores}," if is_short else f"…,  # {times}, up to {cores}"
    elif now and slower is not None:
        title, number = f"Use {needed} workers", f"{needed},"
        title += "" if cores is not None else ", if the cores are there"
    else:
        title, number = f"Use {times} workers, if the cores are there", f"…,  # {times}"
    detail = "The workers make batches more slowly than the step uses them up."
    if cores is not None:
        detail += f" This process may use {counted(cores, 'core')}" + (
            ": the cores are the limit, so the cost of a batch has to come down as well."
            if is_short or now >= cores
            else "."
        )
    if _uneven(spans):
        detail += (
            " The waits are uneven: first look for the sample or the worker that is slow;"
            " a higher prefetch_factor rides out single slow batches."
        )
    return Fix(
        title=title,
        detail=detail,
        code=f"loader = DataLoader(\n    dataset,\n    num_workers={number}"
        "\n    prefetch_factor=4,\n    persistent_workers=True,\n"
        + ("    pin_memory=True,\n" if pin else "")
        + ")",
        cost="CPU cores and memory",
    )


CAUSE = Cause(
    id=ID,
    title="Data loading",
    judge=judge,
    docs=__doc__ or "",
    removes=("input",),
    recurs=_workers_are_the_limit,
)
