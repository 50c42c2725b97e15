"""Numbers in sentences."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.wording import percent, significant


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
    assert percent(share).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 3, "0"),
        (0.4211, 3, "0.421"),
        (0.00001234, 2, "0.000012"),
        (17.94, 3, "17.9"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (2_758, 3, "2,758"),
        (99.6, 2, "100"),
    ],
)
def test_numbers_are_never_written_as_powers_of_ten(value: float, digits: int, text: str) -> None:
    """ "2.76e+03 calls" in a sentence is read by nobody."""
    assert significant(value, digits) == text
