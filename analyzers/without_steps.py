"""The words of a verdict on a recording without steps: one stretch of time, which is no step.

Causes speak of the step, as nearly all recordings have steps. Here their sentences are made to
speak of the recording, in one place for all of them.
"""

from __future__ import annotations

import re

import msgspec

from gpuprof.diagnosis import Finding, NotJudged, RuledOut

_WORDS = (
    (re.compile(r"\b(?:the recorded steps?|the step|each step)\b"), "the recording"),
    (re.compile(r"\beach ([\d.,]+\s?\w+) step\b"), r"the recorded \1"),
    (re.compile(r"\bof a step\b"), "of the recording"),
    (re.compile(r" a step\b"), " in the recording"),
)


def of_the_recording(text: str) -> str:
    """A sentence about steps as one about the recording: "12 % of the step" is "12 % of the
    recording"."""
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def without_steps(verdict: Finding | RuledOut | NotJudged) -> Finding | RuledOut | NotJudged:
    """A verdict on a recording without steps in words that fit it. Advice stays as it is: the
    program has steps, they were only not marked."""
    replace = msgspec.structs.replace
    if isinstance(verdict, RuledOut):
        return replace(verdict, why=of_the_recording(verdict.why))
    if isinstance(verdict, NotJudged):
        return replace(verdict, missing=of_the_recording(verdict.missing))
    gain = verdict.gain
    return replace(
        verdict,
        title=of_the_recording(verdict.title),
        evidence=tuple(replace(e, text=of_the_recording(e.text)) for e in verdict.evidence),
        gain=replace(gain, how=of_the_recording(gain.how)) if gain is not None else None,
    )
