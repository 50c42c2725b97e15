"""Who comes late to collectives: the split of waiting, the blame for it, and the test for chance.

A collective that no rank can leave before all have come takes, on each rank, the transfer plus the
time until the last rank arrives. So the shortest duration over ranks is the transfer, what a rank
spends above it is waiting, and the rank that waits least came last. Durations alone say this: the
clocks of the ranks need not agree.

Blame. The wait that is worth explaining is that of the rank in the middle: half of the ranks are
always early. It is shared among the ranks that came after the middle one as Littlechild and Owen
(1973) share the cost of a runway among the aircraft that need it: each stretch of waiting is borne
in equal parts by all ranks that had not arrived yet. The shares add up to the middle rank's wait,
two ranks that are late together bear half each, and a rank that came before the middle bears
nothing.

Chance. All ranks leave a collective together, so how late they come to the next one is decided
anew; but what makes a rank late may last a whole step (a long sequence, a slow batch), and then the
collectives of that step are one observation, not many. So steps are the samples, with two tests:

* Count: a rank is late in a step when it bears at least half as much as the rank that bears most.
  Where all ranks are alike, each is among the m late ones of R with probability m/R, so the number
  of times is binomial. Steps in which nobody waited are no evidence either way, and not counted.
* Size: counting proves little for few ranks and steps (one of two is late in all of five steps in
  1 of 16 balanced runs), while always the same delay does. The trimmed mean of what a rank bears
  above the mean rank is compared with its spread over steps, pooled over ranks (Yuen 1974).

Chances are multiplied by the number of tests and of ranks that could have been accused
(Bonferroni). A recording of a single step has no samples but its collectives. Then the count of
those in which a rank came last is tested, and the answer does not claim to hold for other steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.distributions import incomplete_beta

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

SIGNIFICANCE = 0.01
"""At most one balanced run of a hundred is accused of having a late rank, over all its ranks."""

LATE_FROM = 0.02
"""Waits that cost less than 2 % of the step are not worth naming a rank for: the replay does not
offer a gain below that either (`run_view.LEAST_GAIN`)."""

DECISIVE_NS = 10_000
DECISIVE_FRAC = 0.1
"""A collective tells who came last when the middle rank waited more than 10 µs and a tenth of the
transfer: in real traces of eight ranks that arrive together, ends differ by up to 50 µs in 600."""

HALF = 0.5
"""A rank that bears half as much as the worst one of a step is late in it as well."""

STEADY = 0.7
"""In so few steps that none can be left out, a rank is late when the step in which it is least so
costs 0.7 of the mean: one stall, or another share of the data in each step, varies by more."""

STALL_HIDES_BELOW = 64
"""With at least this many ranks the second worst one is the measure: in a large job some rank
stalls in many steps, and that must not hide one that is late in all. Smaller jobs would pay for it
with twice the chance."""

CLIPPED_FROM = 8
"""From so many ranks on, the mean rank of a step is taken with the worst one clipped to the second
worst, so that a stall of one does not hide that another is late. With fewer the worst rank is too
large a part of the mean."""

TRIMMED = 0.2
"""Share of the steps that the trimmed mean leaves out at either end, as Yuen proposes."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for.

    times: in how many of `of` samples it was late (steps), or the last one (collectives).
    samples: what was counted; "collectives" where a single step was recorded, so that a lasting
    cause and one that lasts a step look alike. share: of the step, that the middle rank waits for
    it. robust_share: the same without the sample that costs most. p_value: chance that some rank
    of a balanced run shows as much.
    """

    rank: int
    times: int
    of: int
    samples: Literal["steps", "collectives"]
    share: float
    robust_share: float
    p_value: float

    @property
    def proven(self) -> bool:
        """Whether chance alone would hardly show it."""
        return self.p_value <= SIGNIFICANCE

    @property
    def lasting(self) -> bool:
        """Whether enough steps were recorded to say that it is late in others too."""
        return self.samples == "steps"


def split(duration_ns: F64, stretch: F64 | None = None) -> tuple[F64, F64]:
    """Waiting and transfer of collectives.

    Args:
        duration_ns: (n_ranks, n), NaN where a rank has no part.
        stretch: How many times as much as the smallest message the largest one is, (n,): what may
            be transfer on a rank with more data is not called waiting.

    Returns:
        wait_ns, (n_ranks, n), NaN where a rank has no part; transfer_ns, (n,).
    """
    if not duration_ns.shape[1]:
        return duration_ns, np.zeros(0)
    transfer = np.nanmin(duration_ns, axis=0)
    if stretch is not None:
        transfer = transfer * np.maximum(stretch, 1.0)
    return np.maximum(duration_ns - transfer, 0.0), transfer


def blame(wait_ns: F64) -> F64:
    """Shares the wait of the middle rank among those that came after it, (n_ranks, n).

    Args:
        wait_ns: Wait of each rank in each collective, (n_ranks, n), no NaN.
    """
    n_ranks, n = wait_ns.shape
    result = np.zeros_like(wait_ns)
    if n_ranks < 2 or not n:
        return result
    order = np.argsort(wait_ns, axis=0, kind="stable")  # the last to come first
    middle = n_ranks // 2
    late = np.take_along_axis(wait_ns, order[: middle + 1], axis=0)
    stretches = np.diff(late, axis=0)  # row i: between arrivals i and i + 1, borne by i + 1 ranks
    per_rank = stretches / np.arange(1, middle + 1)[:, None]
    borne = np.cumsum(per_rank[::-1], axis=0)[::-1]
    np.put_along_axis(result, order[:middle], borne, axis=0)
    return result


def middle_wait(wait_ns: F64) -> F64:
    """Wait of the middle rank in each collective, (n,): what `blame` adds up to."""
    middle: F64 = np.partition(wait_ns, wait_ns.shape[0] // 2, axis=0)[wait_ns.shape[0] // 2]
    return middle


def decisive(wait_ns: F64, transfer_ns: F64) -> Bools:
    """In which collectives one can see who came last, (n,)."""
    if not wait_ns.shape[1]:
        return np.zeros(0, np.bool_)
    least = np.maximum(DECISIVE_NS, DECISIVE_FRAC * transfer_ns)
    seen: Bools = middle_wait(wait_ns) > least
    return seen


def find_late(
    ranks: tuple[int, ...], blame_ns: F64, step_ns: F64, last: F64, chance: F64, worst_ns: F64
) -> tuple[LateRank, ...]:
    """The ranks that cost enough to be late, the costliest first, each with the chance that a
    balanced run shows as much; those up to `SIGNIFICANCE` are `proven`.

    Args:
        ranks: Their numbers, (n_ranks,).
        blame_ns: What each bears of each step, (n_ranks, n_steps).
        step_ns: Length of each step, (n_steps,).
        last: In how many decisive collectives each came last, (n_ranks,).
        chance: How often each would by chance, (n_ranks, 2): expected number, and of how many.
        worst_ns: The most that each bears of one collective, (n_ranks,).
    """
    n_ranks, n_steps = blame_ns.shape
    total = float(step_ns.sum())
    if n_ranks < 2 or not n_steps or total <= 0:
        return ()
    share = blame_ns.sum(axis=1) / total
    robust = _without_worst(blame_ns, step_ns, worst_ns)
    costly = np.flatnonzero((share >= LATE_FROM) & (robust >= LATE_FROM))
    times, by_steps = _step_tests(blame_ns, step_ns)
    found = []
    for i in costly.tolist():
        seen, of, p_value = int(times[i]), n_steps, by_steps[i]
        if n_steps == 1:
            seen, of = int(last[i]), int(chance[i, 1])
            p_value = at_least(seen, of, float(chance[i, 0]) / of) if of else 1.0
        found.append(
            LateRank(
                rank=ranks[i],
                times=seen,
                of=of,
                samples="steps" if n_steps > 1 else "collectives",
                share=float(share[i]),
                robust_share=float(robust[i]),
                p_value=min(1.0, n_ranks * float(p_value)),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.share))


def _step_tests(blame_ns: F64, step_ns: F64) -> tuple[I64, F64]:
    """In how many steps each rank is late, and the smaller chance of both tests, times two."""
    n_ranks = len(blame_ns)
    measure = blame_ns.max(axis=0)
    if n_ranks >= STALL_HIDES_BELOW:
        measure = np.partition(blame_ns, -2, axis=0)[-2]
    late_in = (blame_ns >= HALF * measure) & (measure > 0)
    times = late_in.sum(axis=1).astype(np.int64)
    n_waited = int((measure > 0).sum())
    expected = float(late_in.sum()) / n_ranks / max(n_waited, 1)
    cached = [at_least(k, n_waited, expected) for k in range(n_waited + 1)]
    counted = np.array(cached)[times]
    sized = above_chance(blame_ns, step_ns)
    return times, np.minimum(2 * np.minimum(counted, sized), 1.0)


def above_chance(spent_ns: F64, step_ns: F64) -> F64:
    """The chance that ranks which are alike differ as much as each is above the mean rank.

    Args:
        spent_ns: What each rank spends of each step above those that spend least,
            (n_ranks, n_steps).
        step_ns: Length of each step, (n_steps,).

    Returns:
        (n_ranks,), of each rank for itself (see `by_size`).
    """
    n_ranks, n_steps = spent_ns.shape
    trim = int(TRIMMED * n_steps)
    usual = spent_ns
    if n_ranks >= CLIPPED_FROM:
        usual = np.minimum(spent_ns, np.partition(spent_ns, -2, axis=0)[-2])
    sized = by_size((spent_ns - usual.mean(axis=0)) / np.maximum(step_ns, 1.0), trim)
    if not trim:  # nothing protects a plain mean from one stalled step
        steady = spent_ns.min(axis=1) >= STEADY * spent_ns.mean(axis=1)
        sized = np.where(steady, sized, 1.0)
    return sized


def by_size(above: F64, trim: int) -> F64:
    """The chance that a rank's trimmed mean is as far above 0 as it is, where it truly is 0.

    Yuen's test, with the winsorized spread pooled over ranks, which are alike if none is late, but
    no smaller than the rank's own.

    Args:
        above: What each rank bears above the mean rank, (n_ranks, n_steps).
        trim: Steps left out at either end.

    Returns:
        (n_ranks,), 1.0 for a mean that is not above 0 and for fewer than two steps.
    """
    n_ranks, n = above.shape
    kept = n - 2 * trim
    if kept < 2:
        return np.ones(n_ranks)
    ordered = np.sort(above, axis=1)
    mean = ordered[:, trim : n - trim].mean(axis=1)
    winsorized = np.clip(ordered, ordered[:, [trim]], ordered[:, [n - trim - 1]])
    squares = ((winsorized - winsorized.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    # Most ranks never stall, so the pooled spread alone would take two stalls for constancy.
    pooled = squares.mean()
    if not trim and n_ranks >= CLIPPED_FROM:
        pooled = _without_stalled(squares)
    error = np.sqrt(np.maximum(squares, pooled) / (kept * (kept - 1)))
    df = (n_ranks - 1) * (kept - 1)
    pairs = zip(mean.tolist(), error.tolist(), strict=True)
    return np.array([_student_tail(m, e, df) for m, e in pairs])


def _without_stalled(squares: F64) -> float:
    """The mean of sums of squares, from all but the largest: a rank that stalls must not hide that
    another is late. What is missing is made up for as for exponential variables, whose largest of n
    is expected to be 1 + 1/2 + … + 1/n times their mean; sums of more squares spread less."""
    n = len(squares)
    harmonic = float((1.0 / np.arange(1, n + 1)).sum())
    return float((squares.sum() - squares.max()) / (n - harmonic))


def _without_worst(blame_ns: F64, step_ns: F64, worst_ns: F64) -> F64:
    """Share of the step that each rank costs without its single worst sample: a step where there
    are three or more, else one collective. One hiccup, however long, makes no late rank."""
    if blame_ns.shape[1] < 3:
        rest: F64 = (blame_ns.sum(axis=1) - worst_ns) / step_ns.sum()
        return rest
    worst = np.argmax(blame_ns, axis=1)
    kept = blame_ns.sum(axis=1) - blame_ns[np.arange(len(worst)), worst]
    left: F64 = kept / np.maximum(step_ns.sum() - step_ns[worst], 1.0)
    return left


def at_least(k: int, n: int, p: float) -> float:
    """P(X >= k) for n independent events of mean probability p.

    The binomial tail. For events of unequal probabilities it is never below the truth where
    k >= n p + 1 (Hoeffding 1956, theorem 5), and smaller k are never significant.

    Args:
        k: The count.
        n: How many events.
        p: Their mean probability.
    """
    if k <= 0:
        return 1.0
    if k > n or p <= 0.0:
        return 0.0
    if p >= 1.0 or k < n * p + 1:
        return 1.0
    i = np.arange(k, n + 1, dtype=np.float64)
    log_terms = np.cumsum(np.log((n - i[:-1]) / (i[:-1] + 1)) + math.log(p / (1 - p)))
    first = (
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(p) + (n - k) * math.log1p(-p)
    )  # fmt: skip
    return min(1.0, math.exp(first) * (1.0 + float(np.exp(log_terms).sum())))


def _student_tail(mean: float, error: float, df: int) -> float:
    """P(T >= mean / error) of Student's distribution; 1.0 for a mean that is not above 0."""
    if mean <= 0:
        return 1.0
    if error <= 1e-9 * mean:
        return 0.0
    t = mean / error
    return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t))
