"""What a replay says a step could be, in words: the same way for one cause and for all together."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis import Diagnosis, Estimate, Finding, Gain
from gpuprof.reports import budget, text
from gpuprof.reports.words import Catalog

MOST_CHANGES = 3
"""Changes that stand at the top of a page: what comes after them saves little."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change at the top of a page. number: of its finding. why: what it mends. place: the line of
    code, "" where none is known. saved, share: what it saves of a step, as text."""

    number: int
    what: str
    why: str
    place: str
    saved: str
    share: str


def whole(diagnosis: Diagnosis, key: str) -> str:
    """The key of the wording that fits: without steps, the budget is that of the recording."""
    return key if diagnosis.run.steps.count else f"{key}.whole"


def at_most(saving: str, gain: Gain, words: Catalog) -> str:
    """A saving as it is stated: as a bound where a limit may make it smaller."""
    return words.say("finding.gain.at_most", saving=saving) if gain.at_most else saving


def saved_ms(gain: Gain | Estimate, diagnosis: Diagnosis) -> float | None:
    """What a step gets shorter by, in ms; None where the length of a step is not known."""
    step = diagnosis.run.steps.length_ms
    return None if step is None else max(step - gain.step_ms, 0.0)


def saved(gain: Gain, diagnosis: Diagnosis) -> str:
    """`−58.9 ms`; the share of the step where its length is not known."""
    length = saved_ms(gain, diagnosis)
    return f"−{text.percent(gain.reduction) if length is None else text.milliseconds(length)}"


def saving(gain: Gain, diagnosis: Diagnosis, words: Catalog) -> str:
    """`−58.9 ms (31–35 %)`: with its range over the steps of the window."""
    ends = text.percent_range(gain.low, gain.high)
    length = saved_ms(gain, diagnosis)
    said = ends if length is None else words.aside(saved(gain, diagnosis), ends)
    return at_most(said, gain, words)


def of_cause(finding: Finding, diagnosis: Diagnosis, words: Catalog) -> str:
    """How the gain of a finding came about, or why none is quoted."""
    if finding.gain is not None:
        return _replayed("finding.gain.text", finding.gain, diagnosis, words)
    return _untrusted(diagnosis, words) or words.say("finding.gain.unpriced")


def of_all(diagnosis: Diagnosis, words: Catalog) -> str:
    """What all changes together could save, with its limit, or why no such number is quoted.

    Empty when there is nothing to change.
    """
    best = diagnosis.together
    if best is not None:
        told = [_replayed("together", best, diagnosis, words)]
        told += [text.sentence(best.limit)] if best.limit else []
        return words.say("points.between").join(told)
    if not diagnosis.findings or not budget.has_account(diagnosis):
        return ""
    return _untrusted(diagnosis, words) or words.say("together.none")


def _replayed(key: str, gain: Gain | Estimate, diagnosis: Diagnosis, words: Catalog) -> str:
    """What the replay without something takes. key: of the sentence, which has a form for a
    recording without steps (`.whole`) and one where no length is known (`.share`)."""
    share = text.percent(gain.reduction)
    step = diagnosis.run.steps.length_ms
    if step is None:
        return words.say(f"{key}.share", share=share)
    return words.say(
        whole(diagnosis, key),
        after=text.milliseconds(gain.step_ms),
        step=text.milliseconds(step),
        share=share,
    )


def _untrusted(diagnosis: Diagnosis, words: Catalog) -> str:
    """Why a replay that does not fit quotes no gain; "" where there is none, or it fits."""
    replay = diagnosis.replay
    if replay.trusted or replay.error is None:
        return ""
    return words.say("finding.gain.untrusted", error=text.percent(replay.error))


def changes(diagnosis: Diagnosis, words: Catalog) -> list[Change]:
    """What to change first, in the order of the findings."""
    found = []
    for number, finding in enumerate(diagnosis.findings[:MOST_CHANGES], 1):
        gain = finding.gain
        place = next(iter(finding.where), None)
        spot = text.file_name(place.file) if place is not None else ""
        if place is not None and place.line is not None:
            spot += f":{place.line}"
        shown = share = ""
        if gain is not None:
            shown = at_most(saved(gain, diagnosis), gain, words)
            if saved_ms(gain, diagnosis) is not None:
                key = whole(diagnosis, "key.of_step")
                share = words.say(key, share=text.percent(gain.reduction))
        fix = finding.fixes[0].title if finding.fixes else ""
        why = finding.title if fix else ""
        found.append(Change(number, fix or finding.title, why, spot, shown, share))
    return found
