"""The tables and the one sentence of a diagnosis, from the accounts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import DeviceAccount, RankAccount, mean_step_ms
from gpuprof.analyzers.by_step import mean_over_ranks
from gpuprof.analyzers.communication_fixes import named_ranks
from gpuprof.analyzers.kernels import Kind
from gpuprof.analyzers.roofline import Limit, RooflineSummary, summarize
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.diagnosis import (
    BUCKETS,
    Bound,
    Estimate,
    ExcludedStep,
    Finding,
    KernelRow,
    NotJudged,
    RankSummary,
    StepsSummary,
)
from gpuprof.trace import Category

MOST_KERNELS = 20
"""Rows of the table of the heaviest device events; the rest is in the timeline."""

BUDGET_DIGITS = 6

PART_DIGITS = 4
"""Of ms: 0.1 µs, as the lengths of steps have."""

F64 = NDArray[np.float64]


def mean_budget(accounts: Sequence[RankAccount]) -> dict[str, float]:
    """The step budget over all ranks and devices, rounded so that it still adds up to 1."""
    shares = [d.budget.frac() for a in accounts for d in a.devices if d.budget.total_ns > 0]
    if not shares:
        return dict.fromkeys(BUCKETS, 0.0) | {"unknown": 1.0}
    mean = {b: round(float(np.mean([s[b] for s in shares])), BUDGET_DIGITS) for b in BUCKETS}
    largest = max(mean, key=lambda bucket: mean[bucket])
    mean[largest] = round(mean[largest] + 1.0 - sum(mean.values()), BUDGET_DIGITS)
    return mean


def accounted_events(account: RankAccount, device: DeviceAccount) -> NDArray[np.int64]:
    """The device's events that ran in the accounted steps, indices into the device rows."""
    steps, start = device.steps, account.launches.start_ns[device.events]
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    inside = (step >= 0) & (start < steps.end_ns[-1])
    kept = inside & steps.keep[np.clip(step, 0, len(steps) - 1)]
    events: NDArray[np.int64] = device.events[kept]
    return events


def device_roofline(account: RankAccount, device: DeviceAccount) -> RooflineSummary:
    """The roofline of a device over its accounted steps."""
    mask = np.zeros(len(account.limits), np.bool_)
    mask[accounted_events(account, device)] = True
    return summarize(account.limits, account.trace, mask, wall_ns=device.budget.total_ns or None)


def rank_summaries(
    accounts: Sequence[RankAccount],
    waits: dict[int, float],
    late: Sequence[int],
) -> tuple[RankSummary, ...]:
    """One row a rank and device. waits: rank -> share of its step spent waiting for others."""
    rows = []
    for index, account in enumerate(accounts):
        for device in account.devices:
            roofline = device_roofline(account, device)
            figures = {
                "mfu": roofline.mfu,
                "tflops": roofline.tflops,
                "bandwidth_frac": roofline.bandwidth_frac,
                "matrix_units_frac": roofline.matrix_units_frac,
                "fill_frac": roofline.fill_frac,
            }
            rows.append(
                RankSummary(
                    rank=account.rank,
                    device=device.name,
                    device_index=device.index,
                    trace=index,
                    step_ms=tuple(round(float(ns) / 1e6, 4) for ns in device.steps.length_ns),
                    budget={b: round(v, BUDGET_DIGITS) for b, v in device.budget.frac().items()},
                    busy_frac=round(device.budget.busy_frac, BUDGET_DIGITS),
                    wait_frac=waits.get(account.rank),
                    late=account.rank in late,
                    roofline={k: round(float(v), 4) for k, v in figures.items() if v is not None},
                )
            )
    return tuple(rows)


def steps_summary(accounts: Sequence[RankAccount]) -> StepsSummary:
    """The accounted steps of the run; counts are of the rank with fewest."""
    first = accounts[0].main.steps
    lengths = [a.main.steps.length_ns for a in accounts]
    whole = np.concatenate(lengths)
    mean = mean_step_ms(accounts)
    return StepsSummary(
        count=min(len(length) for length in lengths) if first.source != "none" else 0,
        source=first.source,
        median_ms=round(float(np.median(whole)) / 1e6, 4) if whole.any() else None,
        mean_ms=round(mean, 4) if mean else None,
        excluded=tuple(
            ExcludedStep(step=account.main.steps.labels[i], rank=account.rank, why=why)
            for account in accounts
            for i, why in sorted(account.main.steps.why.items())
        ),
        parts_ms={
            bucket: tuple(round(float(value), PART_DIGITS) for value in values)
            for bucket, values in parts_of_steps(accounts).items()
            if values.any()
        },
    )


def parts_of_steps(accounts: Sequence[RankAccount]) -> dict[str, F64]:
    """What each accounted step spent in each bucket in ms, mean over the ranks: (n_steps,)."""
    budgets = [account.main.budget for account in accounts]
    return {
        bucket: mean_over_ranks([b.per_step_ns[bucket][b.steps.keep] / 1e6 for b in budgets])
        for bucket in BUCKETS
    }


def heaviest_kernels(account: RankAccount) -> tuple[KernelRow, ...]:
    """The device events that took most time in the accounted steps of a rank's main device."""
    device = account.main
    if not len(device.events):
        return ()
    events = accounted_events(account, device)
    trace, limits = account.trace, account.limits
    name = trace.name[trace.device.rows[events]]
    duration = trace.dur_ns[trace.device.rows[events]].astype(np.float64)
    ids, inverse, counts = np.unique(name, return_inverse=True, return_counts=True)
    total = np.bincount(inverse, weights=duration)
    # Equal ones by name: their ids follow the order of the file.
    order = sorted(range(len(ids)), key=lambda i: (-total[i], trace.names[int(ids[i])]))
    whole = max(device.budget.total_ns, 1)
    rows = []
    for i in order[:MOST_KERNELS]:
        mine = events[inverse == i]
        rows.append(
            KernelRow(
                name=trace.names[int(ids[i])],
                kind=_kind(account, mine),
                count=int(counts[i]),
                total_ms=round(float(total[i]) / 1e6, 4),
                mean_us=round(float(total[i] / counts[i]) / 1e3, 3),
                share=round(float(total[i]) / whole, 4),
                limit=_main_limit(limits.limit[mine], duration[inverse == i]),
                achieved_frac=_achieved(limits.ideal_ns[mine], duration[inverse == i]),
            )
        )
    return tuple(rows)


def _kind(account: RankAccount, events: NDArray[np.int64]) -> str:
    category = account.trace.category[account.trace.device.rows[events[0]]]
    if category == Category.MEMSET:
        return "memset"
    return Kind(int(account.limits.kind[events[0]])).label


def _main_limit(limit: NDArray[np.uint8], duration: NDArray[np.float64]) -> str:
    time = np.bincount(limit, weights=duration, minlength=len(Limit))
    return Limit(int(np.argmax(time))).name.lower()


def _achieved(ideal: NDArray[np.float64], duration: NDArray[np.float64]) -> float | None:
    """Roofline time as a share of the time taken, over the events where it is known."""
    known = ~np.isnan(ideal)
    if not known.any() or duration[known].sum() <= 0:
        return None
    return round(float(ideal[known].sum() / duration[known].sum()), 4)


ROUNDING = 0.005
"""Shares that read the same when rounded to percents are no contradiction."""

_HOLDS = {
    "dataloader": "waits for data",
    "small-batch": "is given too little work at a time",
    "sync-points": "is left idle by blocking calls",
    "nccl-wait": "waits in communication",
    "host-overhead": "waits for the host to launch work",
    "memcpy": "waits for copies",
    "imbalance": "waits for devices with more work",
    "checkpoint": "waits for a checkpoint to be written",
    "low-precision": "computes in fp32 beside its tensor cores",
}
"""What leads the sentence: the cause that stands first of those that take a share of the step."""

_HOLDS_ON_CPU = {
    "dataloader": "waits for data",
    "nccl-wait": "waits in communication",
    "host-overhead": "spends outside of operators",
    "imbalance": "waits for ranks with more work",
    "checkpoint": "waits for a checkpoint to be written",
}

_NOUNS = {
    "dataloader": "data loading",
    "small-batch": "the size of the batch",
    "sync-points": "blocking calls",
    "nccl-wait": "waiting in communication",
    "host-overhead": "the host's overhead",
    "memcpy": "copies between host and device",
    "imbalance": "imbalance between ranks",
    "checkpoint": "checkpoints",
}

_LIMITS = {
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "input": "data loading",
    "communication": "communication",
    "host": "the host",
}


def headline(
    accounts: Sequence[RankAccount],
    bound: Bound,
    findings: Sequence[Finding],
    together: Estimate | None,
    step_ms: float | None,
    not_judged: Sequence[NotJudged] = (),
) -> str:
    """One sentence: what the device does, what it costs, the most that could be saved.

    Args:
        step_ms: Mean length of the accounted steps; shares and savings are shares of it.
        not_judged: What the recording can't show: no word of it being absent then.
    """
    has_device = any(len(d.events) for a in accounts for d in a.devices)
    subject = "The GPU" if has_device else "Training on the CPU"
    busy = float(np.mean([d.budget.busy_frac for a in accounts for d in a.devices]))
    each = (
        f"each {milliseconds(step_ms)} step"
        if step_ms and accounts[0].main.steps.source != "none"
        else ("the recording")
    )
    holds = _HOLDS if has_device else {**_HOLDS, **_HOLDS_ON_CPU}
    first = next((f for f in findings if f.cause in holds), None)
    if first is None:
        limit = _LIMITS.get(bound.class_)
        if bound.class_ == "mixed":
            limit = " and ".join(_LIMITS[r] for r in bound.also[:2])
        if limit is None:
            return f"{subject} is busy {percent(busy)} of {each}; what limits it can't be told."
        text = (
            f"{subject} is busy {percent(busy)} of {each}, limited by {limit};"
            f" {_no_cause(not_judged)}"
        )
    else:
        held = holds[first.cause]
        own = np.mean([_own_share(d) for a in accounts for d in a.devices])
        late = first.cause == "host-overhead" and first.share > float(own) + ROUNDING
        if late and has_device and len(accounts) > 1:
            held = "is held up by late hosts, its own and other ranks',"
        text = f"{subject} {held} {percent(first.share)} of {each}"
        if first.cause == "nccl-wait" and first.late_ranks and first.gain is not None:
            hold = "holds" if len(first.late_ranks) == 1 else "hold"
            who = f"{named_ranks(first.late_ranks).capitalize()} {hold} the others up"
            text = f"{who} for {percent(first.gain.reduction)} of {each}"
    if together is not None and step_ms:
        saved = max(step_ms - together.step_ms, 0.0)
        text += f"; the changes below could save up to {milliseconds(saved)}"
    return text + "."


def _no_cause(not_judged: Sequence[NotJudged]) -> str:
    """Nothing was found; what could not be judged may be there all the same."""
    known = [_NOUNS[item.cause] for item in not_judged if item.cause in _NOUNS]
    if not known:
        return "none of the known causes holds it up"
    named = known[0] if len(known) == 1 else f"{', '.join(known[:-1])} and {known[-1]}"
    return f"no known cause was found, but {named} could not be judged"


def _own_share(device: DeviceAccount) -> float:
    """What the account of one device charges to late hosts, and to calls that they follow."""
    share = device.budget.frac()
    return share["host"] + share["allocator"] + share["sync"]
