# ruff: noqa: E501 (byte strings are quoted whole)
"""The pickle reader admits plain values and nothing that could run."""

from __future__ import annotations

import contextlib
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.readers.plain_pickle import PlainPickleError, loads

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(values, st.integers(0, 5))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    if protocol < 3 and ("bytes" in repr(type(value)) or _holds(value, (bytes, set))):
        return  # old protocols write bytes and sets as calls
    if protocol < 4 and _holds(value, (set,)):
        return
    assert loads(pickle.dumps(value, protocol)) == value


def _holds(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds):
        return True
    if isinstance(value, dict):
        return any(_holds(item, kinds) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds(item, kinds) for item in value)
    return False


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/owned",)


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_refused(protocol: int) -> None:
    with pytest.raises(PlainPickleError, match="holds objects"):
        loads(pickle.dumps({"a": Evil()}, protocol))


@pytest.mark.parametrize(
    "data",
    [b"", b".", b"(", b"\x80\x02}q", b"\x80\x02X\xff\xff\xff\x7fabc.", b"j\xff\xff\xff\xff.", b"e.", b"(s.",
     b"\x8b\xff\xff\xff\x7f.", b"L" + b"9" * 10000 + b"L\n.", b"]}s.", b"(K\x01d."],
)  # fmt: skip
def test_damaged_data_is_refused(data: bytes) -> None:
    with pytest.raises(PlainPickleError):
        loads(data)


def test_huge_memo_index_costs_no_memory() -> None:
    """The C unpickler would reserve gigabytes for this index."""
    assert loads(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_end_in_a_value_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(PlainPickleError):
        loads(data)
