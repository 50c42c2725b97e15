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
    put.name_saves()
    put.name_saves()  # again and again, for what is imported later
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
    put.name_saves()
    assert put.undo == []
    assert not {module for module, _ in agent_hooks.SAVES} & set(sys.modules)


def test_a_library_that_is_imported_after_attaching_is_seen_once_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its package hands a function on to the next module, both would get a name: one save
    would count twice, and one of the names would never come out."""
    inner, outer = (ModuleType(name) for name in ("c.state_dict_saver", "c"))
    names = [(inner.__name__, "save"), (outer.__name__, "save")]
    monkeypatch.setattr(agent_hooks, "SAVES", names)
    monkeypatch.setattr(agent_hooks, "SAVES_IN", [name for name, _ in names])
    put = Hooks(SimpleNamespace(is_recording=lambda: False, error=[].append))
    put.name_saves()

    def save() -> None:
        pass

    importing = SimpleNamespace(_initializing=True)
    outer.__spec__ = importing  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, outer.__name__, outer)
    monkeypatch.setitem(sys.modules, inner.__name__, inner)
    inner.save = save  # type: ignore[attr-defined]
    put.name_saves()
    outer.save = inner.save  # type: ignore[attr-defined]
    assert outer.save is save
    importing._initializing = False
    put.name_saves()
    outer.save()
    assert [event[0] for event in put.events] == ["checkpoint"]
    put.take_out()
    assert inner.save is save
    assert outer.save is save
    put.name_saves()  # too late: nothing goes in any more
    assert outer.save is save
