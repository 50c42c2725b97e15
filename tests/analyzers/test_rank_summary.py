"""The summary of a rank: which of its collectives belong to its steps."""

from __future__ import annotations

from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.rank_summary import summarize


def test_collectives_from_before_the_window_are_in_no_step() -> None:
    """A rank that is further ahead has more of them; by order they would shift all others."""
    trace = TraceBuilder(world_size=2)
    for i in range(3):
        trace.launch_collective("allreduce", start_us=i * 20, dur_us=20)
    for number in range(3):
        begun = number * 100
        trace.step(number, start_us=begun, dur_us=100)
        trace.launch_collective("allreduce", launch_us=begun + 10, start_us=begun + 70, dur_us=20)
    assert summarize(account_rank(trace.trace(), 0)).step.tolist() == [-1, -1, -1, 0, 1, 2]
