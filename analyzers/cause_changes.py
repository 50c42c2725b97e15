"""What became of each cause between two runs.

A cause near the share from which it is named comes and goes by chance: it is gone, new, smaller or
larger only when what it costs has changed as well, and by more than noise. Where the noise is
unknown and the difference could be noise, nothing is claimed: neither a change nor that there is
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuprof.analyzers.change import Change, beyond_plausible
from gpuprof.comparison import CauseChange, PartChange, State
from gpuprof.diagnosis import Diagnosis

RELEVANT_BLIND_FRAC = 0.02
"""A cause that changed by less than 2 % of the step has not changed: the share under which a
cause's gain is not named either."""

NOISE_OF: Mapping[str, str] = {
    "dataloader": "input",
    "sync-points": "sync",
    "nccl-wait": "communication",
    "host-overhead": "host",
    "memcpy": "copy",
    "checkpoint": "checkpoint",
}
"""The part of the step whose noise is that of the cause; others are seen in no part alone. What a
cause costs is what its rule measured and not this part: exposed copies, for one, hold those within
a device as well, which are none of the cause's."""


def cause_changes(
    before: Diagnosis,
    after: Diagnosis,
    parts: Sequence[PartChange],
    step: Change | None,
    same: bool,
) -> tuple[CauseChange, ...]:
    """Every cause that either side found, in the order found.

    Args:
        before, after: The diagnoses.
        parts: How the parts of the step changed.
        step: How the step changed, None where it is not known.
        same: Whether both sides are one recording.
    """
    found = dict.fromkeys(f.cause for f in (*before.findings, *after.findings))
    by_bucket = {part.bucket: part for part in parts}
    length = before.run.steps.length_ms or 0.0
    result = []
    for cause in found:
        part = by_bucket.get(NOISE_OF.get(cause, ""))
        old, new = _cost_ms(before, cause), _cost_ms(after, cause)
        state: State = "unknown"
        if same:
            state = "same"
        elif old is not None and new is not None:
            measured = part.beyond_noise if part is not None else None
            sides = _has(before, cause), _has(after, cause)
            of_step = step.beyond_noise if step is not None else None
            state = _state(sides, old, new, RELEVANT_BLIND_FRAC * length, measured, of_step)
        result.append(
            CauseChange(
                cause=cause,
                state=state,
                before_ms=_rounded(old),
                after_ms=_rounded(new),
                before_gain_ms=_rounded(_gain_ms(before, cause)),
                after_gain_ms=_rounded(_gain_ms(after, cause)),
            )
        )
    return tuple(result)


def _state(
    sides: tuple[bool, bool],
    old: float,
    new: float,
    least: float,
    measured: bool | None,
    of_step: bool | None,
) -> State:
    """What became of a cause.

    Args:
        sides: Whether it was found before, and after.
        old, new: What it cost a step, ms.
        least: The smallest change that counts, ms.
        measured: Whether its part of the step changed beyond noise; None where that is unknown.
        of_step: The same of the whole step.
    """
    small = abs(new - old) < least
    if measured is False or (measured is True and small):
        return "same"
    if measured is None:
        real = beyond_plausible(old, new) if of_step is None else of_step
        if small or not real:
            return "unclear"
    had, has = sides
    if new < old:
        return "smaller" if has else "gone"
    return "larger" if had else "new"


def _has(diagnosis: Diagnosis, cause: str) -> bool:
    return any(finding.cause == cause for finding in diagnosis.findings)


def _cost_ms(diagnosis: Diagnosis, cause: str) -> float | None:
    """What a cause takes of a step by its own rule, also where that rules it out; None where the
    rule could not tell."""
    length = diagnosis.run.steps.length_ms
    share = share_of(diagnosis, cause)
    return None if length is None or share is None else share * length


def share_of(diagnosis: Diagnosis, cause: str) -> float | None:
    """The share of the step that a cause's rule measured; None where it could not or did not. A
    cause beside the eight that was not found has none of the step."""
    finding = next((f for f in diagnosis.findings if f.cause == cause), None)
    if finding is not None:
        return finding.share
    ruled_out = next((r for r in diagnosis.ruled_out if r.cause == cause), None)
    if ruled_out is not None:
        return ruled_out.share
    return None if any(item.cause == cause for item in diagnosis.not_judged) else 0.0


def _gain_ms(diagnosis: Diagnosis, cause: str) -> float | None:
    length = diagnosis.run.steps.length_ms
    finding = next((f for f in diagnosis.findings if f.cause == cause), None)
    if finding is None or finding.gain is None or length is None:
        return None
    return max(length - finding.gain.step_ms, 0.0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
