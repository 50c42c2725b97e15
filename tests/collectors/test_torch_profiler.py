"""The recorder: what it writes, and that nothing of it reaches the user's loop."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpuprof.collectors.torch_profiler import (
    TorchRecorder,
    Window,
    attribution_window,
    named_calls,
    steps_from_optimizers,
    timing_window,
)

torch = pytest.importorskip("torch")


def make_step() -> Any:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["traceEvents"])


def names(path: Path, category: str) -> Counter[str]:
    return Counter(e["name"] for e in events(path) if e.get("cat") == category)


def test_records_exactly_the_steps_of_the_window(tmp_path: Path) -> None:
    """Warm-up and skipped steps are not in the file, and the file is Kineto's own."""
    step = make_step()
    with TorchRecorder(tmp_path, [timing_window(skip=2, steps=3)]) as recorder:
        for _ in range(8):
            step()
            recorder.step()
    assert recorder.failure == ""
    assert [path.name for path in recorder.traces] == ["trace-rank00000.json.gz"]
    assert [path.name for path in tmp_path.iterdir()] == ["trace-rank00000.json.gz"]
    spans = names(recorder.traces[0], "user_annotation")
    assert sum(count for name, count in spans.items() if name.startswith("ProfilerStep#")) == 3
    assert names(recorder.traces[0], "cpu_op")["aten::linear"] == 3


def test_timing_window_records_no_stacks_and_attribution_does(tmp_path: Path) -> None:
    """The costly options distort times, so they stay out of the window whose times count."""
    step = make_step()
    plan = [timing_window(skip=1, steps=2), attribution_window(skip=1, steps=2)]
    with TorchRecorder(tmp_path, plan) as recorder:
        for _ in range(9):
            step()
            recorder.step()
    assert recorder.failure == ""
    timing, attribution = recorder.traces
    assert attribution.name == "attribution-rank00000.json.gz"
    assert not names(timing, "python_function")
    assert any("test_torch_profiler.py" in name for name in names(attribution, "python_function"))
    has_shapes = [
        any("Input Dims" in event.get("args", {}) for event in events(path))
        for path in (timing, attribution)
    ]
    assert has_shapes == [False, True]


def test_done_once_everything_is_recorded(tmp_path: Path) -> None:
    """Later steps cost nothing and change nothing."""
    step = make_step()
    with TorchRecorder(tmp_path, [timing_window(skip=0, steps=1)]) as recorder:
        for taken in range(5):
            assert recorder.done == (taken >= 2)
            step()
            recorder.step()
    assert len(recorder.traces) == 1


def test_short_loop_keeps_the_whole_steps_it_had(tmp_path: Path) -> None:
    """A loop that ends inside the window still gives a trace of what there was."""
    step = make_step()
    with TorchRecorder(tmp_path, [timing_window(skip=1, steps=50)]) as recorder:
        for _ in range(6):
            step()
            recorder.step()
    assert recorder.failure == ""
    assert names(recorder.traces[0], "cpu_op")["aten::linear"] >= 4


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_loop_that_never_reaches_the_window_writes_nothing(tmp_path: Path, steps: int) -> None:
    """An empty trace would be worse than none."""
    step = make_step()
    with TorchRecorder(tmp_path, [timing_window(skip=1, steps=5)]) as recorder:
        for _ in range(steps):
            step()
            recorder.step()
    assert (recorder.traces, recorder.failure) == ([], "")
    assert not list(tmp_path.iterdir())


def test_exception_of_the_loop_passes_and_the_trace_is_kept(tmp_path: Path) -> None:
    """The user's error is the user's, and what was recorded until then is not lost."""
    step = make_step()
    recorder = TorchRecorder(tmp_path, [timing_window(skip=0, steps=50)])
    with pytest.raises(KeyError, match="the user's own"), recorder:
        for _ in range(4):
            step()
            recorder.step()
        raise KeyError("the user's own")
    assert len(recorder.traces) == 1
    assert not torch.autograd._profiler_enabled()


def test_losses_are_bit_equal_with_and_without(tmp_path: Path) -> None:
    """Recording changes no result."""
    torch.manual_seed(3)
    plain = make_step()
    without = [plain() for _ in range(8)]
    torch.manual_seed(3)
    recorded = make_step()
    recorder = TorchRecorder(tmp_path, [timing_window(skip=1, steps=3), attribution_window()])
    with recorder, named_calls(), steps_from_optimizers(recorder.step):
        observed = [recorded() for _ in range(8)]
    assert observed == without
    assert recorder.traces


def test_unwritable_folder_does_not_reach_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line is logged, and training goes on."""
    (tmp_path / "file").write_text("in the way")
    step = make_step()
    with TorchRecorder(tmp_path / "file" / "run", [timing_window(skip=0, steps=1)]) as recorder:
        for _ in range(4):
            step()
            recorder.step()
    assert "could not create the output folder" in recorder.failure
    assert len(caplog.records) == 1


def test_folder_deleted_on_the_way_does_not_reach_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure while writing ends the recording and stops the profiler."""
    out = tmp_path / "run"
    step = make_step()
    with TorchRecorder(out, [timing_window(skip=0, steps=2)]) as recorder:
        out.rmdir()
        for _ in range(6):
            step()
            recorder.step()
    assert recorder.traces == []
    assert recorder.failure.startswith("could not record a step")
    assert len(caplog.records) == 1
    assert not torch.autograd._profiler_enabled()


def test_profiler_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    """Two profilers in one process are an error of torch's, so ours gives way."""
    step = make_step()
    with torch.profiler.profile() as theirs:
        with TorchRecorder(tmp_path, [timing_window(skip=0, steps=1)]) as recorder:
            for _ in range(3):
                step()
                recorder.step()
        step()
    assert "another torch profiler is already active" in recorder.failure
    assert any(event.key == "aten::linear" for event in theirs.key_averages())


def test_rank_comes_from_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch.distributed is set up, torchrun's own word counts."""
    monkeypatch.setenv("RANK", "3")
    step = make_step()
    with TorchRecorder(tmp_path, [timing_window(skip=0, steps=1)]) as recorder:
        for _ in range(2):
            step()
            recorder.step()
    assert recorder.traces[0].name == "trace-rank00003.json.gz"


def test_named_calls_draw_checkpoint_writes_and_restore_the_functions(tmp_path: Path) -> None:
    """Writing a checkpoint runs no operator: without a name a trace shows a gap."""
    before = (torch.save, os.fsync)
    step = make_step()
    with (
        named_calls(),
        TorchRecorder(tmp_path / "run", [timing_window(skip=0, steps=1)]) as recorder,
    ):
        for _ in range(2):
            step()
            with (tmp_path / "checkpoint.pt").open("wb") as file:
                torch.save({"x": torch.ones(2)}, file)
                os.fsync(file.fileno())
            recorder.step()
    assert (torch.save, os.fsync) == before
    spans = names(recorder.traces[0], "user_annotation")
    assert (spans["torch.save"], spans["os.fsync"]) == (1, 1)
    assert torch.load(tmp_path / "checkpoint.pt")["x"].tolist() == [1.0, 1.0]


def test_named_calls_leave_a_later_wrapper_in_place() -> None:
    """Someone who wrapped torch.save after us keeps their wrapper."""
    original = torch.save

    def theirs() -> None: ...

    try:
        with named_calls():
            torch.save = theirs
        assert torch.save is theirs
    finally:
        torch.save = original


def test_first_optimizer_sets_the_beat() -> None:
    """A loop with two optimizers takes one step, not two."""
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    beats: list[int] = []
    with steps_from_optimizers(lambda: beats.append(1)):
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.step()
    optimizers[0].step()
    assert len(beats) == 3


def test_a_window_without_a_step_is_refused() -> None:
    """A mistake in a plan is found where it is made."""
    with pytest.raises(ValueError, match="at least one step"):
        Window(kind="trace", skip=0, steps=0)
