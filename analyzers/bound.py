"""The bound class: the resource whose infinite speed would shorten the step most.

Each resource is made infinitely fast in a replay of the run without the profiler's own cost. When
two come out close, because what one frees the other takes up, the account decides: the one that
really holds the step. If that does not tell them apart either, the run is mixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.analyzers.account import CPU, DeviceAccount, RankAccount
from gpuprof.analyzers.event_loop import waiting_frac
from gpuprof.analyzers.intervals import total, union
from gpuprof.analyzers.joint import JointPricing
from gpuprof.analyzers.pricing import trusted
from gpuprof.analyzers.roofline import Limit
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Bound, BoundClass

RESOURCES: dict[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "bandwidth": ("bandwidth",),
    "input": ("input",),
    "communication": ("communication",),
    "host": ("overhead",),
}
"""What is removed to make each resource infinitely fast."""

NEAR_TIE = 0.7
"""A resource that would save at least 70 % of what the best one saves is a rival of it."""

CLEAR_SHARE = 1.5
"""Of two rivals, one that holds half as much again of the step's time as the other is the bound."""

LITTLE = 0.05
"""When no resource saves 5 %, none of them is the limit that this recording can show."""

_HOST_BUCKETS = ("host", "sync", "checkpoint", "allocator", "launch")

_WHY: dict[str, str] = {
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "input": "waiting for data",
    "communication": "communication between ranks",
    "host": "work on the host",
}


@dataclass(frozen=True, slots=True)
class _Held:
    """For every resource: what it would save if infinitely fast, and the share that it holds.

    unexplained: the share of the step that nothing recorded explains, where the replay failed.
    """

    saved: dict[str, float]
    share: dict[str, float]
    unexplained: float
    priced: bool


def find_bound(accounts: list[RankAccount], joint: JointPricing | None = None) -> Bound:
    """The bound class of a run, over all its ranks and devices.

    Args:
        accounts: The ranks.
        joint: Their pricing together, where they could be replayed so: then a resource of one
            rank that the others wait for counts for all.
    """
    devices = [(a, d) for a in accounts for d in a.devices if d.budget.total_ns > 0]
    if not devices:
        return Bound(class_="unknown", why="No step with any activity was recorded")
    held = [_held(account, device) for account, device in devices]
    saved = {r: float(np.mean([h.saved[r] for h in held])) for r in RESOURCES}
    if joint is not None and trusted(joint):
        for resource, parts in RESOURCES.items():
            saved[resource] = joint.without(*parts, profiled=False).reduction
    share = {r: float(np.mean([h.share[r] for h in held])) for r in RESOURCES}
    waiting = waiting_frac(accounts)  # charged to the host, which has nothing to do meanwhile
    saved["host"], share["host"] = (max(x["host"] - waiting, 0.0) for x in (saved, share))
    unexplained = float(np.mean([h.unexplained for h in held]))
    whole = "recording" if accounts[0].main.steps.source == "none" else "step"
    if waiting > max(unexplained, *share.values()):
        return Bound(
            class_="unknown",
            why=f"The program waits {percent(waiting)} of the {whole} in its event loop, for"
            " requests or for whatever else it awaits: for which is not in this recording",
            reductions={r: round(v, 4) for r, v in share.items()},
        )
    if unexplained > max(share.values()):
        return Bound(
            class_="unknown",
            why=f"What held the device for {percent(unexplained)} of the {whole} is not in this"
            " recording, and nothing that is in it holds as much",
            reductions={r: round(v, 4) for r, v in share.items()},
        )
    priced = all(h.priced for h in held)
    class_, also = _decide(saved, share)
    why = _explain(class_, also, saved, share, priced, whole)
    if priced and class_ != "unknown" and not also and all(d.index == CPU for _, d in devices):
        why = _in_series(class_, saved, share, whole)
    confidence = _confidence(class_, also, saved, priced, devices)
    return Bound(
        class_=class_,
        also=also,
        confidence=confidence,
        why=why,
        reductions={r: round(v, 4) for r, v in saved.items()},
    )


def _decide(saved: dict[str, float], share: dict[str, float]) -> tuple[BoundClass, tuple[str, ...]]:
    ranked = sorted(saved, key=lambda r: -saved[r])
    best = ranked[0]
    if saved[best] < LITTLE:
        return "unknown", ()
    rivals = [r for r in ranked if saved[r] >= NEAR_TIE * saved[best]]
    if len(rivals) == 1:
        return best, ()  # type: ignore[return-value]
    rivals.sort(key=lambda r: -share[r])
    first, second = rivals[0], rivals[1]
    if share[first] >= CLEAR_SHARE * share[second]:
        return first, tuple(rivals[1:])  # type: ignore[return-value]
    return "mixed", tuple(rivals)


def _held(account: RankAccount, device: DeviceAccount) -> _Held:
    budget = device.budget.frac()
    device_split = _compute_split(account, device)
    share = {
        "compute": budget["compute"] * (1 - device_split),
        "bandwidth": budget["compute"] * device_split,
        "input": budget["input"],
        "communication": budget["communication"] + budget["communication_host"],
        "host": sum(budget[bucket] for bucket in _HOST_BUCKETS),
    }
    pricing = device.pricing
    if pricing is None:
        return _Held(share, share, budget["unknown"], priced=False)
    if not trusted(pricing):
        # A replay that does not know what held the step can't tell what would free it: the device
        # had work queued and ran none, and that is not for sure the host's doing.
        share["host"] -= budget["launch"]
        unexplained = budget["launch"] + budget["unknown"]
        return _Held(share, share, unexplained, priced=False)
    saved = {r: pricing.without(*parts, profiled=False).reduction for r, parts in RESOURCES.items()}
    return _Held(saved, share, 0.0, priced=True)


def _compute_split(account: RankAccount, device: DeviceAccount) -> float:
    """Share of the device's compute time that memory bandwidth limits, 0 to 1."""
    if not len(device.events):
        return 0.0
    events = device.events[
        ~account.is_communication[device.events] & ~account.is_copy[device.events]
    ]
    if not len(events):
        return 0.0
    start, end = account.launches.start_ns[events], account.launches.end_ns[events]
    bandwidth = account.limits.limit[events] == Limit.BANDWIDTH
    whole = total(union(start, end))
    return total(union(start[bandwidth], end[bandwidth])) / whole if whole else 0.0


def _confidence(
    class_: BoundClass,
    also: tuple[str, ...],
    saved: dict[str, float],
    priced: bool,
    devices: list[tuple[RankAccount, DeviceAccount]],
) -> float:
    """How sure the class is: by its lead over the next one, by the number of steps, by the replay.

    One step may be an odd one (0.75 at most); a replay that does not fit, or none, leaves only the
    shares (0.6); a decision between rivals is worth 0.75 of a clear one.
    """
    if class_ == "unknown":
        return 0.0
    ranked = sorted(saved.values(), reverse=True)
    lead = (ranked[0] - ranked[1]) / ranked[0] if ranked[0] > 0 else 0.0
    confidence = 0.7 + 0.29 * min(1.0, lead)
    if also:
        confidence = min(confidence, 0.75)
    steps = max(len(device.steps.length_ns) for _, device in devices)
    if steps < 2:
        confidence = min(confidence, 0.75)
    if not priced:
        confidence = min(confidence, 0.6)
    return round(confidence, 2)


def _in_series(
    class_: BoundClass, saved: dict[str, float], share: dict[str, float], whole: str
) -> str:
    """The reason where the CPU is the device: what goes saves just what it holds, so that to think
    it infinitely fast tells nothing."""
    what = "time inside operators" if class_ == "compute" else _WHY[class_]
    text = (
        f"{what.capitalize()} holds {percent(share[class_])} of the {whole}, more than anything"
        " else does"
    )
    if percent(saved[class_]) != percent(share[class_]):
        text += f" ({percent(saved[class_])} without what the profiler cost)"
    return text


def _explain(
    class_: BoundClass,
    also: tuple[str, ...],
    saved: dict[str, float],
    share: dict[str, float],
    priced: bool,
    whole: str,
) -> str:
    """The reason in a sentence. whole: what shares are shares of, "step" or "recording"."""
    if class_ == "unknown":
        return f"No resource, made infinitely fast, would make the {whole} 5 % shorter"
    if class_ == "mixed":
        parts = " and ".join(f"{_WHY[r]} ({percent(saved[r])})" for r in also)
        return (
            f"Made infinitely fast, {parts} would save the most of the {whole}: too near to each"
            " other to name one"
        )
    if not priced:
        return (
            f"{_WHY[class_].capitalize()} holds {percent(share[class_])} of the {whole}"
            " (by its share: this recording can't be replayed)"
        )
    text = (
        f"{_WHY[class_].capitalize()} holds {percent(share[class_])} of the {whole};"
        f" infinitely fast, it would make it {percent(saved[class_])} shorter"
    )
    if also:
        # A resource can save more than it holds: what waits behind it moves up as well.
        others = ", ".join(f"{_WHY[r]} {percent(saved[r])}" for r in also)
        held = ", ".join(percent(share[r]) for r in also)
        text += f" ({others}, though it holds only {held} itself)"
    return text
