"""Two diagnoses side by side: did the step change, by how much, and what of it moved?

A change is only claimed when its interval leaves zero out (`gpuprof.analyzers.change`). Parts of
the step are tested one by one at a level that keeps all of them together at the same risk, so that
two runs of the same loop come out as "no difference" in their parts too. Causes follow the part of
the step that they are seen in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.by_step import mean_over_ranks
from gpuprof.analyzers.cause_changes import RELEVANT_BLIND_FRAC, cause_changes
from gpuprof.analyzers.change import LEVEL, MIN_SAMPLES, Change, beyond_plausible, change_of
from gpuprof.analyzers.recorded_window import core_wait_frac
from gpuprof.analyzers.summary import accounted_events, parts_of_steps
from gpuprof.analyzers.wording import percent
from gpuprof.comparison import (
    Comparison,
    KernelChange,
    PartChange,
    Side,
    StepChange,
    Verdict,
)
from gpuprof.diagnosis import BUCKETS, Diagnosis, RankSummary
from gpuprof.trace import Category

F64 = NDArray[np.float64]

PART_LEVEL = 1 - (1 - LEVEL) / len(BUCKETS)
"""Level of one bucket's interval, so that all of them together keep `LEVEL` (Bonferroni)."""

RELEVANT_FRAC = 0.01
"""A part or kernel that changed by less than 1 % of the step is not named."""

MOST_KERNELS = 10

BUSY_FROM = 0.05
"""From this share of time without a core on, it is said that the machine was busy."""

METHOD = (
    "difference of means by Welch's test over batches of steps, with an allowance for what differs"
    " from one start of a job to the next"
)


UNMEASURED = f"fewer than {MIN_SAMPLES} steps on a side: the noise is unknown"

IDENTICAL = "both sides are the same recording"


@dataclass(frozen=True, slots=True)
class RunSamples:
    """A run's steps one by one, and its kernels, where more than the diagnosis is at hand.

    step_ms: mean over the ranks, (n_steps,). parts_ms: bucket -> (n_steps,), empty where unknown.
    kernels: name -> (kind, calls a step, ms a step) of the first rank's main device. all_kernels:
    whether a name that `kernels` lacks did not run.
    """

    step_ms: F64
    parts_ms: dict[str, F64] = field(default_factory=dict)
    kernels: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    all_kernels: bool = False


def samples_of(diagnosis: Diagnosis) -> RunSamples:
    """What a diagnosis alone says of its steps: lengths, and the heaviest kernels."""
    series = [np.array(rank.step_ms, np.float64) for rank in _main_rows(diagnosis)]
    steps = max(len(series[0]) if series else 0, 1)
    kernels = {
        row.name: (row.kind, row.count / steps, row.total_ms / steps) for row in diagnosis.kernels
    }
    lengths = mean_over_ranks(series)
    return RunSamples(lengths, _kept_parts(diagnosis, len(lengths)), kernels)


def _kept_parts(diagnosis: Diagnosis, n_steps: int) -> dict[str, F64]:
    """The parts of each step that a diagnosis holds, {} where it holds none."""
    kept = diagnosis.run.steps.parts_ms
    if not kept or any(len(values) != n_steps for values in kept.values()):
        return {}
    nothing = np.zeros(n_steps, np.float64)
    return {b: np.array(kept[b], np.float64) if b in kept else nothing for b in BUCKETS}


def samples_of_accounts(accounts: Sequence[RankAccount]) -> RunSamples:
    """What the accounts of a run say of its steps (at least one account)."""
    lengths = mean_over_ranks([account.main.steps.length_ns / 1e6 for account in accounts])
    parts = parts_of_steps(accounts)
    return RunSamples(lengths, parts, _kernels(accounts[0]), all_kernels=True)


def compare_runs(
    before: Diagnosis,
    after: Diagnosis,
    before_samples: RunSamples | None = None,
    after_samples: RunSamples | None = None,
) -> Comparison:
    """Compares two runs.

    Args:
        before, after: Their diagnoses.
        before_samples, after_samples: Their steps (default: what the diagnosis says).
    """
    first = before_samples or samples_of(before)
    second = after_samples or samples_of(after)
    change = None
    waited = _waited_ms(before, after, first, second)
    same = are_identical(before, after) and _same_steps(first, second)
    if len(first.step_ms) and len(second.step_ms) and first.step_ms.mean() > 0:
        change = change_of(first.step_ms, second.step_ms, waited=waited)
        if same:
            change = Change(change.before, change.before, 0.0, 0.0)
    parts = _parts(before, after, first, second, waited, same) if change is not None else ()
    shrank, surfaced = _moved(parts, change)
    return Comparison(
        gpuprof=after.gpuprof,
        verdict="identical" if same else _verdict(change),
        before=_side(before),
        after=_side(after),
        step=_step(change, waited, same),
        parts=parts,
        shrank=shrank,
        surfaced=surfaced,
        causes=cause_changes(before, after, parts, change, same),
        kernels=() if same else _kernel_changes(first, second, change),
        different=_different(before, after),
        warnings=() if same else tuple(_warnings(before, after, first, second, change)),
    )


def are_identical(before: Diagnosis, after: Diagnosis) -> bool:
    """Whether two diagnoses are of one recording: the same files, or equal in all that they say but
    for who made them, when, and of which paths."""
    files = [sorted(file.sha256 for file in side.files) for side in (before, after)]
    if files[0] and all(files[0]) and files[0] == files[1]:
        return True
    first, second = (
        msgspec.structs.replace(side, gpuprof="", inputs=(), files=()) for side in (before, after)
    )
    return first == second


def _same_steps(first: RunSamples, second: RunSamples) -> bool:
    """A kept diagnosis rounds what a recording knows to the nanosecond."""
    if len(first.step_ms) != len(second.step_ms):
        return False
    return bool(np.allclose(first.step_ms, second.step_ms, rtol=1e-6, atol=1e-3))


def _waited_ms(before: Diagnosis, after: Diagnosis, first: RunSamples, second: RunSamples) -> float:
    """How much longer a step of `after` waited for a core that other processes had, ms."""
    waits = []
    for diagnosis, samples in ((before, first), (after, second)):
        share = core_wait_frac(diagnosis.facts)
        if share is None or not len(samples.step_ms):
            return 0.0
        waits.append(share * float(samples.step_ms.mean()))
    return waits[1] - waits[0]


def _main_rows(diagnosis: Diagnosis) -> list[RankSummary]:
    """The row of each rank's main device, which comes first."""
    rows: dict[int, RankSummary] = {}
    for row in diagnosis.ranks:
        rows.setdefault(row.rank, row)
    return list(rows.values())


def _kernels(account: RankAccount) -> dict[str, tuple[str, float, float]]:
    device, trace = account.main, account.trace
    if not len(device.events):
        return {}
    rows = trace.device.rows[accounted_events(account, device)]
    steps = max(len(device.steps.length_ns), 1)
    ids, first, inverse = np.unique(trace.name[rows], return_index=True, return_inverse=True)
    calls = np.bincount(inverse, minlength=len(ids)) / steps
    total = np.bincount(inverse, weights=trace.dur_ns[rows], minlength=len(ids)) / 1e6 / steps
    kinds = {int(Category.MEMCPY): "copy", int(Category.MEMSET): "memset"}
    return {
        trace.names[name]: (kinds.get(int(trace.category[rows[at]]), "kernel"), count, length)
        for name, at, count, length in zip(
            ids.tolist(), first.tolist(), calls.tolist(), total.tolist(), strict=True
        )
    }


def _verdict(change: Change | None) -> Verdict:
    if change is None or change.beyond_noise is None:
        return "unknown"
    if not change.beyond_noise:
        return "no difference"
    return "faster" if change.difference < 0 else "slower"


def _step(change: Change | None, waited_ms: float, same: bool) -> StepChange | None:
    if change is None:
        return None
    method = METHOD if change.low is not None else UNMEASURED
    return StepChange(
        change_ms=_ms(change.difference),
        change=round(change.difference / change.before, 5),
        low_ms=_ms(change.low),
        high_ms=_ms(change.high),
        level=LEVEL,
        method=IDENTICAL if same else method,
        waited_ms=round(waited_ms, 4),
    )


@overload
def _ms(value: float) -> float: ...
@overload
def _ms(value: None) -> None: ...
@overload
def _ms(value: float | None) -> float | None: ...
def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _side(diagnosis: Diagnosis) -> Side:
    run = diagnosis.run
    return Side(
        inputs=diagnosis.inputs,
        devices=run.devices,
        world_size=run.world_size,
        steps=run.steps.count,
        source=run.steps.source,
        step_ms=run.steps.length_ms,
        bound=diagnosis.bound.class_,
    )


def _parts(
    before: Diagnosis,
    after: Diagnosis,
    first: RunSamples,
    second: RunSamples,
    waited_ms: float,
    same: bool,
) -> tuple[PartChange, ...]:
    """Every bucket, in the order of the budget; any of them may hold the wait for a core."""
    known = bool(first.parts_ms) and bool(second.parts_ms)
    result = []
    for bucket in BUCKETS:
        if known:
            series = first.parts_ms[bucket], second.parts_ms[bucket]
            change = change_of(*series, PART_LEVEL, waited_ms)
        else:
            change = Change(
                before.budget.get(bucket, 0.0) * float(first.step_ms.mean()),
                after.budget.get(bucket, 0.0) * float(second.step_ms.mean()),
                None,
                None,
            )
        if same:
            change = Change(change.before, change.before, 0.0, 0.0)
        result.append(
            PartChange(
                bucket=bucket,
                before_ms=round(change.before, 4),
                after_ms=round(change.after, 4),
                change_ms=round(change.difference, 4),
                low_ms=_ms(change.low),
                high_ms=_ms(change.high),
                beyond_noise=change.beyond_noise,
            )
        )
    return tuple(result)


def _moved(
    parts: Sequence[PartChange], change: Change | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buckets that shrank and those that grew, most first. Where a part's own noise is unknown,
    it counts when the step itself is known to have changed; where that is not known either, when
    it changed by more than any plausible noise."""
    if change is None:
        return (), ()
    real = []
    for part in parts:
        blind = part.beyond_noise is None
        least = (RELEVANT_BLIND_FRAC if blind else RELEVANT_FRAC) * change.before
        counts = part.beyond_noise
        if blind and change.beyond_noise is not None:
            counts = change.beyond_noise
        elif blind:
            counts = beyond_plausible(part.before_ms, part.after_ms)
        if counts and abs(part.change_ms) >= least:
            real.append(part)
    real.sort(key=lambda part: -abs(part.change_ms))
    return (
        tuple(part.bucket for part in real if part.change_ms < 0),
        tuple(part.bucket for part in real if part.change_ms > 0),
    )


def _kernel_changes(
    first: RunSamples, second: RunSamples, change: Change | None
) -> tuple[KernelChange, ...]:
    """The kernels that changed most; without full tables only those that both tables hold."""
    if change is None:
        return ()
    names = dict.fromkeys((*first.kernels, *second.kernels))
    rows = []
    for name in names:
        old, new = first.kernels.get(name), second.kernels.get(name)
        if (old is None and not first.all_kernels) or (new is None and not second.all_kernels):
            continue
        old_ms, new_ms = (old[2] if old else 0.0), (new[2] if new else 0.0)
        if abs(new_ms - old_ms) < RELEVANT_FRAC * change.before:
            continue
        rows.append(
            KernelChange(
                name=name,
                kind=(old or new or ("kernel",))[0],
                before_ms=round(old_ms, 4),
                after_ms=round(new_ms, 4),
                change_ms=round(new_ms - old_ms, 4),
                before_calls=round(old[1] if old else 0.0, 3),
                after_calls=round(new[1] if new else 0.0, 3),
            )
        )
    rows.sort(key=lambda row: -abs(row.change_ms))
    return tuple(rows[:MOST_KERNELS])


def _different(before: Diagnosis, after: Diagnosis) -> dict[str, tuple[str, str]]:
    """What the two recordings say of themselves, where they say different things."""
    result = {}
    pairs = {
        "devices": (", ".join(before.run.devices), ", ".join(after.run.devices)),
        "world size": (str(before.run.world_size), str(after.run.world_size)),
    }
    for name in before.facts:
        if name in after.facts:
            pairs[name] = before.facts[name], after.facts[name]
    for name, (old, new) in pairs.items():
        if old != new:
            result[name] = (old, new)
    return result


def _warnings(
    before: Diagnosis,
    after: Diagnosis,
    first: RunSamples,
    second: RunSamples,
    change: Change | None,
) -> list[str]:
    said = []
    if change is None:
        said.append("the length of a step is not known on both sides: nothing can be compared")
    sides = (("before", before, first), ("after", after, second))
    for name, side, samples in sides:
        if 0 < len(samples.step_ms) < MIN_SAMPLES and side.run.steps.source != "none":
            count = "one step" if len(samples.step_ms) == 1 else f"{len(samples.step_ms)} steps"
            said.append(
                f"{name} holds {count}: at least {MIN_SAMPLES} are needed to know the noise"
            )
    if (before.run.steps.source == "none") != (after.run.steps.source == "none"):
        said.append("only one side has steps: a step is compared with a whole recording")
    elif before.run.steps.source == "none":
        said.append(
            "no steps were found: the whole recordings are compared, and one length a side does not"
            " show the noise; mark steps with prof.step()"
        )
    blind = [
        name
        for name, _, samples in sides
        if len(samples.step_ms) >= MIN_SAMPLES and not samples.parts_ms
    ]
    if blind:
        who = "neither side holds" if len(blind) == 2 else f"{blind[0]} does not hold"
        said.append(
            f"{who} what each step spent in its parts: of parts and causes the noise is unknown;"
            " compare the recordings, or analyze them again"
        )
    busy = [
        f"{name} {percent(share)}"
        for name, one in (("before", before), ("after", after))
        if (share := core_wait_frac(one.facts) or 0.0) >= BUSY_FROM
    ]
    if busy:
        said.append(
            "other processes had the cores while the training thread stood ready"
            f" ({', '.join(busy)} of the time): what that explains of the change is not called real"
        )
    known = "unknown" not in (*before.run.devices, *after.run.devices)
    if known and before.run.devices != after.run.devices:
        said.append("the devices differ: a change need not come from the code")
    if before.run.world_size != after.run.world_size:
        said.append("the numbers of ranks differ: the work of a step may differ as well")
    return said
