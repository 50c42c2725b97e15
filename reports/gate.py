"""The verdict of a gate as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuprof.analyzers.gate import Check
from gpuprof.reports import columns, text
from gpuprof.reports.markdown import escape
from gpuprof.reports.words import catalog, speaker

SCHEMA_VERSION = 1


def is_open(checks: Sequence[Check], *, strict: bool) -> bool:
    """Whether the gate lets the run pass."""
    return not failures(checks, strict=strict)


def failures(checks: Sequence[Check], *, strict: bool) -> list[Check]:
    """What holds the run up."""
    return [c for c in checks if c.state == "broken" or (strict and c.state == "unknown")]


def to_text(checks: Sequence[Check], *, strict: bool, lang: str = "en") -> str:
    """One line a check: what failed first."""
    ordered = sorted(checks, key=lambda c: ("broken", "unknown", "passed").index(c.state))
    words, said = catalog(lang), speaker(lang)
    marks = {state: words.say(f"gate.{state}") for state in ("broken", "unknown", "passed")}
    if strict:
        marks["unknown"] = marks["broken"]
    lines = [columns.pad(marks[c.state], 8) + text.clean(said(c.why)) for c in ordered]
    return "".join(f"{line}\n" for line in lines)


def to_json(checks: Sequence[Check], *, strict: bool, lang: str = "en") -> str:
    """The checks as JSON, in English whatever the language: passed, and each check with its rule,
    state, limit, value and reason."""
    document = {
        "schema": SCHEMA_VERSION,
        "passed": is_open(checks, strict=strict),
        "checks": [
            {"rule": c.rule, "state": c.state, "limit": c.limit, "value": c.value, "why": c.why}
            for c in checks
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def to_markdown(checks: Sequence[Check], *, strict: bool, lang: str = "en") -> str:
    """A heading with the verdict and a table, for a pull request."""
    words, said = catalog(lang), speaker(lang)
    verdict = "passed" if is_open(checks, strict=strict) else "failed"
    head = f"| {words.say('gate.rule')} | | {words.say('gate.reason')} |"
    lines = [f"# {words.say(f'gate.title.{verdict}')}", "", head, "| :-- | :-- | :-- |"]
    lines += [
        f"| {escape(c.rule)} | {words.say(f'gate.state.{c.state}')} "
        f"| {escape(text.sentence(said(c.why)))} |"
        for c in checks
    ]
    return "\n".join(lines) + "\n"
