"""What the steps of a window have of something, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def mean_over_ranks(series: Sequence[F64]) -> F64:
    """One value a step. Ranks that left more steps out than others cut the series of all."""
    filled = [one for one in series if len(one)]
    if not filled:
        return np.zeros(0, np.float64)
    shortest = min(len(one) for one in filled)
    mean: F64 = np.mean([one[-shortest:] for one in filled], axis=0)
    return mean
