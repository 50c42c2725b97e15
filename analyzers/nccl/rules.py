"""The table of known messages (data/nccl_causes.json), loaded once, and its matching."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec

from gpuprof.analyzers.nccl.conditions import CONDITIONS, Facts
from gpuprof.commlog import Event
from gpuprof.diagnosis import Fix, Severity


class FixText(msgspec.Struct, frozen=True):
    """A fix as the table holds it."""

    title: str
    detail: str = ""
    code: str = ""


class Rule(msgspec.Struct, frozen=True):
    """One known message. `role`: cause (can start a failure), symptom (follows one), benign.

    `tier` orders causes without timestamps: 1 a local fault, 2 a device or port, 3 ranks disagree,
    4 the network, 5 an error of many possible origins. `classes` has the likely cause first; more
    than one means that the line alone does not tell them apart.
    """

    id: str
    role: Literal["cause", "symptom", "benign"]
    pattern: str
    source: str = ""
    when: tuple[str, ...] = ()
    tier: int = 5
    classes: tuple[str, ...] = ()
    cause: str = "nccl-config"
    severity: Severity = "critical"
    confidence: float = 0.9
    title: str = ""
    meaning: str = ""
    fixes: tuple[FixText, ...] = ()

    def fix_list(self) -> tuple[Fix, ...]:
        """The fixes in the diagnosis' form, first one first."""
        return tuple(Fix(title=f.title, detail=f.detail, code=f.code) for f in self.fixes)


class _Table(msgspec.Struct):
    about: str
    rules: tuple[Rule, ...]


@lru_cache(maxsize=1)
def load_rules() -> tuple[tuple[Rule, re.Pattern[str], re.Pattern[str] | None], ...]:
    """The rules in their order of precedence, with their compiled patterns."""
    data = resources.files("gpuprof").joinpath("data/nccl_causes.json").read_bytes()
    table = msgspec.json.decode(data, type=_Table)
    return tuple(
        (rule, re.compile(rule.pattern), re.compile(rule.source) if rule.source else None)
        for rule in table.rules
    )


def match(event: Event, facts: Facts) -> Rule | None:
    """The first rule that fits the event in the light of the log's facts."""
    for rule, pattern, source in load_rules():
        if not pattern.search(event.text):
            continue
        if source is not None and not source.search(f"{event.source} {event.text}"):
            continue
        if all(CONDITIONS[name](event, facts) for name in rule.when):
            return rule
    return None
