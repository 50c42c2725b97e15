"""Counts calls by line of the user's code, and the time inside them, in bounded memory."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_LINES = 1000
"""Distinct lines kept: a loop has a few, generated code may have any number."""

Key = TypeVar("Key")


class LineCounts(Generic[Key]):
    """lines: what tells a call from others -> how many of them, and ns inside them."""

    def __init__(self) -> None:
        self.lines: dict[Key, list[int]] = {}

    def add(self, key: Key, spent_ns: int) -> None:
        entry = self.lines.get(key)
        if entry is None:
            if len(self.lines) >= MAX_LINES:
                return
            entry = self.lines[key] = [0, 0]
        entry[0] += 1
        entry[1] += spent_ns
