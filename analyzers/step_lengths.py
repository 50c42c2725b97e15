"""What the lengths of all steps of a run say beside a window of ten of them.

A trace shows a few steps. Whether the others are like them, the step log tells: gpuprof's recorder
writes down how long every step took, without the time that gpuprof itself took after it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.wording import milliseconds, percent

I64 = NDArray[np.int64]

FEWEST_STEPS = 50
"""Of fewer, the window is a good part itself."""

WARM_UP_STEPS = 5
"""The first ones hold lazy initialization and are left out, as the recorder does."""

LONG_RATIO = 2.0
"""A step of twice the usual length did something else: a save, an evaluation, a stall."""

LONG_FROM = 0.05
"""From this share of the run's time in what such steps take beyond the usual, they are told."""


def steps_of_the_run(step_us: Mapping[int, I64]) -> dict[str, str]:
    """All steps of the first rank as a fact for people; {} where there are few."""
    lengths = settled_steps(step_us)
    if len(lengths) < FEWEST_STEPS:
        return {}
    median, high = np.percentile(lengths, (50, 99)) / 1e3
    text = f"{len(lengths):,}: {milliseconds(median)} usually, 1 % over {milliseconds(high)}"
    return {"all steps of the run": text}


def long_steps(step_us: Mapping[int, I64]) -> list[str]:
    """One line where much of the run went into steps that are far longer than the usual one."""
    lengths = settled_steps(step_us)
    if len(lengths) < FEWEST_STEPS:
        return []
    usual = float(np.median(lengths))
    long = lengths > LONG_RATIO * usual
    beyond = float((lengths[long] - usual).sum()) / max(float(lengths.sum()), 1.0)
    if beyond < LONG_FROM:
        return []
    return [
        f"{int(long.sum()):,} of {len(lengths):,} steps of the run took more than"
        f" {LONG_RATIO:.0f} times the usual {milliseconds(usual / 1e3)}, and that beyond it is"
        f" {percent(beyond)} of all time: a window of a few steps shows these only by luck"
    ]


def settled_steps(step_us: Mapping[int, I64]) -> I64:
    """Lengths of the steps of the first rank after its warm-up, µs; all ranks take the same."""
    if not step_us:
        return np.zeros(0, np.int64)
    return step_us[min(step_us)][WARM_UP_STEPS:]
