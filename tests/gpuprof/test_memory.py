"""Giving memory back is a favour: it must work where the C library has no such call."""

from __future__ import annotations

import ctypes

import pytest

from gpuprof.memory import give_back


def test_memory_is_given_back_without_a_word() -> None:
    give_back()


@pytest.mark.parametrize("failure", [OSError, AttributeError])
def test_a_c_library_without_the_call_is_no_failure(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise failure

    monkeypatch.setattr(ctypes, "CDLL", missing)
    give_back()
