"""Numbers as text, the same in every sentence."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share as text: "34 %", with one digit more below ten."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def milliseconds(value_ms: float) -> str:
    """A time as text with three digits: "1,310 ms", "74.6 ms", "0.42 ms"."""
    if value_ms >= 100:
        return f"{value_ms:,.0f} ms"
    return f"{value_ms:.1f} ms" if value_ms >= 9.995 else f"{value_ms:.2f} ms"


def in_bytes(size: float) -> str:
    """A size in the largest decimal unit that leaves it at least 1: "25.2 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
