"""Where the host launches nothing for far longer than it usually does between two launches.

A call that drained the queue costs its refill: launch after launch, at the host's own pace. A
logger, a garbage collection or a metric in Python that comes after it is no refill. The call only
brings it out, and whoever wants the time back has to look at that code.
"""

from __future__ import annotations

import numpy as np

from gpuprof.analyzers.intervals import Spans, complement, empty, merge, union
from gpuprof.analyzers.launches import Launches
from gpuprof.distinct import is_in
from gpuprof.trace import Category, Trace

PAUSE_RATIO = 10
"""Times the usual distance of launches; operators of one model differ less in what they cost."""

PAUSE_NS = 1_000_000
"""What any loop does between launches now and then (zeroing gradients, a scheduler, handing a batch
over) takes the host up to 1 ms. A queue is there to hide that, so without it that is the refill."""


def pauses(trace: Trace, launches: Launches, lanes: tuple[int, ...], labelled: Spans) -> Spans:
    """The time in which none of the threads that launch calls the runtime, for longer than
    `PAUSE_NS` and `PAUSE_RATIO` times the usual distance of launches.

    Args:
        trace: The trace.
        launches: Its launches.
        lanes: The threads that launch.
        labelled: Time of theirs that has a name of its own, such as loading data.
    """
    at = np.unique(launches.call_start_ns[launches.known])
    if len(at) < 2:
        return empty()
    usual_ns = float(np.median(np.diff(at)))
    rows = trace.rows_of(Category.RUNTIME)
    rows = rows[is_in(trace.lane[rows], lanes)]
    called = union(trace.start_ns[rows], trace.end_ns[rows])
    busy = merge(called, labelled)
    if not len(busy):
        return empty()
    free = complement(busy, int(busy.start[0]), int(busy.end[-1]))
    long = free.lengths > max(PAUSE_NS, PAUSE_RATIO * usual_ns)
    return Spans(free.start[long], free.end[long])
