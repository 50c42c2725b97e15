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
from typing import Generic, TypeVar

Batch = TypeVar("Batch")

MAX_HEADER_BYTES = 32 << 20
"""Larger top-level values are skipped: `distributedInfo` of 10,000 ranks takes some MiB."""

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
SPACE = re.compile(rb"[\s,]*")
WHITESPACE = b" \t\r\n"


class EventStream(Generic[Batch]):
    """Pulls blocks of bytes, and turns them into header values and batches of events.

    Args:
        blocks: The trace's plain bytes.
        decode: Decodes a batch (a whole JSON array), or returns None where it is not valid JSON.
        decode_each: Decodes events that stand alone, each the bytes of one object; never fails.

    After `batches` is through, `header` maps each top-level key to the bytes of its value,
    `is_object` says whether the top level is an object, `saw_events` whether there was an array of
    events, `truncated` whether the text ended early, and `lost` counts the events that were cut
    apart.
    """

    def __init__(
        self,
        blocks: Iterator[bytes],
        decode: Callable[[bytes], Batch | None],
        decode_each: Callable[[list[bytes]], Batch],
    ) -> None:
        self._blocks = blocks
        self._decode = decode
        self._decode_each = decode_each
        self._buffer = b""
        self._ended = False
        self.header: dict[str, bytes] = {}
        self.is_object = False
        self.is_json = True
        self.saw_events = False
        self.truncated = False
        self.lost = 0

    def batches(self) -> Iterator[Batch]:
        """Yields the decoded batches in the order of the file."""
        self._strip(b"\xef\xbb\xbf")
        first = self._peek()
        if first == b"[":
            self._buffer = self._buffer[1:]
            yield from self._events()
            return
        if first != b"{":
            self.is_json = False
            return
        self.is_object = True
        self._buffer = self._buffer[1:]
        while True:
            char = self._peek()
            while char == b",":
                self._buffer = self._buffer[1:]
                char = self._peek()
            if char == b"}":
                return
            if char == b"":
                self.truncated = True
                return
            key = self._key()
            if key is None:
                return
            char = self._peek()
            if key == "traceEvents" and char == b"[":
                self._buffer = self._buffer[1:]
                yield from self._events()
                if self.truncated:
                    return
            else:
                value = self._value()
                if value is None:
                    self.truncated = True
                    return
                self.header[key] = value

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

    def _strip(self, mark: bytes) -> None:
        while len(self._buffer) < len(mark) and self._more():
            pass
        self._buffer = self._buffer.removeprefix(mark)

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
            self.truncated = True
            return None
        raw = self._value()
        if raw is None or self._peek() != b":":
            self.truncated = True
            return None
        self._buffer = self._buffer[1:]
        return raw[1:-1].decode("utf-8", "replace")

    def _value(self) -> bytes | None:
        """Reads one JSON value; b"" for one that is too large to keep; None where it is cut off."""
        if self._peek() not in (b"{", b"[", b'"'):
            return self._scalar()
        depth, position, skipped = 0, 0, False
        while True:
            for token in TOKEN.finditer(self._buffer, position):
                text = token.group()
                if text == b'"':
                    break  # a string that goes on in the next block
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

    def _events(self) -> Iterator[Batch]:
        """Yields the events up to the array's `]`, which it takes off as well."""
        self.saw_events = True
        resyncs = 0
        while True:
            more = self._more()
            cut = find_cut(self._buffer)
            if cut:
                batch = self._decode(b"[" + self._buffer[:cut] + b"]")
                if batch is not None:
                    yield batch
                    self._buffer = self._buffer[SPACE.match(self._buffer, cut).end() :]  # type: ignore[union-attr]
                    continue
            elif more and len(self._buffer) <= MAX_EVENT_BYTES and b"]" not in self._buffer:
                continue
            end = self._try_end()
            if end is not None:
                yield end
                return
            if cut or not more or len(self._buffer) > MAX_EVENT_BYTES:
                spans, position, closed = scan_events(self._buffer, final=self._ended)
                yield self._decode_each(spans)
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

    def _try_end(self) -> Batch | None:
        """The rest of the array, if its end is in the buffer."""
        empty = EMPTY_END.match(self._buffer)
        if empty:
            self._buffer = self._buffer[empty.end() :]
            return self._decode_each([])
        for tries, found in enumerate(ARRAY_END.finditer(self._buffer)):
            if tries >= MAX_END_TRIES:
                return None
            batch = self._decode(b"[" + self._buffer[: found.start() + 1] + b"]")
            if batch is not None:
                self._buffer = self._buffer[found.end(1) :]
                return batch
        return None


def find_cut(text: bytes) -> int:
    """Where the last event probably ends that another one follows: the offset behind its `}`, or 0.

    Looks backwards for an opening brace whose neighbours before it are a comma and a closing one.
    """
    position = len(text)
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


def scan_events(text: bytes, *, final: bool) -> tuple[list[bytes], int, bool]:
    """Walks an array of events token by token.

    Args:
        text: The inside of the array, from the start of an element.
        final: Whether nothing follows the text.

    Returns:
        The objects found, the offset behind the last of them (behind the `]` where the array
        ends), and whether the array ended. What stands between objects is passed over.
    """
    spans: list[bytes] = []
    position = 0
    while True:
        found = NEXT_VALUE.search(text, position)
        if found is None:
            return spans, position if final else max(position, len(text) - 1), False
        if found.group() == b"]":
            return spans, found.end(), True
        depth, start, end = 0, found.start(), 0
        for token in TOKEN.finditer(text, start):
            word = token.group()
            if word == b'"':
                break
            if word in (b"{", b"["):
                depth += 1
            elif word in (b"}", b"]"):
                depth -= 1
            if depth == 0:
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
