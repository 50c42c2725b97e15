"""Which operator launched each device event, as far as its cost can be counted.

A device event belongs to the runtime call with its correlation id, and that call to the innermost
operator on the same thread that encloses it. Operators whose cost is not known (a user's function,
`ProfilerStep`) are looked through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.convolutions import convolution_outputs
from gpuprof.analyzers.device_columns import DTYPES, NameColumns
from gpuprof.analyzers.flops import OpCost, cost_of, is_countable
from gpuprof.analyzers.kernels import Kind
from gpuprof.analyzers.launches import Launches
from gpuprof.distinct import distinct, is_in
from gpuprof.trace import Category, Trace

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CountedOps:
    """The operator calls of a trace whose cost is known.

    row: int64 (n,), ascending rows of the trace. cost: int64 (n,), index into `costs`: calls of one
    operator with the same inputs share one.
    """

    row: I64
    cost: I64
    costs: tuple[OpCost, ...]


def count_operators(trace: Trace) -> CountedOps:
    """Costs of all operator calls with recorded shapes; each distinct call is computed once."""
    known = trace.name_mask(is_countable)
    shaped = (trace.op_args >= 0) & (trace.category == Category.CPU_OP)
    rows = np.flatnonzero(shaped & known).astype(np.int64)
    width = max(len(trace.arg_sets), 1)
    keys, inverse = np.unique(
        trace.name[rows].astype(np.int64) * width + trace.op_args[rows], return_inverse=True
    )
    calls = [(trace.names[key // width], trace.arg_sets[key % width]) for key in keys.tolist()]
    outputs = convolution_outputs(calls)
    costs: list[OpCost] = []
    index = np.full(len(calls), -1, dtype=np.int64)
    for place, (name, args) in enumerate(calls):
        cost = cost_of(name, args, outputs)
        if cost is not None:
            index[place] = len(costs)
            costs.append(cost)
    of_row = index[inverse.reshape(-1)] if calls else np.empty(0, dtype=np.int64)
    counted = of_row >= 0
    return CountedOps(rows[counted], of_row[counted], tuple(costs))


def launching_ops(trace: Trace, launches: Launches, counted: CountedOps) -> I64:
    """The row of the innermost counted operator that launched each device event, -1 where none.

    Returns:
        int64 (n_device,), in the order of `trace.device.rows`.
    """
    found = np.full(len(trace.device), -1, dtype=np.int64)
    known = np.flatnonzero(launches.known)
    if len(known):
        found[known] = innermost(
            trace, launches.lane[known], launches.call_start_ns[known], counted.row
        )
    return found


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """Each device event's share of the cost of its operator, (n_device,); NaN where there is none.

    row: the operator's row, -1 where none was counted. dtype: index into `DTYPES`, of its inputs.
    flops, bytes, elements: as in `OpCost`. reduced: the call used an algorithm (Winograd, FFT) that
    does fewer operations than were counted, in this kernel or in another.
    """

    row: I64
    dtype: U8
    flops: F64
    bytes: F64
    elements: F64
    reduced: Bools


def share_costs(trace: Trace, ops: I64, counted: CountedOps, columns: NameColumns) -> SharedCosts:
    """Shares the cost of each call among the kernels that do its main work.

    One call can launch several (a split product, both gradients of a convolution). Each gets a part
    in proportion to its duration, so that the cost is counted once and each shows the call's rate.

    Args:
        trace: The trace.
        ops: Row of the operator that launched each device event, -1 where unknown, (n_device,).
        counted: From `count_operators`.
        columns: From `name_columns`.
    """
    count = len(ops)
    place = np.searchsorted(counted.row, ops)
    found = place < len(counted.row)
    found[found] = counted.row[place[found]] == ops[found]
    if not found.any():
        unknown = np.full(count, np.nan)
        return SharedCosts(
            row=np.full(count, -1, dtype=np.int64),
            dtype=np.zeros(count, dtype=np.uint8),
            flops=unknown,
            bytes=unknown,
            elements=unknown,
            reduced=np.zeros(count, dtype=np.bool_),
        )

    duration = trace.dur_ns[trace.device.rows].astype(np.float64)
    cost = np.zeros(count, dtype=np.int64)
    cost[found] = counted.cost[place[found]]
    main = found & _does_main_work(trace, ops, columns, _take(counted, "matrix", bool)[cost], found)

    calls, call = np.unique(ops[main], return_inverse=True)
    call = call.reshape(-1)
    spent = np.bincount(call, weights=duration[main], minlength=len(calls))[call]
    share = np.full(count, np.nan)
    share[main] = np.divide(duration[main], spent, out=np.full(len(spent), np.nan), where=spent > 0)
    uses_reduced = is_in(ops, ops[main & columns.reduced])
    dtypes = [DTYPES.index(one.dtype) if one.dtype in DTYPES else 0 for one in counted.costs]
    return SharedCosts(
        row=np.where(main, ops, -1),
        dtype=np.where(main, np.array(dtypes, dtype=np.uint8)[cost], 0).astype(np.uint8),
        flops=_take(counted, "flops", np.float64)[cost] * share,
        bytes=_take(counted, "bytes", np.float64)[cost] * share,
        elements=_take(counted, "elements", np.float64)[cost] * share,
        reduced=main & uses_reduced,
    )


def _take(counted: CountedOps, field: str, dtype: type) -> NDArray[Any]:
    return np.array([getattr(cost, field) for cost in counted.costs], dtype=dtype)


def _does_main_work(
    trace: Trace, ops: I64, columns: NameColumns, of_matrix: Bools, found: Bools
) -> Bools:
    """Which events do what their operator is there for: a product's copies and sums do not."""
    kernel = trace.category[trace.device.rows] == Category.KERNEL
    other = columns.kind == Kind.OTHER
    suits = np.where(of_matrix, columns.matrix | other, ~columns.matrix) & ~columns.communication
    main = found & kernel & suits
    # A kernel with a name that nobody knows does the product only where no other kernel does.
    main &= ~(of_matrix & other & is_in(ops, ops[main & of_matrix & ~other]))
    main &= ~is_in(ops, _enclosing(trace, distinct(ops[main & of_matrix])))
    return np.asarray(main, dtype=np.bool_)


def _enclosing(trace: Trace, rows: I64) -> I64:
    """Those of some operator rows that enclose another of them: `linear` around its `addmm`."""
    order = np.lexsort((rows, trace.lane[rows]))
    ordered = rows[order]
    outer, inner = ordered[:-1], ordered[1:]
    encloses = (trace.lane[outer] == trace.lane[inner]) & (
        trace.start_ns[inner] < trace.start_ns[outer] + trace.dur_ns[outer]
    )
    return np.asarray(outer[encloses], dtype=np.int64)


def innermost(trace: Trace, lanes: I64, times_ns: I64, rows: I64) -> I64:
    """For each instant on a lane, the innermost of some rows that covers it, -1 where none does.

    Rows of one thread nest, so the answer is the last row that started before the instant and ends
    after it.

    Args:
        trace: The trace.
        lanes: Lane of each query, (k,).
        times_ns: Instant of each query, (k,).
        rows: Ascending rows of the trace that may be the answer.
    """
    answer = np.full(len(times_ns), -1, dtype=np.int64)
    row_lane = trace.lane[rows]
    for lane in distinct(lanes):
        mine = rows[row_lane == lane]
        if not len(mine):
            continue
        queries = np.flatnonzero(lanes == lane)
        times = times_ns[queries]
        starts = trace.start_ns[mine]
        place = _last_covering(
            starts + trace.dur_ns[mine], np.searchsorted(starts, times, side="right") - 1, times
        )
        answer[queries] = np.where(place >= 0, mine[np.maximum(place, 0)], -1)
    return answer


def _last_covering(ends: I64, last: I64, times: I64) -> I64:
    """For each query the greatest i <= last with ends[i] > time, -1 where there is none.

    Most queries are answered by `last` itself. The others descend a tree of maxima of `ends` over
    aligned blocks: up while the block to the left holds no such end, then down into it.
    """
    place = last.copy()
    open_ = np.flatnonzero(place >= 0)
    open_ = open_[ends[place[open_]] <= times[open_]]
    if not len(open_):
        return place
    levels = [ends]
    while len(levels[-1]) > 1:
        below = levels[-1]
        if len(below) % 2:
            below = np.append(below, np.iinfo(np.int64).min)
        levels.append(np.maximum(below[0::2], below[1::2]))
    limit = times[open_]
    node = place[open_]  # a block all of whose ends up to `last` are too early
    result = np.full(len(open_), -1, dtype=np.int64)
    rising = np.arange(len(open_))
    found_at: list[I64] = []  # by level, the queries whose block was found there
    for maxima in levels:
        right = node[rising] % 2 == 1
        left = np.maximum(node[rising] - 1, 0)
        good = right & (maxima[left] > limit[rising])
        hit = rising[good]
        node[hit] = left[good]
        found_at.append(hit)
        rising = rising[~good]
        node[rising] //= 2
    for level in range(len(levels) - 1, -1, -1):
        active = np.concatenate(found_at[level:])
        if level == 0:
            result[active] = node[active]
            break
        below = levels[level - 1]
        child = 2 * node[active] + 1
        fits = child < len(below)
        fits[fits] = below[child[fits]] > limit[active[fits]]
        node[active] = np.where(fits, child, child - 1)
    place[open_] = result
    return place
