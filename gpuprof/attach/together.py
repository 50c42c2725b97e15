"""One common step for several ranks to start at.

Each agent counts its own steps from when it came in. Ranks of one job step together, since their
collectives tie them, so the ends of their steps say which counts belong together.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

LEAD_S = 0.6
"""The command to start is on its way for up to 0.2 s; every rank must still be before that step."""
FEWEST_BEATS = 3


def common_start(beats: Mapping[int, tuple[int, Sequence[int]]]) -> dict[int, int] | None:
    """The step at which each process starts, so that all start at the same step of the job.

    Args:
        beats: By process: steps so far, and when the latest of them ended, oldest first, in ns.

    Returns:
        By process its own number of the step; None where too few steps are known so far.
    """
    if any(len(ends) < FEWEST_BEATS for _, ends in beats.values()):
        return None
    lengths = [b - a for _, ends in beats.values() for a, b in itertools.pairwise(ends)]
    step_ns = max(1.0, statistics.median(lengths))
    latest = min(ends[-1] for _, ends in beats.values())
    numbers = {}
    for process, (count, ends) in beats.items():
        # Which of this process's steps ended nearest to the one that all have reached.
        behind = min(range(len(ends)), key=lambda index: abs(ends[index] - latest))
        numbers[process] = count - (len(ends) - 1 - behind)
    lead = max(3, round(LEAD_S * 1e9 / step_ns) + 1)
    spread = max(count - numbers[process] for process, (count, _) in beats.items())
    return {process: number + lead + spread for process, number in numbers.items()}
