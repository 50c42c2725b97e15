"""Symbols and padding of mapped files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.attach import elf

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_this_interpreter_is_found() -> None:
    """Its functions are where the dynamic linker has them."""
    import ctypes

    found = elf.find_interpreter(os.getpid(), elf.mappings(os.getpid()))
    assert found is not None
    there = ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p).value
    assert found.functions["Py_AddPendingCall"][0] == there


def test_padding_is_inside_code_and_at_the_end_of_a_page() -> None:
    """It never reaches into another page, and lies in a mapping that may be run."""
    maps = elf.mappings(os.getpid())
    for address in elf.unused_code(os.getpid(), maps, 300):
        mapping = next(m for m in maps if m.start <= address < m.end)
        assert "x" in mapping.flags
        assert address // elf.PAGE_BYTES == (address + 299) // elf.PAGE_BYTES


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_what_is_no_elf_file_is_nothing(tmp_path_factory, data: bytes, with_magic: bool) -> None:
    """Damaged headers are no crash."""
    path = Path(tmp_path_factory.mktemp("elf")) / "file"
    path.write_bytes((b"\x7fELF\x02\x01" if with_magic else b"") + data)
    found = elf.read_elf(path, elf.NEEDED)
    assert found is None or found.symbols == {}
