"""Where one training iteration ends and the next begins, on the host and on the device.

The host runs ahead of the device, so a span between two calls of the profiler's `step()` says
when a step was *issued*, not how long it took: on a run that the device limits it can be a third
of the step. A device event belongs to the step whose span launched it, and a step lasts from the
end of the previous step's last device event to the end of its own: the steady period of the
slower side. Without a device the host span is the step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.intervals import Spans, covered
from gpuprof.analyzers.launches import Launches
from gpuprof.distinct import distinct
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

Source = Literal["ProfilerStep", "session", "inferred", "none"]

WARM_UP_RATIO = 1.3
"""A first step this much longer than the median of the others is warm-up (cudnn benchmarking,
lazy loading, worker start), or the profiler's own start. Real first steps in the study's traces:
1.45 × with warm-up, at most 1.1 × without. What is longer for its wait for a batch is neither, if
the loop had taken steps before: no start of a profiler slows loading down."""

WARM_UP_STEPS = 3
"""Fewer other steps than this do not say what is usual."""

CUT_OFF_FRAC = 0.8
"""A last step with fewer than 80 % of the usual device events was cut off by the end of the
window (the same share as the TensorBoard plugin used)."""

CUT_OFF = "cut off by the end of the file"

MIN_REPEATS = 3
"""A marker must come back at least this often before its period is taken for a step."""

MIN_COVERED_FRAC = 0.6
"""Annotations that repeat stand for steps only when they fill most of the recording."""

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")
_SESSION_STEP = re.compile(r"gpuprof\.step#(\d+)")
_STEP_NUMBER = re.compile(r"(?:ProfilerStep|gpuprof\.step)#(\d{1,18})")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_LOADER = re.compile(r"enumerate\(Data(Loader|Pipe)\)#.*__next__|DataLoader.*__next__")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one rank on one device; arrays of shape (n_steps,).

    host_start_ns, host_end_ns: when the host issued the step.
    start_ns, end_ns: the step on the slower side; each begins where the last one ended.
    keep: whether the step is accounted; `why` says for each of the others why not.
    """

    source: Source
    labels: tuple[str, ...]
    host_start_ns: I64
    host_end_ns: I64
    start_ns: I64
    end_ns: I64
    keep: Bools
    why: dict[int, str]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> I64:
        """Lengths of the accounted steps, (n_kept,)."""
        return (self.end_ns - self.start_ns)[self.keep]


@dataclass(frozen=True, slots=True)
class Marks:
    """Host spans of the steps, before the device has its say."""

    source: Source
    labels: tuple[str, ...]
    start_ns: I64
    end_ns: I64
    lane: int


def find_marks(trace: Trace) -> Marks:
    """Finds the steps as the host issued them.

    In this order: the profiler's own step marks, the session's, optimizer steps, loader
    iterations, an annotation that repeats. Without any of them the whole recording is one step
    and the source is "none".
    """
    host = trace.is_one_of(Category.USER_ANNOTATION, Category.CPU_OP, Category.OTHER)
    for source, pattern in (("ProfilerStep", _PROFILER_STEP), ("session", _SESSION_STEP)):
        marks = _explicit(trace, host, pattern, source)  # type: ignore[arg-type]
        if marks is not None:
            return marks
    for pattern, edge in ((_OPTIMIZER, "end"), (_LOADER, "start")):
        marks = _between(trace, host, pattern, edge)
        if marks is not None:
            return marks
    return _repeating(trace) or Marks("none", (), _empty(), _empty(), -1)


def steps_on_host(
    marks: Marks,
    whole: tuple[int, int],
    missing: Spans | None = None,
    ops_ns: I64 | None = None,
    loading: Spans | None = None,
) -> Steps:
    """The steps of a run whose device is the CPU: the host spans, without gaps between them.

    Args:
        marks: The host spans.
        whole: Start and end of the recording, used where there are no marks.
        missing: What the recording does not tell (see `gpuprof.analyzers.cut`), None for nothing.
        ops_ns: When its operators began; a last mark with few of them was cut off. None where that
            is not to be judged.
        loading: When the thread of the marks waited for input, or loaded it; None for never.
    """
    if marks.source == "none" or not len(marks.start_ns):
        return _single(whole, whole, missing)
    start, end = _contiguous(marks.start_ns, marks.end_ns)
    counts = np.ones(len(start), np.int64)
    if ops_ns is not None and len(ops_ns):
        begun = np.sort(ops_ns)
        counts = np.searchsorted(begun, end) - np.searchsorted(begun, start)
    return _judged(marks, start, end, counts, missing, loading)


def steps_on_device(
    marks: Marks,
    launches: Launches,
    events: I64,
    whole: tuple[int, int],
    missing: Spans | None = None,
    loading: Spans | None = None,
) -> Steps:
    """The steps of one device.

    Args:
        marks: The host spans.
        launches: The launches of the whole trace.
        events: Which of its device rows ran on this device, (k,), ordered by start, not empty.
        whole: Start and end of the device's activity, used where there are no marks.
        missing: Time of the host whose launches the recording lacks (see
            `gpuprof.analyzers.cut`), None where it is whole.
        loading: When the thread of the marks waited for input, or loaded it; None for never.
    """
    if marks.source == "none" or not len(marks.start_ns):
        return _single(
            whole, (int(launches.call_start_ns[events].min(initial=whole[0])), whole[1]), missing
        )
    issued_start, issued_end = _contiguous(marks.start_ns, marks.end_ns)
    n_steps = len(issued_start)
    known = launches.known[events]
    issued = np.where(known, launches.call_start_ns[events], launches.start_ns[events])
    step = np.searchsorted(issued_start, issued, side="right") - 1
    inside = (step >= 0) & (issued < issued_end[-1])
    # What a host far ahead had launched before the window runs inside it, and is no step's.
    older = launches.backlog[events]
    inside &= ~older
    counts = np.bincount(step[inside], minlength=n_steps)
    last_end = np.zeros(n_steps, np.int64)
    np.maximum.at(last_end, step[inside], launches.end_ns[events][inside])
    end = np.maximum.accumulate(np.where(counts > 0, last_end, issued_end))
    end = np.maximum(end, issued_start[0])  # damaged times: a kernel that is done before its launch
    # The host's work after the last kernel belongs to the last step, as it does to all others.
    end[-1] = max(int(end[-1]), int(issued_end[-1]))
    start = np.concatenate(([issued_start[0]], end[:-1]))
    backlog = int(launches.end_ns[events][older].max(initial=0))
    if backlog > start[0]:
        # The device was still busy with work from before the window.
        start[0] = min(backlog, int(end[0]))
    return _judged(marks, start, end, counts, missing, loading)


def _explicit(trace: Trace, host: Bools, pattern: re.Pattern[str], source: Source) -> Marks | None:
    rows = np.flatnonzero(host & trace.name_mask(pattern.match))
    if not len(rows):
        return None
    lanes, counts = np.unique(trace.lane[rows], return_counts=True)
    lane = int(lanes[np.argmax(counts)])
    rows = rows[trace.lane[rows] == lane]
    labels = tuple(trace.names[i] for i in trace.name[rows])
    return Marks(source, labels, trace.start_ns[rows], trace.end_ns[rows], lane)


def _between(trace: Trace, host: Bools, pattern: re.Pattern[str], edge: str) -> Marks | None:
    """Steps between successive markers; the parts before the first and after the last are no
    whole steps and are left out."""
    rows = np.flatnonzero(host & trace.name_mask(pattern.match))
    if len(rows) < MIN_REPEATS:
        return None
    lanes, counts = np.unique(trace.lane[rows], return_counts=True)
    lane = int(lanes[np.argmax(counts)])
    rows = _outermost(trace, rows[trace.lane[rows] == lane])
    # A job with several optimizers steps each of them once a step: one of them is enough.
    names, first, per_name = np.unique(trace.name[rows], return_index=True, return_counts=True)
    if len(names) > 1:
        rows = rows[trace.name[rows] == names[np.lexsort((first, per_name))[0]]]
    if len(rows) < MIN_REPEATS:
        return None
    times = trace.end_ns[rows] if edge == "end" else trace.start_ns[rows]
    labels = tuple(f"step {i + 1}" for i in range(len(times) - 1))
    return Marks("inferred", labels, times[:-1], times[1:], lane)


def _repeating(trace: Trace) -> Marks | None:
    """A user annotation that comes back on one thread and fills most of the recording."""
    rows = trace.rows_of(Category.USER_ANNOTATION)
    if len(rows) < MIN_REPEATS:
        return None
    stems: dict[str, int] = {}
    stem_of_name = np.array(
        [stems.setdefault(_DIGITS.sub("#", n), len(stems)) for n in trace.names]
    )
    key = stem_of_name[trace.name[rows]].astype(np.int64) * len(trace.lanes) + trace.lane[rows]
    best: tuple[int, I64] | None = None
    for value in distinct(key):
        mine = _outermost(trace, rows[key == value])
        if len(mine) < MIN_REPEATS:
            continue
        covered = int(trace.dur_ns[mine].sum())
        span = int(trace.end_ns[mine].max() - trace.start_ns[mine].min())
        if span and covered / span >= MIN_COVERED_FRAC and (best is None or covered > best[0]):
            best = covered, mine
    if best is None or best[0] < MIN_COVERED_FRAC * _host_span_ns(trace):
        return None
    mine = best[1]
    labels = tuple(f"step {i + 1}" for i in range(len(mine)))
    return Marks(
        "inferred", labels, trace.start_ns[mine], trace.end_ns[mine], int(trace.lane[mine[0]])
    )


def _host_span_ns(trace: Trace) -> int:
    rows = trace.rows_of(Category.CPU_OP, Category.RUNTIME, Category.USER_ANNOTATION)
    return int(trace.end_ns[rows].max() - trace.start_ns[rows].min()) if len(rows) else 0


def _outermost(trace: Trace, rows: I64) -> I64:
    """Rows of one lane that are not inside an earlier one."""
    ends = trace.end_ns[rows]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
    kept: I64 = rows[trace.start_ns[rows] >= before]
    return kept


def _contiguous(start: I64, end: I64) -> tuple[I64, I64]:
    """Spans in order, each reaching to the next: what happens between two marks belongs to the
    step before."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    return start, np.concatenate((start[1:], end[-1:]))


def _judged(
    marks: Marks,
    start: I64,
    end: I64,
    counts: I64,
    missing: Spans | None,
    loading: Spans | None,
) -> Steps:
    length = end - start
    host_start, host_end = _contiguous(marks.start_ns, marks.end_ns)
    why: dict[int, str] = {}
    if missing is not None:
        cut = covered(missing, host_start, host_end) > 0
        cut[1:] |= cut[:-1]  # where the step before it ended is not known either
        why = {int(i): CUT_OFF for i in np.flatnonzero(cut)}
    n_cut = len(why)
    last = len(length) - 1
    before = [i for i in range(last) if i not in why]
    if (
        before
        and last not in why
        and (counts[last] == 0 or counts[last] < CUT_OFF_FRAC * float(np.median(counts[before])))
    ):
        why[last] = "cut off by the end of the window"
    others = [i for i in range(1, last + 1) if i not in why]
    if len(others) >= WARM_UP_STEPS:
        usual = float(np.median(length[others]))
        # As long as a later one is not warm-up: batches that come in bursts, regular saves.
        alone = int(length[0]) > int(length[others].max())
        first = int(length[0]) - _loading_above_usual(marks, host_start, host_end, others, loading)
        if alone and 0 < usual < first / WARM_UP_RATIO:
            why[0] = f"warm-up: {length[0] / usual:.1f} times the usual length"
    for i in range(len(length)):
        if length[i] <= 0:
            why.setdefault(i, "no time passed in it")
    if len(why) == len(length) and not n_cut:
        why = {}
    keep = np.array([i not in why for i in range(len(length))], dtype=np.bool_)
    labels = marks.labels
    return Steps(marks.source, labels, host_start, host_end, start, end, keep, why)


def _loading_above_usual(
    marks: Marks, host_start: I64, host_end: I64, others: list[int], loading: Spans | None
) -> int:
    """How much longer than in the others the first step loaded, ns; 0 for the loop's first step:
    workers start in it."""
    number = _STEP_NUMBER.fullmatch(marks.labels[0])
    if loading is None or number is None or int(number[1]) == 0:
        return 0
    loaded = covered(loading, host_start, host_end)
    return max(int(loaded[0]) - int(np.median(loaded[others])), 0)


def _single(whole: tuple[int, int], host: tuple[int, int], missing: Spans | None) -> Steps:
    """The whole recording as one step; of a part of it nothing can be said."""
    return Steps(
        source="none",
        labels=("whole recording",),
        host_start_ns=np.array([host[0]], np.int64),
        host_end_ns=np.array([host[1]], np.int64),
        start_ns=np.array([whole[0]], np.int64),
        end_ns=np.array([whole[1]], np.int64),
        keep=np.full(1, missing is None),
        why={} if missing is None else {0: CUT_OFF},
    )


def _empty() -> I64:
    return np.zeros(0, np.int64)
