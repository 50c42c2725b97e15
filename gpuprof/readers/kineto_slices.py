"""Numbers for slices of text that recur, whatever they mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_bytes import I64, U64, WINDOW_BYTES, BlockBytes, Bools, u64

WIDTHS = (64, 128, 256, WINDOW_BYTES)
"""Widths in bytes at which slices are compared; longer slices are looked up one by one."""

MAX_SLICES = 1 << 15
"""Distinct slices that are remembered: a trace has some thousand, each takes up to 1 KiB."""


TRIED_SLICES = 20_000
MAX_NEW_FRAC = 0.3
"""After this many look-ups, slices of which more than this share are new aren't worth keeping."""

SLOT_BITS = 16
SLOT_SHIFT, HALF, MIXER = u64(64 - SLOT_BITS), u64(32), u64(0x9E3779B97F4A7C15)

MASKS = {
    width: np.tril(np.full((width + 1, width), 255, np.uint8), -1).view("<u8") for width in WIDTHS
}
"""For each width: row n keeps the first n bytes."""


class SliceCodes:
    """Numbers slices of text that recur; what a slice means is worked out once.

    Args:
        make: The code of a slice that wasn't met before, -1 to refuse it.
    """

    def __init__(self, make: Callable[[bytes], int]) -> None:
        self._make = make
        self._known: dict[bytes, int] = {}
        self._tables = {width: _Table(width) for width in WIDTHS}
        self._asked = 0

    def forget(self) -> None:
        """Drops all slices."""
        self._known.clear()
        self._tables.clear()

    def codes(self, text: BlockBytes, start: I64, length: I64) -> NDArray[np.int32]:
        """The code of each slice, int32 (n,); -1 for one that is refused."""
        result = np.empty(len(start), np.int32)
        self._asked += len(start)
        below = -1
        for width in WIDTHS:
            part = np.flatnonzero((length > below) & (length <= width))
            below = width
            if len(part) == len(start):
                return self._part(text, start, length, self._tables[width])
            if len(part):
                result[part] = self._part(
                    text, start.take(part), length.take(part), self._tables[width]
                )
        for row in np.flatnonzero((length > below) | (length < 0)).tolist():
            begun = int(start[row])
            result[row] = self._code(text.data[begun : begun + max(0, int(length[row]))])
        return result

    def _code(self, key: bytes) -> int:
        code = self._known.get(key)
        if code is not None:
            return code
        known = len(self._known)
        if known >= MAX_SLICES or (
            self._asked > TRIED_SLICES and known > MAX_NEW_FRAC * self._asked
        ):
            return -1
        code = self._known[key] = self._make(key)
        return code

    def _part(self, text: BlockBytes, start: I64, length: I64, table: _Table) -> NDArray[np.int32]:
        words = text.words(start, table.width)
        words &= MASKS[table.width].take(length, axis=0)
        hashes = words @ table.factors
        hashes ^= hashes >> HALF  # characters at the end of a word reach the highest bits only
        hashes *= MIXER
        slots = (hashes >> SLOT_SHIFT).view(np.int64)
        result = np.full(len(start), -1, np.int32)
        left = np.arange(len(start))
        while True:
            known, codes = table.look_up(slots, words, length)
            if len(left) == len(start):
                result = codes
            else:
                result[left] = codes
            if known is None:
                return result
            new = ~known
            left, slots, words, length = left[new], slots[new], words[new], length[new]
            for row in np.unique(slots, return_index=True)[1].tolist():
                begun = int(start[left[row]])
                code = self._code(text.data[begun : begun + int(length[row])])
                table.put(int(slots[row]), words[row], int(length[row]), code)


class _Table:
    """Slices of up to `width` bytes, by their hash; one slot each, the last comer has it."""

    def __init__(self, width: int) -> None:
        self.width = width
        random = np.random.default_rng(width)
        self.factors = random.integers(1, 1 << 63, width // 8, dtype=np.uint64) | u64(1)
        self.slots = np.zeros(1 << SLOT_BITS, np.int32)
        self.words = np.zeros((1, width // 8), np.uint64)
        self.lengths = np.full(1, -1, np.int64)
        self.codes = np.full(1, -1, np.int32)
        self.count = 1

    def look_up(
        self, slots: I64, words: U64, lengths: I64
    ) -> tuple[Bools | None, NDArray[np.int32]]:
        """Which slices are known, None where all are, and the codes of those."""
        rows = self.slots.take(slots)
        codes = self.codes.take(rows)
        differ = self.words.take(rows, axis=0) != words
        differ[:, 0] |= self.lengths.take(rows) != lengths
        if not differ.any():
            return None, codes
        return ~differ.any(axis=1), codes

    def put(self, slot: int, words: U64, length: int, code: int) -> None:
        row = int(self.slots[slot])
        if not row:
            if self.count == len(self.codes):
                more = max(63, self.count)
                self.words = np.concatenate((self.words, np.zeros((more, self.width // 8), "<u8")))
                self.lengths = np.concatenate((self.lengths, np.full(more, -1)))
                self.codes = np.concatenate((self.codes, np.full(more, -1, np.int32)))
            row = self.slots[slot] = self.count
            self.count += 1
        self.words[row], self.lengths[row], self.codes[row] = words, length, code
