"""Traces as one packed timeline: a few bytes an event, within a byte budget.

Layout of the data (read by assets/viewer.js): for each trace, three columns (`packing`): starts as
differences within a lane, durations, name ids; times in ticks of `TICK_NS`. Nesting is not stored:
the page derives it from the order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.diagnosis import Window
from gpuprof.reports import linked, packing, text
from gpuprof.reports.counters import LEVELS, Counter, counters_of
from gpuprof.reports.curves import GpuCurves
from gpuprof.reports.lanes import (
    CLASSES,
    HORIZON_NS,
    MIN_GAP_NS,
    Arranged,
    arrange,
    merged_key,
)
from gpuprof.reports.names import NAMES_SHARE, labelled, name_ids
from gpuprof.reports.thinning import Span, inside, thin
from gpuprof.reports.words import Catalog
from gpuprof.trace import Bools, Category, Trace

TICK_NS = 100
"""Resolution of the timeline. 1 ns costs 1.6 times the bytes for what no screen shows."""

BYTES_PER_EVENT = 2.6
"""Base64 bytes an event takes in real traces (2.2 to 2.9): only for a first guess at what fits."""

FIRST_GUESS = 0.7
"""Part of the events that would fit which stay unmerged: the merged blocks need room as well."""

FAR_APART_NS = 3_600 * 10**9
"""Recordings that begin further apart than this are not drawn on one clock."""

ATTEMPTS = 10
"""Halvings of the event count before the timeline is given up; each is at least a factor 1.3."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the page needs: `data` (base64), `meta` (JSON text, not yet escaped for HTML).

    events: complete events in the traces. drawn: events and merged blocks in `data`.
    notes: what was left out, as sentences.
    """

    data: str
    meta: str
    events: int
    drawn: int
    shortest_ns: int
    notes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.data) + len(self.meta)


@dataclass(frozen=True, slots=True)
class _View:
    """Where each trace's zero is, and the decisive windows on its own clock, in order of worth."""

    zeros: tuple[int, ...]
    shared_clock: bool
    windows: tuple[tuple[int, Span, int], ...]  # (trace, span, number of the finding)


def _view(traces: Sequence[Trace], windows: Sequence[tuple[int, Window]]) -> _View:
    firsts = [int(trace.start_ns[0]) if len(trace) else 0 for trace in traces]
    filled = [first for first, trace in zip(firsts, traces, strict=True) if len(trace)]
    shared = len(filled) < 2 or (
        all(trace.meta.epoch for trace in traces) and max(filled) - min(filled) < FAR_APART_NS
    )
    zeros = [min(filled, default=0)] * len(traces) if shared else firsts
    by_rank = {trace.meta.rank: index for index, trace in reversed(list(enumerate(traces)))}
    spans = []
    for number, window in windows:
        index = by_rank.get(window.rank, 0)
        start = min(max(window.start_ns - zeros[index], 0), HORIZON_NS)
        end = min(max(window.end_ns - zeros[index], start), HORIZON_NS)
        spans.append((index, (start, end), number))
    return _View(tuple(zeros), shared, tuple(spans))


def _steps(trace: Trace, zero_ns: int) -> list[Span]:
    """Spans of the host's ProfilerStep annotations (operators in old traces), in order of time."""
    mask = trace.name_mask(lambda name: name.startswith("ProfilerStep"))
    on_host = trace.is_one_of(Category.USER_ANNOTATION, Category.CPU_OP)
    rows = np.flatnonzero(mask & on_host)
    start = trace.start_ns[rows] - zero_ns
    return list(zip(start.tolist(), (start + trace.dur_ns[rows]).tolist(), strict=True))


def _home(traces: Sequence[Trace], view: _View, total_ns: int) -> tuple[int, int, int]:
    """Where the view opens: the steps around the first decisive window, else a middle step."""
    index, span = (view.windows[0][0], view.windows[0][1]) if view.windows else (0, None)
    if index >= len(traces):
        return 0, max(total_ns, 1), 0
    steps = _steps(traces[index], view.zeros[index])
    if span is None:
        if not steps:
            return 0, max(total_ns, 1), 0
        span = steps[len(steps) // 2]
    touched = [step for step in steps if step[0] < span[1] and step[1] > span[0]]
    if touched and len(touched) <= 3:
        span = min(touched[0][0], span[0]), max(touched[-1][1], span[1])
    margin = max((span[1] - span[0]) // 12, 1_000)
    return max(0, span[0] - margin), min(max(total_ns, 1), span[1] + margin), index


def _columns(chunk: Arranged, ids: NDArray[np.uint32]) -> Iterator[bytes]:
    """The three packed columns of one trace."""
    start = chunk.start_ns // TICK_NS
    step = start.copy()
    step[1:] -= start[:-1]
    at = np.cumsum([0, *(lane.count for lane in chunk.lanes[:-1])])
    if len(start):
        step[at] = start[at]  # each lane starts anew
    yield from packing.encode_column(step)
    del step
    length = chunk.end_ns // TICK_NS
    length -= start
    del start
    yield from packing.encode_column(length)
    del length
    yield from packing.encode_column(ids)


def _link_columns(chunk: Arranged) -> Iterator[bytes]:
    """The places of the events that have a link, and their numbers."""
    at = np.flatnonzero(chunk.link)
    yield from packing.encode_column(np.diff(at, prepend=0))
    number = chunk.link[at].astype(np.int64)
    yield from packing.encode_column(packing.zigzag(np.diff(number, prepend=0)))


def _assemble(
    traces: Sequence[Trace],
    chunks: Sequence[Arranged],
    view: _View,
    room: int,
    words: Catalog,
    counters: Sequence[Counter],
) -> tuple[str, str, int]:
    names, ids, names_left_out = name_ids(traces, chunks, int(NAMES_SHARE * room), words)

    def parts() -> Iterator[bytes]:
        for chunk, column in zip(chunks, ids, strict=True):
            yield from _columns(chunk, column)
            yield from _link_columns(chunk)
        for counter in counters:
            yield from packing.encode_column(np.diff(counter.time_ns // TICK_NS, prepend=0))
            yield from packing.encode_column(counter.level)

    blob = packing.deflate(parts())
    total_ns = max((int(chunk.end_ns.max(initial=0)) for chunk in chunks), default=0)
    home = _home(traces, view, total_ns)
    meta = {
        "tick": TICK_NS,
        "span": total_ns,
        "home": home,
        "classes": CLASSES,
        "groups": [
            {
                "label": _group_label(trace, len(traces), words),
                "lanes": [[lane.label, lane.kind, lane.count] for lane in chunk.lanes],
            }
            for trace, chunk in zip(traces, chunks, strict=True)
        ],
        "names": [labelled(name, index) for name, index in names],
        "links": [int(np.count_nonzero(chunk.link)) for chunk in chunks],
        "counters": [[c.label, c.group, c.unit, c.top, len(c.level)] for c in counters],
        "levels": LEVELS,
        "windows": [[span[0], span[1], index, number] for index, span, number in view.windows],
        "words": {
            key: value
            for key, value in words.texts.items()
            if key.startswith(("timeline.", "class.", "perfetto."))
        },
    }
    return packing.base64(blob), json.dumps(meta, separators=(",", ":")), names_left_out


def _group_label(trace: Trace, count: int, words: Catalog) -> str:
    if trace.meta.rank is None:
        return text.clean(text.file_name(trace.meta.path), 60) if count > 1 else ""
    return words.say("timeline.rank", rank=trace.meta.rank)


def _shortest(chunks: Sequence[Arranged], kept: Sequence[Bools], target: int) -> tuple[int, bool]:
    """The duration from which events stay outside the windows so that about `target` are left, and
    whether the events of the windows alone leave room for that."""
    outer = np.concatenate(
        [(chunk.end_ns - chunk.start_ns)[~mask] for chunk, mask in zip(chunks, kept, strict=True)]
    )
    left = target - (sum(len(mask) for mask in kept) - len(outer))
    if left >= len(outer) or not len(outer):
        return 0, left >= len(outer)
    rank = len(outer) - 1 - max(left, 0)
    return int(np.partition(outer, rank)[rank]) + 1, left > 0


def pack(
    traces: Sequence[Trace],
    windows: Sequence[tuple[int, Window]],
    words: Catalog,
    *,
    limit_bytes: int,
    file_bytes: int | None = None,
    accounts: Sequence[RankAccount] = (),
    gpus: Sequence[GpuCurves] = (),
) -> Timeline | None:
    """Packs the traces into at most `limit_bytes` of text.

    Everything is kept when it fits. Otherwise events outside `windows` are thinned out
    (`gpuprof.reports.thinning`), and only when the windows alone are too much, the last of them
    are thinned as well.

    Args:
        traces: one per rank.
        windows: decisive stretches with the number of their finding, the most important first.
        file_bytes: the limit of the whole file, which the notes speak of.
        accounts: of the traces, in their order, where they were accounted for: what held gaps, and
            which collectives are the same.
        gpus: what was sampled; the part within the traces' span is drawn.

    Returns:
        None when there are no events, or when nothing fits.
    """
    events = sum(len(trace) for trace in traces)
    if not events:
        return None
    view = _view(traces, windows)
    known: Sequence[RankAccount | None] = accounts or [None] * len(traces)
    links = linked.linked_rows(accounts) if accounts else [None] * len(traces)
    whole = [
        arrange(trace, zero, words, MIN_GAP_NS, account, link)
        for trace, zero, account, link in zip(traces, view.zeros, known, links, strict=True)
    ]
    counters = counters_of(traces, view.zeros, gpus, limit_bytes, words)
    everything = sum(len(chunk.start_ns) for chunk in whole)
    target = everything
    windows_kept = len(view.windows)
    shortest = 0
    chunks: Sequence[Arranged] = whole
    if everything * BYTES_PER_EVENT > 1.3 * limit_bytes:  # no use to try
        target = int(FIRST_GUESS * limit_bytes / BYTES_PER_EVENT)
    for _ in range(ATTEMPTS):
        if target < everything:
            kept = _kept(whole, view, windows_kept)
            shortest, room = _shortest(whole, kept, target)
            while not room and windows_kept:
                windows_kept //= 2
                kept = _kept(whole, view, windows_kept)
                shortest, room = _shortest(whole, kept, target)
            chunks = [
                thin(chunk, mask, shortest, merged_key(trace))
                for chunk, mask, trace in zip(whole, kept, traces, strict=True)
            ]
        data, meta, names_left_out = _assemble(traces, chunks, view, limit_bytes, words, counters)
        size = len(data) + len(meta)
        if size <= limit_bytes:
            drawn = sum(len(chunk.start_ns) for chunk in chunks)
            notes = [words.say("note.resolution", tick=f"{TICK_NS}{text.NBSP}ns")]
            if not view.shared_clock:
                notes.append(words.say("note.clock"))
            if shortest:
                notes.append(
                    words.say(
                        "note.merged",
                        limit=text.size(file_bytes or limit_bytes),
                        kept=text.count(drawn),
                        total=text.count(everything),
                        shortest=text.milliseconds(shortest / 1e6),
                    )
                )
            if windows_kept < len(view.windows):
                notes.append(
                    words.say(
                        "note.windows_cut",
                        limit=text.size(file_bytes or limit_bytes),
                        cut=len(view.windows) - windows_kept,
                        all=len(view.windows),
                    )
                )
            lanes_left_out = sum(chunk.lanes_left_out for chunk in chunks)
            if lanes_left_out:
                notes.append(words.say("note.lanes", count=text.count(lanes_left_out)))
            if names_left_out:
                notes.append(words.say("note.names", count=text.count(names_left_out)))
            return Timeline(data, meta, events, drawn, shortest, tuple(notes))
        drawn = sum(len(chunk.start_ns) for chunk in chunks)
        target = int(min(target, drawn) * min(0.75, 0.9 * limit_bytes / size))
        if target < 1:
            break
    return None


def _kept(chunks: Sequence[Arranged], view: _View, count: int) -> list[Bools]:
    """For each trace, which events touch one of the first `count` windows."""
    return [
        inside(chunk, [span for trace, span, _ in view.windows[:count] if trace == index])
        for index, chunk in enumerate(chunks)
    ]
