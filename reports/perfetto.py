"""All ranks as one trace in Chrome's JSON format, for ui.perfetto.dev and chrome://tracing.

One process a rank. From top to bottom: the windows of the findings; for each device its idle gaps,
named (and so coloured) by what held them, and its streams; then the host threads. Counters show the
busy share of each device and how far the host runs ahead. Arrows lead from launches to what they
launched. Device times have the clock error taken out that `gpuprof.analyzers.launches` measured.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import CPU, DeviceAccount, RankAccount
from gpuprof.analyzers.intervals import covered
from gpuprof.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.reports import text
from gpuprof.reports.counters import LEVELS, Counter, counters_of
from gpuprof.reports.curves import gpu_curves
from gpuprof.reports.words import Catalog, catalog, localized
from gpuprof.samples import Samples
from gpuprof.trace import DEVICE_CATEGORIES, Category, Trace

I64 = NDArray[np.int64]

MAX_WINDOWS = 1_000
"""Windows of findings that are drawn: more than anybody looks at, bounded on a hostile file."""

COUNTER_BYTES = 20_000_000
"""Budget that the sampled counters of all ranks are thinned for, as in a page."""

BINS = 2_000
"""Points of a counter: as many as a wide screen has pixels."""

MIN_BIN_NS = 20_000
"""A busy share over less than a few kernels is 0 or 1."""

MAX_ROWS = 32
"""Rows that the overlapping events of one stream are spread over."""

FAR_APART_NS = 3_600 * 10**9
"""Recordings that begin further apart than this are not drawn on one clock."""

COMPRESSION = 3
"""gzip level: level 9 takes four times as long for a twentieth less."""

FINDINGS, GAPS, STREAMS, THREADS = 1, 1_000, 10_000, 1_000_000
"""First thread ids of each kind of track; they only keep tracks apart and in order."""

_CATEGORY = {
    Category.CPU_OP: "cpu_op",
    Category.USER_ANNOTATION: "user_annotation",
    Category.PYTHON: "python_function",
    Category.RUNTIME: "cuda_runtime",
    Category.SYNC: "cuda_sync",
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.GPU_ANNOTATION: "gpu_user_annotation",
    Category.OVERHEAD: "overhead",
    Category.OTHER: "other",
}

_COLOURS = {
    "input": "terrible",
    "sync": "bad",
    "checkpoint": "olive",
    "host": "yellow",
    "communication_host": "vsync_highlight_color",
    "communication": "vsync_highlight_color",
    "allocator": "rail_animation",
    "launch": "good",
    "unknown": "grey",
}
"""Colours that chrome://tracing has names for. Perfetto colours a slice by its name."""


@dataclass(frozen=True, slots=True)
class PerfettoSummary:
    """What was written: the file, its size, its slices that stand for recorded events."""

    path: Path
    size_bytes: int
    events: int
    device_events: int


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank on the file's clock. zero_ns: the trace's time that becomes 0."""

    pid: int
    account: RankAccount
    zero_ns: int

    @property
    def trace(self) -> Trace:
        return self.account.trace


def write_perfetto(
    diagnosis: Diagnosis,
    accounts: Sequence[RankAccount],
    path: str | os.PathLike[str],
    *,
    lang: str = "en",
    samples: Sequence[Samples] = (),
) -> PerfettoSummary:
    """Writes the trace, gzip-compressed, replacing the file only when the new one is whole.

    Args:
        diagnosis: Whose findings are marked.
        accounts: The ranks, in the order of the diagnosis' inputs; at least one.
        path: Where to; `.json.gz` by convention.
        lang: one of `words.LANGUAGES`.
        samples: What was sampled over the run; counters within the traces' span.

    Raises:
        GpuprofError: there is nothing to draw, or the file cannot be written.
    """
    if not accounts:
        raise GpuprofError(
            "there is no trace to draw", hint="only recordings with a Kineto trace can be exported"
        )
    ranks, base = _ranks(accounts)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    events = device_events = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            temporary.open("xb") as raw,
            gzip.GzipFile("", "wb", COMPRESSION, raw, mtime=0) as file,
        ):
            words = catalog(lang)
            diagnosis = localized(diagnosis, lang)
            sampled = _sampled(ranks, samples, words)
            for piece in _document(diagnosis, ranks, base, words, sampled):
                file.write(piece.encode("utf-8"))
        size = temporary.stat().st_size
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise GpuprofError(
            f"cannot write the trace {target}: {error.strerror or error}",
            hint="choose another place with --out",
        ) from error
    for account in accounts:
        events += len(account.trace)
        device_events += len(account.trace.device)
    return PerfettoSummary(target, size, events, device_events)


def _ranks(accounts: Sequence[RankAccount]) -> tuple[list[_Rank], int]:
    """The ranks on one clock where they have one, and what its zero is in ns since the epoch."""
    firsts = [
        int(min(a.trace.start_ns[0], a.launches.start_ns.min(initial=a.trace.start_ns[0])))
        if len(a.trace)
        else 0
        for a in accounts
    ]
    filled = [first for first, a in zip(firsts, accounts, strict=True) if len(a.trace)]
    shared = all(a.trace.meta.epoch for a in accounts) and (
        max(filled, default=0) - min(filled, default=0) < FAR_APART_NS
    )
    base = min(filled, default=0) if shared else 0
    zeros = [base] * len(accounts) if shared else firsts
    return [
        _Rank(index + 1, account, zero)
        for index, (account, zero) in enumerate(zip(accounts, zeros, strict=True))
    ], base


def _document(
    diagnosis: Diagnosis,
    ranks: Sequence[_Rank],
    base: int,
    words: Catalog,
    sampled: Sequence[Counter],
) -> Iterator[str]:
    head = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "otherData": {"made by": f"gpuprof {diagnosis.gpuprof}", "headline": diagnosis.headline},
    }
    first = ranks[0].trace.meta
    if first.devices:
        head["deviceProperties"] = [
            {"id": d.index, "name": d.name, "totalGlobalMem": d.memory_bytes, "numSms": d.sm_count}
            for d in first.devices
        ]
    if len(ranks) == 1 and first.rank is not None:
        head["distributedInfo"] = {"rank": first.rank, "world_size": diagnosis.run.world_size}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    yield json.dumps(_about(0, "process_name", "gpuprof"))
    for rank in ranks:
        for lines in (
            _findings(diagnosis, rank),
            _gaps(rank, words),
            _counters(rank),
            _samples(rank, sampled),
            _events(rank),
        ):
            for line in lines:
                yield ",\n"
                yield line
    yield "\n]}\n"


def _about(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
    """A metadata event that names a process or a thread."""
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": {"name": name}}


def _track(pid: int, tid: int, name: str) -> Iterator[str]:
    yield json.dumps(_about(pid, "thread_name", text.clean(name, 200), tid))
    order = {"sort_index": tid}
    yield json.dumps(
        {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": "thread_sort_index", "args": order}
    )


def _us(ns: int) -> str:
    """Whole nanoseconds as decimal µs, without a float between."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _slice(pid: int, tid: int, start: int, length: int, name: str, cat: str, more: str) -> str:
    """A complete event. name, cat: JSON text. more: further members, as JSON text."""
    return (
        f'{{"ph":"X","cat":{cat},"name":{name},"pid":{pid},"tid":{tid},'
        f'"ts":{_us(start)},"dur":{_us(length)}{more}}}'
    )


def _findings(diagnosis: Diagnosis, rank: _Rank) -> Iterator[str]:
    """The rank's process, and the windows of the findings that lie on it."""
    trace, number = rank.trace, rank.account.rank
    device = rank.account.main.name or "GPU"
    late = any(number in finding.late_ranks for finding in diagnosis.findings)
    name = f"Rank {number} · {device}{' · late' if late else ''}"
    yield json.dumps(_about(rank.pid, "process_name", text.clean(name, 200)))
    order = {"sort_index": rank.pid}
    yield json.dumps(
        {"ph": "M", "pid": rank.pid, "tid": 0, "ts": 0, "name": "process_sort_index", "args": order}
    )
    found = [
        (window.start_ns - rank.zero_ns, window.end_ns - rank.zero_ns, place, finding, evidence)
        for place, finding in enumerate(diagnosis.findings, 1)
        for evidence in finding.evidence
        for window in evidence.windows
        if window.rank == number or (window.rank is None and rank.pid == 1)
    ][:MAX_WINDOWS]
    if not found or not len(trace):
        return
    found.sort(key=lambda item: (item[0], -item[1]))
    rows = _spread([f[0] for f in found], [f[1] for f in found])
    for row in sorted(set(rows)):
        yield from _track(rank.pid, FINDINGS + row, "Findings" if row == 0 else "Findings (more)")
    for row, (start, end, place, finding, evidence) in zip(rows, found, strict=True):
        args = {
            "finding": text.clean(finding.title),
            "evidence": text.clean(evidence.text),
            "share of step": round(finding.share, 4),
            "fix": text.clean(finding.fixes[0].title) if finding.fixes else "",
        }
        name = json.dumps(f"{place}. {text.clean(finding.title, 120)}")
        more = f',"args":{json.dumps(args)}'
        length = max(end - start, 0)
        yield _slice(rank.pid, FINDINGS + row, start, length, name, '"gpuprof.finding"', more)


def _spread(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Rows for intervals in order of start, so that no two in a row overlap: a track can only show
    what nests."""
    free: list[int] = []
    rows = []
    for start, end in zip(starts, ends, strict=True):
        row = next((i for i, until in enumerate(free) if until <= start), len(free))
        if row == len(free) and row < MAX_ROWS:
            free.append(end)
        else:
            row = min(row, MAX_ROWS - 1)
            free[row] = max(free[row], end)
        rows.append(row)
    return rows


def _title(device: DeviceAccount) -> str:
    return "CPU" if device.index == CPU else f"GPU {device.index}"


def _gaps(rank: _Rank, words: Catalog) -> Iterator[str]:
    """Idle time, named by what held it back longest."""
    for order, device in enumerate(rank.account.devices):
        gaps = device.budget.gaps
        if not len(gaps.start_ns):
            continue
        tid = GAPS + order
        yield from _track(rank.pid, tid, f"{_title(device)} idle, by what held it")
        buckets = list(gaps.parts)
        parts = np.stack([gaps.parts[bucket] for bucket in buckets])
        names = [json.dumps(f"idle: {words.name('bucket', bucket)}") for bucket in buckets]
        colours = [_COLOURS.get(bucket, "grey") for bucket in buckets]
        starts = (gaps.start_ns - rank.zero_ns).tolist()
        lengths = (gaps.end_ns - gaps.start_ns).tolist()
        main = np.argmax(parts, axis=0).tolist()
        for i, (start, length, chief) in enumerate(zip(starts, lengths, main, strict=True)):
            held = {
                f"{bucket} µs": round(int(ns) / 1e3, 3)
                for bucket, ns in zip(buckets, parts[:, i], strict=True)
                if ns
            }
            more = f',"cname":"{colours[chief]}","args":{json.dumps(held)}'
            yield _slice(rank.pid, tid, start, length, names[chief], '"gpuprof.idle"', more)


def _counters(rank: _Rank) -> Iterator[str]:
    """Busy share of each device, and the run-ahead of the host, over equal parts of the span."""
    launches = rank.account.launches
    for device in rank.account.devices:
        steps, busy = device.steps, device.budget.work.busy
        if not len(steps):
            continue
        first, last = int(steps.start_ns[0]), int(steps.end_ns[-1])
        bins = int(min(BINS, max((last - first) // MIN_BIN_NS, 1)))
        edges = first + (last - first) * np.arange(bins + 1, dtype=np.int64) // bins
        widths = np.maximum(np.diff(edges), 1)
        shares = 100 * covered(busy, edges[:-1], edges[1:]) / widths
        at = [_us(value - rank.zero_ns) for value in edges.tolist()]
        name = json.dumps(f"{_title(device)} busy %")
        for ts, share in zip(at, [*shares.tolist(), 0.0], strict=True):
            yield _counter(rank.pid, name, ts, share)
        known = device.events[launches.known[device.events]]
        if not len(known):
            continue
        ahead_us = (launches.start_ns[known] - launches.call_end_ns[known]) / 1e3
        place = np.searchsorted(edges, launches.start_ns[known], side="right") - 1
        inside = (place >= 0) & (place < bins)
        counts = np.bincount(place[inside], minlength=bins)
        means = np.bincount(place[inside], ahead_us[inside], bins) / np.maximum(counts, 1)
        name = json.dumps(f"{_title(device)} host run-ahead µs")
        for i in np.flatnonzero(counts).tolist():
            yield _counter(rank.pid, name, at[i], float(means[i]))


def _counter(pid: int, name: str, ts: str, value: float) -> str:
    return f'{{"ph":"C","pid":{pid},"name":{name},"ts":{ts},"args":{{"value":{value:.2f}}}}}'


def _sampled(ranks: Sequence[_Rank], samples: Sequence[Samples], words: Catalog) -> list[Counter]:
    """The curves of the ranks' GPUs within the traces' span."""
    traces = [rank.trace for rank in ranks]
    zeros = [rank.zero_ns for rank in ranks]
    return counters_of(traces, zeros, gpu_curves(samples, words), COUNTER_BYTES, words)


def _samples(rank: _Rank, sampled: Sequence[Counter]) -> Iterator[str]:
    """Utilization, power, clock and memory of the rank's GPU, as its driver told them."""
    for counter in sampled:
        if counter.group != rank.pid - 1:
            continue
        name = json.dumps(f"{counter.label} {counter.unit}")
        values = counter.level * (counter.top / LEVELS)
        for time, value in zip(counter.time_ns.tolist(), values.tolist(), strict=True):
            yield _counter(rank.pid, name, _us(time), value)


def _starts(rank: _Rank) -> I64:
    """Start of every row on the file's clock; of device rows without the clock error, (n,)."""
    start = rank.trace.start_ns.copy()
    start[rank.trace.device.rows] = rank.account.launches.start_ns
    start -= rank.zero_ns
    return start


def _tracks(rank: _Rank, start: I64) -> tuple[I64, dict[int, str]]:
    """The thread id of every row, (n,), and the names of the tracks.

    Marks of a stream get a track of their own, and events of a stream that overlap get further
    ones: a track can only show what nests.
    """
    trace = rank.trace
    tids = THREADS + trace.lane.astype(np.int64)
    names: dict[int, str] = {}
    is_device = trace.is_one_of(*DEVICE_CATEGORIES)
    for index, lane in enumerate(trace.lanes):
        if not lane.is_stream:
            names[THREADS + index] = lane.name or f"Thread {lane.tid}"
            continue
        title = f"GPU {lane.device} stream {lane.stream}"
        first = STREAMS + index * 2 * MAX_ROWS
        mine = np.flatnonzero(trace.lane == index)
        marks, work = mine[~is_device[mine]], mine[is_device[mine]]
        if len(marks):
            tids[marks] = first + MAX_ROWS
            names[first + MAX_ROWS] = f"{title} · marks"
        work = work[np.argsort(start[work], kind="stable")]
        begun, ended = start[work], start[work] + trace.dur_ns[work]
        places = np.zeros(len(work), np.int64)
        if (begun[1:] < np.maximum.accumulate(ended)[:-1]).any():
            places += _spread(begun.tolist(), ended.tolist())
        tids[work] = first + places
        for place in np.unique(places).tolist():
            names[first + place] = title if place == 0 else f"{title} (overlapping {place})"
    return tids, names


def _events(rank: _Rank) -> Iterator[str]:
    """Every recorded event, track by track, and the arrows from launches to device events."""
    trace, device, launches = rank.trace, rank.trace.device, rank.account.launches
    start = _starts(rank)
    tids, tracks = _tracks(rank, start)
    for tid, track in tracks.items():
        yield from _track(rank.pid, tid, track)
    names = [json.dumps(name) for name in trace.names]
    cats = {int(category): json.dumps(name) for category, name in _CATEGORY.items()}
    position = np.full(len(trace), -1, np.int64)
    position[device.rows] = np.arange(len(device))
    order = np.lexsort((-trace.dur_ns, start, tids))
    columns = (start, trace.dur_ns, trace.name, trace.category, trace.corr, position, tids)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    for begun, length, name, category, corr, place, tid in rows:
        args: dict[str, Any] = {"correlation": corr} if corr else {}
        if place >= 0:
            args["device"], args["stream"] = int(device.device[place]), int(device.stream[place])
            if device.bytes[place] >= 0:
                args["bytes"] = int(device.bytes[place])
            if device.blocks[place] >= 0:
                args["blocks"] = int(device.blocks[place])
                args["threads per block"] = int(device.threads[place])
        more = f',"args":{json.dumps(args)}' if args else ""
        yield _slice(rank.pid, tid, begun, length, names[name], cats[category], more)

    known = np.flatnonzero(launches.known)
    call, event = launches.row[known], device.rows[known]
    arrows = (known, start[call], tids[call], start[event], tids[event])
    for number, called, caller, begun, tid in zip(*(a.tolist() for a in arrows), strict=True):
        # An integer: Perfetto refuses flows whose id is other text than a hexadecimal number.
        arrow = (rank.pid << 32) + number
        ident = f'"cat":"ac2g","name":"ac2g","id":{arrow},"pid":{rank.pid}'
        yield f'{{"ph":"s",{ident},"tid":{caller},"ts":{_us(called)}}}'
        yield f'{{"ph":"f","bp":"e",{ident},"tid":{tid},"ts":{_us(begun)}}}'
