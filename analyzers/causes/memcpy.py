"""Copies between host and device hold the step up.

What it finds: time in which a copy between host and device runs and no kernel does, and idle time
of the device after a copy out of pageable memory that the host had to wait for.

Why it costs: a copy in the stream of the kernels runs before them instead of beside them. Out of
pageable memory it is slower as well, and `non_blocking=True` has no effect: the call returns only
when the driver has staged the data, so that the host can't launch ahead. Each copy also has a fixed
price of some 10 µs, which thousands of small ones pay thousands of times.

How it is measured: the share is the time that only copies between host and device run (kernels and
collectives beside them hide it), and the idle that waiting for pageable copies of more than 64 KiB
causes, in either direction. Copies within the device are device work and not counted,
copies inside a checkpoint belong to the checkpoint, and smaller blocking copies are the cause
"sync-points". The gain is the replay of
the step with these copies beside the kernels and nobody waiting for them.

How to fix: pinned memory and `non_blocking=True`; the next batch on a stream of its own; one large
copy instead of many small ones; data that stays on the device.

Limits: whether memory is pageable or pinned is in the name of the copy, which ROCm does not write.
The width and generation of the PCIe link are not in a trace; a link that is slower than it should
be shows only in the rate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    Cause,
    Verdict,
    confidence,
    explained,
    finding,
    may_hide,
    too_little,
)
from gpuprof.analyzers.copies import Copies, exposed_ns, exposed_spans, find_copies
from gpuprof.analyzers.host import SMALL_BYTES, Blocking
from gpuprof.analyzers.places import lines_of
from gpuprof.analyzers.run_view import LEAST_GAIN, MOST_WINDOWS, RunView
from gpuprof.analyzers.wording import milliseconds, percent, significant
from gpuprof.diagnosis import Evidence, Fix, Place, RuledOut, Window

I64 = NDArray[np.int64]

ID = "memcpy"

HOW = "the step replayed with these copies beside the kernels and nobody waiting for them"

MANY_A_STEP = 20
"""So many copies in a step are a loop over tensors; a batch has a handful."""

LARGE_BYTES = 1 << 20
"""From 1 MiB the rate of the link decides how long a copy takes; below, its fixed price does."""

IMPORTANT_FRAC = 0.2
"""A kind of copy with a fifth of the copies' cost gets a line of evidence and a fix of its own."""

ROUND_TRIP_RATIO = 0.5
"""When the smaller of the two directions carries half as much as the larger, data goes to the host
and comes back."""


def judge(run: RunView) -> Verdict:
    """Judges cause 6."""
    if not run.has_device:
        return RuledOut(
            cause=ID, why="the CPU is the device: nothing is copied to another one", share=0.0
        )
    copies = [_mine(rank) for rank in run.ranks]
    shares = [_share(rank, mine) for rank, mine in zip(run.ranks, copies, strict=True)]
    share = float(np.mean(shares))
    if share < run.named_from:
        return _not_named(run, copies, share)
    gain = run.price("copies")
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"copies between host and device hold {percent(share)} of the step, but if they ran"
            f" beside the kernels it would be only {percent(gain.reduction)} shorter: other work"
            " comes out",
            share=share,
        )
    worst = int(np.argmax(shares))
    rank, mine = run.ranks[worst], copies[worst]
    kinds = _kinds(rank, mine)
    return finding(
        ID,
        f"Copies between host and device hold up {percent(share)} of {run.each_step}",
        share=share,
        gain=explained(gain, HOW),
        confidence=confidence(run, share, gain),
        evidence=_evidence(run, rank, mine, kinds, share),
        fixes=_fixes(run, mine, kinds),
        where=_where(rank.lines),
        ranks=tuple(
            r.rank for r, held in zip(run.ranks, shares, strict=True) if held >= run.named_from
        ),
    )


def _not_named(run: RunView, copies: list[Copies], share: float) -> Verdict:
    if any(len(each) for each in copies):
        waited = "whether the host waited for them"
        hidden = may_hide(run, ID, "copies alone", share, unknown=waited)
        if hidden is not None:
            return hidden
    first = max(copies, key=len)
    if not len(first):
        return RuledOut(
            cause=ID,
            why="nothing was copied between host and device in the recorded steps",
            share=0.0,
        )
    running = max(float(first.duration_ns.sum()), 1.0)
    beside = percent(1.0 - float(first.exposed_ns.sum()) / running)
    return RuledOut(
        cause=ID,
        why=too_little("copies between host and device that nothing hides", share, run)
        + f" ({_count(first.per_step)} a step, {milliseconds(first.ms_per_step)} in all, {beside}"
        " of it beside other work)",
        share=share,
    )


def _mine(rank: RankAccount) -> Copies:
    """Copies of this cause: those inside a checkpoint belong to the checkpoint."""
    copies = find_copies(rank)
    return copies.of(~copies.in_checkpoint)


def _share(rank: RankAccount, copies: Copies) -> float:
    total = rank.main.budget.total_ns
    if not total:
        return 0.0
    return (exposed_ns(rank, copies) + int(_waiting_ns(rank).sum())) / total


def _waiting_ns(rank: RankAccount) -> I64:
    """Idle that waiting for large copies causes, ns of each gap in an accounted step."""
    steps, gaps = rank.main.steps, rank.main.budget.gaps
    step = np.searchsorted(steps.start_ns, gaps.start_ns, side="right") - 1
    kept = steps.keep[np.clip(step, 0, len(steps) - 1)]
    by_kind = gaps.sync_by_kind
    waited = by_kind[int(Blocking.TO_DEVICE)] + by_kind[int(Blocking.LARGE_TO_HOST)]
    waiting: I64 = np.where(kept, waited, 0)
    return waiting


def _kinds(rank: RankAccount, copies: Copies) -> dict[tuple[bool, int], Copies]:
    """The copies by direction and memory (inward, pageable), those that cost most first.

    What a copy costs is the time that nothing hides; where only waiting costs, its duration.
    """
    cost = copies.exposed_ns.astype(np.float64)
    if cost.sum() < int(_waiting_ns(rank).sum()):
        cost = np.where(copies.blocking, copies.duration_ns, copies.exposed_ns).astype(np.float64)
    found: dict[tuple[bool, int], tuple[float, Copies]] = {}
    for inward in (True, False):
        for pageable in (1, 0, -1):
            mask = (copies.inward == inward) & (copies.pageable == pageable)
            weight = float(cost[mask].sum())
            if mask.any() and weight >= IMPORTANT_FRAC * float(cost.sum()):
                found[inward, pageable] = weight, copies.of(mask)
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return {key: mine for key, (_, mine) in ranked}


def _evidence(
    run: RunView,
    rank: RankAccount,
    copies: Copies,
    kinds: dict[tuple[bool, int], Copies],
    share: float,
) -> list[Evidence]:
    step_ms = run.step_ms()
    total = max(rank.main.budget.total_ns, 1)
    exposed = exposed_ns(rank, copies) / total
    waiting = int(_waiting_ns(rank).sum()) / total
    text = f"For {run.time_of(exposed)} the device only copies to or from the host."
    evidence = [
        Evidence(
            text=text,
            value=round(exposed, 4),
            unit="share of step",
            windows=_longest(run, rank, copies),
        )
    ]
    if waiting > 0.1 * share:
        evidence.append(
            Evidence(
                text=f"It is idle another {milliseconds(waiting * step_ms)} because the host had to"
                " wait until a copy out of pageable memory was staged.",
                value=round(waiting, 4),
                unit="share of step",
            )
        )
    evidence += [
        _kind_evidence(inward, pageable, mine) for (inward, pageable), mine in kinds.items()
    ]
    return evidence


def _kind_evidence(inward: bool, pageable: int, copies: Copies) -> Evidence:
    way = "to the device" if inward else "to the host"
    memory = {1: "pageable", 0: "pinned", -1: ""}[pageable]
    side = f" {'out of' if inward else 'into'} {memory} memory" if memory else ""
    waits = float(copies.blocking.mean())
    each = "All of them block" if waits > 0.99 else f"{percent(waits)} of them block"
    if waits < 0.01:
        each = "None of them blocks"
    return Evidence(
        text=f"Copies {way}{side}: {_count(copies.per_step)} a step,"
        f" {_size(copies.mean_bytes)} each on average, {milliseconds(copies.ms_per_step)} a step in"
        f" all, at {significant(copies.gb_per_s, 2)} GB/s."
        f" {each} the host.",
        value=round(copies.gb_per_s, 3),
        unit="GB/s",
    )


def _size(n_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{significant(n_bytes / size)} {unit}"
    return f"{n_bytes:.0f} bytes"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def _longest(run: RunView, rank: RankAccount, copies: Copies) -> tuple[Window, ...]:
    spans = exposed_spans(rank, copies)
    longest = spans.lengths.argsort()[::-1][:MOST_WINDOWS].tolist()
    return tuple(run.window(rank, int(spans.start[i]), int(spans.end[i])) for i in longest)


def _where(rank: RankAccount) -> tuple[Place, ...]:
    """Lines that make the copies, weighed by the time that nothing hides and the idle after it."""
    copies = _mine(rank)
    launches, calls, gaps = rank.launches, rank.host.blocking, rank.main.budget.gaps
    known = launches.known[copies.event]
    event = copies.event[known]
    lane, time = launches.lane[event], launches.call_start_ns[event]
    weight = copies.exposed_ns[known].astype(np.float64)
    waiting = _waiting_ns(rank)
    held = np.flatnonzero(waiting > 0)
    large = (int(Blocking.TO_DEVICE), int(Blocking.LARGE_TO_HOST))
    mine = np.flatnonzero(np.isin(calls.kind, large))
    if len(held) and len(mine):
        # A gap is the doing of the last such call that had begun when the host was done with it.
        begun = calls.start_ns[mine]
        latest = np.searchsorted(begun, gaps.host_end_ns[held], side="right") - 1
        call = mine[np.maximum(latest, 0)]
        lane = np.concatenate((lane, calls.lane[call]))
        time = np.concatenate((time, calls.start_ns[call]))
        weight = np.concatenate((weight, waiting[held].astype(np.float64)))
    total = float(max(rank.main.budget.total_ns, 1))
    return lines_of(rank.trace, rank.host, lane, time, weight, total)


def _fixes(run: RunView, copies: Copies, kinds: dict[tuple[bool, int], Copies]) -> list[Fix]:
    fixes: list[Fix] = []
    for (inward, pageable), mine in kinds.items():
        if mine.per_step >= MANY_A_STEP and mine.mean_bytes <= SMALL_BYTES:
            fixes.append(_batch_them(inward, mine))
        elif inward and pageable != 0:
            fixes.append(_pin(run))
        elif inward and mine.blocking.mean() > 0.5:
            fixes.append(_do_not_wait())
        elif not inward and mine.mean_bytes >= LARGE_BYTES:
            fixes.append(_own_stream_out())
        if inward and mine.mean_bytes >= LARGE_BYTES:
            fixes.append(_own_stream_in())
    if _goes_round(copies):
        fixes.insert(0, _keep(run))
    else:
        fixes.append(_keep(run))
    unique = {fix.title: fix for fix in fixes}
    return list(unique.values())


def _goes_round(copies: Copies) -> bool:
    """Whether large data goes to the host and comes back in each step."""
    inward = float(copies.bytes[copies.inward].sum())
    outward = float(copies.bytes[~copies.inward].sum())
    large = min(inward, outward) / copies.steps >= LARGE_BYTES
    return large and min(inward, outward) >= ROUND_TRIP_RATIO * max(inward, outward)


def _pin(run: RunView) -> Fix:
    loader = run.facts.loader_workers is not None
    code = (
        "loader = DataLoader(dataset, pin_memory=True, …)      # the rest as now\n"
        if loader
        else "x = x.pin_memory()                                    # once, not in every step\n"
    )
    return Fix(
        title="Copy out of pinned memory without waiting",
        detail="The driver copies pageable memory twice, and the call waits for it whatever"
        " non_blocking says. Out of pinned memory the copy runs at the link's full rate (about 12"
        " GB/s on PCIe 3.0 x16, 25 on 4.0, 50 on 5.0) and the host goes on.",
        code=code + "x = x.to(device, non_blocking=True)",
        cost="page-locked host memory, a few batches",
    )


def _do_not_wait() -> Fix:
    return Fix(
        title="Do not wait for copies out of pinned memory",
        detail="The memory is pinned already, but each copy waits until it is done.",
        code="x = x.to(device, non_blocking=True)",
        cost="none; the source must not be changed before the copy is done",
    )


def _own_stream_in() -> Fix:
    return Fix(
        title="Copy the next batch while this one computes",
        detail="Copies in the stream of the kernels run between them; on a stream of their own they"
        " run beside them.",
        code="copies = torch.cuda.Stream()\n"
        "with torch.cuda.stream(copies):\n"
        "    following = batch.to(device, non_blocking=True)   # pinned memory\n"
        "train_step(current)\n"
        "torch.cuda.current_stream().wait_stream(copies)\n"
        "following.record_stream(torch.cuda.current_stream())",
        cost="device memory for one more batch",
    )


def _own_stream_out() -> Fix:
    return Fix(
        title="Copy large results to the host on a stream of their own",
        detail="Into pinned memory with non_blocking=True the copy runs beside the next step; wait"
        " for its event when the host needs the values.",
        code="host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)   # once\n"
        "copies.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(copies):\n"
        "    host.copy_(x, non_blocking=True)\n"
        "    x.record_stream(copies)\n"
        "    copied = torch.cuda.Event(); copied.record()\n"
        "...                                                           # later\n"
        "copied.synchronize()",
        cost="page-locked host memory of the size of the results",
    )


def _batch_them(inward: bool, copies: Copies) -> Fix:
    count = f"{copies.per_step:.0f} copies of {_size(copies.mean_bytes)} a step"
    if inward:
        return Fix(
            title="Copy small tensors together",
            detail=f"{count}: each costs some 10 µs whatever its size. Collate on the host and copy"
            " once, or make the values on the device.",
            code="batch = torch.stack(pieces).pin_memory()\n"
            "pieces = batch.to(device, non_blocking=True).unbind(0)",
            cost="none",
        )
    return Fix(
        title="Do not loop over device tensors on the host",
        detail=f"{count}: iterating over a device tensor, or .item() on each element, copies every"
        " value on its own. Fetch all of them with one copy before the loop.",
        code="for value in values.tolist():                         # not: for value in values",
        cost="none",
    )


def _keep(run: RunView) -> Fix:
    detail = (
        "What the host does with the data between two copies (augmentation, masking, metrics,"
        " NumPy) can often run on the device, and then nothing is copied."
    )
    if run.facts.fsdp:
        detail += (
            " If parameters are offloaded (FSDP's CPUOffload), turn it off when memory allows it."
        )
    return Fix(title="Keep the data on the device", detail=detail, cost="device memory")


CAUSE = Cause(
    id=ID,
    title="Copies between host and device",
    judge=judge,
    docs=__doc__ or "",
    removes=("copies",),
)
