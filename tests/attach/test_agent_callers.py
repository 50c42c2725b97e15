"""The lines that the agent counts, and that all of its wrappers come out again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuprof.attach.agent_hooks import Hooks  # noqa: E402


class Deaf:
    """An agent that does nothing."""

    def error(self, text: str) -> None:
        raise AssertionError(text)

    def is_recording(self) -> bool:
        return False

    def beat(self) -> None: ...

    def make_room(self) -> None: ...


def wrapped() -> dict[str, Any]:
    names = ("item", "tolist", "__repr__", "__bool__", "__array__")
    return {name: getattr(torch.Tensor, name) for name in names}


def test_saves_and_batches_keep_their_lines(tmp_path: Path) -> None:
    """Only the outermost call: a save flushes to the disk, and that is the save's."""
    hooks = Hooks(Deaf())
    before = torch.save
    hooks.put(torch)
    try:
        loader = torch.utils.data.DataLoader([1.0, 2.0, 3.0])
        for _ in loader:
            torch.save({"x": 1}, tmp_path / "saved")
    finally:
        hooks.take_out()
    assert torch.save is before
    counted = {(kind, what): entry for kind, what, *entry in hooks.callers.listed()}
    file, _, function, device, count, spent_ns = counted["checkpoint", "torch.save"]
    assert (Path(file).name, function, device) == (
        Path(__file__).name,
        "test_saves_and_batches_keep_their_lines",
        "",
    )
    assert count == 3
    assert spent_ns > 0
    assert counted["input", "next(DataLoader)"][4] == 4  # the last one finds the end


def test_reads_of_a_tensor_are_counted_by_line_and_taken_out() -> None:
    """On the main thread only, and as if nothing had been afterwards."""
    hooks = Hooks(Deaf())
    before = wrapped()
    tensor = torch.ones(2)
    hooks.syncs.put_in(torch)
    try:
        assert tensor.sum().item() == 2.0
        assert "tensor" in repr(tensor)
        thread = threading.Thread(target=tensor.tolist)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError):
            bool(tensor)
    finally:
        hooks.syncs.take_out()
    assert wrapped() == before
    assert "item" not in vars(torch.Tensor)
    counted = {what: (device, count) for _, what, *_, device, count, _ in hooks.callers.listed()}
    assert counted[".item()"] == ("cpu", 1)
    assert counted["print(tensor)"] == ("cpu", 1)
    assert counted["bool(tensor)"] == ("cpu", 1)
    assert ".tolist()" not in counted
