"""Reads pickles that hold plain containers and scalars only, without running pickle.

A foreign pickle can run any code, and even a harmless-looking one can make the C unpickler reserve
gigabytes for its memo. This reader knows the opcodes for None, bool, int, float, str, bytes, list,
tuple, dict and set, and refuses a file at the first other one: there is no way to name a class or
to call anything. Work and memory are bounded by the size of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MARK = object()

MAX_INTEGER_BYTES = 64
"""Flight-recorder numbers fit in eight bytes; a longer integer is an attack or no dump."""


class PlainPickleError(ValueError):
    """The data is no pickle of plain values: damaged, or it holds objects."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise PlainPickleError("the data is cut off")
        part = self.data[self.at : end]
        self.at = end
        return part

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise PlainPickleError("the data is cut off")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def unsigned(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def pop(self) -> Any:
        if not self.stack:
            raise PlainPickleError("the data is damaged")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise PlainPickleError("the data is damaged")

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise PlainPickleError("the data is damaged")
        return self.stack[-1]

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise PlainPickleError("the data is damaged")
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        if not self.stack:
            raise PlainPickleError("the data is damaged")
        self.memo[index] = self.stack[-1]

    def integer(self, count: int) -> None:
        if count > MAX_INTEGER_BYTES:
            raise PlainPickleError("an integer is far too long")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def text(self, count: int) -> None:
        self.stack.append(self.take(count).decode("utf-8", "replace"))

    def decimal(self) -> None:
        text = self.line().rstrip(b"L")
        if text in (b"00", b"01"):  # protocol 0 booleans
            self.stack.append(text == b"01")
            return
        if len(text) > MAX_INTEGER_BYTES:
            raise PlainPickleError("an integer is far too long")
        self.stack.append(int(text))

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def add(self, items: list[Any]) -> None:
        self.top(set).update(self.set_(items))

    def new_dict(self, items: list[Any]) -> None:
        self.stack.append({})
        self.setitems(items)

    def setitems(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise PlainPickleError("the data is damaged")
        try:
            for index in range(0, len(items), 2):
                target[items[index]] = items[index + 1]
        except TypeError as error:
            raise PlainPickleError("a key is no scalar") from error

    def tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise PlainPickleError("the data is damaged")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.stack.append(items)

    def set_(self, items: list[Any]) -> set[Any]:
        try:
            return set(items)
        except TypeError as error:
            raise PlainPickleError("a member of a set is no scalar") from error


_OPCODES: dict[int, Callable[[_Reader], Any]] = {
    0x80: lambda r: r.take(1),  # PROTO
    0x95: lambda r: r.take(8),  # FRAME
    ord("("): lambda r: r.stack.append(MARK),
    ord("0"): lambda r: r.pop(),
    ord("1"): lambda r: r.pop_mark(),
    ord("2"): lambda r: r.stack.append(r.stack[-1]) if r.stack else r.pop(),
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    ord("I"): lambda r: r.decimal(),
    ord("L"): lambda r: r.decimal(),
    ord("J"): lambda r: r.integer(4),
    ord("K"): lambda r: r.stack.append(r.unsigned(1)),
    ord("M"): lambda r: r.stack.append(r.unsigned(2)),
    0x8A: lambda r: r.integer(r.unsigned(1)),
    0x8B: lambda r: r.integer(r.unsigned(4)),
    ord("F"): lambda r: r.stack.append(float(r.line())),
    ord("G"): lambda r: r.stack.append(struct.unpack(">d", r.take(8))[0]),
    ord("V"): lambda r: r.stack.append(r.line().decode("raw-unicode-escape", "replace")),
    ord("X"): lambda r: r.text(r.unsigned(4)),
    0x8C: lambda r: r.text(r.unsigned(1)),
    0x8D: lambda r: r.text(r.unsigned(8)),
    ord("U"): lambda r: r.text(r.unsigned(1)),
    ord("T"): lambda r: r.text(r.unsigned(4)),
    ord("B"): lambda r: r.stack.append(r.take(r.unsigned(4))),
    ord("C"): lambda r: r.stack.append(r.take(r.unsigned(1))),
    0x8E: lambda r: r.stack.append(r.take(r.unsigned(8))),
    ord("]"): lambda r: r.stack.append([]),
    ord("l"): lambda r: r.stack.append(r.pop_mark()),
    ord("a"): lambda r: r.extend([r.pop()]),
    ord("e"): lambda r: r.extend(r.pop_mark()),
    ord(")"): lambda r: r.stack.append(()),
    ord("t"): lambda r: r.stack.append(tuple(r.pop_mark())),
    0x85: lambda r: r.tuple(1),
    0x86: lambda r: r.tuple(2),
    0x87: lambda r: r.tuple(3),
    ord("}"): lambda r: r.stack.append({}),
    ord("d"): lambda r: r.new_dict(r.pop_mark()),
    ord("s"): lambda r: r.setitems([r.pop(), r.pop()][::-1]),
    ord("u"): lambda r: r.setitems(r.pop_mark()),
    0x8F: lambda r: r.stack.append(set()),
    0x90: lambda r: r.add(r.pop_mark()),
    0x91: lambda r: r.stack.append(frozenset(r.set_(r.pop_mark()))),
    ord("g"): lambda r: r.get(int(r.line()[:20])),
    ord("h"): lambda r: r.get(r.unsigned(1)),
    ord("j"): lambda r: r.get(r.unsigned(4)),
    ord("p"): lambda r: r.put(int(r.line()[:20])),
    ord("q"): lambda r: r.put(r.unsigned(1)),
    ord("r"): lambda r: r.put(r.unsigned(4)),
    0x94: lambda r: r.put(len(r.memo)),
}
"""Opcode to what it does. Everything that could name or call an object is left out on purpose."""

STOP = ord(".")


def loads(data: bytes) -> Any:
    """The plain value that the pickle holds.

    Raises:
        PlainPickleError: the data is damaged, or holds anything but plain containers and scalars.
    """
    reader = _Reader(data)
    try:
        while True:
            opcode = reader.take(1)[0]
            if opcode == STOP:
                value = reader.pop()
                if value is MARK:
                    raise PlainPickleError("the data is damaged")
                return value
            action = _OPCODES.get(opcode)
            if action is None:
                raise PlainPickleError(f"it holds objects (opcode {opcode:#04x})")
            action(reader)
    except (ValueError, struct.error) as error:
        if isinstance(error, PlainPickleError):
            raise
        raise PlainPickleError("the data is damaged") from error
