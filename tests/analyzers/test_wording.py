"""Numbers in sentences."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.wording import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0 %"),
        (0.0349, "3.5 %"),
        (0.0994, "9.9 %"),
        (0.0995, "10 %"),
        (0.345, "34 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_have_a_digit_more_below_ten(share: float, text: str) -> None:
    assert percent(share).replace("\u00a0", " ").replace("\u202f", " ") == text
