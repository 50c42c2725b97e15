"""The profiler's own cost: the price of each record, and never more than a part of the work."""

from __future__ import annotations

import numpy as np

from fixtures.traces import TraceBuilder
from gpuprof.analyzers.overhead import COST_NS, MAX_FRAC, MEMORY_NS, SHAPES_NS, profiler_cost
from gpuprof.trace import Category


def test_every_record_of_the_driving_threads_costs_its_price() -> None:
    builder = (
        TraceBuilder()
        .op("aten::mm", start_us=10, dur_us=5, dims=[[4, 4], [4, 4]])
        .op("aten::add", start_us=20, dur_us=5)
        .python("train.py(1): f", start_us=30, dur_us=5)
        .runtime("cudaMalloc", start_us=40, dur_us=5)
        .op("aten::mm", start_us=50, dur_us=5, thread=9)
    )
    trace = builder.trace()
    main = int(trace.lane[0])
    cost = profiler_cost(trace, (main,))
    between = cost.between(np.array([builder.ns(0)]), np.array([builder.ns(100)]))
    shapes = SHAPES_NS * int((trace.op_args[trace.lane == main] >= 0).sum())
    assert shapes >= SHAPES_NS
    expected = 2 * COST_NS[Category.CPU_OP] + COST_NS[Category.PYTHON] + COST_NS[Category.RUNTIME]
    assert between.tolist() == [expected + shapes]


def test_allocator_records_cost_as_well() -> None:
    builder = TraceBuilder().op("aten::add", start_us=0, dur_us=100)
    builder.memory(time_us=10, size_bytes=512).memory(time_us=20, size_bytes=-512)
    trace = builder.trace()
    cost = profiler_cost(trace, (int(trace.lane[0]),))
    assert cost.between(np.array([builder.ns(5)]), np.array([builder.ns(50)])).tolist() == [
        2 * MEMORY_NS
    ]


def test_no_more_than_a_part_of_a_stretch_is_blamed_on_the_profiler() -> None:
    builder = TraceBuilder()
    for i in range(100):
        builder.op("aten::add", start_us=i / 10, dur_us=0.05)
    trace = builder.trace()
    cost = profiler_cost(trace, (int(trace.lane[0]),))
    stretch = cost.between(np.array([builder.ns(0)]), np.array([builder.ns(10)]))
    assert stretch.tolist() == [int(MAX_FRAC * 10_000)]


def test_stretches_without_records_or_without_length_cost_nothing() -> None:
    builder = TraceBuilder().op("aten::add", start_us=0, dur_us=1)
    cost = profiler_cost(builder.trace(), (0,))
    start = np.array([builder.ns(5), builder.ns(9)])
    end = np.array([builder.ns(8), builder.ns(1)])
    assert cost.between(start, end).tolist() == [0, 0]
