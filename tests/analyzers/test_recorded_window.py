"""What the recorder noted reaches the reader: what recording cost, and how busy the machine was."""

from __future__ import annotations

import pytest

from fixtures.runs import plain
from gpuprof.analyzers.recorded_window import (
    WAITING,
    RecordedWindow,
    core_wait_frac,
    recorded_window,
    recording_cost,
    window_warnings,
    with_called_lines,
)
from gpuprof.diagnosis import Place
from gpuprof.run import CallLine, Overhead, RankRecord, SyncLine, WindowRecord


def record(*, step_ms: float, ready_ms: float | None, outside_ms: float | None) -> RankRecord:
    window = WindowRecord(
        kind="timing", file="trace-rank00003.json.gz", first_step=6, steps=10, step_ms=step_ms
    )
    window.core_ms, window.ready_ms = 40.0, ready_ms
    cost = Overhead(step_ms=outside_ms, step_call_us=5.0, windows_ms=400.0, run_ms=9_000.0)
    return RankRecord(rank=3, steps=100, windows=[window], overhead=cost)


def told(**facts: float | None) -> dict[int, RecordedWindow]:
    return {3: recorded_window(record(**facts), "/runs/a/trace-rank00003.json.gz")}  # type: ignore[arg-type]


def test_a_busy_machine_is_told() -> None:
    """Times of a machine that others use are no times of the code."""
    (line,) = window_warnings(told(step_ms=50.0, ready_ms=10.0, outside_ms=48.0))
    assert "rank 3" in line
    assert "without a core 20 % of the recorded time" in plain(line)


def test_a_quiet_machine_is_not() -> None:
    """Neither one where the kernel does not count."""
    assert not window_warnings(told(step_ms=50.0, ready_ms=0.5, outside_ms=48.0))
    assert not window_warnings(told(step_ms=50.0, ready_ms=None, outside_ms=None))


def test_steps_that_the_profiler_slows_down_are_told() -> None:
    """A gain in milliseconds is one of the recorded steps."""
    (line,) = window_warnings(told(step_ms=90.0, ready_ms=None, outside_ms=60.0))
    assert "90.0 ms in the recorded window and 60.0 ms outside" in plain(line)


def test_too_few_steps_outside_say_nothing() -> None:
    """The first steps of a run are no measure of the others."""
    short = record(step_ms=90.0, ready_ms=None, outside_ms=60.0)
    short.steps = 14
    assert not window_warnings({3: recorded_window(short, "trace-rank00003.json.gz")})


def test_another_windows_times_are_not_taken() -> None:
    """The trace that is analyzed decides, not the first window of the record."""
    window = recorded_window(
        record(step_ms=90.0, ready_ms=9.0, outside_ms=60.0), "trace-2-rank00003.json.gz"
    )
    assert (window.step_ms, window.ready_frac) == (None, 0.0)


def test_the_cost_of_recording_is_a_fact() -> None:
    """Each with its unit, and as a share of the step that it is added to."""
    facts = recording_cost(told(step_ms=52.0, ready_ms=1.0, outside_ms=50.0))
    assert facts["cost of gpuprof outside the windows"] == "5.0 µs a step (0.01 %)"
    assert facts["step in the recorded window"] == "52.0 ms; 50.0 ms outside the windows"
    assert facts["starting and writing the windows"] == "0.4 s of 9 s recorded"
    assert recording_cost({}) == {}


def noted(*calls: CallLine, syncs: tuple[SyncLine, ...] = ()) -> dict[int, RecordedWindow]:
    whole = record(step_ms=50.0, ready_ms=None, outside_ms=None)
    whole.call_lines, whole.sync_lines = list(calls), list(syncs)
    return {3: recorded_window(whole, "trace-rank00003.json.gz")}


def call(kind: str, line: int, total_ms: float) -> CallLine:
    return CallLine(
        kind=kind,
        call="torch.save",
        file="train.py",
        line=line,
        function="main",
        count=2,
        total_ms=total_ms,
    )


def test_lines_that_no_stack_has_come_from_the_recorder() -> None:
    """A save outside the window with stacks; a loop that runs since before it. Small ones, and
    those of another kind, are left out."""
    told = noted(call("checkpoint", 9, 200.0), call("checkpoint", 7, 1.0), call("input", 3, 900.0))
    for places in ((), (Place(file="train.py", function="main"),)):
        found = with_called_lines(places, told, 3, "checkpoint")
        assert [(p.file, p.line, p.function) for p in found] == [("train.py", 9, "main")]


def test_lines_of_stacks_stay() -> None:
    """They are weighed by what the device waited."""
    mine = (Place(file="train.py", line=4, function="load"),)
    assert with_called_lines(mine, noted(call("input", 3, 900.0)), 3, "input") == mine
    assert with_called_lines((), noted(call("input", 3, 900.0)), 8, "input") == ()


def test_reads_of_a_cpu_tensor_are_no_synchronization() -> None:
    """Nothing waits there."""
    line = SyncLine(call=".item()", file="a.py", line=1, device="cpu", count=9, total_ms=9.0)
    cuda = SyncLine(call=".item()", file="a.py", line=2, device="cuda", count=9, total_ms=1.0)
    found = with_called_lines((), noted(syncs=(line, cuda)), 3, "sync")
    assert [place.line for place in found] == [2]


@pytest.mark.parametrize(
    ("text", "share"),
    [("57\u00a0% of the recorded time", 0.57), ("<\u00a00.1\u00a0% of the recorded time", 0.001),
     ("6.3\u00a0% of the recorded time", 0.063), ("", None)],
)  # fmt: skip
def test_the_wait_for_a_core_is_read_back_from_a_diagnosis(text: str, share: float | None) -> None:
    assert core_wait_frac({WAITING: text} if text else {}) == share
