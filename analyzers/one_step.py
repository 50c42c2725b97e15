"""Findings that rest on one step of the window: seen once, a thing need not come back.

Code that is slow is slow in each step, or in every so many. A thread that is put off its core, a
disk that stalls or a worker that hiccups is slow once, and in a window of ten steps half a step of
that weighs as much as a steady 5 %. So where one step holds most of a cause, and the others less of
it than a cause is named for, it is asked whether it comes back:

- The cause itself may prove it (`Cause.recurs`): a save is written on purpose, workers that are at
  work all the time are late again.
- The lengths of all steps of the run may (gpuprof's own recordings have them): steps that are not
  as long can't hold as much of it, so those that are say how often it comes at most.
- Otherwise nothing does. The finding must then hold twice as much of the time, as one without steps
  must, and its confidence is no more than even.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.by_step import mean_over_ranks
from gpuprof.analyzers.causes.base import Cause, Verdict
from gpuprof.analyzers.pricing import SerialPricing
from gpuprof.analyzers.run_view import NAMED_WITHOUT_STEPS, RunView
from gpuprof.analyzers.step_lengths import FEWEST_STEPS, settled_steps
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence, Finding, NotJudged, RuledOut

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEAST_STEPS = 4
"""Of three steps one holds two thirds of an uneven cause easily."""

MOST = 2 / 3
"""Where the others hold a third of it between them, they have it as well."""

NEARLY_ALL = 0.9

SEEN_ONCE = 0.5
"""What happened once in n steps happens in the next n with even chances, if nothing is known of how
often it comes: with the prior 1/rate the rate is x/n with density exp(-x), and the mean of the
chance 1 - exp(-x) of seeing it again is 1/2."""

AS_LONG = 0.5
"""A step that is longer than usual by half of what the cause takes in the one that has it counts as
one that may have it, too."""

COMES_BACK = 0.7
"""Steps as long as that come back, but what makes them long was seen once: worth as much as a
recording without steps (see `gpuprof.analyzers.causes.base.confidence`)."""

MORE_STEPS, MOST_STEPS = 5, 1000
"""How many times as many steps to record, and the most that `gpuprof run --steps` takes."""


@dataclass(frozen=True, slots=True)
class OneStep:
    """A cause that lies mostly in one step. steps: of the window. frac: the part of the cause in
    that step. rest: the share of the other steps that it holds. extra_ns: its time in that step."""

    steps: int
    frac: float
    rest: float
    extra_ns: float

    @property
    def words(self) -> str:
        """As "most of it in 1 of 10 steps"."""
        most = "nearly all" if self.frac >= NEARLY_ALL else "most"
        return f"{most} of it in 1 of {self.steps} steps"


def in_one_step(held_ns: F64, step_ns: F64, share: float, named_from: float) -> OneStep | None:
    """Whether one step holds most of a cause, and the others too little to name it.

    Args:
        held_ns: What each step has of it, (n_steps,).
        step_ns: How long each is.
        share: Of the time, as the finding states it.
        named_from: The share from which a cause is named.
    """
    whole = float(held_ns.sum())
    if len(held_ns) < LEAST_STEPS or whole <= 0:
        return None
    worst = int(np.argmax(held_ns))
    frac = min(float(held_ns[worst]) / whole, 1.0)
    others = 1.0 - float(step_ns[worst]) / max(float(step_ns.sum()), 1.0)
    rest = share * (1.0 - frac) / max(others, 1e-9)
    if frac <= MOST or rest >= named_from:
        return None
    return OneStep(len(held_ns), frac, rest, float(held_ns[worst]))


def held_to_recur(run: RunView, cause: Cause, verdict: Verdict) -> Verdict:
    """A cause's verdict, or what is left of a finding that rests on one step."""
    if not isinstance(verdict, Finding) or verdict.late_ranks or not cause.removes:
        return verdict  # late ranks were compared over steps, and work has none of its own
    found = verdict
    one = in_one_step(*_by_step(run, cause), found.share, run.named_from)
    if one is None or (cause.recurs is not None and cause.recurs(run)):
        return found
    lengths = settled_steps(run.step_us)
    if len(lengths) - one.steps >= FEWEST_STEPS:
        return _by_the_run(run, found, one, lengths)
    if found.share < NAMED_WITHOUT_STEPS:
        return NotJudged(
            cause=cause.id,
            missing=f"it holds {percent(found.share)} of the recorded steps, but {one.words}, and"
            " what was seen once need not come back",
            command="record more steps:"
            f" `gpuprof run --steps {min(MORE_STEPS * one.steps, MOST_STEPS)} -- python train.py`",
        )
    text = (
        f"Without the step that has most of it, it holds {percent(one.rest)} of the time: whether"
        f" that step comes back, {one.steps} recorded steps do not tell"
    )
    return _reworded(found, one, SEEN_ONCE, text)


def _by_step(run: RunView, cause: Cause) -> tuple[F64, F64]:
    """What each step has of a cause and how long it is, ns, mean over ranks: what its removal saves
    in it, or where no replay tells that, what the account charges to it."""
    price = run.priced(*cause.removes)
    if price is not None:
        return price.before_ns - price.after_ns, price.before_ns
    buckets = {bucket for part in cause.removes for bucket in SerialPricing.BUCKETS[part]}
    held, lengths = [], []
    for budget in (rank.main.budget for rank in run.ranks):
        steps = budget.steps
        whole = sum((budget.per_step_ns[bucket] for bucket in buckets), np.zeros_like(steps.end_ns))
        held.append(whole[steps.keep].astype(np.float64))
        lengths.append(steps.length_ns.astype(np.float64))
    return mean_over_ranks(held), mean_over_ranks(lengths)


def _by_the_run(run: RunView, found: Finding, one: OneStep, lengths_us: I64) -> Verdict:
    """What the lengths of all steps say: those as long as the one in the window hold it at most."""
    usual = float(np.median(lengths_us))
    long = int(np.count_nonzero(lengths_us >= usual + AS_LONG * one.extra_ns / 1e3))
    often = min(max(long, 1) * one.steps / len(lengths_us), 1.0)
    text = f"of {len(lengths_us):,} steps of the run {max(long, 1):,} took as long as that"
    if found.share * often < run.named_from:
        return RuledOut(
            cause=found.cause,
            why=f"it holds {percent(found.share)} of the recorded steps, but {one.words}; {text},"
            f" so that in the run it holds {percent(found.share * often)} at most",
            share=found.share * often,
        )
    return _reworded(found, one, COMES_BACK, text[:1].upper() + text[1:] + " one")


def _reworded(found: Finding, one: OneStep, most: float, text: str) -> Finding:
    """The finding with the words for its one step, and no more confidence than that is worth."""
    title = found.title.replace("of each step", "of the recording")
    said = Evidence(text=f"{text}.", value=round(one.frac, 4), unit="share in one step")
    return msgspec.structs.replace(
        found,
        title=f"{title}, {one.words}",
        confidence=min(found.confidence, most),
        evidence=(*found.evidence, said),
    )
