"""Each launch gives the device too little to do.

What it finds: a device that waits for launches, with kernels that do not fill it (fewer thread
blocks than multiprocessors) and are short.

Why it costs: a kernel that leaves most of the device empty takes as long for two samples as for
one, and the host pays the same for launching it. A larger batch gets more done in the same time.

How it is measured: the step is replayed with the batch k times as large: the host's work stays,
a kernel first fills the multiprocessors that it left empty and only then takes longer. The gain
is in time per sample. k is doubled as long as that pays, which it does until kernels are filled and
the host no longer sets the pace; it is bounded by what is known of memory, and by `MOST_TIMES`.

How to fix: a larger micro-batch, the number said; gradient accumulation where the optimizer's
batch has to stay; CUDA graphs where the batch can't grow.

Limits: needs grid sizes and the number of multiprocessors. It is not offered to a run that waits
for input (that cost grows with the batch), nor where memory is full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.base import (
    Cause,
    Verdict,
    confidence,
    finding,
    may_hide,
)
from gpuprof.analyzers.device_columns import sm_counts
from gpuprof.analyzers.pricing import DevicePricing, trusted
from gpuprof.analyzers.replay import Change, replay
from gpuprof.analyzers.run_view import LEAST_GAIN, RunView
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, RuledOut

ID = "small-batch"

UNDERFILLED_FROM = 0.5
"""Half of the kernels' time with fewer blocks than multiprocessors: the usual one is too small."""

FULL_MEMORY_FRAC = 0.8
"""Above 80 % of the device's memory there is no room for twice the batch (activations, the part
that grows, are most of what training allocates)."""

MOST_TIMES = 8
"""No advice beyond eight times the batch: by then the run is another one."""

WORTH_DOUBLING = 0.2
"""Twice the batch halves the time of a sample where it costs nothing, and changes nothing where
kernels or copies take twice as long: less than a fifth is not worth twice the memory."""

IDLE_BUCKETS = ("host", "launch", "sync", "allocator")


def judge(run: RunView) -> Verdict:
    """Judges cause 2."""
    if not run.has_device:
        return NotJudged(
            cause=ID,
            missing="a device: on a CPU the trace does not show how full a kernel is",
            command="record the run on its GPU: `gpuprof run -- python train.py`",
        )
    idle = run.share(*IDLE_BUCKETS)
    underfilled = run.roofline.underfilled_frac
    if underfilled is None:
        if idle < run.named_from:
            hidden = may_hide(run, ID, "waiting for launches", idle)
            kept_busy = f"the device is kept busy: it waits {percent(idle)}"
            return hidden or RuledOut(cause=ID, why=kept_busy, share=idle)
        return NotJudged(
            cause=ID,
            missing="grid sizes and the number of multiprocessors (not recorded here)",
            command="record on a CUDA device with a current PyTorch:"
            " `gpuprof run -- python train.py`",
        )
    if underfilled < UNDERFILLED_FROM:
        return RuledOut(
            cause=ID,
            why=f"kernels fill the device: {percent(1 - underfilled)} of their time with at least"
            " one thread block for every multiprocessor",
            share=0.0,
        )
    if idle < run.named_from:
        hidden = may_hide(run, ID, "waiting for launches", idle)
        return hidden or RuledOut(
            cause=ID,
            why=f"kernels leave multiprocessors empty {percent(underfilled)} of their time, but the"
            f" device hardly waits for launches ({percent(idle)})",
            share=idle,
        )
    waiting = run.share("input")
    if waiting >= run.named_from:
        return RuledOut(
            cause=ID,
            why=f"the run waits {percent(waiting)} of the step for input: more with more samples",
            share=idle,
        )
    memory = _memory_frac(run)
    if memory is not None and memory >= FULL_MEMORY_FRAC:
        return RuledOut(
            cause=ID,
            why=f"device memory is full ({percent(memory)}): there is no room for a larger batch",
            share=idle,
        )
    times = _times(run, memory)
    gain = _gain(run, times)
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"with {times} times the batch a sample would take only"
            f" {percent(gain.reduction)} less time",
            share=idle,
        )
    share = min(idle, 1.0)
    return finding(
        ID,
        f"Each launch does too little: the device waits {percent(idle)} of the step and most"
        " kernels leave multiprocessors empty",
        share=share,
        gain=gain,
        confidence=confidence(run, share, gain, certain=0.85),
        evidence=_evidence(run, idle, underfilled, memory),
        fixes=_fixes(run, times, memory),
        ranks=run.ranks_with(*IDLE_BUCKETS),
    )


def may_grow(run: RunView) -> bool:
    """Whether a larger batch may be advised at all: not to a run that waits for input (longer with
    more samples), whose memory is full, or whose kernels fill the device already."""
    memory, underfilled = _memory_frac(run), run.roofline.underfilled_frac
    return (
        run.share("input") < run.named_from
        and (memory is None or memory < FULL_MEMORY_FRAC)
        and (underfilled is None or underfilled >= UNDERFILLED_FROM)
    )


def _memory_frac(run: RunView) -> float | None:
    facts = run.facts
    if facts.peak_bytes is None or not facts.device_bytes:
        return None
    return facts.peak_bytes / facts.device_bytes


def _fill(rank: RankAccount) -> NDArray[np.float64]:
    """Share of the multiprocessors that each device event's blocks occupy, (n_device,); 1 where
    that is not known, which keeps it from growing for free."""
    blocks, multiprocessors = rank.trace.device.blocks, sm_counts(rank.trace)
    known = (blocks > 0) & (multiprocessors > 0) & ~rank.is_communication & ~rank.is_copy
    fill = np.ones(len(blocks))
    fill[known] = np.minimum(1.0, blocks[known] / multiprocessors[known])
    return fill


def _times(run: RunView, memory: float | None) -> int:
    """How many times the batch to advise: a power of two, doubled while it pays."""
    most = MOST_TIMES if not memory else min(MOST_TIMES, FULL_MEMORY_FRAC / memory)
    times = 2
    while 2 * times <= most and _doubling_pays(run, times):
        times *= 2
    return times


def _doubling_pays(run: RunView, times: int) -> bool:
    """Whether a sample takes noticeably less time with twice so many times the batch."""
    now, then = _per_sample(run, times), _per_sample(run, 2 * times)
    if now is None or then is None:
        return times * 2 <= 1.0 / (run.roofline.fill_frac or 1.0)
    left = [1 - after / before for before, after in zip(now, then, strict=True) if before]
    return bool(left) and float(np.mean(left)) >= WORTH_DOUBLING


def _per_sample(run: RunView, times: int) -> list[float] | None:
    """Each rank's mean step with `times` the batch over `times`, as a share of its step now, from
    a replay of its main device; None where one can't be replayed."""
    result: list[float] = []
    for rank in run.ranks:
        pricing = rank.main.pricing
        if not isinstance(pricing, DevicePricing) or not trusted(pricing):
            return None
        program = pricing.program
        source = program.source
        grow = np.maximum(1.0, times * _fill(rank)[source])
        fixed = rank.is_communication[source]
        duration = np.where(fixed, program.dur_ns, program.dur_ns * grow).astype(np.int64)
        larger = replay(program, Change(device_ns=duration))
        now_ns = pricing.replayed_ns
        result.append(larger.mean_ns / times / now_ns if now_ns else 1.0)
    return result


def _gain(run: RunView, times: int) -> Gain | None:
    """Time per sample with `times` the batch."""
    left = _per_sample(run, times)
    if left is None:
        return None
    reductions = [1 - one for one in left]
    reduction = max(float(np.mean(reductions)), 0.0)
    return Gain(
        step_ms=run.step_ms() * (1 - reduction),
        reduction=reduction,
        low=max(min(reductions) * 0.5, 0.0),
        high=max(reductions),
        how=f"time for the samples of one step when {times} times as many are taken at once:"
        " the step replayed with the same host work and kernels that first fill the device;"
        " the lower bound assumes half of it",
    )


def _evidence(
    run: RunView, idle: float, underfilled: float, memory: float | None
) -> list[Evidence]:
    roofline = run.roofline
    evidence = [
        Evidence(
            text=f"The device waits for launches {percent(idle)} of the step.",
            value=round(idle, 4),
            unit="share of step",
            windows=run.longest_gaps(run.first, "host"),
        ),
        Evidence(
            text=f"{percent(underfilled)} of the kernels' time has fewer thread blocks than the"
            " device has multiprocessors"
            + (
                f"; on average {percent(roofline.fill_frac)} of them have work."
                if roofline.fill_frac is not None
                else "."
            ),
            value=round(underfilled, 4),
            unit="share of kernel time",
        ),
    ]
    if roofline.short_frac is not None:
        evidence.append(
            Evidence(
                text=f"{percent(roofline.short_frac)} of the kernels' time is in kernels under"
                " 10 µs.",
                value=round(roofline.short_frac, 4),
                unit="share of kernel time",
            )
        )
    if memory is not None:
        evidence.append(
            Evidence(
                text=f"At most {percent(memory)} of the device's memory is allocated.",
                value=round(memory, 4),
                unit="share of device memory",
            )
        )
    else:
        evidence.append(
            Evidence(text="Memory use was not recorded: check that there is room.", unit="")
        )
    return evidence


def _fixes(run: RunView, times: int, memory: float | None) -> list[Fix]:
    facts = run.facts
    room = (
        f" At {percent(memory)} of the device's memory now, that fits."
        if memory is not None
        else " Watch torch.cuda.max_memory_allocated() while raising it."
    )
    fixes = [
        Fix(
            title=f"Raise the batch {times} times",
            detail=f"The kernels have room for it and the host does the same work.{room}",
            code=f"batch_size = {times} * batch_size",
            cost="memory; the learning rate may have to follow the batch"
            if facts.backward
            else "memory, and latency if requests have to be gathered first",
        )
    ]
    if facts.backward:
        fixes.append(
            Fix(
                title="If the optimizer's batch has to stay, accumulate less often",
                detail="A run that accumulates gradients over several micro-batches gets the same"
                " optimizer step from fewer, larger ones.",
                code="micro_batch, accumulate = "
                f"{times} * micro_batch, max(1, accumulate // {times})",
                cost="memory",
            )
        )
    if not facts.graphs:
        fixes.append(
            Fix(
                title="If the batch can't grow, launch less often",
                detail="CUDA graphs (or torch.compile, which fuses kernels) take the host out of"
                " the way of small kernels.",
                code='model = torch.compile(model, mode="reduce-overhead")',
                cost="compilation; static shapes",
            )
        )
    return fixes


CAUSE = Cause(id=ID, title="Small batch", judge=judge, docs=__doc__ or "")
