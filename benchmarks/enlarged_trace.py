"""Enlarges a trace in memory, with noise: copies that are equal would compress to nothing.

Each copy lies behind the one before it and is shifted by whole periods; every event is shortened
and moved inside itself by up to a tenth, so that most nesting stays and no two copies are alike.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from gpuprof.trace import DeviceColumns, Trace

NOISE = 0.1
GAP_NS = 1_000_000


def enlarge(trace: Trace, events: int, *, rank: int, world_size: int, seed: int = 0) -> Trace:
    """At least `events` complete events, as of one rank of `world_size`."""
    rng = np.random.default_rng([seed, rank])
    n = len(trace)
    copies = max(1, -(-events // n))
    period = int((trace.start_ns + trace.dur_ns).max() - trace.start_ns.min()) + GAP_NS
    shift = np.repeat(np.arange(copies, dtype=np.int64) * period, n)
    dur = np.tile(trace.dur_ns, copies)
    cut = (dur * rng.uniform(0, NOISE, len(dur))).astype(np.int64)
    start = np.tile(trace.start_ns, copies) + shift + cut // 2
    dur = dur - cut
    corr = np.tile(trace.corr, copies)
    step = int(trace.corr.max(initial=0)) + 1
    corr = np.where(corr > 0, corr + np.repeat(np.arange(copies, dtype=np.int64) * step, n), 0)
    order = np.lexsort((-dur, start))
    # Copies of steps must not have the name of the first ones: they would be one step.
    names = list(trace.names)
    name = np.tile(trace.name, copies)
    marks = [i for i, text in enumerate(names) if text.startswith("ProfilerStep#")]
    for copy in range(1, copies):
        part = slice(copy * n, (copy + 1) * n)
        for mark in marks:
            here = np.flatnonzero(trace.name == mark)
            number = int(names[mark].split("#")[1]) + copy * (len(marks) + 1)
            name[part][here] = len(names)
            names.append(f"ProfilerStep#{number}")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = np.concatenate([trace.device.rows + copy * n for copy in range(copies)])
    by_start = np.argsort(place[rows], kind="stable")
    columns = {
        field.name: np.tile(getattr(trace.device, field.name), copies)[by_start]
        for field in fields(DeviceColumns)
        if field.name != "rows"
    }
    collectives = {
        int(place[row + copy * n]): arguments
        for copy in range(copies)
        for row, arguments in trace.collectives.items()
    }
    return replace(
        trace,
        meta=replace(trace.meta, rank=rank, world_size=world_size, path=f"rank{rank}.json"),
        start_ns=start[order],
        dur_ns=dur[order],
        corr=corr[order],
        name=name[order].astype(np.int32),
        names=names,
        device=DeviceColumns(rows=place[rows][by_start], **columns),
        collectives=collectives,
        **{
            column: np.tile(getattr(trace, column), copies)[order]
            for column in ("category", "lane", "op_args", "stack")
        },
    )
