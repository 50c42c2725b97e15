"""Ranks whose own host makes the others wait, found where the order of arrivals does not tell.

A host runs ahead of its device. What one rank's host does too much makes the rank late only as far
as that lead is used up: the same 4 ms of Python cost the others 3 ms in one step and nothing in the
next, and where they wait in a blocking call of their own, no collective shows it at all. Arrivals
(`gpuprof.analyzers.lateness`) then prove nothing. What does not vary is the work of the host, and
what it costs is for the replay of all ranks together to say. A rank is accused when

* its host works longer than the middle rank's in each step, by more than chance has it among ranks
  that are alike (`lateness.above_chance`);
* the others would save at least `lateness.LATE_FROM` of the step if nobody waited for it, also
  without the step that saves most;
* and its host alone, taking no time, saves at least half of that: it is late for its host.

So a rank whose host works longer without holding anybody up is not late, and neither is one of many
whose hosts are all slow: there the others' hosts would keep the pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.joint import JointPricing
from gpuprof.analyzers.lateness import HALF, LATE_FROM, SIGNIFICANCE, TRIMMED, above_chance
from gpuprof.analyzers.pricing import trusted
from gpuprof.analyzers.program import NOT_BLOCKING, Program
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.diagnosis import Evidence

F64 = NDArray[np.float64]

MOST_CANDIDATES = 4
"""Of the ranks whose hosts work longest, how many are looked at: each costs a replay of all."""


@dataclass(frozen=True, slots=True)
class LateHosts:
    """Ranks that the others wait for because of their hosts, the one that works longest first.

    more_ns: how much longer each one's host works in a step than that of the middle rank, ns.
    saved_frac: share of the step that the others save when nobody waits for these ranks.
    own_frac, others_frac: share that all save when the hosts of these ranks, and when those of all
    the others, take no time.
    """

    ranks: tuple[int, ...]
    more_ns: tuple[float, ...]
    saved_frac: float
    own_frac: float
    others_frac: float


def find_late_hosts(ranks: Sequence[int], joint: JointPricing | None) -> LateHosts | None:
    """The ranks that are late for their own hosts; None where there are none, or where the ranks
    can't be replayed together.

    Args:
        ranks: Their numbers, in the order of the pricing.
        joint: The pricing of all ranks together.
    """
    if joint is None or not trusted(joint):
        return None
    programs = joint.programs
    if len({program.steps_used for program in programs}) > 1:
        return None  # steps that not all have recorded can't be compared
    step_ns = np.mean([program.measured_ns for program in programs], axis=0)
    work = np.stack([host_work_ns(program) for program in programs])
    more = work - np.partition(work, (len(work) - 1) // 2, axis=0)[(len(work) - 1) // 2]
    usual = np.array([_trimmed_mean(one) for one in more / np.maximum(step_ns, 1.0)])
    chance = np.minimum(len(work) * above_chance(more, step_ns), 1.0)
    longer = np.flatnonzero((chance <= SIGNIFICANCE) & (usual >= HALF * LATE_FROM))
    suspects = sorted(longer.tolist(), key=lambda i: -usual[i])[:MOST_CANDIDATES]
    late = _needed(joint, suspects)
    if not late or 2 * len(late) > len(work):
        return None
    saved = joint.saved_of_each_step(late)
    own = joint.without_of(late, "host", "allocator").reduction
    if _robust(saved) < LATE_FROM or own < HALF * saved.mean():
        return None
    others = [i for i in range(len(work)) if i not in late]
    return LateHosts(
        ranks=tuple(ranks[i] for i in late),
        more_ns=tuple(float(more[i].mean()) for i in late),
        saved_frac=float(saved.mean()),
        own_frac=own,
        others_frac=joint.without_of(others, "host", "allocator").reduction,
    )


def host_work_ns(program: Program) -> F64:
    """What the host works in each step of a program, waiting left out, ns, (n_steps,)."""
    work = program.work_ns["host"] + np.where(program.kind == NOT_BLOCKING, program.call_ns, 0)
    work = work + program.work_ns.get("allocator", 0)
    step = np.clip(program.step, 0, program.n_steps - 1)
    per_step: F64 = np.bincount(step, weights=work, minlength=program.n_steps).astype(np.float64)
    return per_step


def evidence_of(found: LateHosts) -> list[Evidence]:
    """What the replay says of them, in words."""
    several = len(found.ranks) > 1
    whose = "those ranks' hosts" if several else f"the host of rank {found.ranks[0]}"
    lines = [
        Evidence(
            text=f"The host of rank {rank} works {milliseconds(ns / 1e6)} a step longer than that"
            " of the middle rank, much alike in all steps.",
            value=round(ns / 1e6, 3),
            unit="ms per step",
        )
        for rank, ns in zip(found.ranks, found.more_ns, strict=True)
    ]
    lines.append(
        Evidence(
            text=f"With {whose} taking no time the step would be {percent(found.own_frac)} shorter,"
            f" with the hosts of all other ranks {percent(found.others_frac)}.",
            value=round(found.own_frac, 4),
            unit="share of step",
        )
    )
    return lines


def _needed(joint: JointPricing, suspects: list[int]) -> list[int]:
    """Those of the suspects without whom the others would save less."""
    late = list(suspects)
    if len(late) < 2:
        return late
    whole = float(joint.saved_of_each_step(late).mean())
    for one in reversed(suspects):
        rest = [i for i in late if i != one]
        if rest and float(joint.saved_of_each_step(rest).mean()) >= whole - HALF * LATE_FROM:
            late = rest
    return late


def _trimmed_mean(values: F64) -> float:
    cut = int(TRIMMED * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _robust(saved: F64) -> float:
    """The mean without the step that saves most, where there are three or more."""
    return float(np.sort(saved)[:-1].mean() if len(saved) > 2 else saved.mean())
