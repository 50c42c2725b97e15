"""What late ranks cost the others, and what holds a late rank up itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount, mean_step_ms
from gpuprof.analyzers.intervals import Spans, covered, intersect, union
from gpuprof.analyzers.pricing import (
    DevicePricing,
    Price,
    gain_of,
    mean_price,
    price_of,
    trusted,
)
from gpuprof.analyzers.ranks import RankComparison, RankWaits
from gpuprof.analyzers.replay import Change, Replayed
from gpuprof.diagnosis import BUCKETS, Gain

F64 = NDArray[np.float64]

COMMUNICATION = ("communication", "communication_host")
OWN_BUCKETS = tuple(b for b in BUCKETS if b not in COMMUNICATION)
"""What a rank does when it does not wait for others."""

EXCESS_FRAC = 0.02
"""A late rank that spends 2 % of the step more than the others in something is held up by it."""


def waiting_frac(
    accounts: Sequence[RankAccount], comparison: RankComparison, without: Sequence[int] = ()
) -> float:
    """Mean share of the step that passes with nothing but waiting for another rank.

    Waits that overlap (the host's back ends run several collectives side by side) count once.

    Args:
        accounts: The ranks.
        comparison: Of these ranks.
        without: Ranks to leave out of the mean.
    """
    shares = [
        _exposed_frac(account, waits, waits.wait_ns)
        for account, waits in _pairs(accounts, comparison)
        if account.rank not in without
    ]
    return float(np.mean(shares)) if shares else 0.0


def without_lateness(accounts: Sequence[RankAccount], comparison: RankComparison) -> Gain | None:
    """What the step would be if the late ranks came to their collectives with the rest.

    The other ranks are replayed with the wait for the late ranks taken out of their collectives;
    what they would still wait for each other stays. All ranks of a job take the same steps, so the
    rank that gains least sets the pace. None without late ranks, or where one of the others can't
    be replayed.
    """
    late = set(comparison.late_ranks)
    prices = [
        _price(account, waits)
        for account, waits in _pairs(accounts, comparison)
        if account.rank not in late
    ]
    known = [price for price in prices if price is not None]
    if not late or not known or len(known) < len(prices):
        return None
    least = min(known, key=lambda price: price.reduction)
    return gain_of(least, mean_step_ms(accounts))


def without_transfers(accounts: Sequence[RankAccount], comparison: RankComparison) -> Gain | None:
    """What the step would be if passing data took no time, and ranks waited as they did.

    For ranks that can't be replayed together: each is replayed on its own, and of a collective
    that others have recorded, too, only the wait stays. Of the others nothing does. None where a
    rank can't be replayed.
    """
    prices = [
        _price_of_transfers(account, waits) for account, waits in _pairs(accounts, comparison)
    ]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return gain_of(mean_price(known), mean_step_ms(accounts))


def held_up_by(
    accounts: Sequence[RankAccount], late: Sequence[int], rank: int
) -> tuple[str, float, float] | None:
    """What a late rank does longer than those that are not late.

    Returns:
        The bucket with the greatest excess, its ms a step on this rank and its mean over the
        others; None where nothing stands out.
    """
    own = next((a for a in accounts if a.rank == rank), None)
    others = [a for a in accounts if a.rank not in late]
    if own is None or not others:
        return None
    mine = _per_step_ms(own)
    theirs = {b: float(np.mean([_per_step_ms(a)[b] for a in others])) for b in OWN_BUCKETS}
    bucket = max(OWN_BUCKETS, key=lambda b: mine[b] - theirs[b])
    step_ms = float(np.mean(own.main.steps.length_ns)) / 1e6 if len(own.main.steps) else 0.0
    if mine[bucket] - theirs[bucket] < EXCESS_FRAC * step_ms:
        return None
    return bucket, mine[bucket], theirs[bucket]


def _pairs(
    accounts: Sequence[RankAccount], comparison: RankComparison
) -> list[tuple[RankAccount, RankWaits]]:
    by_rank = dict(zip(comparison.ranks, comparison.waits, strict=True))
    return [(account, by_rank[account.rank]) for account in accounts if account.rank in by_rank]


def _per_step_ms(account: RankAccount) -> dict[str, float]:
    budget = account.main.budget
    n_steps = max(int(np.count_nonzero(budget.steps.keep)), 1)
    return {bucket: budget.kept_ns(bucket) / n_steps / 1e6 for bucket in OWN_BUCKETS}


def _removed(waits: RankWaits) -> F64:
    """The part of each wait that the late ranks cause, ns."""
    removed: F64 = np.maximum(waits.wait_ns - waits.left_ns, 0.0)
    return removed


def _exposed_spans(account: RankAccount, waits: RankWaits, part_ns: F64) -> Spans:
    """When the first `part_ns` of the collectives ran and nothing else did."""
    end = waits.start_ns + np.rint(part_ns).astype(np.int64)
    return intersect(union(waits.start_ns, end), account.main.budget.work.communication)


def _exposed_frac(account: RankAccount, waits: RankWaits, part_ns: F64) -> float:
    budget = account.main.budget
    spans = _exposed_spans(account, waits, part_ns)
    per_step = covered(spans, budget.steps.start_ns, budget.steps.end_ns)[budget.steps.keep]
    return float(per_step.sum()) / max(budget.total_ns, 1)


def _price(account: RankAccount, waits: RankWaits) -> Price | None:
    pricing = account.main.pricing
    if pricing is None or not trusted(pricing):
        return None
    removed = _removed(waits)
    if isinstance(pricing, DevicePricing):
        program = pricing.program
        less = np.zeros(len(account.trace.device), np.float64)
        on_device = waits.event >= 0
        less[waits.event[on_device]] = removed[on_device]
        shorter = np.maximum(program.dur_ns - less[program.source], 0.0)
        return pricing.price(Change(device_ns=np.rint(shorter).astype(np.int64)))
    steps = account.main.budget.steps
    spans = _exposed_spans(account, waits, removed)
    gone = covered(spans, steps.start_ns, steps.end_ns)[steps.keep].astype(np.float64)
    length = steps.length_ns.astype(np.float64)
    return price_of(Replayed(length), Replayed(length - gone))


def _price_of_transfers(account: RankAccount, waits: RankWaits) -> Price | None:
    pricing = account.main.pricing
    if pricing is None or not trusted(pricing):
        return None
    if isinstance(pricing, DevicePricing):
        kept = np.zeros(len(account.trace.device), np.float64)
        on_device = waits.event >= 0
        kept[waits.event[on_device]] = waits.wait_ns[on_device]
        change = pricing.change("communication")
        assert change.device_ns is not None
        left = np.maximum(change.device_ns, np.rint(kept[pricing.program.source])).astype(np.int64)
        return pricing.price(replace(change, device_ns=np.minimum(left, pricing.program.dur_ns)))
    budget = account.main.budget
    keep = budget.steps.keep
    length = budget.steps.length_ns.astype(np.float64)
    spans = _exposed_spans(account, waits, waits.wait_ns)
    waited = covered(spans, budget.steps.start_ns, budget.steps.end_ns)[keep]
    passed = sum(budget.per_step_ns[b][keep] for b in COMMUNICATION) - waited
    return price_of(Replayed(length), Replayed(length - np.maximum(passed, 0.0)))
