"""Takes a trace's JSON apart while it streams by: top-level keys, and batches of whole events.

A trace is one object whose `traceEvents` array holds nearly all of it (or that array alone).
Other top-level values are small and handed over as bytes. Events are handed over in batches that
were cut at a comma between two events. Such a cut is guessed from the bytes around it and then
proved by the decoder: if `[` + batch + `]` is valid JSON, the batch ends between two elements of
the array. Where it is not valid, `scan_events` walks it token by token, so that one bad event
costs that event alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

MAX_HEADER_BYTES = 32 << 20
"""Larger top-level values are skipped: `distributedInfo` of 10,000 ranks takes some MiB."""

MAX_HEADER_KEYS = 10_000
"""Kineto writes some 30 keys, and user metadata besides; an object with more is no trace."""

START_BYTES = 4096
"""What is kept of the start of the text, to say what it is when it is no trace."""

MAX_EVENT_BYTES = 32 << 20
"""An event beyond this size is damage (a string that never ends), not an event."""

MAX_CUT_TRIES = 64
"""How many opening braces the guess looks at before it waits for more bytes."""

MAX_END_TRIES = 8
"""How many closing brackets are tried as the array's end before it is walked token by token."""

MAX_RESYNCS = 16
"""How many events without an end are passed over in a text; each costs a walk through the rest."""

TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
NEXT_VALUE = re.compile(rb'[{\[\]"]')
EVENT_KEY = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
NEXT_EVENT = re.compile(rb"\{\s*" + EVENT_KEY)
ARRAY_END = re.compile(rb'\}[\s,]*(\])\s*(?:,\s*"|\}|\Z)')
EMPTY_END = re.compile(rb"[\s,]*\]")
PARTNER = {b"}": b"{", b"]": b"["}
WHITESPACE = b" \t\r\n"
SEPARATORS = WHITESPACE + b","


class EventStream:
    """Pulls blocks of bytes, and pushes header values and batches of events.

    Args:
        blocks: The trace's plain bytes.
        take: Is given a batch, the text of a JSON array. Returns False, and does nothing, where it
            is not valid JSON or holds an event that a fast decoder refuses.
        take_each: Is given the texts of events that stand alone, an object each. Never fails.
        scan: Is tried before `take` from the second block on: given a text, its events being
            `text[1:end]`, and behind them what follows. Answers as `take` does, or None where
            it isn't to be tried again.
        margin: How many bytes have to follow the events for `scan`.

    After `run`, `header` maps each top-level key to the bytes of its value, `is_json` says whether
    the text begins like a JSON value, `saw_events` whether there was an array of events,
    `truncated` whether the text ended early, and `lost` counts the events that had no end.
    """

    def __init__(
        self,
        blocks: Iterator[bytes],
        take: Callable[[bytes], bool],
        take_each: Callable[[list[bytes]], None],
        scan: Callable[[bytes, int], bool | None] | None = None,
        margin: int = 0,
    ) -> None:
        self._blocks = blocks
        self._take = take
        self._take_each = take_each
        self._scan = scan
        self._margin = margin
        self._buffer = b""
        self._ended = False
        self.header: dict[str, bytes] = {}
        self.start = b""
        self.is_json = True
        self.saw_events = False
        self.truncated = False
        self.lost = 0

    def run(self) -> None:
        """Goes through the whole text."""
        while len(self._buffer) < START_BYTES and self._more():
            pass
        self.start = self._buffer[:START_BYTES]
        self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf")
        first = self._peek()
        if first == b"[":
            self._buffer = self._buffer[1:]
            self._events()
            return
        if first != b"{":
            self.is_json = False
            return
        self._buffer = self._buffer[1:]
        while True:
            char = self._peek()
            while char == b",":
                self._buffer = self._buffer[1:]
                char = self._peek()
            if char == b"}":
                return
            key = self._key() if char else None
            if key is None:
                self.truncated = True
                return
            if key == "traceEvents" and self._peek() == b"[":
                self._buffer = self._buffer[1:]
                self._events()
                if self.truncated:
                    return
            else:
                value = self._value()
                if value is None:
                    self.truncated = True
                    return
                self.header[key] = value
                if len(self.header) > MAX_HEADER_KEYS:
                    return

    # Blocks

    def _more(self) -> bool:
        """Adds one block to the buffer; False at the end."""
        if not self._ended:
            block = next(self._blocks, b"")
            if block:
                self._buffer += block
                return True
            self._ended = True
        return False

    def _peek(self) -> bytes:
        """The next byte that is no white space, and drops what stands before it."""
        while True:
            self._buffer = self._buffer.lstrip(WHITESPACE)
            if self._buffer or not self._more():
                return self._buffer[:1]

    # Top-level keys and values

    def _key(self) -> str | None:
        """Reads `"key" :`; None where the text is damaged or cut off."""
        if self._buffer[:1] != b'"':
            self.is_json = self.saw_events or bool(self.header)
            return None
        raw = self._value()
        if raw is None or self._peek() != b":":
            return None
        self._buffer = self._buffer[1:]
        return raw[1:-1].decode("utf-8", "replace")

    def _value(self) -> bytes | None:
        """Reads one JSON value; b"" for one that is too large to keep; None where it is cut off."""
        if self._peek() not in (b"{", b"[", b'"'):
            return self._scalar()
        depth, position, skipped = 0, 0, False
        while True:
            in_string = False
            for token in TOKEN.finditer(self._buffer, position):
                text = token.group()
                if text == b'"':
                    in_string = True  # it goes on: walk it again, but rarely
                    break
                if text in (b"{", b"["):
                    depth += 1
                elif text in (b"}", b"]"):
                    depth -= 1
                position = token.end()
                if depth == 0:
                    value = b"" if skipped else self._buffer[:position]
                    self._buffer = self._buffer[position:]
                    return value
            else:
                position = len(self._buffer)
            if len(self._buffer) > MAX_HEADER_BYTES:
                skipped = True
                self._buffer = self._buffer[position:]
                position = 0
                if len(self._buffer) > MAX_EVENT_BYTES:
                    return None
            if not self._more():
                return None
            wanted = 2 * len(self._buffer) if in_string else 0
            while len(self._buffer) < wanted and self._more():
                pass

    def _scalar(self) -> bytes | None:
        while True:
            end = re.search(rb"[,}\]\s]", self._buffer)
            if end:
                value = self._buffer[: end.start()]
                self._buffer = self._buffer[end.start() :]
                return value or None
            if len(self._buffer) > MAX_HEADER_BYTES or not self._more():
                return None

    # Events

    def _events(self) -> None:
        """Pushes the events up to the array's `]`, which it takes off as well."""
        self.saw_events = True
        resyncs = 0
        while True:
            self._whole_blocks()
            if self._take_end():
                return
            cut = find_cut(self._buffer)
            if cut and self._take(b"[" + self._buffer[:cut] + b"]"):
                self._buffer = self._buffer[cut:].lstrip(SEPARATORS)
                continue
            if not (cut or self._ended or len(self._buffer) > MAX_EVENT_BYTES):
                continue
            events, position, closed = scan_events(self._buffer)
            self._take_each(events)
            self._buffer = self._buffer[position:]
            if closed:
                return
            if (self._ended and not self._buffer) or resyncs >= MAX_RESYNCS:
                self.truncated = True
                return
            if self._ended or len(self._buffer) > MAX_EVENT_BYTES:
                resyncs += 1
                self.lost += 1
                self._buffer = self._buffer[resync(self._buffer) :]

    def _whole_blocks(self) -> None:
        """Pushes block after block as long as each has a cut and decodes, copying little.

        Leaves the first block that does not in the buffer, or sets `_ended`.
        """
        while True:
            block = next(self._blocks, b"") if not self._ended else b""
            if not block:
                self._ended = True
                return
            if self._scan is not None and self._scanned(block, self._scan):
                continue
            cut = find_cut(block)
            if not cut or not self._take(
                b"".join((b"[", self._buffer, memoryview(block)[:cut], b"]"))
            ):
                self._buffer += block
                return
            self._buffer = block[cut:].lstrip(SEPARATORS)

    def _scanned(self, block: bytes, scan: Callable[[bytes, int], bool | None]) -> bool:
        """Has the block scanned, and keeps what remains of it in the buffer."""
        cut = find_cut(block, len(block) - self._margin)
        if not cut:
            return False
        done = scan(b"".join((b"[", self._buffer, block)), 1 + len(self._buffer) + cut)
        if done is None:
            self._scan = None
        if not done:
            return False
        self._buffer = block[cut:].lstrip(SEPARATORS)
        return True

    def _take_end(self) -> bool:
        """Pushes the rest of the array, if its end is in the buffer."""
        empty = EMPTY_END.match(self._buffer)
        if empty:
            self._buffer = self._buffer[empty.end() :]
            return True
        for tries, found in enumerate(ARRAY_END.finditer(self._buffer)):
            if tries >= MAX_END_TRIES:
                break
            if self._take(b"[" + self._buffer[: found.start() + 1] + b"]"):
                self._buffer = self._buffer[found.end(1) :]
                return True
        return False


def find_cut(text: bytes, limit: int | None = None) -> int:
    """Where the last event probably ends that another one follows: the offset behind its `}`, or 0.

    Looks backwards, from `limit`, for an opening brace whose neighbours before it are a comma and
    a closing one.
    """
    position = len(text) if limit is None else max(0, limit)
    for _ in range(MAX_CUT_TRIES):
        position = text.rfind(b"{", 0, position)
        if position <= 0:
            return 0
        start = max(0, position - 64)
        before = text[start:position].rstrip(WHITESPACE)
        if before.endswith(b","):
            before = before[:-1].rstrip(WHITESPACE)
            if before.endswith(b"}"):
                return start + len(before)
    return 0


def scan_events(text: bytes) -> tuple[list[bytes], int, bool]:
    """Walks an array of events token by token.

    Args:
        text: The inside of the array, from the start of an element.

    Returns:
        The objects found, the offset of the first byte that belongs to none of them (behind the
        `]` where the array ends), and whether the array ended. What stands between objects is
        passed over; an object whose brackets do not match ends before the one that does not.
    """
    spans: list[bytes] = []
    position = 0
    while True:
        found = NEXT_VALUE.search(text, position)
        if found is None:
            return spans, len(text), False
        if found.group() == b"]":
            return spans, found.end(), True
        start, end = found.start(), 0
        open_brackets: list[bytes] = []
        for token in TOKEN.finditer(text, start):
            word = token.group()
            if word in (b"{", b"["):
                open_brackets.append(word)
            elif word in (b"}", b"]"):
                if open_brackets.pop() != PARTNER[word]:
                    end = token.start()
                    break
            elif word == b'"':
                break  # a string that goes on beyond the text
            if not open_brackets:
                end = token.end()
                break
        if not end:
            return spans, start, False
        if found.group() == b"{":
            spans.append(text[start:end])
        position = end


def resync(text: bytes) -> int:
    """Where the next event seems to start after the one at the start of the text."""
    found = NEXT_EVENT.search(text, 1)
    return found.start() if found else len(text)
