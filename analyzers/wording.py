"""Numbers as text, the same in every sentence."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share as text: "34 %", with one digit more below ten."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"
