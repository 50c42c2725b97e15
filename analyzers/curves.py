"""Findings from samples: what the hardware reports, and a first guess from utilization curves.

The guess names one of the eight causes with a confidence of its own that a trace never needs: it
is only shown where no trace could judge the cause (see `gpuprof.analyzers.sources`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyzers.hardware import hardware_findings, xid_findings
from gpuprof.analyzers.utilization import Curve, Guess, classify, guesses, together
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import CAUSES, Evidence, Finding, Fix
from gpuprof.samples import Samples

if TYPE_CHECKING:
    from gpuprof.readers.xid import XidLog

NAMED_FROM = 0.25
"""A guess below this confidence is not worth a finding."""

_LOOKS_LIKE = {
    "dataloader": "waiting for data",
    "small-batch": "too little work in each launch",
    "sync-points": "blocking calls",
    "nccl-wait": "ranks waiting for each other",
    "host-overhead": "a slow host",
    "memcpy": "exposed copies",
    "imbalance": "devices with unequal work",
    "checkpoint": "blocking checkpoints",
}

UTILIZATION = "util_frac"
POWER = "power_w"


def findings_from_samples(samples: Sequence[Samples], xids: XidLog | None = None) -> list[Finding]:
    """Hardware findings of every node, then the best guess that the curves allow.

    Args:
        samples: One recording a node.
        xids: Reports of a kernel log, if one was given.
    """
    found: list[Finding] = []
    logged = xids.events if xids is not None else ()
    if logged and not samples:
        found += xid_findings(Samples(node="", source="kernel log"), logged)
    for node in samples:
        found += hardware_findings(node, logged)
    curves = [curve for node in samples for curve in curves_of(node)]
    single = [classify(curve) for curve in curves]
    joint = together(curves) if len(curves) > 1 else []
    named = [g for g in guesses(single, joint) if g.confidence >= NAMED_FROM]
    return [*found, _finding(named[0])] if named else found


def curves_of(samples: Samples) -> list[Curve]:
    """The utilization curve of every GPU of a node, failed reads left out."""
    curves = []
    for scope in samples.scopes("gpu"):
        series = samples.get(UTILIZATION, scope)
        if series is None:
            continue
        time, value = series.good()
        if not len(time):
            continue
        power = samples.get(POWER, scope)
        watts = None
        if power is not None and len(power.good()[0]):
            watts = np.interp(time, *power.good())
        curve = Curve(time, value, watts, samples.timed)
        if scope in samples.windows:
            curve = replace(curve, window_s=samples.windows[scope] / 1e9)
        curves.append(curve)
    return curves


def _finding(guess: Guess) -> Finding:
    """A guess as a finding: no gain, since nothing was replayed, and what would confirm it."""
    shape = guess.shape
    return Finding(
        cause=guess.cause,
        number=CAUSES.get(guess.cause),
        title=f"The utilization curve looks like {_LOOKS_LIKE[guess.cause]}:"
        f" {percent(shape.lost_frac)} of the time is not used",
        severity="info",
        confidence=guess.confidence,
        share=round(shape.lost_frac, 4),
        gain=None,
        evidence=(
            Evidence(
                text=shape.why[:1].upper() + shape.why[1:] + ".",
                value=round(shape.lost_frac, 4),
                unit="share of time",
                source="nvml",
            ),
        ),
        fixes=(
            Fix(
                title="Record a trace of some steps to be sure",
                detail="A curve shows when the device is idle, not why.",
                code="with torch.profiler.profile(activities=[CPU, CUDA]) as prof: …\n"
                'prof.export_chrome_trace("trace.json.gz")',
                cost="a few seconds of profiling",
            ),
        ),
    )
