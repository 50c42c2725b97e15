"""From what an agent left to a rank's part of a run directory."""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuprof import run
from gpuprof.attach.mailbox import MAX_TRACE_BYTES, Mailbox
from gpuprof.attach.targets import (
    LOCAL_SIZE_VARIABLES,
    LOCAL_VARIABLES,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    Target,
)
from gpuprof.loader_work import loader_work
from gpuprof.process import without_secrets
from gpuprof.run_writer import window_kind, write_record

MAX_NOTES = 20
MAX_NOTE_CHARS = 400
COPY_BYTES = 1 << 20
MAX_CALLS = 1000
CALL_FIELDS = 8
PACK_LEVEL = 1
"""The verdict is waited for: size matters less than seconds."""


def describe(target: Target, job: str) -> run.RankRecord:
    """What is known of a process from outside."""
    return run.RankRecord(
        job=job,
        rank=target.number(RANK_VARIABLES, 0),
        local_rank=target.number(LOCAL_VARIABLES, 0),
        world_size=max(1, target.number(SIZE_VARIABLES, 1)),
        local_world_size=max(1, target.number(LOCAL_SIZE_VARIABLES, 1)),
        host=socket.gethostname(),
        pid=target.pid,
        command=without_secrets(target.command()),
        started_unix_s=time.time(),
    )


def take_cores(record: run.RankRecord) -> None:
    """CPU cores that the process may use, its node's ranks sharing them."""
    from gpuprof.collectors.host_cgroup import Cgroup

    try:
        record.affinity_cores = len(os.sched_getaffinity(record.pid))
    except OSError:
        return
    try:
        quota = Cgroup().read()[0]
        record.quota_cores = float(quota) if isinstance(quota, (int, float)) else None
    except OSError:
        record.quota_cores = None
    pinned = record.affinity_cores < (os.cpu_count() or 1) and record.local_world_size > 1
    each = record.affinity_cores / (1 if pinned else record.local_world_size)
    if record.quota_cores is not None:
        each = min(each, record.quota_cores / record.local_world_size)
    record.cores = max(0.1, int(10 * each) / 10)


def take_status(record: run.RankRecord, status: dict[str, Any]) -> None:
    """What the agent said when it came in."""
    record.python = _text(status.get("python"))
    record.torch = _text(status.get("torch"))
    record.cuda = _text(status.get("cuda"))
    rank, size = status.get("rank"), status.get("world_size")
    if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size:
        record.rank, record.world_size = rank, size
    for gpu in status.get("gpus") or []:
        record.gpus.append(
            run.Gpu(
                index=_number(gpu.get("index")),
                name=_text(gpu.get("name")),
                uuid=_text(gpu.get("uuid")),
            )
        )


def take_windows(record: run.RankRecord, box: Mailbox, observed: dict[str, Any], out: Path) -> None:
    """Copies the traces into the run directory.

    Raises:
        OSError: the run directory can't be written.
    """
    counted: dict[str, int] = {}
    for window in observed.get("windows") or []:
        stacks = bool(window.get("stacks"))
        kind = "attribution" if stacks else "trace"
        number = counted[kind] = counted.get(kind, 0) + 1
        name = f"{window_kind(kind, number)}-rank{record.rank:05d}.json.gz"
        size = _pack(box.here / Path(_text(window.get("file"))).name, out / name)
        if size is None:
            record.fail(f"the trace {name} could not be read from the target")
            continue
        steps = _number(window.get("recorded"))
        length_ns = _number(window.get("until_ns")) - _number(window.get("from_ns"))
        stretches = steps or int(bool(window.get("timed")))  # without steps it is taken as one
        record.windows.append(
            run.WindowRecord(
                kind="attribution" if stacks else "timing",
                file=name,
                first_step=max(0, _number(window.get("first_step"))),
                steps=steps,
                stacks=stacks,
                shapes=bool(window.get("shapes")),
                step_ms=round(length_ns / stretches / 1e6, 4) if stretches else 0.0,
                core_ms=_per_step_ms(window.get("core_ns"), stretches),
                ready_ms=_per_step_ms(window.get("ready_ns"), stretches),
                loader=loader_work(window.get("loader")),
                size_bytes=size,
            )
        )
        stall_ms = (_number(window.get("start_ns")) + _number(window.get("stop_ns"))) / 1e6
        record.overhead.windows_ms = round(record.overhead.windows_ms + stall_ms, 3)


def _pack(source: Path, target: Path) -> int | None:
    """Compresses a file of the target's; None where it is no plain file of a sane size."""
    from isal import igzip

    try:
        file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(file, "rb") as reader:
        if os.fstat(reader.fileno()).st_size > MAX_TRACE_BYTES:
            return None
        unfinished = target.with_name(f".{target.name}.tmp")
        try:
            with igzip.open(unfinished, "wb", compresslevel=PACK_LEVEL) as writer:
                while piece := reader.read(COPY_BYTES):
                    writer.write(piece)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def _per_step_ms(value: object, steps: int) -> float | None:
    """None where the kernel does not count: a thread that has run a step was on a core."""
    return round(_number(value) / steps / 1e6, 4) if steps and _number(value) >= 0 else None


def take_calls(record: run.RankRecord, observed: dict[str, Any]) -> None:
    """Lines of the program that saved, asked for a batch, or read a tensor's values."""
    for call in (observed.get("calls") or [])[:MAX_CALLS]:
        if not isinstance(call, list) or len(call) != CALL_FIELDS:
            continue
        kind, what, file, line, function, device, count, spent_ns = call
        total_ms = round(_number(spent_ns) / 1e6, 3)
        if kind == "sync":
            record.sync_lines.append(
                run.SyncLine(
                    call=_text(what),
                    file=_text(file),
                    line=_number(line),
                    device=_text(device),
                    count=_number(count),
                    total_ms=total_ms,
                )
            )
        elif kind in ("input", "checkpoint"):
            record.call_lines.append(
                run.CallLine(
                    kind=kind,
                    call=_text(what),
                    file=_text(file),
                    line=_number(line),
                    function=_text(function),
                    count=_number(count),
                    total_ms=total_ms,
                )
            )
    record.call_lines.sort(key=lambda one: -one.total_ms)


def take_steps(record: run.RankRecord, observed: dict[str, Any], out: Path) -> None:
    """The step log, and what the steps outside the windows took."""
    from gpuprof.collectors.step_log import StepLog

    beats = [beat for beat in observed.get("beats") or [] if isinstance(beat, int)]
    record.steps = max(0, len(beats) - 1)
    record.steps_source = _text(observed.get("source")) or "none"
    log = StepLog(out, record.rank)
    for before, now in itertools.pairwise(beats):
        log.add(max(0, now - before), now)
    log.close()
    spans = [
        (_number(w.get("open_ns")), _number(w.get("until_ns")) + _number(w.get("stop_ns")))
        for w in observed.get("windows") or []
    ]
    outside = [
        now - before
        for before, now in itertools.pairwise(beats)
        if not any(start <= now and before <= end for start, end in spans)
    ]
    if outside:
        record.overhead.step_ms = round(statistics.median(outside) / 1e6, 4)
    timing = [w.step_ms for w in record.windows if not w.stacks and w.step_ms]
    if timing:
        record.overhead.window_step_ms = round(statistics.fmean(timing), 4)


def take_stacks(record: run.RankRecord, observed: dict[str, Any], out: Path) -> None:
    """Stack samples, one line a sample: its time in ns since the epoch, thread, and frames'
    numbers, innermost first; frames are lines before their first use."""
    import msgspec

    names = observed.get("threads") or {}
    stacks = observed.get("stacks") or []
    frames: dict[tuple[str, ...], int] = {}
    lines: list[bytes] = [
        msgspec.json.encode({"format": "gpuprof-stacks", "version": 1, "rank": record.rank})
    ]
    known: dict[int, list[int]] = {}
    for sample in observed.get("samples") or []:
        if not _is_pair(sample) or not 0 <= sample[1] < len(stacks):
            continue
        thread, stack = stacks[sample[1]]
        if sample[1] not in known:
            numbers = []
            for frame in stack:
                key = tuple(str(part) for part in frame)
                if key not in frames:
                    frames[key] = len(frames)
                    lines.append(msgspec.json.encode({"frame": frames[key], "at": frame}))
                numbers.append(frames[key])
            known[sample[1]] = numbers
        name = names.get(str(thread), str(thread))
        lines.append(
            msgspec.json.encode({"t": sample[0], "thread": name, "stack": known[sample[1]]})
        )
    if len(lines) > 1:
        (out / f"stacks-rank{record.rank:05d}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def busiest_lines(observed: dict[str, Any], most: int = 5) -> list[tuple[float, str]]:
    """Where the main thread was, by share of its samples: its innermost frame outside libraries."""
    main = observed.get("main")
    stacks = observed.get("stacks") or []
    counts: dict[str, int] = {}
    total = 0
    for sample in observed.get("samples") or []:
        if not _is_pair(sample) or not 0 <= sample[1] < len(stacks):
            continue
        thread, stack = stacks[sample[1]]
        if thread != main or not stack:
            continue
        total += 1
        own = next((f for f in stack if not _is_library(str(f[0]))), stack[0])
        place = f"{own[0]}:{own[2]} in {own[1]}"
        counts[place] = counts.get(place, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])[:most]
    return [(count / total, place) for place, count in ranked]


def _is_library(file: str) -> bool:
    return "site-packages" in file or "/lib/python3" in file or file.startswith("<")


def take_errors(record: run.RankRecord, errors: Iterable[object]) -> None:
    for error in list(errors)[:MAX_NOTES]:
        record.fail(_text(error))


def finish(record: run.RankRecord, out: Path, ended_by: str = "") -> None:
    """Writes the rank's last record.

    Raises:
        OSError: it can't be written.
    """
    record.state = "failed" if ended_by else "finished"
    record.ended_by, record.ended_unix_s = ended_by, time.time()
    record.overhead.run_ms = round(1e3 * (record.ended_unix_s - record.started_unix_s), 3)
    write_record(out / run.rank_file(record.rank), record)


def _is_pair(sample: object) -> bool:
    return isinstance(sample, list) and len(sample) == 2 and all(isinstance(x, int) for x in sample)


def _text(value: object) -> str:
    return " ".join(str(value or "").split())[:MAX_NOTE_CHARS]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
