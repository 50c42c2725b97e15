"""Distinct values, membership and quantiles, without numpy.ma.

numpy's own functions import all of numpy.ma to ask whether an array is masked: 15 ms of
each run. None here is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

FEW = 8
"""Up to here, comparing with each is faster than a table."""


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The distinct values in ascending order, (k,), as `numpy.unique`; NaN isn't expected."""
    ordered: NDArray[Any] = np.sort(values, axis=None)
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def is_in(values: NDArray[np.integer], wanted: ArrayLike) -> NDArray[np.bool_]:
    """Which of the whole numbers are among the wanted ones, bool, as `numpy.isin`."""
    these = np.asarray(wanted)
    found = np.zeros(values.shape, np.bool_)
    if these.size <= FEW:
        for one in these.reshape(-1):
            found |= values == one
        return found
    least, most = int(these.min()), int(these.max())
    if most - least > 6 * (these.size + values.size):
        ordered = np.sort(these, axis=None)
        place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
        np.equal(ordered[place], values, out=found)
        return found
    table = np.zeros(most - least + 1, np.bool_)
    table[these - least] = True
    inside = (values >= least) & (values <= most)
    found[inside] = table[values[inside].astype(np.int64) - least]
    return found


def quantile(values: NDArray[Any], share: float) -> float:
    """The value below which a share of the values lies, as `numpy.quantile`; of one or more."""
    ordered = np.sort(values, axis=None).astype(np.float64)
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
