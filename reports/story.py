"""The sentences that every output says about a diagnosis, from the catalogue of wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.diagnosis import Diagnosis, Finding, Gain, NotJudged
from gpuprof.reports import budget, text
from gpuprof.reports.words import Catalog

HIGH_CONFIDENCE = 0.85
MEDIUM_CONFIDENCE = 0.6
"""Below it a reader should look for a second sign before acting; above `HIGH_CONFIDENCE` not."""


STOPS = ("hang",)
"""Causes that save no time of a step, since there is none: what was seen is told instead."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One of the few numbers under the headline."""

    label: str
    value: str
    note: str
    good: bool = False


def confidence(value: float, words: Catalog) -> str:
    """`high confidence (95 %)`."""
    word = "high" if value >= HIGH_CONFIDENCE else "medium" if value >= MEDIUM_CONFIDENCE else "low"
    return words.say(
        "finding.confidence", word=words.say(f"confidence.{word}"), percent=text.percent(value)
    )


def ranks(numbers: Sequence[int], words: Catalog) -> str:
    """`rank 3`, `ranks 0–2, 7`, or nothing."""
    if not numbers:
        return ""
    key = "finding.ranks" if len(numbers) == 1 else "finding.ranks.many"
    return words.say(key, ranks=text.rank_list(numbers))


def late(numbers: Sequence[int], words: Catalog) -> str:
    """`late: rank 3`, `late: ranks 0, 6`, or nothing."""
    if not numbers:
        return ""
    key = "finding.late" if len(numbers) == 1 else "finding.late.many"
    return words.say(key, ranks=text.rank_list(numbers))


def warnings_line(diagnosis: Diagnosis, words: Catalog) -> str:
    """`3 warnings about the data`."""
    count = len(diagnosis.warnings)
    if count == 1:
        return words.say("warnings.top.one")
    return words.say("warnings.top.many", count=text.count(count))


def run_facts(diagnosis: Diagnosis, words: Catalog) -> list[str]:
    """What ran: ranks, devices, steps."""
    run = diagnosis.run
    facts = []
    if run.world_size > 1:
        key = "facts.ranks.many" if run.ranks else "facts.ranks.world"
        facts.append(words.say(key, count=len(run.ranks), world=run.world_size))
    devices: dict[str, int] = {}
    for rank in diagnosis.ranks:
        devices[rank.device] = devices.get(rank.device, 0) + 1
    names = devices or dict.fromkeys(run.devices, 1)
    facts += [
        f"{number} × {name}" if number > 1 else name for name, number in names.items() if name
    ][:4]
    steps = run.steps
    if not steps.count:
        facts.append(words.say("facts.steps.none"))
    else:
        key = "facts.steps.one" if steps.count == 1 else "facts.steps"
        source = words.name("source", steps.source)
        facts.append(words.say(key, count=steps.count, source=source))
    return [text.clean(fact, 200) for fact in facts]


def whole(diagnosis: Diagnosis, key: str) -> str:
    """The key of the wording that fits: without steps, the budget is that of the recording."""
    return key if diagnosis.run.steps.count else f"{key}.whole"


def stands(diagnosis: Diagnosis) -> bool:
    """Whether the job does not go on: it is bound by nothing, and no step can be saved."""
    return not budget.has_account(diagnosis) and any(
        finding.cause in STOPS for finding in diagnosis.findings
    )


def ordered(diagnosis: Diagnosis) -> bool:
    """Whether findings have an order that a reader can use: several, with a gain."""
    return len(diagnosis.findings) > 1 and any(f.gain is not None for f in diagnosis.findings)


def not_judged(diagnosis: Diagnosis, words: Catalog) -> list[tuple[str, NotJudged]]:
    """What could not be judged, with the names of all causes that lack the same."""
    groups: dict[tuple[str, str], list[NotJudged]] = {}
    for item in diagnosis.not_judged:
        groups.setdefault((item.missing, item.command), []).append(item)
    return [
        (words.several(words.name("cause", item.cause) for item in items), items[0])
        for items in groups.values()
    ]


def cost(diagnosis: Diagnosis, words: Catalog) -> str:
    """How much of a step the device does nothing; empty when there is no account."""
    idle = budget.idle_share(diagnosis)
    if not diagnosis.budget or idle < 0.0005:
        return ""
    if diagnosis.budget.get("unknown", 0.0) > 0.999:  # nothing of the device was recorded
        return ""
    step = diagnosis.run.steps.length_ms
    if step is None:
        return words.say("cost.share", share=text.percent(idle))
    return words.say(
        whole(diagnosis, "cost"),
        idle=text.milliseconds(idle * step),
        step=text.milliseconds(step),
        share=text.percent(idle),
    )


def together(diagnosis: Diagnosis, words: Catalog) -> str:
    """The most that all changes together could save, or why no such number is quoted.

    Empty when there is nothing to change.
    """
    replay = diagnosis.replay
    if diagnosis.together is not None:
        limit = diagnosis.together.limit
        told = [_together(diagnosis, words), *([text.sentence(limit)] if limit else [])]
        return words.say("points.between").join(told)
    if not diagnosis.findings or not budget.has_account(diagnosis):
        return ""
    if not replay.trusted and replay.error is not None:
        return words.say("together.untrusted", error=text.percent(replay.error))
    return words.say("together.none")


def _together(diagnosis: Diagnosis, words: Catalog) -> str:
    best = diagnosis.together
    assert best is not None
    share = text.percent(best.reduction)
    step = diagnosis.run.steps.length_ms
    if step is None:
        return words.say("together.share", share=share)
    return words.say(
        whole(diagnosis, "together"),
        step=text.milliseconds(step),
        after=text.milliseconds(best.step_ms),
        share=share,
    )


def nothing_found(diagnosis: Diagnosis, words: Catalog) -> str:
    """Without findings: all is well, or of some causes or of all nobody can tell."""
    if diagnosis.bound.class_ == "unknown":
        return words.say("findings.unknown")
    return words.say("findings.none.judged" if diagnosis.not_judged else "findings.none")


def key_figures(diagnosis: Diagnosis, words: Catalog) -> list[KeyFigure]:
    """Step, busy share, what the changes save, bound class."""
    figures = []
    steps = diagnosis.run.steps
    if steps.median_ms is not None:
        key = "key.median.one" if steps.count == 1 else "key.median"
        note = words.say(key if steps.count else "facts.steps.none", count=steps.count)
        label = words.say(whole(diagnosis, "key.step"))
        # Of one step there is no median: over ranks, all else on the page is of the mean.
        length = steps.length_ms if steps.count == 1 else steps.median_ms
        figures.append(KeyFigure(label, text.milliseconds(length or steps.median_ms), note))
    if diagnosis.budget and budget.has_account(diagnosis):
        busy = max(0.0, 1.0 - budget.idle_share(diagnosis))
        note = ""
        if steps.length_ms is not None:
            of_step = whole(diagnosis, "key.of_step")
            note = words.say(of_step, share=text.milliseconds(busy * steps.length_ms))
        figures.append(KeyFigure(words.say("key.busy"), text.percent(busy), note))
    best = diagnosis.together
    if best is not None:
        saved = text.percent(best.reduction)
        note = ""
        if steps.length_ms is not None:
            note = words.say(whole(diagnosis, "key.of_step"), share=saved)
            saved = text.milliseconds(max(steps.length_ms - best.step_ms, 0.0))
        figures.append(KeyFigure(words.say("key.save"), saved, note, good=True))
    bound = diagnosis.bound
    note = ""
    if stands(diagnosis):
        return figures
    if bound.class_ != "unknown":
        note = words.say("key.confidence", percent=text.percent(bound.confidence))
    if bound.also:
        also = words.several(words.name("bound", item).lower() for item in bound.also)
        rivals = words.say(near(bound.class_), also=also)
        note = words.clauses((note, rivals)) if note else rivals
    figures.append(KeyFigure(words.say("key.bound"), words.name("bound", bound.class_), note))
    return figures


def near(bound_class: str) -> str:
    """The key of the wording for rivals: a mixed bound lies between them."""
    return "key.between" if bound_class == "mixed" else "key.also"


def at_most(saving: str, gain: Gain, words: Catalog) -> str:
    """A saving as it is stated: as a bound where a limit may make it smaller."""
    return words.say("finding.gain.at_most", saving=saving) if gain.at_most else saving


def gain_sentence(finding: Finding, diagnosis: Diagnosis, words: Catalog) -> str:
    """How a gain came about, or why none is quoted."""
    gain = finding.gain
    if gain is None:
        replay = diagnosis.replay
        if not replay.trusted and replay.error is not None:
            return words.say("finding.gain.untrusted", error=text.percent(replay.error))
        return words.say("finding.gain.unpriced")
    share = text.percent(gain.reduction)
    step = diagnosis.run.steps.length_ms
    if step is None:
        return words.say("finding.gain.text.share", share=share)
    return words.say(
        whole(diagnosis, "finding.gain.text"),
        after=text.milliseconds(gain.step_ms),
        step=text.milliseconds(step),
        share=share,
    )


def replay(diagnosis: Diagnosis, words: Catalog) -> str:
    """How well the replay reproduces the measured step."""
    result = diagnosis.replay
    if result.error is None or result.measured_ms is None or result.replayed_ms is None:
        return words.say("data.replay.none")
    return (
        words.say(
            "data.replay.text",
            replayed=text.milliseconds(result.replayed_ms),
            measured=text.milliseconds(result.measured_ms),
            error=text.percent(result.error),
        )
        + words.say("points.between")
        + words.say("data.replay.trusted" if result.trusted else "data.replay.untrusted")
    )
