"""Layouts: how a recorder writes one kind of event, learnt from an example.

Kineto writes millions of events that differ in their numbers only. A `Layout` is the text of one
event without its numbers; where another text agrees with it in all else, the numbers are read at
their places and nothing needs decoding. Lists (shapes, types) recur as well: what stands between
the start of the first and the end of the last is one slice, decoded once for each distinct text.

That a text is JSON is proved on the way. The example was decoded; a text that has a JSON number
where the example has one, members that were decoded where it has lists, and the same bytes
everywhere else, is JSON of the same structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_bytes import I64, BlockBytes, Literal
from gpuprof.readers.kineto_slices import SliceCodes

NO_TEXT = Literal(b"")
LIST_END = np.uint8(ord("]"))
MINUS = np.uint8(ord("-"))

WHOLE, FLOAT = "whole", "float"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of an event: numbers by key, each `WHOLE` or `FLOAT`, and lists."""

    numbers: Mapping[bytes, tuple[str, str]]
    lists: frozenset[bytes] = frozenset()
    signed: frozenset[bytes] = frozenset()
    """Numbers that are often negative."""
    unsigned: frozenset[bytes] = frozenset()
    """Numbers that are damage where they are negative."""
    refused: frozenset[bytes] = frozenset()
    """Members that no layout may have."""
    empty: frozenset[bytes] = frozenset()
    """Members that have to be empty text."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A number in a layout: the column that it is for ("" for none), and its kind.

    signed: whether it may be negative; dotted: whether it may have a fraction. Where the layout
    says no, an event whose number has it doesn't agree.
    """

    column: str = ""
    kind: str = ""
    signed: bool = False
    dotted: bool = False


@dataclass(slots=True)
class Match:
    """The events that agree with a layout.

    rows: their indices among those that were asked about, int64 (k,). columns: the numbers of
    each, (k,). lists: the code of each one's slice of lists, int32 (k,); None where there is none.
    """

    rows: I64
    columns: dict[str, NDArray[Any]]
    lists: NDArray[np.int32] | None = None

    def keep(self, good: NDArray[np.bool_], *beside: I64) -> tuple[I64, ...]:
        """Drops the rows that aren't good, from arrays beside it as well."""
        if np.count_nonzero(good) == len(good):
            return beside
        kept = np.flatnonzero(good)
        self.rows = self.rows.take(kept)
        self.columns = {name: column.take(kept) for name, column in self.columns.items()}
        return tuple(array.take(kept) for array in beside)


@dataclass(slots=True)
class Layout:
    """The text of an event without its numbers and lists.

    front: a text and the number behind it, from the start. middle: the text behind those, up to
    the lists or the end. lists: what is known of slices of lists; None where it has none. behind:
    the text behind the lists. back: a number and the text behind it, up to the end. constants: the
    text of other values, by key.
    """

    front: list[tuple[Literal, Spot]]
    middle: Literal
    lists: SliceCodes | None
    behind: Literal
    back: list[tuple[Spot, Literal]]
    constants: Mapping[bytes, bytes]
    hits: int = 0

    @property
    def widest(self) -> int:
        """The bytes of the widest look that it takes."""
        texts = [text for text, _ in self.front] + [text for _, text in self.back]
        return max(text.room for text in [*texts, self.middle, self.behind])

    def match(self, text: BlockBytes, at: I64, end: I64) -> Match:
        """Reads those of the events between `at` and `end` that agree."""
        found = Match(np.arange(len(at)), {})
        for literal, spot in self.front:
            at, end = _number(text, found, spot, literal, at, end)
            if not len(at):
                return found
        at, end = found.keep(text.matches(at, self.middle), at, end)
        at = at + len(self.middle)
        if self.lists is None:
            found.keep(at == end)
            return found
        for spot, literal in reversed(self.back):
            at, stop = _behind(text, found, literal, at, end)
            begun = np.maximum(text.number_starts(stop), at)
            ended, at, begun, stop = _number(text, found, spot, NO_TEXT, begun, at, begun, stop)
            at, end = found.keep(ended == stop, at, begun)
        at, end = _behind(text, found, self.behind, at, end)
        at, end = found.keep(text.bytes.take(np.maximum(end, 1) - 1) == LIST_END, at, end)
        if len(at):
            codes = self.lists.codes(text, at, end - at)
            good = codes >= 0
            found.keep(good)
            found.lists = codes if good.all() else codes[good]
        return found


def _behind(text: BlockBytes, found: Match, literal: Literal, at: I64, end: I64) -> tuple[I64, ...]:
    """Takes the literal off the end, where it stands there behind `at`."""
    stop = end - len(literal)
    good = stop > at
    good &= text.matches(np.where(good, stop, at), literal)
    return found.keep(good, at, stop)


def _number(
    text: BlockBytes, found: Match, spot: Spot, literal: Literal, at: I64, *beside: I64
) -> tuple[I64, ...]:
    """Reads the number behind a text; returns where each ends, and the arrays beside it."""
    negative: NDArray[np.bool_] | None = None
    if spot.signed:
        good = text.matches(at, literal)
        at = at + len(literal)
        negative = text.bytes.take(at) == MINUS
        at = at + negative
        literal = NO_TEXT
    same, numbers = text.numbers(at, literal, valued=bool(spot.column), dotted=spot.dotted)
    good = same & numbers.good if negative is None else good & numbers.good
    if spot.column:
        values: NDArray[Any] = numbers.whole
        if spot.kind == FLOAT:
            values, known = numbers.floats()
            good &= known
        elif numbers.places is not None:
            good &= numbers.places == 0
        found.columns[spot.column] = (
            values if negative is None else np.where(negative, -values, values)
        )
    return found.keep(good, numbers.end, *beside)
