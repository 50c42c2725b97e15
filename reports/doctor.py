"""What can be recorded on a machine, for a terminal: state and name, then why, then the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuprof.reports import columns, text
from gpuprof.reports.words import catalog, speaker

STATES = ("ok", "limited", "missing", "broken")


class Check(Protocol):
    """What is shown of a check (`gpuprof.doctor.Check`)."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def remedy(self) -> str: ...


def to_text(checks: Sequence[Check], *, lang: str = "en", width: int = 0) -> str:
    """The checks, with a final newline.

    Args:
        width: columns that lines are wrapped to; 0: not at all.
    """
    words, said = catalog(lang), speaker(lang)
    states = {state: words.say(f"doctor.{state}") for state in STATES}
    indent = max(map(columns.cells, states.values())) + 1
    lines = []
    for check in checks:
        # "gpu:0 utilization" is the utilization of that GPU.
        device, space, part = check.name.partition(" ") if ":" in check.name else ("", "", "")
        name = device + space + words.name("check", part or check.name)
        line = words.labelled(name, said(text.clean(check.what)))
        mark = columns.pad(states[check.state], indent)
        lines.append(columns.fold(line, width, mark, indent))
        if check.why:
            why = said(text.clean(check.why))
            lines.append(columns.fold(why, width, " " * indent, indent))
        if check.remedy:
            remedy = said(text.clean(check.remedy))
            lines.append(columns.fold(remedy, width, f"{' ' * indent}→ ", indent + 2))
    return "".join(f"{line}\n" for line in lines)
