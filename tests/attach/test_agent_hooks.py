"""Hooks of the agent: what they see, and that they come out again."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpuprof.attach import agent_hooks
from gpuprof.attach.agent_hooks import Hooks
from gpuprof.collectors import hooks as session_hooks


def test_an_attachment_names_the_saves_that_a_session_names() -> None:
    """A copy that drifts would see a checkpoint in one of them only."""
    assert agent_hooks.SAVES == session_hooks.SAVES
    assert agent_hooks.CHECKPOINT == session_hooks.CHECKPOINT


@pytest.mark.parametrize(
    ("module", "name"),
    [("safetensors.torch", "save_file"), ("torch.distributed.checkpoint", "save")],
)
def test_saves_by_other_libraries_are_seen(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    """They have a line, a length and a span in the window; afterwards all is as it was."""
    torch = pytest.importorskip("torch")

    def save(what: str, *, path: str) -> str:
        return what + path

    library = ModuleType(module)
    setattr(library, name, save)
    monkeypatch.setitem(sys.modules, module, library)
    errors: list[str] = []
    put = Hooks(SimpleNamespace(is_recording=lambda: True, error=errors.append))
    put._name_saves()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert getattr(library, name)("a", path="b") == "ab"
    finally:
        put.take_out()
    assert getattr(library, name) is save
    ((kind, what, file, *_),) = put.callers.listed()
    assert (kind, what, file) == ("checkpoint", f"{module}.{name}", __file__)
    assert [event[0] for event in put.events] == ["checkpoint"]
    assert [e.name for e in profile.events() if "checkpoint" in e.name] == ["gpuprof.checkpoint"]
    assert errors == []


def test_libraries_that_the_program_has_not_imported_stay_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, _ in agent_hooks.SAVES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    put = Hooks(SimpleNamespace())
    put._name_saves()
    assert put.undo == []
    assert not {module for module, _ in agent_hooks.SAVES} & set(sys.modules)
