"""Text in the columns of a terminal, where a Chinese character takes two."""

from __future__ import annotations

import re
import textwrap
from unicodedata import combining, east_asian_width

_CLINGS = "，。、；：？！）》」』”’…"
"""Never at the beginning of a line."""


def cells(value: str) -> int:
    """The columns that a text takes."""
    if value.isascii():
        return len(value)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in value)


def pad(value: str, width: int) -> str:
    """The text with spaces behind it, up to a width."""
    return value + " " * max(0, width - cells(value))


def pad_left(value: str, width: int) -> str:
    """The text with spaces before it, up to a width."""
    return " " * max(0, width - cells(value)) + value


def cut(value: str, width: int) -> str:
    """As much of the text as fits into a width."""
    if cells(value) <= width:
        return value
    taken = 0
    for index, character in enumerate(value):
        taken += cells(character)
        if taken > width:
            return value[:index]
    return value


def shorten(value: str, width: int) -> str:
    """Like `cut`, with an ellipsis where something went."""
    return value if cells(value) <= width else cut(value, max(width - 1, 0)) + "…"


def wrap(value: str, width: int, first: str, indent: int) -> list[str]:
    """Lines of at most `width` columns; wide text breaks between any two characters.

    Args:
        first: what the first line begins with, `indent` columns wide at least.
        indent: columns in front of the other lines.
    """
    if cells(value) == len(value):
        return textwrap.wrap(
            value, width, initial_indent=first, subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )  # fmt: skip
    lines = []
    line, used = first, cells(first)
    for unit in _units(value):
        room = width - used
        if cells(unit.rstrip()) > room and line.strip():
            lines.append(line.rstrip())
            line, used = " " * indent, indent
            unit = unit.lstrip()  # noqa: PLW2901 - a line does not begin with the space before it
        while cells(unit.rstrip()) > width - used and width > indent:  # longer than a line: a path
            part = cut(unit, width - used)
            lines.append(line + part)
            unit = unit[len(part) :]  # noqa: PLW2901
            line, used = " " * indent, indent
        line += unit
        used += cells(unit)
    return [*lines, line.rstrip()]


def fold(value: str, width: int, first: str = "", indent: int = 0) -> str:
    """Lines of at most `width` columns, as `wrap`, or one line where the width is 0."""
    if not width:
        return first + value
    return "\n".join(wrap(value, width, first, indent) or [first.rstrip()])


def row(name: str, name_width: int, rest: str, width: int) -> str:
    """A line of a table, two columns from the edge; the rest goes below its name where it doesn't
    fit beside it. A width of 0 has room for all."""
    line = f"  {pad(name, name_width)} {rest}".rstrip()
    if not width or cells(line) <= width:
        return line
    below = re.sub("→ +", "→ ", re.sub(" {2,}", "  ", rest.strip()))
    return f"{fold(name, width, '  ', 2)}\n{fold(below, width, '    ', 4)}"


def _units(value: str) -> list[str]:
    """What a line must not break inside of: words with the space behind, single wide characters
    with the punctuation that clings to them."""
    units: list[str] = []
    for character in value:
        wide = east_asian_width(character) in "WF"
        previous = units[-1] if units else ""
        if not previous or (wide and character not in _CLINGS):
            units.append(character)
        elif character in _CLINGS or character == " ":
            units[-1] += character
        elif previous.endswith(" ") or east_asian_width(previous[-1]) in "WF":
            units.append(character)
        else:
            units[-1] += character
    return units
