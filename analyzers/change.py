"""How much a mean changed between two runs, and what of it could be noise.

Step times are few, skewed, and drift together with clocks and caches. So neighbouring samples are
pooled into batches (batch means: B. Schmeiser, "Batch size effects in the analysis of simulation
output", Operations Research 30, 1982: 10 to 30 batches are enough), what correlation is left
between batches widens the error (the effective sample size of a first-order autoregressive
series: F. Zwiers and H. von Storch, "Taking serial correlation into account in tests of the mean",
Journal of Climate 8, 1995; the bias of its estimate: M. Kendall, Biometrika 41, 1954), and the two
means are compared with Welch's test (B. Welch, Biometrika 34, 1947), which does not take the
spreads for equal.

What differs from one start of a job to the next (placement, clocks of the day, other jobs on the
machine) is in no sample of a single run, and is often more than what differs from step to step
(T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). With one run on
each side it can only be allowed for: `START_FLOOR_FRAC` and `START_SPREAD`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuprof.analyzers.distributions import incomplete_beta

F64 = NDArray[np.float64]

LEVEL = 0.99
"""Confidence of an interval. At the usual 95 % one comparison of equal runs in twenty would claim
a change; a person who compares every commit would be misled once a week."""

MIN_SAMPLES = 3
"""Two samples have one degree of freedom: their interval (64 standard errors) says nothing."""

BATCHES = 10
"""Batches that a long series is pooled into: Schmeiser's lower end, since long batches are what
hides correlation."""

MIN_FOR_CORRELATION = 10
"""Fewer samples do not tell correlation from chance (its standard error is over 0.3)."""

MAX_CORRELATION = 0.8
"""Above it the estimate from ten batches is no longer usable; the error is then tripled."""

START_FLOOR_FRAC = 0.01
"""Standard deviation between starts of the same job, at least: what dedicated machines show."""

START_SPREAD = 0.5
"""The same on a restless machine, as a share of the spread of its steps (median absolute deviation,
scaled to a normal's standard deviation): what disturbs steps disturbs starts as well. Of 276 pairs
among 24 starts of one training loop on two cores that others used too, 11 % were called different
without it and 2.2 % with it; of 120 pairs among 16 later starts, 2 and none."""

PLAUSIBLE_NOISE = 1.0
"""Where noise can't be measured, one length that is more than twice the other is still no noise:
of 147 pairs of single steps, each of one run among 15 labelled recordings, 95 % differ by less than
31 % of the shorter one, 99 % by less than 98 %, and the farthest by 103 %."""

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

_QUANTILE_STEPS = 80
"""Bisections of the quantile: 80 halve any start to below a float's resolution."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its standard error and its degrees of freedom; both None where noise is unknown
    (fewer than `MIN_SAMPLES` samples). between_starts: the standard deviation allowed for."""

    value: float
    error: float | None
    degrees: float | None
    between_starts: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """After minus before, in the samples' unit. low, high: its interval, None where the noise is
    unknown."""

    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval leaves zero out; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def beyond_plausible(before: float, after: float) -> bool:
    """Whether two lengths differ by more than any plausible noise, where none was measured."""
    return max(before, after) > (1 + PLAUSIBLE_NOISE) * max(min(before, after), 0.0)


def mean_of(samples: ArrayLike) -> Mean:
    """The mean of a series in order of time.

    Args:
        samples: Shape (n,), n at least 1.
    """
    series: F64 = np.asarray(samples, np.float64)
    value = float(series.mean())
    if len(series) < MIN_SAMPLES:
        return Mean(value, None, None)
    batches = series
    if len(series) >= 2 * BATCHES:
        batches = np.array([part.mean() for part in np.array_split(series, BATCHES)])
    count = len(batches)
    correlation = _correlation(batches) if count >= MIN_FOR_CORRELATION else 0.0
    effective = max(count * (1 - correlation) / (1 + correlation), 2.0)
    error = float(batches.std(ddof=1)) / math.sqrt(effective)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(series - np.median(series))))
    between = math.hypot(START_FLOOR_FRAC * value, START_SPREAD * spread)
    return Mean(value, error, effective - 1, between)


def change_of(
    before: ArrayLike, after: ArrayLike, level: float = LEVEL, waited: float = 0.0
) -> Change:
    """The change of the mean from one series to another, with its interval.

    Args:
        before, after: Samples in order of time, each of shape (n,), n at least 1.
        level: Confidence of the interval.
        waited: How much longer `after` waited for what others on the machine had, in the samples'
            unit. That much of a change of its sign is the machine's and not the job's, so the
            interval reaches as far towards zero.
    """
    first, second = mean_of(before), mean_of(after)
    if first.error is None or second.error is None:
        return Change(first.value, second.value, None, None)
    assert first.degrees is not None and second.degrees is not None
    squares = first.error**2 + second.error**2
    difference = second.value - first.value
    # Welch's degrees of freedom are those of the samples: the allowance adds no knowledge.
    fourth = first.error**4 / first.degrees + second.error**4 / second.degrees
    degrees = squares**2 / fourth if fourth > 0 else first.degrees + second.degrees
    error = math.sqrt(squares + first.between_starts**2 + second.between_starts**2)
    half = student_quantile((1 + level) / 2, degrees) * error
    low, high = difference - half - max(waited, 0.0), difference + half + max(-waited, 0.0)
    return Change(first.value, second.value, low, high)


def student_quantile(probability: float, degrees: float) -> float:
    """The t that Student's distribution stays below with a probability above one half."""
    low, high = 0.0, 1.0
    while _student_above(high, degrees) > 1 - probability and high < 1e9:
        high *= 2
    for _ in range(_QUANTILE_STEPS):
        middle = (low + high) / 2
        if _student_above(middle, degrees) > 1 - probability:
            low = middle
        else:
            high = middle
    return high


def _student_above(t: float, degrees: float) -> float:
    return 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def _correlation(series: F64) -> float:
    """Correlation of neighbours, freed of its bias, in [0, `MAX_CORRELATION`]: negative
    correlation would narrow the interval on little evidence."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if power <= 0:
        return 0.0
    raw = float(centred[1:] @ centred[:-1]) / power
    count = len(series)
    return min(max((count * raw + 1) / (count - 3), 0.0), MAX_CORRELATION)
