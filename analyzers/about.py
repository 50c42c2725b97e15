"""About the data: what a reader should know before trusting a number."""

from __future__ import annotations

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.facts import RunFacts
from gpuprof.analyzers.ranks import RankComparison
from gpuprof.analyzers.wording import microseconds, percent
from gpuprof.counted import agrees, counted
from gpuprof.diagnosis import InputFile
from gpuprof.trace import Trace

WAITS_ON_ITSELF_FROM = 0.10
"""A device that has work queued and runs nothing for a tenth of the step waits for something that
the trace does not hold."""


def data_warnings(account: RankAccount) -> list[str]:
    """What a reader should know about the data of a rank."""
    of = f"rank {account.rank}: "
    found = [of + text for text in account.trace.warnings]
    launches, steps = account.launches, account.main.steps
    if launches.skew_ns:
        found.append(
            of + f"device timestamps sat up to {microseconds(launches.skew_ns / 1e3)} before their"
            " own launches; they were shifted by that (the two clocks disagree)"
        )
    if launches.impossible:
        found.append(
            of + f"{counted(launches.impossible, 'device event')} still"
            f" {agrees(launches.impossible, 'starts before its', 'start before their')} launch"
        )
    if steps.source == "none":
        found.append(
            of + "no steps were found: the recording is taken as one stretch, with whatever was"
            " done only once in it"
        )
    unlaunched = int(np.count_nonzero(~launches.known))
    if unlaunched and unlaunched > len(launches.row) * 0.01:
        found.append(
            of + f"{unlaunched} of {counted(len(launches.row), 'device event')}"
            f" {agrees(unlaunched, 'has', 'have')} no recorded launch"
            " (launched before the window, or dropped)"
        )
    waits = account.main.budget.frac()["launch"]
    if waits >= WAITS_ON_ITSELF_FROM:
        found.append(
            of + f"for {percent(waits)} of the step the device had work queued and ran none of it:"
            " a dependency that the trace does not hold, or the profiler's own work in CUDA graphs"
        )
    return found


def input_file(trace: Trace) -> InputFile:
    meta = trace.meta
    notes = ["truncated: read up to the last whole event"] if meta.truncated else []
    notes += [f"{count} {why}" for why, count in sorted(trace.dropped.items()) if count]
    return InputFile(
        path=meta.path,
        kind="kineto",
        size_bytes=meta.size_bytes,
        sha256=meta.sha256,
        events=len(trace),
        notes=tuple(notes),
    )


def clock_facts(comparison: RankComparison | None) -> dict[str, str]:
    """How well the ranks' clocks agree, where collectives tell: the error that is left when their
    recordings are laid side by side."""
    if comparison is None:
        return {}
    known = comparison.clock_offset_ns[~np.isnan(comparison.clock_offset_ns)]
    if len(known) < 2:
        return {}
    spread_us = float(known.max() - known.min()) / 1e3
    return {"clocks of the ranks": f"up to {microseconds(spread_us)} apart"}


def facts_table(facts: RunFacts) -> dict[str, str]:
    """Facts of the run as a table for people."""
    known: dict[str, str] = {}
    if facts.dtype:
        known["matrix work in"] = facts.dtype
    if facts.matrix_units_frac is not None:
        known["matrix work on tensor cores"] = percent(facts.matrix_units_frac)
    known["torch.compile"] = "in use" if facts.compiled else "not in use"
    if facts.graph_frac:
        known["launched by CUDA graphs"] = percent(facts.graph_frac)
    if facts.loader_workers is not None:
        known["loader"] = "worker processes" if facts.loader_workers else "in the training process"
    if facts.pinned_input is not None:
        known["input copies"] = "pinned memory" if facts.pinned_input else "pageable memory"
    if facts.optimizer:
        fused = {True: " (fused)", False: " (not fused)", None: ""}[facts.optimizer_fused]
        known["optimizer"] = facts.optimizer + fused
    parallel = [n for n, used in (("DDP", facts.ddp), ("FSDP", facts.fsdp)) if used]
    if parallel:
        known["parallelism"] = ", ".join(parallel)
    if facts.recomputes:
        known["activation checkpointing"] = "in use"
    if facts.peak_bytes is not None and facts.device_bytes:
        known["peak memory"] = f"{facts.peak_bytes / 1e9:.2f} of {facts.device_bytes / 1e9:.1f} GB"
    if facts.cores is not None:
        known["CPU cores"] = str(facts.cores)
    return known
