"""Places: whose line a moment is, and whose it is not."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.runs import Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.host import HostActivity, host_activity
from gpuprof.analyzers.launches import find_launches
from gpuprof.analyzers.places import (
    MAX_PLACES,
    is_user_frame,
    lines_of,
    lines_within,
    records_lines,
)
from gpuprof.analyzers.steps import find_marks
from gpuprof.diagnosis import Place
from gpuprof.trace import Trace


@pytest.mark.parametrize(
    "frame",
    [
        "train.py(12): step",
        "/home/me/project/model.py(3): forward",
        "C:\\work\\train.py(7): main",
        "src/torchy/loop.py(1): run",
        "gpuprof/workloads/slow_loader.py(40): main",
        "<ipython>/cell.py(1): f",
    ],
)
def test_the_users_frames(frame: str) -> None:
    assert is_user_frame(frame)


@pytest.mark.parametrize(
    "frame",
    [
        "torch/nn/modules/module.py(1501): _call_impl",
        "/usr/lib/python3.11/threading.py(9): run",
        "/venv/lib/python3.11/site-packages/mylib/x.py(1): f",
        "/opt/dist-packages/x.py(1): f",
        "contextlib.py(12): inner",
        "json/decoder.py(1): decode",
        "transformers/trainer.py(1): train",
        "gpuprof/session.py(1): step",
        "<built-in method matmul of type object at 0x7f>",
        "<frozen runpy>(1): f",
        "nn.Module: Linear_0",
        "",
    ],
)
def test_frames_of_libraries_are_not_the_users(frame: str) -> None:
    assert not is_user_frame(frame)


def read(job: Job | TraceBuilder) -> tuple[Trace, HostActivity]:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    return trace, host_activity(trace, find_launches(trace), find_marks(trace).lane)


def lines(
    job: Job | TraceBuilder, moments: dict[float, float], whole: float, lane: int = -1
) -> tuple[Place, ...]:
    trace, host = read(job)
    return lines_of(
        trace,
        host,
        np.full(len(moments), host.main_lane if lane < 0 else lane, np.int64),
        np.array([TraceBuilder.ns(us) for us in moments], np.int64),
        np.array(list(moments.values()), np.float64),
        whole,
    )


def nested() -> TraceBuilder:
    """train.py(1): main > train.py(30): train_step > torch > train.py(31): loss."""
    return (
        TraceBuilder()
        .step(0, start_us=0, dur_us=1_000)
        .launch_kernel("k", launch_us=5, start_us=20, dur_us=5)
        .python("train.py(1): main", start_us=0, dur_us=1_000)
        .python("train.py(30): train_step", start_us=100, dur_us=800)
        .python("torch/nn/modules/module.py(1501): _call_impl", start_us=200, dur_us=500)
        .python("train.py(31): loss", start_us=300, dur_us=100)
    )


def test_the_innermost_line_of_the_user_answers() -> None:
    found = lines(nested(), {350: 60.0, 600: 30.0, 950: 10.0}, whole=200.0)
    assert [(p.file, p.line, p.function, p.share) for p in found] == [
        ("train.py", 31, "loss", 0.3),
        ("train.py", 30, "train_step", 0.15),
        ("train.py", 1, "main", 0.05),
    ]


def test_light_lines_are_noise_and_there_are_at_most_five() -> None:
    trace = TraceBuilder().step(0, start_us=0, dur_us=10_000)
    moments = {}
    for i in range(12):
        trace.python(f"train.py({i + 1}): f{i}", start_us=100 * i, dur_us=100)
        moments[100 * i + 50.0] = 100.0 if i < 8 else 1.0
    found = lines(trace, moments, whole=1_000)
    assert len(found) == MAX_PLACES
    assert all(place.share == pytest.approx(0.1) for place in found)


def test_the_backward_thread_is_answered_for_by_its_caller() -> None:
    trace = nested().launch_kernel("b", launch_us=350, start_us=380, dur_us=5, thread=2)
    read_trace, _ = read(trace)
    other = int(find_launches(read_trace).lane[1])
    found = lines(trace, {350: 1.0}, whole=1.0, lane=other)
    assert [(p.file, p.line) for p in found] == [("train.py", 31)]


def test_stacks_of_old_traces_name_lines_as_well() -> None:
    stack = "torch/nn/functional.py(9): linear;model.py(7): forward;train.py(3): main"
    trace = TraceBuilder().op("aten::mm", start_us=0, dur_us=100, stack=stack)
    assert records_lines(trace.trace())
    assert [(p.file, p.line) for p in lines(trace, {50: 1.0}, whole=1.0)] == [("model.py", 7)]


def test_without_lines_there_are_none() -> None:
    job = training(2)
    assert not records_lines(job.trace.trace())
    assert lines(job, {50: 1.0}, whole=1.0) == ()


def test_no_moments_have_no_lines() -> None:
    assert lines(nested(), {}, whole=1.0) == ()


@pytest.mark.parametrize(
    ("path", "is_users"),
    [
        ("/home/me/src/gpuprof/collectors/hooks.py", False),
        ("/home/me/src/gpuprof/rank_recorder.py", False),
        ("/home/me/src/gpuprof/rank_windows.py", False),
        ("/home/me/src/gpuprof/rank_notes.py", False),
        ("gpuprof/collectors/hooks.py", False),
        ("/home/me/src/gpuprof/workloads/late_rank.py", True),
        ("/home/me/gpuprof/train.py", True),
    ],
)
def test_gpuprofs_own_frames_are_not_the_users(path: str, is_users: bool) -> None:
    """Not in a checkout either; a user's folder may have the same name."""
    assert is_user_frame(f"{path}(12): step") is is_users


def test_a_function_that_ran_before_the_recording_has_no_line() -> None:
    """What is recorded of it is the line where it stood when the recording began."""
    builder = TraceBuilder(gpu="")
    builder.python("train.py(70): main", start_us=0, dur_us=4_000)
    for number in range(3):
        builder.step(number, start_us=1_000 + 1_000 * number, dur_us=1_000)
        builder.python("train.py(8): count", start_us=1_600 + 1_000 * number, dur_us=300)
    trace = builder.trace()
    host = account_rank(trace, 0).host
    lanes = np.full(2, host.main_lane, np.int64)
    at = np.array([1_200, 1_700], np.int64) * 1_000 + int(trace.start_ns.min())
    for weights, names in (
        ([2.0, 1.0], [("main", None), ("count", 8)]),
        ([1.1, 1.0], [("main", None), ("count", 8)]),
        ([1.0, 1.0], [("count", 8), ("main", None)]),  # half of it is on lines: they are the answer
    ):
        places = lines_of(trace, host, lanes, at, np.array(weights), 3.0)
        assert [(p.function, p.line) for p in places] == names


def test_a_stretch_is_shared_among_all_that_ran_in_it() -> None:
    """One look at its middle would name `pad` alone, though it is a fifth of the stretch."""
    builder = TraceBuilder(gpu="").step(0, start_us=0, dur_us=2_000)
    for number in range(10):
        builder.python("train.py(8): clean", start_us=500 + 100 * number, dur_us=80)
        builder.python("train.py(9): pad", start_us=580 + 100 * number, dur_us=20)
    builder.python("train.py(20): log", start_us=1_600, dur_us=10)
    trace = builder.trace()
    host = account_rank(trace, 0).host
    start, end = (
        np.array(us, np.int64) * 1_000 + int(trace.start_ns.min())
        for us in ([500, 1_600], [1_500, 1_600])
    )
    lanes = np.full(2, host.main_lane, np.int64)
    places = lines_within(trace, host, lanes, start, end, np.array([8_000.0, 2_000.0]), 10_000.0)
    assert [p.line for p in places] == [8, 20, 9]  # a stretch without length is looked at once
    assert [p.share for p in places] == pytest.approx([0.64, 0.2, 0.16], abs=0.01)
