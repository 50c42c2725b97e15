"""What a cause is, and what it is given.

A cause is one module that holds its rule, its wording, its fixes and its documentation (the module
docstring is its page). It looks at a `RunView`, where everything is computed already, and answers
with exactly one of three things: a `Finding`, that it is ruled out, or that it can't be judged and
which recording would tell. It never prints, plots or changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gpuprof.analyzers.run_view import CRITICAL_FROM, LEAST_GAIN, NAMED_FROM, RunView
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import (
    CAUSES,
    Evidence,
    Finding,
    Fix,
    Gain,
    NotJudged,
    Place,
    RuledOut,
    Severity,
)

CERTAIN = 0.97
"""Of a cause whose share was measured and whose gain a replay confirms. By Laplace's rule of
succession: all of 34 labelled recordings are judged rightly, so the next one is with 35/36."""

Verdict = Finding | RuledOut | NotJudged


RECORD_BOTH = (
    "record host and device: `gpuprof run -- python train.py`, or in torch.profiler"
    " `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`"
)
"""What to do where the host's side of a run is missing."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One known cause of low utilization.

    id: as in the diagnosis. title: a noun phrase. judge: the rule. docs: the module's docstring.
    removes: the parts of the step (see `gpuprof.analyzers.pricing.REMOVABLE`) that go with it, for
    the estimate of what all findings together could save.
    recurs: whether it is known to come back although only one recorded step has it (see
    `gpuprof.analyzers.one_step`); None where a recording can't tell.
    """

    id: str
    title: str
    judge: Callable[[RunView], Verdict]
    docs: str
    removes: tuple[str, ...] = ()
    recurs: Callable[[RunView], bool] | None = None
    number: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", CAUSES.get(self.id))


def severity(share: float) -> Severity:
    """The band of what a finding is worth: the share of the step that its gain saves or, where no
    gain is priced, that it holds. Findings stand in the order of the same number."""
    if share >= CRITICAL_FROM:
        return "critical"
    return "warning" if share >= NAMED_FROM else "info"


def confidence(
    run: RunView,
    share: float,
    gain: Gain | None,
    certain: float = CERTAIN,
    *,
    compared: bool = False,
) -> float:
    """How sure a finding is, 0 to 1: that the repair would really make the step shorter.

    Starts at `certain` (what the kind of evidence is worth), and falls when there are fewer than
    two steps (one may be odd: 0.75), no steps (0.7), and no replay to confirm it (0.6), unless
    ranks were compared, which confirm each other. A gain between `LEAST_GAIN` and the band is worth
    0.6 to 0.9: there a small error of the replay decides.
    """
    value = certain
    steps = max(len(rank.main.steps.length_ns) for rank in run.ranks)
    if not run.has_steps:
        value = min(value, 0.7)
    elif steps < 2:
        value = min(value, 0.75)
    if gain is None and not compared:
        value = min(value, 0.6)
    saved = share if gain is None else gain.reduction
    return doubted(run, value, saved)


def doubted(run: RunView, confidence: float, saved: float) -> float:
    """A confidence, no more than so small a gain is worth."""
    margin = (saved - LEAST_GAIN) / (run.named_from - LEAST_GAIN)
    if margin < 1.0:
        confidence = min(confidence, 0.6 + 0.3 * max(margin, 0.0))
    return round(confidence, 2)


LEFT_BY_LOADER = 0.05
"""How sure a finding is whose gain the loader's workers cap under `LEAST_GAIN`. They need at least
what they were seen to do, so its repair alone saves nothing unless the few recorded steps were
unusual for them: of 38 such findings in simulated runs 3 % saved as much after all."""


def within_the_loader(run: RunView, cause: Cause, found: Finding) -> Finding:
    """A finding whose gain is no larger than the loader's workers allow.

    That is no reason to rule a cause out: it holds what it holds, and is the next limit once the
    loader is faster. But that its repair alone makes the step shorter is then hardly believed.
    """
    if found.gain is None or "input" in cause.removes:
        return found
    gain = run.limited(found.gain)
    if gain.reduction == found.gain.reduction:
        return msgspec.structs.replace(found, gain=gain)
    sure = doubted(run, found.confidence, gain.reduction)
    if gain.reduction < LEAST_GAIN:
        sure = min(sure, LEFT_BY_LOADER)
    return msgspec.structs.replace(
        found, gain=gain, severity=severity(gain.reduction), confidence=sure
    )


def finding(
    cause: str,
    title: str,
    *,
    share: float,
    gain: Gain | None,
    confidence: float,
    evidence: Sequence[Evidence],
    fixes: Sequence[Fix],
    where: Sequence[Place] = (),
    ranks: Sequence[int] = (),
    late_ranks: Sequence[int] = (),
) -> Finding:
    """A finding of one of the known causes, with its number and severity filled in."""
    return Finding(
        cause=cause,
        number=CAUSES.get(cause),
        title=title,
        severity=severity(share if gain is None else gain.reduction),
        confidence=confidence,
        share=round(share, 4),
        gain=gain,
        where=tuple(where),
        ranks=tuple(ranks),
        late_ranks=tuple(late_ranks),
        evidence=tuple(evidence),
        fixes=tuple(fixes),
    )


def explained(gain: Gain | None, how: str) -> Gain | None:
    """The gain with the words for what was changed in the replay."""
    return None if gain is None else msgspec.structs.replace(gain, how=how)


def held_open(share: float, charged: float) -> list[Evidence]:
    """What `RunView.share_behind_waits` found, if it did."""
    if share <= charged:
        return []
    return [
        Evidence(
            text=f"The budget charges {percent(charged)} of the step to this. But it takes the time"
            f" in which queued work would hide other waits, of which {percent(share)} of the step"
            " shows only for that reason.",
            value=round(share, 4),
            unit="share of step",
        )
    ]


def may_hide(
    run: RunView, cause: str, what: str, share: float, unknown: str = "what held the device"
) -> NotJudged | None:
    """Not judged, where idle time that nothing explains may hold what would make the cause.

    Args:
        cause: Its id.
        what: What was measured of it.
        share: How much of the step that is; under the band.
        unknown: What the recording does not tell of that idle time.
    """
    unexplained = run.share("unknown")
    if share + unexplained < run.named_from:
        return None
    return NotJudged(
        cause=cause,
        missing=f"{what}: {percent(share)} of the step; {unknown} in the"
        f" {percent(unexplained)} of idle time that nothing explains was not recorded",
        command=RECORD_BOTH,
    )


def too_little(what: str, share: float, run: RunView) -> str:
    """Why a cause is ruled out: its share is under the band."""
    return f"{what}: {percent(share)} of the step, named from {percent(run.named_from)}"
