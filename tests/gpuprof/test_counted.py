"""Numbers of things: one of them is called one in every sentence and language."""

from __future__ import annotations

import re

import pytest

from gpuprof.counted import agrees, counted
from gpuprof.reports.words import ENGLISH, catalog, speaker


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 events"), (1, "1 event"), (0.9, "1 event"), (1.4, "1 event"), (2_000, "2,000 events")],
)
def test_one_is_called_one(number: float, said: str) -> None:
    """Also where a mean is rounded to one: what counts is what stands there."""
    assert counted(number, "event") == said
    assert agrees(number, "is", "are") == ("is" if said == "1 event" else "are")


def test_other_forms_are_named() -> None:
    assert counted(2, "process", "processes") == "2 processes"


def test_the_catalogue_counts_one_as_one() -> None:
    """Every text that counts something in the plural has a form for one of it."""
    words = catalog()
    assert words.say("timeline.sum.events", count=1) == "1 event"
    assert words.say("timeline.sum.events", count="1") == "1 event"
    assert words.say("timeline.sum.events", count="1,000") == "1,000 events"
    plural = re.compile(r"\{count\} (?:more )?[a-z]+s\b")
    lacking = [
        key
        for key, said in ENGLISH.items()
        if plural.search(said)
        and f"{key}.one" not in ENGLISH
        and f"{key.removesuffix('.many')}.one" not in ENGLISH
        and f"{key.removesuffix('.many')}" not in ENGLISH
    ]
    assert lacking == []


@pytest.mark.parametrize(
    "said",
    [
        "Load with 1 worker process",
        "rank 0: 1 of 2 device events has no recorded launch (launched before the window, or"
        " dropped)",
        "1 of 300 ranks was given: waiting for the others can't be told from transfer",
        "This process may use 1 core",
    ],
)
def test_one_is_said_in_chinese_as_many_are(said: str) -> None:
    shown = speaker("zh-CN")(said)
    assert shown != said
    assert "1" in shown
