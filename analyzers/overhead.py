"""What the profiler itself cost the host.

Every recorded operator, Python call, runtime call and allocation took the host some time that an
unprofiled run does not spend. On a run where host and device are close that decides which of them
looks like the limit, so the bound class is asked on the program with this cost taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]

COST_NS = {
    Category.CPU_OP: 1_000,
    Category.USER_ANNOTATION: 1_000,
    Category.RUNTIME: 1_000,
    Category.PYTHON: 500,
}
"""Low ends of what one record costs: 1 to 2 µs an operator (`benchmarks/profiler_cost.py` measures
it), about 1 µs a CUPTI callback, 0.5 to 1 µs a Python call. Low, because taking out too much would
hide a host that really is the limit."""

SHAPES_NS = 500
"""Recording the inputs of an operator, on top."""

MEMORY_NS = 500
"""One allocator record."""

MAX_FRAC = 0.6
"""Never more than this part of a stretch of host work is blamed on the profiler."""


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """Records of the driving threads, by time: time_ns ascending, total_ns the running sum of what
    they cost, both int64 (n,)."""

    time_ns: I64
    total_ns: I64

    def between(self, start_ns: I64, end_ns: I64) -> I64:
        """Cost of the records made in each stretch [start, end), ns, (k,)."""
        total = np.concatenate((np.zeros(1, np.int64), self.total_ns))
        low = np.searchsorted(self.time_ns, start_ns, side="left")
        high = np.searchsorted(self.time_ns, end_ns, side="left")
        cost = np.maximum(total[np.maximum(high, low)] - total[low], 0)
        most = (MAX_FRAC * np.maximum(end_ns - start_ns, 0)).astype(np.int64)
        bounded: I64 = np.minimum(cost, most)
        return bounded


def profiler_cost(trace: Trace, lanes: tuple[int, ...]) -> ProfilerCost:
    """The records that the profiler made on these threads, and what each cost."""
    price = np.zeros(max(Category) + 1, np.int64)
    for category, each in COST_NS.items():
        price[category] = each
    mine = np.flatnonzero(trace.on_lanes(lanes) & trace.is_one_of(*COST_NS))
    time = trace.start_ns.take(mine)
    cost = price.take(trace.category.take(mine)) + SHAPES_NS * (trace.op_args.take(mine) >= 0)
    memory = trace.memory.time_ns
    if not len(memory):  # then in order as it is
        return ProfilerCost(time, np.cumsum(cost))
    time = np.concatenate((time, memory))
    cost = np.concatenate((cost, np.full(len(memory), MEMORY_NS, np.int64)))
    order = np.argsort(time, kind="stable")
    return ProfilerCost(time[order], np.cumsum(cost[order]))
