"""From recorded samples to the curve's first guess: findings for a run without a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.analyzers.utilization import (
    Curve,
    Guess,
    Shape,
    classify,
    guesses,
    together,
)
from gpuprof.diagnosis import CAUSES, Evidence, Finding, Fix, Severity, Window
from gpuprof.samples import F64, I64, Samples

WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.20
"""The bands of DESIGN §5: below the first a cause is not named."""
DEFAULT_WINDOW_S = 1 / 6
"""The shortest averaging window of a driver, where it was not measured."""

SLOW_POLL_NS = 500_000_000
"""Polls further apart than this see less than the driver's buffer, which has 6 values a second."""

TITLES = {
    "dataloader": "The curve looks like a GPU that waits for data",
    "small-batch": "The curve looks like kernels too small to fill the GPU",
    "sync-points": "The curve looks like a host that waits for the GPU",
    "nccl-wait": "The curves look like ranks that wait for each other",
    "host-overhead": "The curve looks like a GPU that waits for Python",
    "imbalance": "The GPUs do unequal work",
    "checkpoint": "The curve looks like checkpoints that stop the training",
}
_NEXT = Fix(
    title="Record a trace to be sure",
    detail="A utilization curve only hints at a cause: a trace of a few steps proves it, names the "
    "line and prices the gain.",
    code="with gpuprof.session() as prof:\n    ...",
    cost="a few traced steps",
)


@dataclass(frozen=True, slots=True)
class CurveReading:
    """What the curves of a job's GPUs show: a shape each, shapes of all together, causes."""

    shapes: dict[str, Shape]
    joint: tuple[Shape, ...]
    guesses: tuple[Guess, ...]


def job_scopes(samples: Samples) -> list[str]:
    """The GPUs of the job: those of its ranks where they are known, else all that were sampled."""
    own = {samples.gpu_of_rank(rank.rank) for rank in samples.ranks if rank.rank >= 0}
    scopes = samples.scopes("gpu")
    return [scope for scope in scopes if scope in own] or scopes


def curve_of(samples: Samples, scope: str) -> Curve | None:
    """The utilization curve of a GPU with its power beside it; None where none was read."""
    util = samples.get("util_frac", scope)
    if util is None or not util.ok.any():
        return None
    time_ns, value = _with_ring(samples, scope, *util.good())
    window_s = samples.windows.get(scope, int(DEFAULT_WINDOW_S * 1e9)) / 1e9
    power = samples.get("power_w", scope)
    watts: F64 | None = None
    if power is not None and power.ok.any():
        watts = _beside(time_ns, *power.good())
    return Curve(time_ns, value, watts, samples.timed, window_s)


def _with_ring(samples: Samples, scope: str, time_ns: I64, value: F64) -> tuple[I64, F64]:
    """The polled curve, filled up with the driver's own buffer where polling was slow.

    The buffer alone will not do: it is empty while the GPU idles.
    """
    ring = samples.get("ring_util_frac", scope)
    slow = len(time_ns) < 2 or float(np.median(np.diff(time_ns))) > SLOW_POLL_NS
    if ring is None or not slow or not ring.ok.any():
        return time_ns, value
    ring_ns, ring_value = ring.good()
    all_ns = np.concatenate([time_ns, ring_ns])
    order = np.argsort(all_ns, kind="stable")
    return all_ns[order], np.concatenate([value, ring_value])[order]


def _beside(time_ns: I64, other_ns: I64, other: F64) -> F64:
    at = np.clip(np.searchsorted(other_ns, time_ns, side="right") - 1, 0, len(other) - 1)
    found: F64 = other[at]
    return found


def read_curves(samples: Samples) -> CurveReading:
    """The shapes of a job's curves and the causes that go with them."""
    curves = {scope: curve_of(samples, scope) for scope in job_scopes(samples)}
    known = {scope: curve for scope, curve in curves.items() if curve is not None}
    shapes = {scope: classify(curve) for scope, curve in known.items()}
    joint = together(list(known.values()), skew_s(samples, list(known)))
    return CurveReading(shapes, tuple(joint), tuple(guesses(list(shapes.values()), joint)))


def skew_s(samples: Samples, scopes: list[str]) -> float:
    """How far apart in time the GPUs were read within one tick, 99th percentile, seconds.

    Taken from the reads themselves: the distance of each GPU's read to the nearest of the first.
    """
    series = [s for scope in scopes if (s := samples.get("util_frac", scope)) is not None]
    if len(series) < 2 or not all(len(s) for s in series):
        return 0.0
    first = series[0].time_ns
    worst = 0.0
    for other in series[1:]:
        at = np.clip(np.searchsorted(first, other.time_ns), 1, max(1, len(first) - 1))
        near = np.minimum(
            np.abs(other.time_ns - first[np.minimum(at, len(first) - 1)]),
            np.abs(other.time_ns - first[at - 1]),
        )
        worst = max(worst, float(np.percentile(near, 99)) / 1e9)
    return worst


def curve_findings(samples: Samples) -> list[Finding]:
    """The curve's guesses as findings without a price; [] where the GPUs were busy or unused."""
    reading = read_curves(samples)
    span = samples.span_ns
    windows = (Window(start_ns=span[0], end_ns=span[1]),) if span and samples.epoch else ()
    findings = []
    for guess in reading.guesses:
        share = guess.shape.lost_frac
        if share < WARNING_SHARE:
            continue
        severity: Severity = "critical" if share >= CRITICAL_SHARE else "warning"
        findings.append(
            Finding(
                cause=guess.cause,
                number=CAUSES[guess.cause],
                title=TITLES[guess.cause],
                severity=severity,
                confidence=guess.confidence,
                share=share,
                gain=None,
                evidence=(
                    Evidence(
                        text=f"Utilization curve: {guess.shape.why}.",
                        value=share,
                        unit="share of time",
                        source="nvml",
                        windows=windows,
                    ),
                ),
                fixes=(_NEXT,),
            )
        )
    return findings
