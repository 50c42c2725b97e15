"""Memory that grows or runs out, from samples: GPU memory, host memory, shared memory.

NVML sees what the framework has reserved, not what tensors use: a slow leak shows as steps.
"""

from __future__ import annotations

import numpy as np

from gpuprof.analyzers.under_load import gpu_name, gpu_ranks
from gpuprof.counted import counted
from gpuprof.diagnosis import Evidence, Finding, Fix, Severity
from gpuprof.samples import F64, I64, Samples

WARM_UP_SHARE = 0.25
"""The first quarter of a recording is left out: caches and workspaces grow there, and stop."""
PARTS = 6
MIN_SAMPLES = 60
MIN_GROWTH_FRAC = 0.02
"""Growth after the warm-up below this part of the device's memory is not worth a word."""
FULL_FRAC = 0.97
"""Above this an allocator starts to give back and take again, and a larger batch ends the run."""
HOST_FULL_FRAC = 0.05
"""Available host memory below this part: the page cache is gone and reclaim stalls everybody."""
SHM_FULL_FRAC = 0.10
STALLED_FRAC = 0.05
"""Share of time in which some task waited for memory (the kernel's pressure counter)."""


def memory_findings(samples: Samples) -> list[Finding]:
    """All findings about memory of one node."""
    found = [f for scope in samples.scopes("gpu") for f in _gpu(samples, scope)]
    return [*found, *_host(samples)]


def growth(time_ns: I64, used: F64) -> tuple[float, float] | None:
    """Growth after the warm-up (same unit as `used`) and per second; None where it levels off.

    It counts as growth when the median of each sixth of the recording is above that of the one
    before: a plateau anywhere, or memory that is given back, is no leak.
    """
    if len(used) < MIN_SAMPLES:
        return None
    start = int(WARM_UP_SHARE * len(used))
    parts = np.array_split(used[start:], PARTS)
    middles = np.array([float(np.median(part)) for part in parts])
    if not np.all(np.diff(middles) > 0):
        return None
    grown = float(middles[-1] - middles[0])
    seconds = float(time_ns[-1] - time_ns[start]) / 1e9 * (PARTS - 1) / PARTS
    return (grown, grown / seconds) if seconds > 0 else None


def _gpu(samples: Samples, scope: str) -> list[Finding]:
    series, device = samples.get("mem_used_bytes", scope), samples.device(scope)
    if series is None:
        return []
    time_ns, used = series.good()
    total = device.number("mem_total_bytes") if device is not None else None
    if not len(used) or not total:
        return []
    name, ranks = gpu_name(samples, scope), gpu_ranks(samples, scope)
    found = []
    grown = growth(time_ns, used) if samples.timed else None
    if grown is not None and grown[0] >= MIN_GROWTH_FRAC * total:
        hours = (total - float(used[-1])) / grown[1] / 3600
        text = (
            f"{name}: memory in use grew by {grown[0] / 2**20:.0f} MiB after the warm-up and did "
            f"not level off; at this rate it is full in {hours:.1f} hours."
        )
        found.append(
            _pressure(
                f"{name}: memory in use keeps growing",
                "critical" if hours < 1 else "warning",
                evidence=(Evidence(text=text, value=grown[0], unit="bytes", source="nvml"),),
                fix=Fix(
                    title="Find what keeps tensors alive",
                    detail="Usual: losses collected without .item() or .detach(), growing caches "
                    "and lists, shapes that change from step to step and fragment the pool.",
                    code="torch.cuda.memory._record_memory_history()",
                ),
                ranks=ranks,
                confidence=0.7,
            )
        )
    peak = float(used.max()) / total
    if peak >= FULL_FRAC:
        text = f"{name}: up to {peak:.1%} of its memory was in use."
        found.append(
            _pressure(
                f"{name}: memory is full",
                "info",
                evidence=(Evidence(text=text, value=peak, unit="share of memory", source="nvml"),),
                fix=Fix(
                    title="Leave some memory free",
                    detail="A serving engine fills it on purpose. A training run this close to "
                    "the end fails at the next longer batch: activation checkpointing, a smaller "
                    "micro-batch, sharding.",
                ),
                ranks=ranks,
                confidence=0.6,
            )
        )
    return found


def _host(samples: Samples) -> list[Finding]:
    found = []
    available, total = _values(samples, "mem_available_bytes"), _values(samples, "mem_total_bytes")
    if len(available) and len(total) and available.min() < HOST_FULL_FRAC * total[-1]:
        least = float(available.min())
        text = f"Only {least / 2**30:.1f} GiB of host memory were available at the worst moment."
        found.append(
            _pressure(
                "Host memory runs out",
                "warning",
                evidence=(Evidence(text=text, value=least, unit="bytes", source="host"),),
                fix=Fix(
                    title="Use less host memory",
                    detail="Fewer DataLoader workers or a smaller prefetch_factor; datasets as "
                    "memory-mapped arrays instead of Python lists that each worker copies.",
                ),
                confidence=0.8,
            )
        )
    kills = samples.get("cgroup_oom_kills", "host")
    if kills is not None and kills.growth() > 0:
        text = (
            f"The kernel killed {counted(kills.growth(), 'process', 'processes')} of this job for"
            " lack of memory."
        )
        found.append(
            _pressure(
                "Processes were killed for lack of memory",
                "critical",
                evidence=(
                    Evidence(text=text, value=kills.growth(), unit="processes", source="host"),
                ),
                fix=Fix(
                    title="Raise the container's memory limit or use less",
                    detail="A killed DataLoader worker ends the training.",
                ),
                confidence=0.95,
            )
        )
    free, size = _values(samples, "shm_free_bytes"), _values(samples, "shm_total_bytes")
    if len(free) and len(size) and size[-1] > 0 and free.min() < SHM_FULL_FRAC * size[-1]:
        text = (
            f"/dev/shm had only {float(free.min()) / 2**20:.0f} of "
            f"{float(size[-1]) / 2**20:.0f} MiB free at the worst moment."
        )
        found.append(
            _pressure(
                "Shared memory runs out",
                "warning",
                evidence=(
                    Evidence(text=text, value=float(free.min()), unit="bytes", source="host"),
                ),
                fix=Fix(
                    title="Give the container more shared memory",
                    detail="DataLoader workers hand over batches through /dev/shm; a full one ends "
                    "them with a bus error.",
                    code="docker run --shm-size=16g …",
                ),
                confidence=0.8,
            )
        )
    stalled = samples.get("pressure_mem_some_s", "host")
    if stalled is not None and len(stalled) > 1 and samples.timed:
        seconds = float(stalled.time_ns[-1] - stalled.time_ns[0]) / 1e9
        share = stalled.growth() / seconds if seconds > 0 else 0.0
        if share >= STALLED_FRAC:
            text = f"Tasks on this node waited for memory {share:.0%} of the time."
            found.append(
                _pressure(
                    "The host is short of memory and swaps or reclaims",
                    "critical" if share >= 4 * STALLED_FRAC else "warning",
                    evidence=(
                        Evidence(text=text, value=share, unit="share of time", source="host"),
                    ),
                    fix=Fix(
                        title="Free host memory",
                        detail="Waiting for memory stalls the loader and the trainer alike.",
                    ),
                    confidence=0.8,
                )
            )
    return found


def _values(samples: Samples, metric: str) -> F64:
    series = samples.get(metric, "host")
    return series.good()[1] if series is not None else np.empty(0)


def _pressure(
    title: str,
    severity: Severity,
    *,
    evidence: tuple[Evidence, ...],
    fix: Fix,
    confidence: float,
    ranks: tuple[int, ...] = (),
) -> Finding:
    """A `memory-pressure` finding; what it costs is not known from samples."""
    return Finding(
        cause="memory-pressure",
        number=None,
        title=title,
        severity=severity,
        confidence=confidence,
        share=0.0,
        gain=None,
        ranks=ranks,
        evidence=evidence,
        fixes=(fix,),
    )
