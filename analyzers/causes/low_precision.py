"""Matrix work runs in fp32 beside the tensor cores.

What it finds: products and convolutions in fp32 on the plain units of a device whose matrix units
(tensor cores) are several times faster, on a run that arithmetic limits.

Why it costs: the plain units of an A100 do 19.5 TFLOP/s in fp32, its tensor cores 156 in TF32 and
312 in bf16. PyTorch's default for products is fp32 on the plain units (for convolutions TF32).

How it is measured: the names of kernels tell the type and the unit, the table of devices the peaks.
The gain is the replay of the step with these kernels faster by half of the ratio of the peaks, and
by three times at most, and no kernel faster than its bytes allow.

How to fix: allow TF32; autocast to bf16, or to fp16 with a gradient scaler.

Limits: judged only where most matrix kernels name their type and unit and the device is in the
table. How much faster a kernel gets depends on its shapes (sides that are multiples of 8 or more).
Whether a model keeps its accuracy has to be tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import DeviceAccount, RankAccount
from gpuprof.analyzers.causes.base import (
    Cause,
    Verdict,
    confidence,
    finding,
    too_little,
)
from gpuprof.analyzers.device_columns import DTYPES, peaks_of
from gpuprof.analyzers.intervals import covered, union
from gpuprof.analyzers.kernels import MATRIX_KINDS
from gpuprof.analyzers.pricing import DevicePricing, Price, gain_of, mean_price, trusted
from gpuprof.analyzers.replay import Change
from gpuprof.analyzers.roofline import Limit
from gpuprof.analyzers.run_view import LEAST_GAIN, RunView
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence, Fix, Gain, NotJudged, RuledOut
from gpuprof.distinct import is_in
from gpuprof.peaks import Peaks

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

ID = "low-precision"

PEAK_FRAC = 0.5
"""Of the ratio of two peaks, a kernel that moves from the plain to the matrix units gets about
half: it becomes limited by memory and by its shape before it reaches the higher peak."""

MOST_SPEEDUP = 3.0
"""NVIDIA's training guide names up to 3 times for mixed precision on the models that are heaviest
in arithmetic; a promise beyond that needs a trial."""

LEAST_SPEEDUP = 1.5
"""Below, the matrix units of this device in that type are no gain that could be relied on."""

_TARGETS = ("tf32", "bf16", "fp16")
"""What fp32 work can move to, the smallest change first."""


def judge(run: RunView) -> Verdict:
    """Judges whether matrix work should use the matrix units."""
    if not run.has_device:
        return RuledOut(cause=ID, why="the CPU is the device")
    units = run.roofline.matrix_units_frac
    dtype = run.facts.dtype
    if units is None or not dtype:
        return NotJudged(cause=ID, missing="kernel names don't tell the type of matrix work")
    rank = run.first
    info = rank.main.info
    peaks = peaks_of(info) if info is not None else None
    if peaks is None:
        return NotJudged(cause=ID, missing="the device is not in the table of peaks")
    target = _target(peaks)
    if target is None:
        return RuledOut(
            cause=ID, why=f"{peaks.name} has no matrix units that are much faster than fp32"
        )
    name, speedup = target
    share = float(np.mean([_share(each, each.main) for each in run.ranks]))
    if share < run.named_from:
        return RuledOut(
            cause=ID, why=too_little("matrix work in fp32 without matrix units", share, run)
        )
    if run.bound.class_ != "compute" and "compute" not in run.bound.also:
        return RuledOut(
            cause=ID,
            why=f"matrix work in fp32 holds {percent(share)} of the step, but arithmetic does not"
            " limit this run",
        )
    gain = _gain(run, name, speedup)
    if gain is not None and gain.reduction < LEAST_GAIN:
        return RuledOut(
            cause=ID,
            why=f"in {name} the step would be only {percent(gain.reduction)} shorter",
        )
    return finding(
        ID,
        f"Matrix work in fp32 without tensor cores holds {percent(share)} of {run.each_step}",
        share=share,
        gain=gain,
        confidence=confidence(run, share, gain, certain=0.8),
        evidence=_evidence(run, peaks, name, speedup, share),
        fixes=_fixes(run, peaks),
        ranks=tuple(r.rank for r in run.ranks if _share(r, r.main) >= run.named_from),
    )


def _target(peaks: Peaks) -> tuple[str, float] | None:
    """The type to move to, and how much faster a kernel then gets by a careful guess."""
    plain = peaks.flops("fp32", matrix=False)
    if not plain:
        return None
    for name in _TARGETS:
        if name in peaks.dense_flops:
            speedup = min(MOST_SPEEDUP, PEAK_FRAC * peaks.dense_flops[name] / plain)
            if speedup >= LEAST_SPEEDUP:
                return name, speedup
    return None


def _slow(rank: RankAccount) -> Bools:
    """Device rows that are fp32 matrix work on plain units and limited by arithmetic, (n,)."""
    limits = rank.limits
    slow: Bools = is_in(limits.kind, [int(kind) for kind in MATRIX_KINDS])
    slow &= (limits.dtype == DTYPES.index("fp32")) & (limits.matrix_units == 0)
    slow &= limits.limit == Limit.COMPUTE
    return slow


def _share(rank: RankAccount, device: DeviceAccount) -> float:
    steps, total = device.steps, device.budget.total_ns
    events = device.events[_slow(rank)[device.events]]
    if not total or not len(events):
        return 0.0
    spans = union(rank.launches.start_ns[events], rank.launches.end_ns[events])
    per_step = covered(spans, steps.start_ns, steps.end_ns)
    return float(per_step[steps.keep].sum() / total)


def _gain(run: RunView, target: str, speedup: float) -> Gain | None:
    prices = [_price(rank, speedup) for rank in run.ranks]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    return gain_of(
        mean_price(known),
        run.step_ms(),
        f"the step replayed with these kernels {speedup:.2g} times as fast ({target} on matrix"
        " units, half of the ratio of the peaks, 3 at most)",
    )


def _price(rank: RankAccount, speedup: float) -> Price | None:
    pricing = rank.main.pricing
    if not isinstance(pricing, DevicePricing) or not trusted(pricing):
        return None
    source = pricing.program.source
    duration = pricing.program.dur_ns
    memory_ns = rank.limits.bytes[source] / rank.limits.peak_bytes_per_s[source] * 1e9
    faster = np.maximum(duration / speedup, np.nan_to_num(memory_ns, nan=0.0))
    changed = np.where(_slow(rank)[source], np.minimum(faster, duration), duration)
    return pricing.price(Change(device_ns=np.rint(changed).astype(np.int64)))


def _evidence(
    run: RunView, peaks: Peaks, target: str, speedup: float, share: float
) -> list[Evidence]:
    plain = peaks.flops("fp32", matrix=False) or 0.0
    units = run.roofline.matrix_units_frac or 0.0
    return [
        Evidence(
            text=f"Products and convolutions in fp32 on the plain units take {percent(share)} of"
            f" the step; {percent(units)} of all matrix work uses the matrix units.",
            value=round(share, 4),
            unit="share of step",
        ),
        Evidence(
            text=f"{peaks.name}: {plain / 1e12:.3g} TFLOP/s in fp32,"
            f" {peaks.dense_flops[target] / 1e12:.3g} in {target} on the matrix units (dense)."
            f" Reckoned with: {speedup:.2g} times as fast.",
            value=round(peaks.dense_flops[target] / plain, 2) if plain else None,
            unit="ratio of peaks",
        ),
    ]


def _fixes(run: RunView, peaks: Peaks) -> list[Fix]:
    fixes: list[Fix] = []
    if "tf32" in peaks.dense_flops:
        fixes.append(
            Fix(
                title="Allow TF32",
                detail="Inputs of products are rounded to 10 bits of mantissa, sums stay in fp32.",
                code='torch.set_float32_matmul_precision("high")\n'
                "torch.backends.cudnn.allow_tf32 = True",
                cost="slightly different results; most training does not notice",
            )
        )
    half = "bfloat16" if "bf16" in peaks.dense_flops else "float16"
    code = f'with torch.autocast("cuda", dtype=torch.{half}):\n    loss = loss_of(model(x), y)'
    if half == "float16" and run.facts.backward:
        code = (
            'scaler = torch.amp.GradScaler("cuda")   # torch.cuda.amp.GradScaler() before 2.3\n'
            + code
            + "\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
        )
    fixes.append(
        Fix(
            title=f"Compute in {half} (autocast)",
            detail="Products and convolutions run on the matrix units, and activations take half of"
            " the memory and of its bandwidth. Weights and the optimizer stay in fp32.",
            code=code,
            cost="accuracy has to be checked",
        )
    )
    fixes.append(
        Fix(
            title="Make sizes multiples of 8",
            detail="Batch, channels, vocabulary and hidden sizes that are multiples of 8 (64 is"
            " better) let the libraries pick their fastest kernels.",
            cost="a little padding",
        )
    )
    return fixes


CAUSE = Cause(
    id=ID,
    title="Matrix work without tensor cores",
    judge=judge,
    docs=__doc__ or "",
)
