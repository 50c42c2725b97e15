"""Numbers of things in English: "1 event", "2,000 events"."""

from __future__ import annotations


def counted(number: float, one: str, many: str = "") -> str:
    """A number with what it counts, in whole numbers.

    Args:
        number: How many; rounded to a whole number.
        one: The name of one of them.
        many: That of several (default: with an s).
    """
    whole = round(number)
    return f"{whole:,} {one if whole == 1 else many or one + 's'}"


def agrees(number: float, one: str, many: str) -> str:
    """The form of a word that goes with a number of things: "is" or "are"."""
    return one if round(number) == 1 else many
