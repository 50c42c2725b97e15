"""Whether a run passes: no cause above its limit, no step slower than the baseline's.

A limit is broken only by what is known. A cause that could not be judged, or a step whose noise is
unknown, is told as such and breaks nothing, unless the caller is strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuprof.analyzers.compare import CAUSE_BUCKETS
from gpuprof.comparison import Comparison
from gpuprof.diagnosis import CAUSES, Diagnosis, Finding

BESIDE = (
    "throttling",
    "hardware-fault",
    "memory-pressure",
    "low-precision",
    "hang",
    "nccl-config",
)
"""Causes beside the eight numbered ones."""

LIMITED = (*CAUSES, *BESIDE)
"""What a limit can be set for."""

SLOWDOWN = "slowdown"

State = Literal["passed", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule and how it went.

    rule: a cause, or `SLOWDOWN`. limit, value: shares (of the step, or of the baseline's step);
    value is None where it is not known. why: one sentence that holds the numbers. finding: what
    the diagnosis says of the cause.
    """

    rule: str
    state: State
    limit: float
    value: float | None
    why: str
    finding: Finding | None = None


def check_run(
    diagnosis: Diagnosis,
    limits: Mapping[str, float],
    comparison: Comparison | None = None,
    max_slowdown: float = 0.0,
) -> tuple[Check, ...]:
    """Checks a run against its limits, in the order given, the slowdown last.

    Args:
        diagnosis: Of the run.
        limits: Cause -> the largest share of the step that it may take; 0 allows none of it.
        comparison: With a baseline as its `before`, where there is one.
        max_slowdown: The slowdown that is allowed, as a share of the baseline's step. A change
            within noise never breaks it.
    """
    checks = [_check_cause(diagnosis, cause, limit) for cause, limit in limits.items()]
    if comparison is not None:
        checks.append(_check_slowdown(comparison, max_slowdown))
    return tuple(checks)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _check_cause(diagnosis: Diagnosis, cause: str, limit: float) -> Check:
    finding = next((f for f in diagnosis.findings if f.cause == cause), None)
    missing = next((n.missing for n in diagnosis.not_judged if n.cause == cause), None)
    if finding is None and missing is not None:
        return Check(cause, "unknown", limit, None, f"{cause} could not be judged: {missing}")
    # Below the share from which a cause is named, its part of the step still says what it takes.
    bucket = CAUSE_BUCKETS.get(cause)
    value = finding.share if finding else diagnosis.budget.get(bucket, 0.0) if bucket else 0.0
    state: State = "broken" if value > limit else "passed"
    way = "is more than" if state == "broken" else "is within"
    why = f"{cause} takes {_percent(value)} of the step, which {way} the {_percent(limit)} allowed"
    if state == "broken" and finding is not None and finding.where:
        place = finding.where[0]
        why += f" ({place.file}{'' if place.line is None else f':{place.line}'})"
    return Check(cause, state, limit, value, why, finding)


def _check_slowdown(comparison: Comparison, limit: float) -> Check:
    step, before, after = comparison.step, comparison.before.step_ms, comparison.after.step_ms
    if step is None or before is None or after is None:
        why = "the slowdown is not known: the length of a step is not known on both sides"
        return Check(SLOWDOWN, "unknown", limit, None, why)
    lengths = f"{before:.4g} ms before, {after:.4g} ms now"
    if comparison.verdict == "unknown":
        why = f"the slowdown can't be told from noise with so few steps ({lengths})"
        return Check(SLOWDOWN, "unknown", limit, step.change, why)
    interval = f"99 % interval {step.low_ms:+.4g} to {step.high_ms:+.4g} ms"
    if comparison.verdict == "slower" and step.change > limit:
        why = (
            f"a step takes {_percent(step.change)} longer than the baseline's, which is more than"
            f" the {_percent(limit)} allowed ({lengths}; {interval})"
        )
        return Check(SLOWDOWN, "broken", limit, step.change, why)
    if comparison.verdict == "no difference":
        why = f"a step is as long as the baseline's within noise ({lengths}; {interval})"
    else:
        way = "longer" if step.change > 0 else "shorter"
        share = _percent(abs(step.change))
        why = f"a step is {share} {way} than the baseline's ({lengths}; {interval})"
    return Check(SLOWDOWN, "passed", limit, step.change, why)
