"""Launches: the join by correlation id, graphs, run-ahead, and a device clock that is off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.runs import training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.launches import SKEW_NOISE_NS, find_launches


def test_each_kernel_is_joined_with_its_own_launch() -> None:
    trace = (
        TraceBuilder()
        .launch_kernel("a", launch_us=10, launch_dur_us=4, start_us=30, dur_us=50)
        .launch_kernel("b", launch_us=20, launch_dur_us=6, start_us=80, dur_us=5, thread=2)
    )
    found = find_launches(trace.trace())
    assert found.known.all()
    assert found.call_start_ns.tolist() == [trace.ns(10), trace.ns(20)]
    assert found.call_end_ns.tolist() == [trace.ns(14), trace.ns(26)]
    assert found.run_ahead_ns.tolist() == [16_000, 54_000]
    assert found.lane[0] != found.lane[1]
    assert found.skew_ns == 0
    assert found.impossible == 0


def test_a_kernel_without_a_recorded_launch_is_unknown_and_counts_for_nothing() -> None:
    trace = (
        TraceBuilder()
        .launch_kernel("backlog", start_us=0, dur_us=9)
        .launch_kernel("a", launch_us=10, start_us=30, dur_us=5)
    )
    found = find_launches(trace.trace())
    assert found.known.tolist() == [False, True]
    assert found.row[0] == -1
    assert found.lane[0] == -1
    assert len(found.run_ahead_ns) == 1


def test_what_was_launched_before_the_window_is_told_by_its_own_stream() -> None:
    """The receive of the first recorded step is under way while kernels of the step before still
    compute. A kernel whose launch is lost later on is no such work."""
    trace = TraceBuilder()
    trace.launch_kernel("old", start_us=0, dur_us=20)
    trace.launch_kernel("recv", launch_us=5, start_us=15, dur_us=60, stream=20)
    trace.launch_kernel("old", start_us=20, dur_us=30)
    trace.launch_kernel("new", launch_us=10, start_us=75, dur_us=10)
    trace.launch_kernel("lost", start_us=85, dur_us=10)
    assert find_launches(trace.trace()).backlog.tolist() == [True, False, True, False, False]


def test_a_stream_without_recorded_launches_goes_by_its_device() -> None:
    trace = TraceBuilder()
    trace.launch_kernel("before", start_us=0, dur_us=5, stream=9)
    trace.launch_kernel("k", launch_us=2, start_us=10, dur_us=5)
    trace.launch_kernel("after", start_us=20, dur_us=5, stream=9)
    assert find_launches(trace.trace()).backlog.tolist() == [True, False, False]


def test_without_any_recorded_launch_nothing_is_known_to_be_older() -> None:
    trace = TraceBuilder().launch_kernel("a", start_us=0, dur_us=5)
    assert find_launches(trace.trace()).backlog.tolist() == [False]


def test_a_graph_launch_stands_for_all_its_kernels() -> None:
    trace = TraceBuilder().launch_graph([("a", 50, 5), ("b", 56, 5), ("c", 62, 5)], launch_us=10)
    found = find_launches(trace.trace())
    assert found.from_graph.tolist() == [True] * 3
    assert len(set(found.row.tolist())) == 1
    assert found.known.all()


def test_an_id_used_twice_goes_to_the_last_call_that_had_begun() -> None:
    """Else a launch from before would look like a kernel that waited for hours."""
    trace = TraceBuilder()
    for launch, start in ((10, 30), (1_000, 1_020)):
        trace.launch_kernel("k", launch_us=launch, start_us=start, dur_us=4)
    read = trace.trace()
    found = find_launches(replace(read, corr=np.full_like(read.corr, 77)))
    assert found.call_start_ns.tolist() == [trace.ns(10), trace.ns(1_000)]


def skewed(early_us: float, n: int = 50) -> TraceBuilder:
    """Kernels that start so long before their own launches."""
    trace = TraceBuilder()
    for i in range(n):
        trace.launch_kernel(
            "k", launch_us=100 * i + 500, start_us=100 * i + 500 - early_us, dur_us=20
        )
    return trace


def test_device_times_before_their_launch_are_measured_and_shifted() -> None:
    """All kernels 40 µs too early: the least shift that makes them possible is 40 µs."""
    trace = skewed(40)
    found = find_launches(trace.trace())
    assert found.skew_ns == 40_000
    assert found.start_ns[0] == trace.ns(500)
    assert found.end_ns[0] == trace.ns(520)
    assert (found.start_ns >= found.call_start_ns).all()
    assert found.impossible == 0


def test_rounding_is_no_skew() -> None:
    """A trace in whole microseconds is off by up to 1 µs at both ends."""
    assert find_launches(skewed(SKEW_NOISE_NS / 1e3).trace()).skew_ns == 0


def test_two_damaged_rows_do_not_move_the_clock() -> None:
    trace = training(6).trace
    for at in (100, 3_000):
        trace.launch_kernel("damaged", launch_us=at + 900, start_us=at, dur_us=1)
    found = find_launches(trace.trace())
    assert found.skew_ns == 0
    assert found.impossible == 2


def test_reused_ids_far_apart_are_no_skew() -> None:
    """20 ms is not a clock error; three such pairs are damage and are counted."""
    found = find_launches(skewed(20_000, n=5).trace())
    assert found.skew_ns == 0
    assert found.impossible == 5


@pytest.mark.parametrize("dialect", ["modern", "epoch", "old", "rocm", "strings", "flows"])
def test_launches_are_found_in_every_dialect(dialect: str) -> None:
    trace = training(3, kernels=(100, 50)).trace.trace(dialect)  # type: ignore[arg-type]
    found = find_launches(trace)
    assert found.known.all()
    assert len(found.row) == 6
    assert np.all(found.start_ns >= found.call_start_ns)


def test_an_empty_trace_has_no_launches() -> None:
    found = find_launches(TraceBuilder().op("aten::mm", start_us=0, dur_us=1).trace())
    assert len(found.row) == 0
    assert len(found.run_ahead_ns) == 0
    assert found.skew_ns == 0
