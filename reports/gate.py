"""The verdict of a gate as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuprof.analyzers.gate import Check
from gpuprof.reports import text
from gpuprof.reports.markdown import escape

SCHEMA_VERSION = 1


def is_open(checks: Sequence[Check], *, strict: bool) -> bool:
    """Whether the gate lets the run pass."""
    return not failures(checks, strict=strict)


def failures(checks: Sequence[Check], *, strict: bool) -> list[Check]:
    """What holds the run up."""
    return [c for c in checks if c.state == "broken" or (strict and c.state == "unknown")]


def to_text(checks: Sequence[Check], *, strict: bool) -> str:
    """One line a check: what failed first."""
    ordered = sorted(checks, key=lambda c: ("broken", "unknown", "passed").index(c.state))
    marks = {"broken": "FAILED", "unknown": "FAILED" if strict else "UNKNOWN", "passed": "passed"}
    return "".join(f"{marks[c.state]:8}{text.clean(c.why)}\n" for c in ordered)


def to_json(checks: Sequence[Check], *, strict: bool) -> str:
    """The checks as JSON: passed, and each check with its rule, state, limit, value and reason."""
    document = {
        "schema": SCHEMA_VERSION,
        "passed": is_open(checks, strict=strict),
        "checks": [
            {"rule": c.rule, "state": c.state, "limit": c.limit, "value": c.value, "why": c.why}
            for c in checks
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def to_markdown(checks: Sequence[Check], *, strict: bool) -> str:
    """A heading with the verdict and a table, for a pull request."""
    verdict = "passed" if is_open(checks, strict=strict) else "failed"
    lines = [f"# gpuprof gate {verdict}", "", "| Rule | | Reason |", "| :-- | :-- | :-- |"]
    lines += [f"| {escape(c.rule)} | {c.state} | {escape(text.sentence(c.why))} |" for c in checks]
    return "\n".join(lines) + "\n"
