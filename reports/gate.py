"""The verdict of a gate as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuprof.analyzers.gate import Check, failures
from gpuprof.reports import columns, text
from gpuprof.reports.markdown import escape
from gpuprof.reports.words import Catalog, catalog, speaker

SCHEMA_VERSION = 1


def is_open(checks: Sequence[Check], *, strict: bool) -> bool:
    """Whether the gate lets the run pass."""
    return not failures(checks, strict=strict)


def to_text(checks: Sequence[Check], *, strict: bool, lang: str = "en", width: int = 0) -> str:
    """One line a check: what failed first.

    Args:
        width: columns that lines are wrapped to; 0: not at all.
    """
    words, said = catalog(lang), speaker(lang)
    failed = failures(checks, strict=strict)
    states = ["broken" if c in failed else c.state for c in checks]
    ordered = sorted(
        zip(states, checks, strict=True),
        key=lambda pair: ("broken", "unknown", "passed").index(pair[0]),
    )
    marks = {state: words.say(f"gate.{state}") for state in ("broken", "unknown", "passed")}
    indent = max(columns.cells(mark) for mark in marks.values()) + 1
    lines = [
        columns.fold(text.clean(said(check.why)), width, columns.pad(marks[state], indent), indent)
        for state, check in ordered
    ]
    return "".join(f"{line}\n" for line in lines)


def to_json(checks: Sequence[Check], *, strict: bool, lang: str = "en") -> str:
    """The checks as JSON, in English whatever the language: passed, and each check with its rule,
    state, whether it failed, limit, value and reason."""
    failed = failures(checks, strict=strict)
    document = {
        "schema": SCHEMA_VERSION,
        "passed": is_open(checks, strict=strict),
        "checks": [
            {
                "rule": c.rule,
                "state": c.state,
                "failed": c in failed,
                "limit": c.limit,
                "value": c.value,
                "why": c.why,
            }
            for c in checks
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def to_markdown(checks: Sequence[Check], *, strict: bool, lang: str = "en") -> str:
    """A heading with the verdict and a table, for a pull request."""
    words, said = catalog(lang), speaker(lang)
    failed = failures(checks, strict=strict)
    unknown = sum(c.state == "unknown" for c in checks)
    verdict = "failed" if failed else "passed"
    title = words.say(f"gate.title.{verdict}")
    if unknown and not failed:
        key = "gate.title.unknown.one" if unknown == 1 else "gate.title.unknown"
        title = words.say(key, count=unknown)
    head = f"| {words.say('gate.rule')} | | {words.say('gate.reason')} |"
    lines = [f"# {title}", "", head, "| :-- | :-- | :-- |"]
    lines += [
        f"| {escape(c.rule)} | {_state(c, failed, words)} | {escape(text.sentence(said(c.why)))} |"
        for c in checks
    ]
    return "\n".join(lines) + "\n"


def _state(check: Check, failed: Sequence[Check], words: Catalog) -> str:
    state = words.say(f"gate.state.{check.state}")
    if check in failed and check.state == "unknown":
        return f"**{words.say('gate.state.failed', state=state)}**"
    return f"**{state}**" if check in failed else state
