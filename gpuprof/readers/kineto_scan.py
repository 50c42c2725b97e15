"""Reads blocks of events in Kineto's own layout, without decoding them one by one.

Kineto writes each event over a few lines, between braces two spaces in, which take a block apart.
The first line of a complete event (category, name, process, thread) recurs and is decoded once;
behind it stand start and duration; the rest follows one of the layouts that were learnt. An event
that agrees with none is decoded as ever, and where too many are, or one is damaged, the whole block
is: the answer never depends on the way. It rests on nothing but that each event by itself was
proved to be one JSON object, so that they make an array with what stands between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.distinct import distinct
from gpuprof.readers.kineto_bytes import I64, BlockBytes, Bools, Literal
from gpuprof.readers.kineto_columns import ColumnBuilder
from gpuprof.readers.kineto_decode import EventDecoder
from gpuprof.readers.kineto_kinds import MEMORY_MARK, Learner, learn_beside, learn_row
from gpuprof.readers.kineto_layout import Layout, Match
from gpuprof.readers.kineto_memory import scanned_memory
from gpuprof.readers.kineto_rows import (
    DEFAULTS,
    FoundRows,
    HeadCodes,
    ListCodes,
    block_of,
    in_file_order,
)
from gpuprof.readers.kineto_times import MAX_US

MAX_DECODED_FRAC = 0.25
"""Where more of a block's events than this have to be decoded, decoding all of it is cheaper."""

MAX_FAILURES = 3
"""After so many blocks in a row that aren't written so, the file is decoded."""

MAX_EXAMPLES = 200
MAX_LAYOUTS = 64
EXAMPLES_A_BLOCK = 24
"""Events of a file, and of a block, from which layouts are learnt; Kineto has some 20 kinds."""

OPENING = b"[{\n"
CLOSING = b"\n  }"
BETWEEN = Literal(b"\n  },\n  {\n")
HEAD = Literal(b'    "ph": "X", ')
START = Literal(b'\n    "ts": ')
DURATION = Literal(b', "dur": ')

MAX_DUR_US = 10**12
"""Durations below this (11 days) are exact in nanoseconds."""

LINE_BREAK = np.uint8(ord("\n"))


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a block: where each one's text starts, its first line ends, and it ends."""

    start: I64
    line_end: I64
    end: I64


def find_events(text: BlockBytes, end: int) -> Events | None:
    """The events of `data[1:end]`; None where they aren't written in Kineto's layout."""
    data = text.data
    if not data.startswith(OPENING) or not data.endswith(CLOSING, 0, end):
        return None
    breaks = np.flatnonzero(text.bytes[:end] == LINE_BREAK)
    lengths = np.diff(breaks)
    inner = np.flatnonzero((lengths[1:] == 4) & (lengths[:-1] == 5)) + 2
    before = breaks.take(inner) - (len(BETWEEN) - 1)
    real = text.matches(before, BETWEEN)
    if not real.all():
        inner, before = inner[real], before[real]
    return Events(
        start=np.append(len(OPENING), before + len(BETWEEN)),
        line_end=breaks.take(np.append(1, inner + 1)),
        end=np.append(before, end - len(CLOSING)),
    )


class _NotJsonError(Exception):
    """An event that a decoder refuses: the whole block needs the patient way."""


class BlockScanner:
    """Turns blocks of events into columns of the builder."""

    def __init__(self, builder: ColumnBuilder, decoder: EventDecoder) -> None:
        self._builder = builder
        self._decoder = decoder
        self._heads = HeadCodes(builder)
        self._lists = ListCodes(builder)
        self._rows: dict[int, list[Layout]] = {}
        self._others: list[Layout] = []
        self._examples = 0
        self._failures = 0

    @property
    def given_up(self) -> bool:
        """Whether the file isn't written in Kineto's layout."""
        return self._failures >= MAX_FAILURES

    def take(self, data: bytes, end: int) -> bool:
        """Adds the events of `data[1:end]`, behind which `MARGIN_BYTES` follow.

        Returns False, and adds nothing, where they have to be decoded.
        """
        text = BlockBytes(data)
        events = find_events(text, end)
        try:
            done = events is not None and self._add(text, events)
        except _NotJsonError:
            done = False
        self._failures = 0 if done else self._failures + 1
        return done

    def close(self) -> None:
        """Frees what was learnt: it refers to itself, and the collector may be paused."""
        self._heads.slices.forget()
        self._lists.forget()
        self._rows.clear()
        self._others.clear()

    def _add(self, text: BlockBytes, events: Events) -> bool:
        is_row = text.matches(events.start, HEAD)
        rows = self._complete(text, events, np.flatnonzero(is_row))
        memory, skipped = self._beside(text, events, np.flatnonzero(~is_row))
        left = np.ones(len(is_row), np.bool_)
        for at in (rows.at, skipped, *(at for at, _ in memory)):
            left[at] = False
        rest = np.flatnonzero(left)
        if len(rest) > MAX_DECODED_FRAC * len(left):
            return False
        pieces = [_piece(text, events, number) for number in rest.tolist()]
        if memory and any(MEMORY_MARK in piece for piece in pieces):
            return False  # all or none, so that they stay in their order
        first_row, blocks = self._builder.rows, len(self._builder.blocks)
        if pieces:
            self._decode(pieces, rest)
        self._builder.events += len(left) - len(rest)
        for _, match in memory:
            self._builder.memory.append(scanned_memory(match.columns, self._builder.dropped))
        if len(rows.at):
            block = block_of(rows, self._heads, self._lists, self._builder)
            if len(self._builder.blocks) > blocks:
                block = in_file_order(self._builder.blocks.pop(), block, self._builder, first_row)
            self._builder.blocks.append(block)
            self._builder.rows += len(rows.at)
        return True

    def _decode(self, pieces: list[bytes], at: I64) -> None:
        """Adds events that agree with no layout."""
        while True:
            events = [self._decoder.alone(piece) for piece in pieces]
            if any(event is None for event in events):
                raise _NotJsonError
            if self._builder.add(events, at):
                return
            self._decoder.decode_as(self._builder.record)

    def _complete(self, text: BlockBytes, events: Events, at: I64) -> FoundRows:
        """Those of some complete events that can be read without decoding."""
        start, line_end, end = (
            places.take(at) for places in (events.start, events.line_end, events.end)
        )
        head = self._heads.slices.codes(text, start, line_end - start)
        good, start_ns, dur_ns, behind = self._times(text, line_end)
        good &= (head >= 0) & (line_end < end)
        rows = np.flatnonzero(good)
        lists = np.full(len(at), -1, np.int32)
        columns: dict[str, NDArray[Any]] = {}
        done = np.zeros(len(at), np.bool_)
        category = self._heads.categories(head.take(rows))
        for number in distinct(category).tolist():
            part = rows[category == number]
            layouts = self._rows.setdefault(number, [])
            for found, match in self._match(
                text, events, at, part, behind.take(part), layouts, learn_row
            ):
                done[found] = True
                if match.lists is not None:
                    lists[found] = match.lists
                for name, values in match.columns.items():
                    if name not in columns:
                        columns[name] = np.full(len(at), DEFAULTS[name])
                    columns[name][found] = values
        if done.all():
            return FoundRows(at, head, lists, start_ns, dur_ns, columns)
        kept = np.flatnonzero(done)
        return FoundRows(
            at.take(kept),
            head.take(kept),
            lists.take(kept),
            start_ns.take(kept),
            dur_ns.take(kept),
            {name: values.take(kept) for name, values in columns.items()},
        )

    @staticmethod
    def _times(text: BlockBytes, at: I64) -> tuple[Bools, I64, I64, I64]:
        """Starts and durations as the file counts them, in ns, in the lines that begin at `at`.

        Returns:
            Which are good, the starts, the durations, and where the text behind them begins.
        """
        good, begun = text.numbers(at, START)
        follows, lasted = text.numbers(begun.end, DURATION)
        start_ns, whole_start = begun.thousandfold()
        dur_ns, whole_dur = lasted.thousandfold()
        good &= begun.good & whole_start & (begun.whole < MAX_US)
        good &= follows & lasted.good & whole_dur & (lasted.whole < MAX_DUR_US)
        return good, start_ns, dur_ns, lasted.end

    def _beside(
        self, text: BlockBytes, events: Events, at: I64
    ) -> tuple[list[tuple[I64, Match]], I64]:
        """Of events of other phases: the allocator's, and the numbers of those to pass over."""
        memory: list[tuple[I64, Match]] = []
        skipped = [np.zeros(0, np.int64)]
        for found, match in self._match(
            text, events, at, np.arange(len(at)), events.start.take(at), self._others, learn_beside
        ):
            if "size" in match.columns:
                memory.append((at.take(found), match))
            else:
                skipped.append(at.take(found))
        return memory, np.concatenate(skipped)

    def _match(
        self,
        text: BlockBytes,
        events: Events,
        at: I64,
        rows: I64,
        cursor: I64,
        layouts: list[Layout],
        learner: Learner,
    ) -> list[tuple[I64, Match]]:
        """Tries layouts, and learns new ones from what is left.

        Args:
            at: Numbers of events, int64 (n,).
            rows: Indices into `at` of those to try, int64 (k,).
            cursor: Where the layout starts in each, int64 (k,).

        Returns:
            Indices into `at`, and what was found there.
        """
        found: list[tuple[I64, Match]] = []

        def tried(layout: Layout) -> bool:
            nonlocal rows, cursor
            match = layout.match(text, cursor, events.end.take(at.take(rows)))
            if not len(match.rows):
                return False
            layout.hits += len(match.rows)
            found.append((rows.take(match.rows), match))
            left = np.ones(len(rows), np.bool_)
            left[match.rows] = False
            rows, cursor = rows[left], cursor[left]
            return True

        for layout in layouts:
            if not len(rows):
                break
            tried(layout)
        examples = min(EXAMPLES_A_BLOCK, MAX_EXAMPLES - self._examples)
        passed = 0
        while passed < len(rows) and examples > 0:
            examples -= 1
            self._examples += 1
            number, start = int(at[rows[passed]]), int(cursor[passed])
            example = _piece(text, events, number)
            if self._decoder.alone(example) is None:
                raise _NotJsonError
            begun = int(events.start[number])
            layout_or_none = learner(
                text.data[begun : int(events.end[number])], start - begun, self._lists.after
            )
            if layout_or_none is not None and tried(layout_or_none):
                layouts.append(layout_or_none)
            else:
                passed += 1
        layouts.sort(key=lambda layout: -layout.hits)
        del layouts[MAX_LAYOUTS:]
        return found


def _piece(text: BlockBytes, events: Events, number: int) -> bytes:
    """The text of one event, with its braces."""
    start, end = int(events.start[number]), int(events.end[number])
    return text.data[start - 2 : end + len(CLOSING)]
