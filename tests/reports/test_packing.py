"""What is packed for the page comes back bit for bit."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpuprof.reports import packing

columns = arrays(
    np.int64,
    st.integers(0, 200),
    elements=st.one_of(st.integers(0, 300), st.integers(0, packing.MAX_VALUE)),
)


@given(st.lists(columns, max_size=4))
def test_columns_survive_packing(values: list[np.ndarray]) -> None:
    parts = [part for column in values for part in packing.encode_column(column)]
    data = zlib.decompress(packing.deflate(parts))
    offset = 0
    for column in values:
        back, offset = packing.decode_column(data, offset, len(column))
        np.testing.assert_array_equal(back, column.astype(np.uint64))
    assert offset == len(data)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64])
def test_every_integer_type_packs_to_the_same_bytes(dtype: type) -> None:
    values = np.array([0, 1, 127, 128, 16_383, 16_384, 60_000])
    expected = b"".join(packing.encode_column(values))
    assert b"".join(packing.encode_column(values.astype(dtype))) == expected


def test_values_that_a_page_cannot_hold_are_cut_not_wrapped() -> None:
    values = np.array([-5, 2**62], dtype=np.int64)
    back, _ = packing.decode_column(b"".join(packing.encode_column(values)), 0, 2)
    assert back.tolist() == [0, packing.MAX_VALUE]


def test_damaged_data_is_refused() -> None:
    with pytest.raises(ValueError, match="nine planes"):
        packing.decode_column(b"\xff" * 20, 0, 1)
    with pytest.raises(ValueError, match="buffer"):
        packing.decode_column(b"\x01", 0, 5)
