"""The sentences that every output says about a diagnosis, from the catalogue of wording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.diagnosis import Diagnosis, NotJudged
from gpuprof.reports import budget, text
from gpuprof.reports.gains import saved_ms, whole
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


def nothing_found(diagnosis: Diagnosis, words: Catalog) -> str:
    """Without findings: all is well, or of some causes or of all nobody can tell."""
    if diagnosis.bound.class_ == "unknown":
        return words.say("findings.unknown")
    return words.say("findings.none.judged" if diagnosis.not_judged else "findings.none")


def key_figures(diagnosis: Diagnosis, words: Catalog) -> list[KeyFigure]:
    """Step, busy share, what the changes save, bound class."""
    figures = []
    length = diagnosis.run.steps.length_ms
    if length is not None:
        label = words.say(whole(diagnosis, "key.step"))
        figures.append(KeyFigure(label, text.milliseconds(length), _of_steps(diagnosis, words)))
    if diagnosis.budget and budget.has_account(diagnosis):
        busy = max(0.0, 1.0 - budget.idle_share(diagnosis))
        computing = text.percent(diagnosis.budget.get("compute", 0.0))
        note = words.say(whole(diagnosis, "key.computing"), share=computing)
        figures.append(KeyFigure(words.say("key.busy"), text.percent(busy), note))
    best = diagnosis.together
    if best is not None:
        share, saved = text.percent(best.reduction), saved_ms(best, diagnosis)
        note = "" if saved is None else words.say(whole(diagnosis, "key.of_step"), share=share)
        value = share if saved is None else text.milliseconds(saved)
        figures.append(KeyFigure(words.say("key.save"), value, note, good=True))
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


def _of_steps(diagnosis: Diagnosis, words: Catalog) -> str:
    """Of which steps a length is: the page has one length of a step, the mean."""
    steps = diagnosis.run.steps
    if not steps.count:
        return words.say("facts.steps.none")
    if steps.count == 1:
        return words.say("key.mean.one")
    if steps.mean_ms is None or steps.median_ms is None:
        return words.say("key.median", count=text.count(steps.count))
    median = text.milliseconds(steps.median_ms)
    return words.say("key.mean", count=text.count(steps.count), median=median)


def near(bound_class: str) -> str:
    """The key of the wording for rivals: a mixed bound lies between them."""
    return "key.between" if bound_class == "mixed" else "key.also"


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
