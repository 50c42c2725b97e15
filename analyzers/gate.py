"""Whether a run passes: no cause above its limit, no step slower than the baseline's.

A gate stands in front of every change, so it must neither cry wolf nor sleep. A limit is broken by
what is known: a cause over its limit, a step slower beyond noise. What is not known is told loudly
and lets the run pass only while it could be noise. It holds the run up where

- the step is slower by more than any plausible noise, though noise could not be measured,
- the baseline can't be compared at all, so that the gate would watch nothing from then on,
- the recording holds no account of time, or none of the rules could be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuprof.analyzers.cause_changes import share_of
from gpuprof.analyzers.change import PLAUSIBLE_NOISE
from gpuprof.analyzers.wording import milliseconds
from gpuprof.comparison import Comparison, StepChange
from gpuprof.counted import counted
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

NO_ACCOUNT_FROM = 0.999
"""A step of which nothing is known but its length: the device was not recorded."""

State = Literal["passed", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule and how it went.

    rule: a cause, or `SLOWDOWN`. limit, value: shares (of the step, or of the baseline's step);
    value is None where it is not known. A cause's value is what its rule measured: the share that
    the finding quotes, also where the cause is ruled out. why: one sentence that holds the numbers.
    finding: what the diagnosis says of the cause. blocks: whether the run may not pass with this
    unknown; True for all that is broken.
    """

    rule: str
    state: State
    limit: float
    value: float | None
    why: str
    finding: Finding | None = None
    blocks: bool = False


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
    nothing = all(check.state == "unknown" for check in checks) and comparison is None
    if nothing or diagnosis.budget.get("unknown", 0.0) > NO_ACCOUNT_FROM:
        checks = [replace(check, blocks=check.state != "passed") for check in checks]
    if comparison is not None:
        checks.append(_check_slowdown(comparison, max_slowdown))
    return tuple(checks)


def failures(checks: Sequence[Check], *, strict: bool) -> list[Check]:
    """What holds the run up: what is broken, what may not stay unknown, and what is unknown at all
    when `strict`."""
    return [c for c in checks if c.blocks or (strict and c.state == "unknown")]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _check_cause(diagnosis: Diagnosis, cause: str, limit: float) -> Check:
    finding = next((f for f in diagnosis.findings if f.cause == cause), None)
    missing = next((n.missing for n in diagnosis.not_judged if n.cause == cause), None)
    if finding is None and missing is not None:
        return Check(cause, "unknown", limit, None, f"{cause} could not be judged: {missing}")
    value = share_of(diagnosis, cause)
    if value is None:
        ruled_out = next(r.why for r in diagnosis.ruled_out if r.cause == cause)
        return Check(cause, "passed", limit, None, f"{cause} is ruled out: {ruled_out}")
    broken = value > limit
    way = "is more than" if broken else "is within"
    whole = "recording" if diagnosis.run.steps.source == "none" else "step"
    why = (
        f"{cause} takes {_percent(value)} of the {whole}, which {way} the {_percent(limit)} allowed"
    )
    if broken and finding is not None and finding.where:
        place = finding.where[0]
        why += f" ({place.file}{'' if place.line is None else f':{place.line}'})"
    return Check(cause, "broken" if broken else "passed", limit, value, why, finding, broken)


def _check_slowdown(comparison: Comparison, limit: float) -> Check:
    step, before, after = comparison.step, comparison.before.step_ms, comparison.after.step_ms
    if step is None or before is None or after is None:
        why = "the slowdown is not known: the length of a step is not known on both sides"
        return Check(SLOWDOWN, "unknown", limit, None, why, blocks=True)
    lengths = f"{milliseconds(before)} before, {milliseconds(after)} now"
    if comparison.verdict == "identical":
        why = f"the baseline is the same recording as the run ({milliseconds(after)} a step)"
        return Check(SLOWDOWN, "passed", limit, 0.0, why)
    unequal = _unequal(comparison)
    if unequal:
        why = f"the slowdown is not known: {unequal} ({lengths}); record the baseline again"
        return Check(SLOWDOWN, "unknown", limit, None, why, blocks=True)
    if comparison.verdict == "unknown":
        few = "no steps were found" if comparison.before.source == "none" else "too few steps"
        return _unmeasured(step, before, limit, f"{lengths}; {few}")
    interval = f"99 % interval {_signed(step.low_ms)} to {_signed(step.high_ms)}"
    if comparison.verdict == "slower" and step.change > limit:
        why = (
            f"a step takes {_percent(step.change)} longer than the baseline's, which is more than"
            f" the {_percent(limit)} allowed ({lengths}; {interval})"
        )
        return Check(SLOWDOWN, "broken", limit, step.change, why, blocks=True)
    if comparison.verdict == "no difference":
        why = f"a step is as long as the baseline's within noise ({lengths}; {interval})"
        if step.high_ms is not None and step.high_ms > limit * before:
            why += f"; the noise could hide {_percent(step.high_ms / before)}: record more steps"
    else:
        way = "longer" if step.change > 0 else "shorter"
        share = _percent(abs(step.change))
        why = f"a step is {share} {way} than the baseline's ({lengths}; {interval})"
    return Check(SLOWDOWN, "passed", limit, step.change, why)


def _signed(change_ms: float | None) -> str:
    """A change with its sign, "?" where the noise is unknown."""
    if change_ms is None:
        return "?"
    return ("−" if change_ms < 0 else "+") + milliseconds(abs(change_ms))


def _unequal(comparison: Comparison) -> str:
    """Why the two runs are none of a kind, "" where they are."""
    before, after = comparison.before, comparison.after
    if (before.source == "none") != (after.source == "none"):
        return "only one side has steps"
    if before.world_size != after.world_size:
        return f"the baseline has {counted(before.world_size, 'rank')}, the run {after.world_size}"
    known = "unknown" not in (*before.devices, *after.devices)
    if known and before.devices != after.devices:
        return (
            f"the baseline ran on {', '.join(before.devices)}, this on {', '.join(after.devices)}"
        )
    return ""


def _unmeasured(step: StepChange, before_ms: float, limit: float, lengths: str) -> Check:
    """The slowdown where the noise is unknown: a large one is no noise."""
    own = (step.change_ms - max(step.waited_ms, 0.0)) / before_ms
    if 1 + own > (1 + limit) * (1 + PLAUSIBLE_NOISE):
        why = (
            f"it takes {1 + step.change:.1f} times as long as the baseline ({lengths}): the"
            " noise is not known, but that much is none"
        )
        return Check(SLOWDOWN, "broken", limit, step.change, why, blocks=True)
    if (1 + own) * (1 + PLAUSIBLE_NOISE) < 1:
        why = f"it takes {_percent(-step.change)} less time than the baseline ({lengths})"
        return Check(SLOWDOWN, "passed", limit, step.change, why)
    why = f"the slowdown can't be told from noise ({lengths}): record at least ten steps"
    return Check(SLOWDOWN, "unknown", limit, step.change, why)
