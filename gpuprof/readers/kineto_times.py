"""Times: from the file's µs to whole nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MAX_US = 4e15
"""Times beyond this (the year 2096, or minus that) are damage; differences of two fit int64 ns."""

COARSE_US = 2.0**43
"""From here on neighbours in float64 lie 2 ns apart; below, a start rounds to its nanosecond."""


def to_ns(us: F64) -> I64:
    """Whole nanoseconds of times in µs, float64 (n,): the fraction apart, so that 1.6e15 fits."""
    whole = np.floor(us)
    fraction = np.rint((us - whole) * 1000.0)
    result: I64 = whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
    return result


def exact_ns(rows: list[Any]) -> I64:
    """Whole nanoseconds of decimal starts, int64 (n,)."""
    return np.fromiter(
        [int((row.ts * 1000).to_integral_value()) for row in rows], np.int64, len(rows)
    )


def too_coarse(start_us: F64, dur_us: F64) -> bool:
    """Whether starts are too large for float64 to hold their nanoseconds, and may have some.

    They may where a start or a duration has a fraction: a fraction of a large start can be lost.
    """
    large = start_us >= COARSE_US
    if not large.any():
        return False
    parts = (start_us, dur_us) if large.all() else (start_us[large], dur_us[large])
    return any(bool((us > np.floor(us)).any()) for us in parts)  # false for NaN and infinity
