"""What a file that ends early does not tell: the host's time whose launches are missing.

Kineto writes what the host did first, then the device's events together with the calls that
launched them: thread by thread, in blocks whose order is not that of time. A file that was cut in
the second part knows all of the host and some of the device's work, which can lack the backward
thread or a stretch in the middle. To take that for idle time would blame the host for what is
missing, so the steps in which something is missing are left out.

Three signs are used. Nothing is known of what the host issued after the last call of which both the
call and its device event are there. Operators that launch elsewhere show where launches are
missing: a long run of them on one thread without a single launch. And a thread that drives the
device does about as much in every step; the backward thread always does something.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.intervals import Spans, union
from gpuprof.analyzers.launches import Launches
from gpuprof.analyzers.operators import innermost
from gpuprof.analyzers.steps import Marks
from gpuprof.distinct import distinct
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]

FOREVER_NS = int(np.iinfo(np.int64).max)

EXPECTED_LAUNCHES = 10.0
"""A run of operators that should have launched ten times and did not once is no coincidence: were
the operators independent, its probability would be under e**-10."""

WHOLE_FRAC = 0.95
"""Steps do about the same. One in which a thread launches under 95 % of what it does in another may
lack the rest; if it does not, a whole step is left out for nothing."""


def missing_spans(trace: Trace, launches: Launches, marks: Marks) -> Spans | None:
    """Time of the host in which launches or operators are missing; None where the file is whole."""
    if not trace.meta.truncated:
        return None
    operators = trace.rows_of(Category.CPU_OP)
    if not len(trace.device.rows):
        known_until = int(trace.start_ns[operators].max(initial=0))
        return Spans(np.array([known_until]), np.array([FOREVER_NS]))
    known = launches.known
    start, end = _runs_without_launch(trace, launches, operators)
    thin = _steps_with_fewer(trace, launches, marks, operators)
    known_until = int(launches.call_start_ns[known].max(initial=0))
    return union(
        np.concatenate((start, marks.start_ns[thin], [known_until])),
        np.concatenate((end, marks.end_ns[thin], [FOREVER_NS])),
    )


def _steps_with_fewer(
    trace: Trace, launches: Launches, marks: Marks, operators: I64
) -> NDArray[np.bool_]:
    """Which steps have a thread that launches less than in the step where it launches most."""
    thin = np.zeros(len(marks.start_ns), np.bool_)
    lane_of_event = launches.lane[launches.known]
    launched_at = launches.call_start_ns[launches.known]
    backward = trace.name_mask(lambda name: name.startswith("autograd::engine"))
    must = distinct(trace.lane[operators[backward[operators]]])
    for lane in np.union1d(lane_of_event, must):
        n_operators = _inside(trace.start_ns[operators[trace.lane[operators] == lane]], marks)
        n_events = _inside(np.sort(launched_at[lane_of_event == lane]), marks)
        most = max(int(n_events.max(initial=0)), 1)
        thin |= (n_operators > 0) & (n_events < WHOLE_FRAC * most)
    return thin


def _inside(times: I64, marks: Marks) -> I64:
    """How many of some ascending times are in each step."""
    found: I64 = np.searchsorted(times, marks.end_ns) - np.searchsorted(times, marks.start_ns)
    return found


def _runs_without_launch(trace: Trace, launches: Launches, operators: I64) -> tuple[I64, I64]:
    """Start and end of the runs of operators of one thread that lack their launches."""
    calls, event = np.unique(launches.row[launches.known], return_index=True)
    event = np.flatnonzero(launches.known)[event]
    around = innermost(trace, launches.lane[event], trace.start_ns[calls], operators)
    launched = np.zeros(len(trace), np.bool_)
    launched[around[around >= 0]] = True
    name = trace.name[operators]
    n_calls = np.bincount(name, minlength=len(trace.names))
    n_launching = np.bincount(name[launched[operators]], minlength=len(trace.names))
    expected = n_launching / np.maximum(n_calls, 1)
    starts: list[int] = []
    ends: list[int] = []
    for lane in distinct(trace.lane[operators]):
        mine = operators[trace.lane[operators] == lane]
        mine = mine[expected[trace.name[mine]] > 0]
        run = np.cumsum(launched[mine])
        missing = np.where(launched[mine], 0.0, expected[trace.name[mine]])
        in_run = np.bincount(run, weights=missing)
        for number in np.flatnonzero(in_run >= EXPECTED_LAUNCHES).tolist():
            rows = mine[(run == number) & ~launched[mine]]
            starts.append(int(trace.start_ns[rows[0]]))
            ends.append(int(trace.end_ns[rows].max()))
    return np.array(starts, np.int64), np.array(ends, np.int64)
