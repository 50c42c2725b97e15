"""Windows of the agent: what is written, and that it is written once."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.attach import agent_windows, enter
from gpuprof.attach.agent_loader import LoaderWatch
from gpuprof.attach.agent_windows import Windows


def windows() -> tuple[Windows, list[str]]:
    errors: list[str] = []
    made = Windows([], errors.append, syncs=None, loader=LoaderWatch())
    made.finished.append((object(), {"file": "trace-1.json"}))
    return made, errors


def test_a_program_that_ends_while_a_trace_is_written_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing it a second time meanwhile would end the program from C++."""
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def save(profile: Any, path: str) -> None:
        begun.set()
        assert go_on.wait(100)
        written.append(path)
        Path(path).touch()

    monkeypatch.setattr(agent_windows, "save_trace", save)
    one, errors = windows()
    beside = threading.Thread(target=one.export, args=(str(tmp_path),))
    beside.start()
    assert begun.wait(100)
    at_exit = threading.Thread(target=one.export, args=(str(tmp_path),))
    at_exit.start()
    go_on.set()
    beside.join()
    at_exit.join()
    assert len(written) == 1
    assert [window["file"] for window in one.recorded] == ["trace-1.json"]
    assert (tmp_path / "trace-1.json").exists()
    assert errors == []


def test_what_can_not_be_written_is_said_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(profile: Any, path: str) -> None:
        Path(path).write_text("{")
        raise OSError("the disk is full")

    monkeypatch.setattr(agent_windows, "save_trace", save)
    one, errors = windows()
    one.export(str(tmp_path))
    assert errors == ["the trace could not be written: the disk is full"]
    assert (one.recorded, one.finished, list(tmp_path.iterdir())) == ([], [], [])


def test_a_window_is_not_closed_in_the_middle_of_the_profilers_own_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pending call may come anywhere. Where torch is just entering a step, stopping would raise
    and leave the profiler active in the target for good."""
    torch = pytest.importorskip("torch")
    errors: list[str] = []
    plan = {
        "kind": "timing",
        "steps": 0,
        "seconds": 60,
        "stacks": False,
        "shapes": False,
        "apart": 0,
    }
    one = Windows(
        [plan], errors.append, syncs=SimpleNamespace(take_out=lambda: None), loader=LoaderWatch()
    )
    with one.alone():
        one.open(0)
    with one.alone():
        one.step()
    enter = torch.autograd.profiler.record_function.__enter__

    def interrupted(self: Any) -> Any:
        one.ask(lambda: one.close(drop=True))
        assert one.profile is not None, "closed at once"
        return enter(self)

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", interrupted)
    with one.alone():
        one.step()
    assert one.is_closed
    assert not torch._C._autograd._profiler_enabled()
    assert errors == []


def without_steps(stop_s: float, *, stacks: bool = True, seconds: float = 0) -> Windows:
    """After a plain window of two seconds whose stop took so long."""
    plan = {"stacks": stacks, "seconds": seconds}
    one = Windows([plan], [].append, syncs=None, loader=LoaderWatch())
    one.timed_ns, one.stop_ns_per_step = 2_000_000_000, int(stop_s * 1e9)
    return one


def test_a_window_with_stacks_is_cut_by_what_stopping_the_plain_one_cost() -> None:
    """A loop without steps has no count to cut: its seconds are. Stacks cost three times."""
    assert without_steps(0.9).timed_s() == pytest.approx(2 / 3)
    assert without_steps(0.01).timed_s() == 2.0  # nobody notices
    assert without_steps(0.08).timed_s() == pytest.approx(1.0)  # 120 ms are allowed
    assert without_steps(0.9, seconds=0.5).timed_s() == 0.5


def test_a_plain_window_is_cut_by_what_stopping_the_probe_cost() -> None:
    """A loop of many small operators would stand still for seconds at its end."""
    assert without_steps(2.5, stacks=False).timed_s() == pytest.approx(0.2)  # 250 ms are allowed
    assert without_steps(0.2, stacks=False).timed_s() == 2.0
    assert without_steps(50.0, stacks=False).timed_s() == agent_windows.PROBE_S
    assert without_steps(5.0, stacks=False, seconds=3.0).timed_s() == 3.0  # it was asked for


def test_the_first_window_without_steps_is_a_probe_that_is_dropped() -> None:
    """What it cost to stop is kept, and the same window opens again."""
    pytest.importorskip("torch")
    plan = [
        {"kind": kind, "steps": 0, "seconds": 0, "stacks": False, "shapes": False, "apart": 0}
        for kind in ("timing", "later")
    ]
    nobody = SimpleNamespace(take_out=lambda: None)
    one = Windows(plan, [].append, syncs=nobody, loader=LoaderWatch())
    assert one.timed_s() == agent_windows.PROBE_S
    one.open(0, timed=True)
    one.end_timed()
    assert (one.finished, len(one.plan)) == ([], 2)
    assert one.timed_ns > 0
    assert one.stop_ns_per_step > 0
    one.timed_s()
    one.open(0, timed=True)
    one.end_timed()
    ((_, window),) = one.finished
    assert (window["kind"], len(one.plan)) == ("timing", 1)
    length_ns = window["until_ns"] - window["from_ns"]
    assert one.timed_ns == max(1, length_ns - window["ready_ns"])


def test_seconds_that_were_asked_for_need_no_probe() -> None:
    one = Windows([{"stacks": False, "seconds": 3.0}], [].append, syncs=None, loader=LoaderWatch())
    assert one.timed_s() == 3.0
    assert not one.is_probe


def test_no_name_of_one_part_hides_that_of_another() -> None:
    """The agent travels as one text: there, the parts share their names."""
    named: dict[str, str] = {}
    for part in enter.PARTS:
        tree = ast.parse((Path(enter.__file__).parent / f"{part}.py").read_text())
        for node in tree.body:
            names = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
            if isinstance(node, ast.Assign):
                names = [one.id for one in node.targets if isinstance(one, ast.Name)]
            for name in names:
                assert name not in named, f"{name} is in {named[name]} and in {part}"
                named[name] = part
