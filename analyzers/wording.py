"""Numbers as text, the same in every sentence."""

from __future__ import annotations

from decimal import Decimal


def percent(share: float) -> str:
    """A share as text: "34 %", with one digit more below ten."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def milliseconds(value_ms: float) -> str:
    """A time as text in the unit that reads best: "12.4 s", "1,310 ms", "174.6 ms", "4.20 ms",
    "420 µs". The unit is chosen by what is left after rounding: never "1000 µs"."""
    size = abs(value_ms)
    if size >= 9_999.5:
        return f"{value_ms / 1e3:,.1f} s"
    if size >= 999.5:
        return f"{value_ms:,.0f} ms"
    if size >= 0.9995 or size == 0:
        return f"{value_ms:.1f} ms" if size >= 9.995 else f"{value_ms:.2f} ms"
    value_us = value_ms * 1e3
    return f"{value_us:.0f} µs" if size >= 0.09995 else f"{value_us:.1f} µs"


def microseconds(value_us: float) -> str:
    """A time given in µs as text: see `milliseconds`."""
    return milliseconds(value_us / 1e3)


def in_bytes(size: float) -> str:
    """A size in the largest decimal unit that leaves it at least 1: "25.2 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{significant(size / scale)} {unit}"
    return f"{size:.0f} bytes"


def significant(value: float, digits: int = 3) -> str:
    """A number with so many digits that count: "0.42", "17.9", "2,758". Whole numbers keep all of
    theirs, and nothing is ever written as a power of ten: "2.76e+03 calls" is no sentence."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):f}"
