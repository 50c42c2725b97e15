"""Learns the layout of an event from an example."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuprof.readers.jsonstream import TOKEN
from gpuprof.readers.kineto_bytes import WINDOW_BYTES, Literal
from gpuprof.readers.kineto_layout import Layout, Spot, Wanted
from gpuprof.readers.kineto_slices import SliceCodes

MAX_EXAMPLE_BYTES = 1 << 13
"""Longer events are decoded: they are rare, and what is long in them seldom recurs."""

MAX_NUMBERS = 32
"""Events with more numbers outside of lists are decoded; a kernel has some 14."""

KEY = re.compile(rb'[\s,]*"([^"\\]*)"\s*:\s*')
CLOSE = re.compile(rb"[\s,]*\}")
NUMBER = re.compile(rb"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,24})?(?=[\s,}])")
CONSTANT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|true|false|null', re.DOTALL)

OUTSIDE = frozenset((b"ts",))
"""What is wanted beside `args`; all else is wanted inside."""


def learn(
    text: bytes, start: int, wanted: Wanted, lists: Callable[[bytes], SliceCodes]
) -> Layout | None:
    """The layout of an event that is known to be valid; None where it has none.

    Args:
        text: The members of the event, without the braces around them.
        start: Where the layout starts; what stands before it is read by other means.
        lists: What is known of slices that follow a text such as `{"Input Dims": `.
    """
    parts = Parts(text, start, wanted)
    if not parts.plain or len(parts.numbers) > MAX_NUMBERS:
        return None
    if any(
        key in wanted.numbers or key in wanted.lists or (key in wanted.empty and value != b'""')
        for key, value in parts.constants.items()
    ):
        return None
    first, last = (parts.lists[0][1], parts.lists[-1][2]) if parts.lists else (len(text),) * 2
    front: list[tuple[Literal, Spot]] = []
    back: list[tuple[Spot, int, int]] = []
    position = start
    for key, begun, ended in parts.numbers:
        negative = text.startswith(b"-", begun)
        dotted = b"." in text[begun:ended]
        signed = negative or key in wanted.signed
        spot = Spot(*wanted.numbers.get(key, ("", "")), signed, dotted)
        if key in wanted.lists or key in wanted.empty or (negative and key in wanted.unsigned):
            return None
        if ended <= first:
            front.append((Literal(text[position:begun]), spot))
            position = ended
        elif begun >= last:
            back.append((spot, begun, ended))
        elif spot.column:
            return None
    until = [begun for _, begun, _ in back] + [len(text)]
    layout = Layout(
        front,
        Literal(text[position:first]),
        lists(b'{"' + parts.lists[0][0] + b'": ') if parts.lists else None,
        Literal(text[last : until[0]]),
        [
            (spot, Literal(text[ended:stop]))
            for (spot, _, ended), stop in zip(back, until[1:], strict=True)
        ],
        parts.constants,
    )
    return layout if layout.widest <= WINDOW_BYTES else None


class Parts:
    """The members of an event by kind, with their places.

    numbers, lists: key, start and end of each. constants: the text of each other value by key.
    plain: whether a layout can hold the event: no member twice, and nothing nested but `args`.
    """

    def __init__(self, text: bytes, start: int, wanted: Wanted) -> None:
        self.numbers: list[tuple[bytes, int, int]] = []
        self.lists: list[tuple[bytes, int, int]] = []
        self.constants: dict[bytes, bytes] = {}
        self.plain = len(text) <= MAX_EXAMPLE_BYTES and self._read(text, start, wanted)

    def _read(self, text: bytes, start: int, wanted: Wanted) -> bool:
        keys: set[bytes] = set()
        position, inside = start, False
        while position < len(text):
            closed = CLOSE.match(text, position) if inside else None
            if closed:
                position, inside = closed.end(), False
                continue
            found = KEY.match(text, position)
            if found is None:
                return not text[position:].strip()
            key, position = found[1], found.end()
            misplaced = key in wanted.numbers or key in wanted.lists
            if key in keys or key in wanted.refused or (misplaced and inside == (key in OUTSIDE)):
                return False
            keys.add(key)
            number, constant = NUMBER.match(text, position), CONSTANT.match(text, position)
            ended = position
            if number:
                ended = number.end()
                self.numbers.append((key, position, ended))
            elif constant:
                ended = constant.end()
                self.constants[key] = constant[0]
            elif text.startswith(b"[", position) and inside:
                ended = _list_end(text, position)
                self.lists.append((key, position, ended))
            elif text.startswith(b"{", position) and key == b"args":
                ended, inside = position + 1, True
            if ended == position:
                return False
            position = ended
        return not inside


def _list_end(text: bytes, start: int) -> int:
    """Where the list ends that starts here; its start where it doesn't end."""
    depth = 0
    for token in TOKEN.finditer(text, start):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return start
