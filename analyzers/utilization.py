"""What the shape of a utilization curve says, and which causes go with it.

Pure functions on arrays. A curve alone is a weak witness: the driver averages over a window
(1/6 s to 1 s), so a pit shorter than that shows only in part, and waiting collectives keep a GPU
"busy". So no confidence here goes above `MAX_CONFIDENCE`, and a trace overrules it all.

Reading order: saw-tooth → dataloader; steady low → small-batch or host-overhead; long valleys →
checkpoint or sync-points; pits → sync-points; all ranks together → nccl-wait; ranks apart →
imbalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuprof.counted import counted

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

Kind = Literal[
    "idle", "busy", "saw-tooth", "steady-low", "pits", "long-valleys", "irregular", "cannot-tell",
    "together", "apart", "power-together",
]  # fmt: skip

MAX_CONFIDENCE = 0.6
"""From the curve alone; DESIGN: "a first guess with its own, lower confidence"."""
MIN_SAMPLES = 20
"""Fewer samples show no shape: at 10 Hz this is two seconds."""
IDLE_FRAC = 0.1
"""Below this a GPU does nothing for the job: display and monitors use a few percent."""
MOSTLY_IDLE_SHARE = 0.2
"""A GPU that works less than this share of the log is not in use; nothing else is said of it."""
BUSY_FRAC = 0.9
DROP_FRAC = 0.5
"""A drop is below this part of the curve's plateau (its 90th percentile)."""
BOTTOM_FRAC = 0.15
"""A drop that comes this low went to zero: for the rest, the averaging window is to blame."""
PIT_DEPTH = 0.08
"""A partial dip this far below the plateau. With a window of 1/6 s that is 13 ms of idling."""
STEADY_SPREAD = 0.25
"""A curve whose 10th and 90th percentiles are closer than this is steady."""
LOW_FRAC = 0.8
"""A steady curve below this is low: the table of causes names 30 to 50 %."""
VALLEY_S, VALLEY_EVERY_S = 2.0, 15.0
"""Longer and rarer drops than this are valleys (a checkpoint), others the teeth of a saw."""
MIN_DROPS = 4
"""Three drops can be chance; four with equal gaps are hard to get by it."""
PERIODIC_SPREAD = 0.35
"""Gaps between drops whose deviation is below this part of their mean are called periodic."""
COARSE_STEP_S = 2.0
"""Samples further apart see a random moment each: neither period nor duration of a drop."""
COARSE_CONFIDENCE = 0.4
TOGETHER_CORRELATION = 0.8
APART_FRAC = 0.15
"""Devices whose means differ by more than this, in every part of the run, do unequal work."""
APART_PARTS = 4
POWER_DROP = 0.6
"""Power below this part of its plateau while the GPU counts as busy: kernels that only wait."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One reading of a curve. `why` is a sentence with the numbers; 0 stands for "no period"."""

    kind: Kind
    confidence: float
    why: str
    period_s: float = 0.0
    lost_frac: float = 0.0
    """Share of the active time that the GPU did not compute, as the curve has it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The utilization of one device: times (n,) ascending, shares of 1 (n,), no NaN.

    power_w: on the same times, NaN where unknown. timed: whether the times mean anything.
    """

    time_ns: I64
    util_frac: F64
    power_w: F64 | None = None
    timed: bool = True
    window_s: float = 1 / 6
    """The driver's averaging window; nothing shorter can be told apart."""

    @property
    def step_s(self) -> float:
        """The median distance of samples."""
        return float(np.median(np.diff(self.time_ns))) / 1e9 if len(self.time_ns) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Drops:
    """Stretches below a level: first index, index after the last, and minimum of each."""

    begin: I64
    end: I64
    minimum: F64

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True, slots=True)
class Guess:
    """A cause that a shape goes with."""

    cause: str
    confidence: float
    shape: Shape


def drops(util_frac: F64, level: float) -> Drops:
    """Stretches of samples below `level` that begin and end inside the curve."""
    low = np.concatenate([[False], util_frac < level, [False]])
    edges = np.diff(low.astype(np.int8))
    begin, end = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    inner = (begin > 0) & (end < len(util_frac))
    begin, end = begin[inner].astype(np.int64), end[inner].astype(np.int64)
    minimum = np.array(
        [util_frac[b:e].min() for b, e in zip(begin, end, strict=True)], dtype=np.float64
    )
    return Drops(begin, end, minimum)


def active(curve: Curve) -> Curve:
    """The curve from the first to the last moment of work: start-up and the end cut off."""
    working = np.flatnonzero(curve.util_frac >= IDLE_FRAC)
    if not len(working):
        return curve
    part = slice(int(working[0]), int(working[-1]) + 1)
    power = None if curve.power_w is None else curve.power_w[part]
    return Curve(curve.time_ns[part], curve.util_frac[part], power, curve.timed, curve.window_s)


def classify(curve: Curve) -> Shape:
    """The shape of one device's curve."""
    n = len(curve.util_frac)
    if n < MIN_SAMPLES:
        return Shape(
            "cannot-tell",
            0.0,
            f"{counted(n, 'sample shows', 'samples show')} no shape: {MIN_SAMPLES} are needed",
        )
    working = float(np.mean(curve.util_frac >= IDLE_FRAC))
    if working < MOSTLY_IDLE_SHARE:
        return Shape(
            "idle", 0.9, f"the GPU worked in {working:.0%} of the samples", lost_frac=1 - working
        )
    part = active(curve)
    util = part.util_frac
    if len(util) < MIN_SAMPLES:
        return Shape(
            "cannot-tell", 0.0, f"only {counted(len(util), 'sample')} while the GPU worked"
        )
    return _capped(part, _shape(part, util))


def _shape(curve: Curve, util: F64) -> Shape:
    plateau, low = (float(x) for x in np.percentile(util, [90, 10]))
    mean = float(util.mean())
    lost = 1 - mean
    deep = drops(util, DROP_FRAC * plateau)
    in_drops = float(np.sum(deep.end - deep.begin)) / len(util)
    to_zero = float(np.mean(deep.minimum < BOTTOM_FRAC)) if len(deep) else 0.0
    # Samples far apart see a random moment each: their scatter says nothing about steadiness.
    steady = plateau - low < STEADY_SPREAD
    scattered = _coarse(curve) and float(np.mean(util < IDLE_FRAC)) < 0.05
    if mean < LOW_FRAC and (steady or scattered):
        words = "steady" if steady else "scattered around its mean without going to zero"
        confidence = MAX_CONFIDENCE if steady else COARSE_CONFIDENCE
        return Shape(
            "steady-low", confidence, f"the curve is {words} at {mean:.0%}", lost_frac=lost
        )
    if len(deep) >= MIN_DROPS and to_zero >= 0.5:
        return _falls(curve, deep, in_drops, lost)
    partial = drops(util, plateau - PIT_DEPTH)
    if len(partial) >= MIN_DROPS and mean < plateau - 0.01:
        depth = float(np.median(plateau - partial.minimum))
        every_s, spread = _gaps(curve, partial)
        return Shape(
            "pits",
            MAX_CONFIDENCE * (0.8 if spread > PERIODIC_SPREAD else 1),
            f"{len(partial)} dips of {depth:.0%} in the median that do not reach zero: about "
            f"{depth * curve.window_s * 1e3:.0f} ms of idling each",
            every_s if spread <= PERIODIC_SPREAD else 0.0,
            lost,
        )
    if mean >= BUSY_FRAC:
        return Shape("busy", 0.8, f"the GPU is busy {mean:.0%} of the time", lost_frac=lost)
    return Shape("irregular", 0.3, f"{mean:.0%} on average, without a pattern", lost_frac=lost)


def _falls(curve: Curve, deep: Drops, in_drops: float, lost: float) -> Shape:
    """Drops to zero: the teeth of a saw, or rare and long valleys."""
    every_s, spread = _gaps(curve, deep)
    length_s = float(np.median(_lengths_s(curve, deep)))
    periodic = spread <= PERIODIC_SPREAD
    valleys = curve.timed and length_s >= VALLEY_S and every_s >= VALLEY_EVERY_S
    if curve.timed:
        words = f"{len(deep)} falls to zero of {length_s:.1f} s, one every {every_s:.1f} s, "
        words += f"{'at equal' if periodic else 'at unequal'} distances"
    else:
        words = f"{len(deep)} falls to zero, {in_drops:.0%} of the samples"
    return Shape(
        "long-valleys" if valleys else "saw-tooth",
        MAX_CONFIDENCE * (1 if periodic else 0.75),
        words,
        every_s if periodic and curve.timed else 0.0,
        lost,
    )


def _lengths_s(curve: Curve, found: Drops) -> F64:
    lengths: F64 = (curve.time_ns[found.end] - curve.time_ns[found.begin]) / 1e9
    return lengths


def _gaps(curve: Curve, found: Drops) -> tuple[float, float]:
    """Median distance of the drops' beginnings in seconds, and their spread as a part of it.

    The spread is the median deviation scaled to a standard deviation, so that one drop that was
    missed does not spoil it.
    """
    gaps = np.diff(curve.time_ns[found.begin]) / 1e9
    middle = float(np.median(gaps))
    spread = 1.4826 * float(np.median(np.abs(gaps - middle)))
    return middle, spread / middle if middle > 0 else 1.0


def _coarse(curve: Curve) -> bool:
    return curve.timed and curve.step_s > COARSE_STEP_S


def _capped(curve: Curve, shape: Shape) -> Shape:
    """No trust in durations that the samples cannot show."""
    if shape.kind in ("saw-tooth", "pits", "long-valleys") and (_coarse(curve) or not curve.timed):
        why = "no times were recorded" if not curve.timed else f"one sample in {curve.step_s:.0f} s"
        return Shape(
            shape.kind,
            min(shape.confidence, COARSE_CONFIDENCE),
            f"{shape.why} ({why})",
            0.0,
            shape.lost_frac,
        )
    return shape


# ---- several devices -----------------------------------------------------------------------


def together(curves: Sequence[Curve], skew_s: float = 0.0) -> list[Shape]:
    """What several devices of one job show that one alone does not.

    `skew_s` is how far apart in time the devices were read within one sample; dips no longer
    than it are not compared.
    """
    enough = [c for c in curves if len(c.util_frac) >= MIN_SAMPLES]
    working = [c for c in enough if float(np.mean(c.util_frac >= IDLE_FRAC)) >= MOSTLY_IDLE_SHARE]
    if len(working) < 2 or not all(c.timed for c in working):
        return []
    grid = _common(working)
    if grid is None:
        return []
    util = np.stack([_on(c.time_ns, c.util_frac, grid) for c in working])
    shapes = []
    apart = _apart(util)
    if apart is not None:
        shapes.append(apart)
    step_s = float(grid[1] - grid[0]) / 1e9
    if skew_s < step_s:
        dips = _dips_together(util)
        if dips is not None:
            shapes.append(dips)
        power = [c.power_w for c in working]
        if all(p is not None for p in power):
            watts = np.stack(
                [
                    _on(c.time_ns, p, grid)
                    for c, p in zip(working, power, strict=True)
                    if p is not None
                ]
            )
            hidden = _waits_together(util, watts)
            if hidden is not None:
                shapes.append(hidden)
    return shapes


def _common(curves: Sequence[Curve]) -> I64 | None:
    """A time grid that all curves cover, at the coarsest of their steps."""
    start = max(int(c.time_ns[0]) for c in curves)
    end = min(int(c.time_ns[-1]) for c in curves)
    step = int(max(c.step_s for c in curves) * 1e9)
    if step <= 0 or (end - start) // step < MIN_SAMPLES:
        return None
    return np.arange(start, end, step, dtype=np.int64)


def _on(time_ns: I64, value: F64, grid: I64) -> F64:
    """The value that was current at each grid point."""
    at = np.clip(np.searchsorted(time_ns, grid, side="right") - 1, 0, len(value) - 1)
    found: F64 = value[at]
    return found


def _apart(util: F64) -> Shape | None:
    """Devices that do unequal work all the time; util is (devices, n)."""
    means = util.mean(axis=1)
    gap = float(means.max() - means.min())
    if gap < APART_FRAC:
        return None
    high, low = int(means.argmax()), int(means.argmin())
    parts = np.array_split(util, APART_PARTS, axis=1)
    steady = all(float(p[high].mean() - p[low].mean()) >= APART_FRAC / 2 for p in parts)
    if not steady:
        return None
    return Shape(
        "apart",
        MAX_CONFIDENCE,
        f"one GPU is at {means.max():.0%} and another at {means.min():.0%}, in every part of the "
        "run",
        lost_frac=float(1 - means.mean()),
    )


def _dips_together(util: F64) -> Shape | None:
    """All devices dip at the same moments."""
    spread = util.std(axis=1)
    if np.any(spread < PIT_DEPTH / 2):
        return None  # a flat curve has no dips to compare
    pairs = np.atleast_2d(np.corrcoef(util))[np.triu_indices(len(util), 1)]
    lowest = float(pairs.min())
    if lowest < TOGETHER_CORRELATION:
        return None
    return Shape(
        "together",
        MAX_CONFIDENCE * 0.8,
        f"all {len(util)} GPUs dip at the same moments (correlation at least {lowest:.2f})",
        lost_frac=float(1 - util.mean()),
    )


def _waits_together(util: F64, watts: F64) -> Shape | None:
    """GPUs that count as busy while the power of all of them falls: collectives that wait."""
    plateau = np.nanpercentile(watts, 90, axis=1)
    if not np.all(plateau > 0):
        return None
    low = watts < POWER_DROP * plateau[:, None]
    hidden = float(np.mean(np.all(low & (util >= BUSY_FRAC), axis=0)))
    if hidden < 0.05:  # under 5 % of the time no cause is named
        return None
    return Shape(
        "power-together",
        MAX_CONFIDENCE * 0.8,
        f"in {hidden:.0%} of the samples all GPUs count as busy and draw less than "
        f"{POWER_DROP:.0%} of their power: kernels that wait",
        lost_frac=hidden,
    )


# ---- causes --------------------------------------------------------------------------------

_CAUSES: dict[Kind, tuple[tuple[str, float], ...]] = {
    "saw-tooth": (("dataloader", 1.0),),
    "steady-low": (("small-batch", 0.8), ("host-overhead", 0.7)),
    "long-valleys": (("checkpoint", 1.0), ("sync-points", 0.4)),
    "pits": (("sync-points", 0.9),),
    "together": (("nccl-wait", 0.8),),
    "power-together": (("nccl-wait", 1.0),),
    "apart": (("imbalance", 1.0),),
}
"""Shape -> causes with the part of the shape's confidence that each gets."""
EXPLAINED_ALREADY = 0.5
"""Ranks of one job wait for each other, so input stalls and checkpoints make all of them dip:
where the single curves already have such a shape, dipping together adds half as much."""


def guesses(single: Sequence[Shape], joint: Sequence[Shape] = ()) -> list[Guess]:
    """The causes that go with the shapes of a job's devices, the most likely first, one each."""
    best: dict[str, Guess] = {}
    explained = any(shape.kind in ("saw-tooth", "long-valleys") for shape in single)
    for shape in (*single, *joint):
        for cause, part in _CAUSES.get(shape.kind, ()):
            factor = EXPLAINED_ALREADY if explained and shape.kind == "together" else 1.0
            guess = Guess(cause, round(shape.confidence * part * factor, 3), shape)
            if cause not in best or guess.confidence > best[cause].confidence:
                best[cause] = guess
    return sorted(best.values(), key=lambda g: (-g.confidence, g.cause))
