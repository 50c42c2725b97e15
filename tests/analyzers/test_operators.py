"""The join of device events with the operators that launched them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.traces import TraceBuilder
from gpuprof.analyzers.launches import find_launches
from gpuprof.analyzers.operators import (
    _last_covering,
    count_operators,
    innermost,
    launching_ops,
)
from gpuprof.trace import Category


def ops_by_name(builder: TraceBuilder) -> list[str]:
    trace = builder.trace()
    found = launching_ops(trace, find_launches(trace), count_operators(trace))
    return [trace.names[trace.name[row]] if row >= 0 else "" for row in found.tolist()]


def test_the_innermost_counted_operator_is_found_through_unknown_ones() -> None:
    builder = (
        TraceBuilder()
        .op("aten::linear", start_us=0, dur_us=50, dims=[[8, 4], [16, 4], []])
        .op("aten::addmm", start_us=5, dur_us=30, dims=[[16], [8, 4], [4, 16], [], []])
        .op("my::wrapper", start_us=8, dur_us=20, dims=[[8, 4]])
        .launch_kernel("inner", launch_us=10, launch_dur_us=5, start_us=60, dur_us=5)
        .launch_kernel("outer", launch_us=40, launch_dur_us=5, start_us=70, dur_us=5)
        .launch_kernel("outside", launch_us=90, launch_dur_us=5, start_us=100, dur_us=5)
    )
    assert ops_by_name(builder) == ["aten::addmm", "aten::linear", ""]


def test_operators_of_another_thread_are_not_the_launcher() -> None:
    builder = (
        TraceBuilder()
        .op("aten::mm", start_us=0, dur_us=50, dims=[[8, 4], [4, 16]], thread=7)
        .launch_kernel("k", launch_us=10, launch_dur_us=5, start_us=60, dur_us=5, thread=8)
    )
    assert ops_by_name(builder) == [""]


def test_one_cost_stands_for_all_calls_with_the_same_inputs() -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.op("aten::mm", start_us=10 * number, dur_us=5, dims=[[8, 4], [4, 16]])
    counted = count_operators(builder.trace())
    assert len(counted.row) == 5
    assert len(counted.costs) == 1
    assert counted.costs[0].flops == 2 * 8 * 4 * 16


@settings(deadline=None)  # a busy machine is no fault
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=70),
    st.lists(st.tuples(st.integers(0, 69), st.integers(0, 30)), max_size=20),
)
def test_the_search_tree_agrees_with_a_plain_loop(
    ends: list[int], queries: list[tuple[int, int]]
) -> None:
    last = np.array([min(place, len(ends) - 1) for place, _ in queries], dtype=np.int64)
    times = np.array([time for _, time in queries], dtype=np.int64)
    found = _last_covering(np.array(ends, dtype=np.int64), last, times)
    for place, time, answer in zip(last.tolist(), times.tolist(), found.tolist(), strict=True):
        expected = [index for index in range(place + 1) if ends[index] > time]
        assert answer == (expected[-1] if expected else -1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=20), st.integers(0, 80))
def test_innermost_agrees_with_a_plain_loop(spans: list[tuple[int, int]], time: int) -> None:
    builder = TraceBuilder().op("anchor", start_us=100, dur_us=1)
    for start, duration in spans:
        builder.op("op", start_us=start, dur_us=duration)
    trace = builder.trace()
    rows = trace.rows_of(Category.CPU_OP)
    anchor = next(row for row in rows.tolist() if trace.names[trace.name[row]] == "anchor")
    when = int(trace.start_ns[anchor]) + (time - 100) * 1000
    found = innermost(trace, trace.lane[[anchor]], np.array([when]), rows)[0]
    covering = [row for row in rows.tolist() if trace.start_ns[row] <= when < trace.end_ns[row]]
    assert found == (covering[-1] if covering else -1)
