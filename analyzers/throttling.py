"""Clocks that were held back: by heat, by power, or for no reason that the driver names.

Graded by what it costs (the clock that was lost under load) and by how long it lasted (the
driver's own counters of nanoseconds per reason), not by the reason bits alone: on big cards at full
load the power cap is always active, and that is how they are meant to run.
"""

from __future__ import annotations

import numpy as np

from gpuprof.analyzers.under_load import gpu_name, gpu_ranks, under_load
from gpuprof.diagnosis import Evidence, Finding, Fix, Severity
from gpuprof.sample_format import REASON_BITS
from gpuprof.samples import Samples

MIN_LOADED_SAMPLES = 10
THERMAL_SHARE = 0.01
"""Heat holds a healthy machine back never: 1 % of the time is worth a word."""
POWER_CAP_SHARE = 0.10
CLOCK_LOSS = 0.10
"""A power cap is named when it costs more than this part of the clock: SM clocks 5 to 8 % below
the maximum are ordinary for large matrix products at the default power limit."""
LOWERED_LIMIT = 0.95
"""A power limit below this part of the default was set by somebody."""
WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.20
DROP_FRAC, DROP_SHARE = 0.85, 0.05
"""A clock below the first part of its own 95th percentile, in the second share of the samples:
boost clocks wander by a few percent, and one odd sample is a read at a kernel's end."""
PEER_LOSS = 0.05
"""A GPU whose clock is this far below the median of its equal peers slows all of them down."""

_COUNTERS: dict[str, tuple[str, ...]] = {
    "heat": ("throttle_sw_thermal_ns", "throttle_hw_thermal_ns"),
    "the power brake": ("throttle_power_brake_ns",),
    "the power limit": ("throttle_power_cap_ns", "throttle_board_limit_ns"),
}
_BITS: dict[str, tuple[str, ...]] = {
    "heat": ("sw_thermal", "hw_thermal"),
    "the power brake": ("hw_power_brake",),
    "the power limit": ("sw_power_cap", "board_limit"),
}
_FIXES: dict[str, Fix] = {
    "heat": Fix(
        title="Cool the GPU",
        detail="Check fans, air flow, dust and the inlet temperature, then the heat sink. Until "
        "then a lower power limit can even be faster than throttling.",
        cost="hands on the machine",
    ),
    "the power brake": Fix(
        title="Check the node's power supply",
        detail="The board was told from outside to brake: a failed or overloaded power supply, "
        "or a cap on the rack.",
        cost="hands on the machine",
    ),
    "the power limit": Fix(
        title="Raise the power limit, or accept it",
        detail="nvidia-smi -pl sets it, up to the card's own maximum. At the default limit, "
        "smaller wins are lower-precision arithmetic and fewer wasted operations.",
        code="sudo nvidia-smi -i GPU -pl WATTS",
        cost="administrator's rights, more power and heat",
    ),
}


def throttling(samples: Samples) -> list[Finding]:
    """One finding a GPU and reason that costs something."""
    found: list[Finding] = []
    for scope in samples.scopes("gpu"):
        clock = under_load(samples, "sm_clock_mhz", scope)
        lost = clock_loss(samples, scope)
        named = len(found)
        for reason in _COUNTERS:
            share, how = _held_back(samples, scope, reason)
            if share is None or not _matters(samples, scope, reason, share, lost):
                continue
            found.append(
                _finding(samples, scope, reason, held=(share, how), lost=(lost, len(clock)))
            )
        if len(found) == named:
            found.extend(_unexplained_drops(samples, scope))
    return found


def _unexplained_drops(samples: Samples, scope: str) -> list[Finding]:
    """A clock that falls under load although the driver names no reason for it."""
    clock = under_load(samples, "sm_clock_mhz", scope)
    if len(clock) < MIN_LOADED_SAMPLES:
        return []
    usual = float(np.percentile(clock, 95))
    low = clock < DROP_FRAC * usual
    share = float(low.mean())
    if share < DROP_SHARE:
        return []
    name = gpu_name(samples, scope)
    text = (
        f"In {share:.0%} of the samples under load the SM clock of {name} was below "
        f"{DROP_FRAC:.0%} of its usual {usual:.0f} MHz ({float(np.median(clock[low])):.0f} MHz)."
    )
    return [
        _throttled(
            f"{name}: the clock drops under load",
            1 - float(clock.mean()) / usual,
            0.6,
            evidence=(Evidence(text=text, value=share, unit="share of samples", source="nvml"),),
            fix=Fix(
                title="Find out what sets the clock",
                detail="nvidia-smi -q -d PERFORMANCE,CLOCK while it is low: application clocks, "
                "sync boost with another GPU, a power cap of the rack.",
                cost="administrator's rights",
            ),
            ranks=gpu_ranks(samples, scope),
        )
    ]


def clock_loss(samples: Samples, scope: str) -> float | None:
    """Part of the SM clock that is missing under load against the device's maximum."""
    device = samples.device(scope)
    best = device.number("sm_clock_max_mhz") if device is not None else None
    clock = under_load(samples, "sm_clock_mhz", scope)
    if not best or len(clock) < MIN_LOADED_SAMPLES:
        return None
    return max(0.0, 1 - float(clock.mean()) / best)


def _held_back(samples: Samples, scope: str, reason: str) -> tuple[float | None, str]:
    """Share of the time that the reason held the clock back, and how it is known."""
    shares = []
    for metric in _COUNTERS[reason]:
        series = samples.get(metric, scope)
        if series is None or not samples.timed:
            continue
        time_ns, _ = series.good()
        span = int(time_ns[-1] - time_ns[0]) if len(time_ns) > 1 else 0
        if span > 0:
            shares.append(series.growth() / span)
    if shares:
        return min(1.0, max(shares)), "of the time, by the driver's counter"
    bits = sum(bit for bit, name in REASON_BITS.items() if name in _BITS[reason])
    reasons = under_load(samples, "throttle_reasons", scope)
    if len(reasons) < MIN_LOADED_SAMPLES:
        return None, ""
    return float(np.mean(reasons.astype(np.int64) & bits != 0)), "of the samples under load"


def _matters(samples: Samples, scope: str, reason: str, share: float, lost: float | None) -> bool:
    if reason != "the power limit":
        return share >= THERMAL_SHARE
    if share < POWER_CAP_SHARE:
        return False
    return _lowered(samples, scope) is not None or (lost is not None and lost >= CLOCK_LOSS)


def _lowered(samples: Samples, scope: str) -> tuple[float, float] | None:
    """Power limit and default where somebody set it lower."""
    device = samples.device(scope)
    default = device.number("power_default_w") if device is not None else None
    series = samples.get("power_limit_w", scope)
    value = series.good()[1] if series is not None else np.empty(0)
    limit = float(np.median(value)) if len(value) else None
    if limit is None and device is not None:
        limit = device.number("power_limit_w")
    if not default or limit is None or limit >= LOWERED_LIMIT * default:
        return None
    return limit, default


def _finding(
    samples: Samples,
    scope: str,
    reason: str,
    *,
    held: tuple[float, str],
    lost: tuple[float | None, int],
) -> Finding:
    (share, how), (clock, loaded) = held, lost
    name = gpu_name(samples, scope)
    evidence = [
        Evidence(
            text=f"{name} was held back by {reason} {share:.0%} {how}.",
            value=share,
            unit="share of time",
            source="nvml",
        )
    ]
    if clock is not None:
        text = f"Under load its SM clock was {clock:.0%} below the maximum ({loaded} samples)."
        evidence.append(Evidence(text=text, value=clock, unit="share of clock", source="nvml"))
    temperature = under_load(samples, "temp_c", scope)
    if reason == "heat" and len(temperature):
        hot = float(temperature.max())
        evidence.append(
            Evidence(text=f"It reached {hot:.0f} °C.", value=hot, unit="°C", source="nvml")
        )
    lowered = _lowered(samples, scope)
    if reason == "the power limit" and lowered is not None:
        text = f"Its power limit is {lowered[0]:.0f} W; the default is {lowered[1]:.0f} W."
        evidence.append(Evidence(text=text, value=lowered[0], unit="W", source="nvml"))
    cost = clock if clock is not None else 0.0
    return _throttled(
        f"{name} is held back by {reason}",
        cost,
        0.9 if clock is not None else 0.6,
        evidence=tuple(evidence),
        fix=_FIXES[reason],
        ranks=gpu_ranks(samples, scope),
    )


def _throttled(
    title: str,
    share: float,
    confidence: float,
    *,
    evidence: tuple[Evidence, ...],
    fix: Fix,
    ranks: tuple[int, ...],
) -> Finding:
    """Its share is the clock that was lost: an upper bound of what it costs the step."""
    severity: Severity = (
        "critical" if share >= CRITICAL_SHARE else "warning" if share >= WARNING_SHARE else "info"
    )
    return Finding(
        cause="throttling",
        number=None,
        title=title,
        severity=severity,
        confidence=confidence,
        share=share,
        gain=None,
        ranks=ranks,
        evidence=evidence,
        fixes=(fix,),
    )


def slow_clock(samples: Samples) -> list[Finding]:
    """A GPU whose clock under load is below that of its equal peers, whatever the reason."""
    means: dict[str, float] = {}
    names: dict[str, str] = {}
    for scope in samples.scopes("gpu"):
        clock = under_load(samples, "sm_clock_mhz", scope)
        device = samples.device(scope)
        if len(clock) >= MIN_LOADED_SAMPLES:
            means[scope] = float(clock.mean())
            names[scope] = device.name if device is not None else ""
    found = []
    for scope, mean in means.items():
        peers = [m for other, m in means.items() if other != scope and names[other] == names[scope]]
        if len(peers) < 2:  # of two that differ nobody can say which one is wrong
            continue
        usual = float(np.median(peers))
        loss = 1 - mean / usual
        if loss < PEER_LOSS:
            continue
        name = gpu_name(samples, scope)
        text = f"Under load {name} runs at {mean:.0f} MHz, its peers at {usual:.0f} MHz."
        found.append(
            _throttled(
                f"{name} runs at a lower clock than its peers",
                loss,
                0.85,
                evidence=(Evidence(text=text, value=mean, unit="MHz", source="nvml"),),
                fix=Fix(
                    title="Find out what holds this one back",
                    detail="Compare its temperature, power limit and application clocks with "
                    "those of its peers (nvidia-smi -q -d PERFORMANCE,CLOCK,POWER). Every "
                    "synchronous step waits for it.",
                    cost="hands on the machine",
                ),
                ranks=gpu_ranks(samples, scope),
            )
        )
    return found
