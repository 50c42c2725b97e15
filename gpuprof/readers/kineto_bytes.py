"""A block's bytes, looked at in many places at once.

Each look takes an array of offsets and costs some nanoseconds an offset: the bytes there are
gathered as 64-bit words, and eight characters of a number are turned into its value by arithmetic
on one word. The caller sees to it that `WINDOW_BYTES` follow each offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOW_BYTES = 512
"""The widest look at one offset."""

EXACT = float(1 << 53)
"""Whole numbers below this are exact in float64."""


def u64(value: int) -> np.uint64:
    return np.uint64(value)


ZEROS = u64(0x3030303030303030)
"""What is taken from each character: 0 to 9 remain of digits."""
DOTS = u64(0x1E1E1E1E1E1E1E1E)
"""A dot, with the same taken from it."""
LOW_BITS = u64(0x7F7F7F7F7F7F7F7F)
ABOVE_NINE = u64(0x7676767676767676)
HIGH_BITS = u64(0x8080808080808080)
ONE_BYTE, NINE_BYTE = np.uint8(1), np.uint8(9)
EXPONENT, BYTE_OF_EXPONENT = u64(1023 << 52), u64(55)
"""In float64, the bits of a power of two from 2**0 on, and where its exponent / 8 begins."""
ZERO, ONE, EIGHT, BITS = u64(0), u64(1), u64(8), u64(64)
STEPS = (
    (u64(0x0F0F0F0F0F0F0F0F), u64(2561), u64(8)),
    (u64(0x00FF00FF00FF00FF), u64(6553601), u64(16)),
    (u64(0x0000FFFF0000FFFF), u64(42949672960001), u64(32)),
)
"""Eight digits to a number: neighbours are joined to pairs, fours and all eight."""

LONGEST = 15
"""Digits of a fraction up to which its value is worked out."""

DOT = np.uint8(ord("."))
POWERS = 10 ** np.arange(17, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Unsigned decimal numbers: digits, and perhaps a dot and digits.

    whole: the digits before the dot, int64 (n,). fraction, places: those behind it as a whole
    number (right for up to 15 digits) and how many; None where no number has a dot. end: the offset
    behind each. good: whether there is a number as JSON allows it. Its length is bounded (16 and 24
    digits): a longer one ends too early, in front of a digit.
    """

    whole: I64
    fraction: I64 | None
    places: I64 | None
    end: I64
    good: Bools

    def floats(self) -> tuple[F64, Bools]:
        """The nearest float64 of each, and whether it is known: digits within 2**53."""
        if self.fraction is None or self.places is None:
            return self.whole.astype(np.float64), self.whole < EXACT
        scale = POWERS.take(np.minimum(self.places, LONGEST))
        known = self.places <= LONGEST
        known &= self.whole.astype(np.float64) * scale < EXACT / 2
        return (self.whole * scale + self.fraction) / scale, known

    def thousandfold(self) -> tuple[I64, Bools]:
        """Each times 1000, and whether that is a whole number."""
        if self.fraction is None or self.places is None:
            return self.whole * 1000, np.ones(len(self.whole), np.bool_)
        known = self.places <= 3
        return self.whole * 1000 + self.fraction * POWERS.take(
            np.maximum(3 - self.places, 0)
        ), known


class Literal:
    """Text that is compared with what stands at many offsets."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.width = -(-len(text) // 8) * 8
        self.room = -(-(len(text) + 16) // 8) * 8
        if text:
            self.words = list(np.frombuffer(text.ljust(self.width, b"\0"), "<u8"))
            self.last_mask = np.frombuffer((b"\xff" * len(text)).ljust(self.width, b"\0"), "<u8")[
                -1
            ]

    def __len__(self) -> int:
        return len(self.text)


class BlockBytes:
    """One block of text."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        self._windows: dict[int, NDArray[Any]] = {}

    def words(self, at: I64, width: int) -> U64:
        """The `width` bytes (a multiple of 8) from each offset on, uint64 (n, width / 8)."""
        window = self._windows.get(width)
        if window is None:
            window = self._windows[width] = np.ndarray(
                (len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,)
            )
        words: U64 = window[at].view(np.uint64)
        return words.reshape(len(at), width >> 3)

    def matches(self, at: I64, literal: Literal) -> Bools:
        """At which offsets the text stands, bool (n,)."""
        if not literal.text:
            return np.ones(len(at), np.bool_)
        return _same(self.words(at, literal.width), literal)

    def numbers(
        self, at: I64, literal: Literal, *, valued: bool = True, dotted: bool = True
    ) -> tuple[Bools, Numbers]:
        """The numbers that follow a text, and at which offsets that text stands.

        One look does for both. Where the text doesn't stand, what is said of the number is void.

        Args:
            valued: Whether the values are wanted, or only where the numbers end.
            dotted: Whether to look for a dot; without, a number ends in front of it.
        """
        found = self.words(at, literal.room)
        same = _same(found, literal)
        head = shifted(found, len(literal)) ^ ZEROS
        length = _digits(head)
        whole = _value(head, length) if valued else length
        good = (head.view(np.uint8)[::8] - ONE_BYTE) < NINE_BYTE
        good |= length == 1
        long = (length == 8).nonzero()[0]
        if len(long):
            if len(long) < len(found):
                found = found.take(long, axis=0)
            tail = shifted(found, len(literal) + 8) ^ ZEROS
            more = _digits(tail)
            if valued:
                whole[long] = whole.take(long) * POWERS.take(more) + _value(tail, more)
            length[long] = 8 + more
        end = at + length
        end += len(literal.text)
        dots = (self.bytes.take(end) == DOT).nonzero()[0] if dotted else ()
        if not len(dots):
            return same, Numbers(whole, None, None, end, good)
        fraction, places = np.zeros_like(end), np.zeros_like(end)
        value, digits = self._fractions(end.take(dots) + 1)
        fraction[dots], places[dots] = value, digits
        end[dots] += 1 + digits
        good[dots] &= digits > 0
        return same, Numbers(whole, fraction, places, end, good)

    def _fractions(self, at: I64) -> tuple[I64, I64]:
        """Up to 24 digits: their value, right for up to 16, and how many."""
        found = self.words(at, 24)
        head = found[:, 0] ^ ZEROS
        digits = _digits(head)
        value = _value(head, digits)
        for column in (1, 2):
            long = (digits == 8 * column).nonzero()[0]
            if not len(long):
                break
            tail = found[:, column].take(long) ^ ZEROS
            more = _digits(tail)
            if column == 1:
                value[long] = value.take(long) * POWERS.take(more) + _value(tail, more)
            digits[long] += more
        return value, digits

    def number_starts(self, end: I64) -> I64:
        """Where the digits and dots begin that end before each offset: at most 16 of them."""
        found = self.words(np.maximum(end - 16, 0), 16)
        count = _digits_behind(found[:, 1])
        full = (count == 8).nonzero()[0]
        if len(full):
            count[full] += _digits_behind(found[:, 0].take(full))
        return end - count


def _same(found: U64, literal: Literal) -> Bools:
    """In which rows the words begin with the text, bool (n,)."""
    if not literal.text:
        return np.ones(len(found), np.bool_)
    *firsts, last = literal.words
    differ = (found[:, len(firsts)] & literal.last_mask) ^ last
    for column, word in enumerate(firsts):
        differ |= found[:, column] ^ word
    same: Bools = differ == ZERO
    return same


def shifted(found: U64, offset: int) -> U64:
    """Eight bytes of each row from an offset on, uint64 (n,)."""
    column, over = divmod(offset, 8)
    if not over:
        return found[:, column]
    low, high = u64(8 * over), u64(64 - 8 * over)
    return (found[:, column] >> low) | (found[:, column + 1] << high)


def _digits(x: U64) -> I64:
    """How many leading characters are digits, of words from which '0' was taken; int64 (n,)."""
    stop = ((x + ABOVE_NINE) | x) & HIGH_BITS  # right up to the first that is none
    lowest = (stop & (~stop + ONE)).astype(np.float64).view(np.uint64)
    length: I64 = np.minimum((lowest - EXPONENT) >> BYTE_OF_EXPONENT, EIGHT).view(np.int64)
    return length


def _digits_behind(words: U64) -> I64:
    """How many of the last characters are digits or dots; int64 (n,)."""
    x = words ^ ZEROS
    other = (((x & LOW_BITS) + ABOVE_NINE) | x) & HIGH_BITS
    dot = x ^ DOTS
    other &= ((dot & LOW_BITS) + LOW_BITS) | dot  # the high bit is off where the byte is zero
    count = 7 - (((other.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3)
    count[other == ZERO] = 8
    return count


def _value(x: U64, digits: I64) -> I64:
    """The number that the leading digits make, int64 (n,)."""
    return _joined(x << (BITS - (digits.view(np.uint64) * EIGHT)))


def _joined(value: U64) -> I64:
    """The number that eight digits make, int64 (n,)."""
    for mask, factor, shift in STEPS:
        value = ((value & mask) * factor) >> shift
    result: I64 = value.view(np.int64)
    return result
