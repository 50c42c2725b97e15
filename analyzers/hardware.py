"""Faults of the hardware and limits that it runs into, from samples: findings `throttling`,
`hardware-fault` and `memory-pressure`.

Each check is a function from `Samples` to findings; `hardware_findings` runs them all. A state
that is normal for an idle GPU (low clocks, PCIe generation 1) is judged under load only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpuprof.analyzers.throttling import slow_clock, throttling
from gpuprof.analyzers.under_load import gpu_name, gpu_ranks, under_load
from gpuprof.analyzers.xid_codes import meaning
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix, Severity, Window
from gpuprof.readers.xid import XidEvent
from gpuprof.sample_format import Status
from gpuprof.samples import Samples

LINK_SHARE = 0.5
"""A link counts as narrow when it is so in half of the samples under load: it retrains at times."""
REPLAYS_PER_HOUR = 60.0
"""PCIe replays are corrected and happen; more than one a minute points at a bad link."""
MAX_LISTED = 4


def hardware_findings(samples: Samples, xids: Iterable[XidEvent] = ()) -> list[Finding]:
    """All findings about the hardware of one node, the severe ones first.

    `xids` are reports from a kernel log, beside those that the sampler itself received.
    """
    checks: tuple[Callable[[Samples], list[Finding]], ...] = (
        lost_gpus,
        memory_errors,
        pcie_link,
        link_errors,
        throttling,
        slow_clock,
    )
    found = [*xid_findings(samples, xids)]
    for check in checks:
        found.extend(check(samples))
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda f: (order[f.severity], -f.share))


def fault(
    title: str,
    severity: Severity,
    evidence: Sequence[Evidence],
    fix: Fix,
    *,
    ranks: Sequence[int] = (),
    share: float = 0.0,
    confidence: float = 0.95,
) -> Finding:
    """A `hardware-fault` finding."""
    return Finding(
        cause="hardware-fault",
        number=None,
        title=title,
        severity=severity,
        confidence=confidence,
        share=share,
        gain=None,
        ranks=tuple(ranks),
        evidence=tuple(evidence),
        fixes=(fix,),
    )


# ---- Xids ----------------------------------------------------------------------------------


def xid_findings(samples: Samples, logged: Iterable[XidEvent] = ()) -> list[Finding]:
    """One finding a code and GPU. A code that only says that a program ended makes none."""
    seen: dict[tuple[int, str, str], list[tuple[int | None, str]]] = {}
    for event in samples.events:
        if event.type in ("xid", "sxid"):
            key = event.data, event.scope, event.type
            seen.setdefault(key, []).append((event.time_ns if samples.epoch else None, event.text))
    for report in logged:
        there = f" of {report.host}" if report.host else ""
        where = _scope_of(samples, report.uuid, report.pci) or f"GPU at {report.pci}{there}"
        text, time_ns = report.text, report.time_ns if report.epoch else None
        seen.setdefault((report.code, where, report.kind), []).append((time_ns, text))
    found = []
    for (code, scope, kind), times in seen.items():
        known = meaning(code)
        if kind == "xid" and known.kind == "info":
            continue
        what = known.what if kind == "xid" else "an NVSwitch reported an error"
        name = gpu_name(samples, scope) if scope.startswith("gpu:") else scope
        text = f"{kind.capitalize()} {code} on {name}: {what}, {_times(len(times))}."
        quoted = next((said for _, said in times if said), "")
        evidence = Evidence(
            text=text + (f" The driver says: {quoted}" if quoted else ""),
            value=float(len(times)),
            unit="reports",
            source="nvml" if not quoted else "kernel log",
            windows=tuple(
                Window(start_ns=at, end_ns=at) for at, _ in times[:MAX_LISTED] if at is not None
            ),
        )
        severity: Severity = "critical" if known.kind in ("hardware", "driver") else "warning"
        action = known.action or "Look the code up in NVIDIA's list of Xids."
        found.append(
            fault(
                f"{name}: {what} ({kind.capitalize()} {code})",
                severity,
                [evidence],
                Fix(title=action, detail=action),
                ranks=gpu_ranks(samples, scope),
            )
        )
    return found


def is_of_node(report: XidEvent, node: Samples) -> bool:
    """Whether a kernel's report is of a machine that was sampled, by its name or the GPU's UUID.
    The bus address alone is the same on all machines of a kind."""
    uuids = {device.uuid for device in node.devices}
    named = report.host and report.host.split(".")[0] == node.node.split(".")[0]
    return bool(named) or (bool(report.uuid) and report.uuid in uuids)


def _scope_of(samples: Samples, uuid: str, pci: str) -> str:
    for device in samples.devices:
        address = str(device.facts.get("pci_bus_id", "")).lower()
        if (uuid and uuid == device.uuid) or (pci and address.split(".")[0].endswith(pci)):
            return f"gpu:{device.index}"
    return ""


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


# ---- lost GPUs and memory errors -----------------------------------------------------------


def lost_gpus(samples: Samples) -> list[Finding]:
    """GPUs that the driver lost while they were sampled, or that were lost at the start."""
    found = []
    scopes = {f"gpu:{device.index}" for device in samples.devices} | set(samples.scopes("gpu"))
    for scope in sorted(scopes):
        device = samples.device(scope)
        at_start = device is not None and device.status is Status.LOST
        times = [
            int(one.time_ns[one.status == Status.LOST][0])
            for (_, where), one in samples.series.items()
            if where == scope and (one.status == Status.LOST).any()
        ]
        if not at_start and not times:
            continue
        windows = (Window(start_ns=min(times), end_ns=min(times)),) if times else ()
        when = "while it was sampled" if times else "before the recording began"
        name = gpu_name(samples, scope)
        found.append(
            fault(
                f"{name} was lost",
                "critical",
                [Evidence(text=f"{name} was lost {when}.", source="nvml", windows=windows)],
                Fix(
                    title="Take the node out and reboot it",
                    detail="A lost GPU comes back with a reset or reboot. When it is lost again, "
                    "check its seating, power and PCIe, or replace it.",
                ),
                ranks=gpu_ranks(samples, scope),
            )
        )
    return found


def memory_errors(samples: Samples) -> list[Finding]:
    """Uncorrectable ECC errors, and memory rows that wait for a reset or could not be replaced."""
    found = []
    for scope in samples.scopes("gpu"):
        name, ranks = gpu_name(samples, scope), gpu_ranks(samples, scope)
        fresh = _growth(samples, "ecc_uncorrected", scope)
        if fresh > 0:
            text = (
                f"{name} had {counted(fresh, 'uncorrectable memory error')} during the recording."
            )
            found.append(
                fault(
                    f"{name} has uncorrectable memory errors",
                    "critical",
                    [Evidence(text=text, value=fresh, unit="errors", source="nvml")],
                    Fix(
                        title="Drain the node and reset the GPU",
                        detail="Results since the error may be wrong. A reset replaces the broken "
                        "row; replace the GPU when errors go on.",
                    ),
                    ranks=ranks,
                )
            )
        failed, pending = (_last(samples, f"remap_{word}", scope) for word in ("failed", "pending"))
        if failed > 0 or pending > 0:
            rows = _last(samples, "remap_uncorrected", scope)
            state = "could not be replaced" if failed > 0 else "wait for a reset to be replaced"
            text = f"{name}: broken memory rows {state} ({rows:.0f} replaced after hard errors)."
            found.append(
                fault(
                    f"{name}: broken memory rows {state}",
                    "critical" if failed > 0 else "warning",
                    [Evidence(text=text, value=rows, unit="rows", source="nvml")],
                    Fix(
                        title="Replace the GPU" if failed > 0 else "Reset the GPU when it is free",
                        detail="Out of spare rows."
                        if failed > 0
                        else "It activates the spare row.",
                    ),
                    ranks=ranks,
                )
            )
    return found


# ---- links ---------------------------------------------------------------------------------


def pcie_link(samples: Samples) -> list[Finding]:
    """Links narrower or of an older generation than device and slot can do, under load."""
    found = []
    for scope in samples.scopes("gpu"):
        device = samples.device(scope)
        for metric, fact, word in (
            ("pcie_width", "pcie_width_max", "lanes"),
            ("pcie_gen", "pcie_gen_max", "generation"),
        ):
            best = device.number(fact) if device is not None else None
            # The width stays whatever the load; the generation falls to 1 on an idle GPU.
            value = under_load(samples, metric, scope)
            if best is None or not len(value):
                continue
            low = value < best
            if float(np.mean(low)) < LINK_SHARE:
                continue
            now = float(np.median(value[low]))
            name = gpu_name(samples, scope)
            factor = best / now if word == "lanes" else 2.0 ** (best - now)
            text = f"{name} runs at PCIe {word} {now:.0f} under load, of {best:.0f} possible."
            found.append(
                fault(
                    f"{name}: PCIe link at {word} {now:.0f} instead of {best:.0f}",
                    "warning",
                    [Evidence(text=text, value=now, unit=word, source="nvml")],
                    Fix(
                        title="Reseat the card and check the slot",
                        detail=f"Copies between host and GPU take about {factor:.0f} times as "
                        "long. Check riser, slot wiring and the firmware's PCIe settings.",
                    ),
                    ranks=gpu_ranks(samples, scope),
                    confidence=0.8,
                )
            )
    return found


def link_errors(samples: Samples) -> list[Finding]:
    """PCIe replays at a high rate, and errors of NVLinks."""
    found = []
    span = samples.span_ns
    hours = (span[1] - span[0]) / 3.6e12 if span is not None and samples.timed else 0.0
    for scope in samples.scopes("gpu"):
        name, ranks = gpu_name(samples, scope), gpu_ranks(samples, scope)
        replays = _growth(samples, "pcie_replays", scope)
        # One burst is no rate: at least as many as an hour may have.
        if hours > 0 and replays >= REPLAYS_PER_HOUR and replays / hours > REPLAYS_PER_HOUR:
            text = f"{name}: {replays:.0f} PCIe packets had to be sent again."
            found.append(
                fault(
                    f"{name}: the PCIe link drops packets",
                    "warning",
                    [Evidence(text=text, value=replays, unit="replays", source="nvml")],
                    Fix(title="Check riser, cable and slot", detail="Each replay stalls the link."),
                    ranks=ranks,
                    confidence=0.8,
                )
            )
        recoveries = _growth(samples, "nvlink_recoveries", scope)
        if recoveries > 0:
            text = f"{name}: an NVLink had to recover {_times(int(recoveries))}."
            found.append(
                fault(
                    f"{name}: an NVLink has errors",
                    "warning",
                    [Evidence(text=text, value=recoveries, unit="recoveries", source="nvml")],
                    Fix(
                        title="Check the NVLink fabric",
                        detail="nvidia-smi nvlink -e shows the link; its partner or the switch "
                        "can be at fault.",
                    ),
                    ranks=ranks,
                    confidence=0.8,
                )
            )
    return found


def _growth(samples: Samples, metric: str, scope: str) -> float:
    series = samples.get(metric, scope)
    growth = series.growth() if series is not None else 0.0
    return 0.0 if np.isnan(growth) else growth  # a single sample grew by nothing


def _last(samples: Samples, metric: str, scope: str) -> float:
    series = samples.get(metric, scope)
    if series is None:
        return 0.0
    _, value = series.good()
    return float(value[-1]) if len(value) else 0.0
