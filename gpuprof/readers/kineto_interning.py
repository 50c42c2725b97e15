"""Dictionaries that number what recurs in events, each distinct value once."""

from __future__ import annotations

from array import array
from typing import Any

from gpuprof.readers.kineto_categories import CategoryCodes
from gpuprof.readers.kineto_values import product

MAX_NAME_CHARS = 4096
"""Longer names are cut: C++ kernel names of templates reach some 3,000 characters."""


class Sizes(dict[bytes, tuple[int, int]]):
    """How many blocks, and threads a block, by the JSON of grid and block joined."""

    def __missing__(self, key: bytes) -> tuple[int, int]:
        grid, block = key.split(b"\0")
        value = self[key] = product(grid), product(block)
        return value


class Codes(dict[Any, int]):
    """Numbers keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class Names(Codes):
    """Numbers names, and cuts those that are too long before it keeps them."""

    cut = 0

    def __missing__(self, key: Any) -> int:
        if len(key) > MAX_NAME_CHARS:
            self.cut += 1
            return self[key[:MAX_NAME_CHARS]]
        return super().__missing__(key)


class Places(dict[tuple[str, Any, Any], int]):
    """Numbers the triples of category, process and thread in the order of their first use.

    category, thread: for each number the `Category` (`SPAN` for the profiler's own span) and the
    number in `threads`. There are few, so that one look-up an event does for all three fields.
    """

    def __init__(self) -> None:
        super().__init__()
        self.category = bytearray()
        self.thread = array("i")
        self.threads = Codes()
        self.categories = CategoryCodes()

    def __missing__(self, key: tuple[str, Any, Any]) -> int:
        category, pid, tid = key
        self.category.append(self.categories[category])
        self.thread.append(self.threads[pid, tid])
        code = self[key] = len(self)
        return code
