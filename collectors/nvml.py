"""One GPU as the sampler sees it: what it is, what it can tell, and its readings in tiers.

What a device can tell is probed once. A metric is given up only when the device says that it does
not have it or that we may not see it; after any other error it is tried again at the next tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from gpuprof.collectors.nvml_plan import (
    DEMOTE_AFTER_S,
    NVLINK_COUNT_FIELD,
    NVLINK_SPEED_FIELD,
    RINGS,
    Field,
)
from gpuprof.collectors.nvml_readers import (
    Failure,
    Reader,
    Value,
    candidates,
    failure,
    read_fields,
)
from gpuprof.sample_format import Number, Status

OnCall = Callable[[str], None]
"""Told the label of each driver call before it is made, and "" after it: for a watchdog."""


def load_pynvml() -> ModuleType:
    """pynvml, checked to be the maintained binding (nvidia-ml-py) and no namesake of it.

    Raises:
        ImportError: it is missing, or an abandoned package of the same name shadows it.
    """
    import pynvml

    wanted = ("_nvmlGetFunctionPointer", "nvmlDeviceGetFieldValues", "nvmlMemory_v2")
    if not all(hasattr(pynvml, name) for name in wanted):
        raise ImportError(
            f"{pynvml.__file__} is not the maintained NVML binding: uninstall nvidia-ml-py3 and "
            "the old pynvml, then install nvidia-ml-py"
        )
    return pynvml  # type: ignore[no-any-return, unused-ignore]


@dataclass(slots=True)
class Tier:
    """The readers of one rate; `missing` says which of its metrics the device cannot tell."""

    readers: list[Reader] = field(default_factory=list)
    missing: dict[str, Failure] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        return [name for reader in self.readers for name in reader.metrics]


@dataclass(frozen=True, slots=True)
class RingValues:
    """What the driver sampled by itself since the last look, on CLOCK_MONOTONIC, ns."""

    metric: str
    time_ns: list[int]
    values: list[Number]


class Gpu:
    """One GPU. `skip` names readers to leave alone, because they hung before."""

    def __init__(self, nvml: Any, handle: Any, *, skip: Iterable[str] = ()) -> None:
        self._nvml, self._handle = nvml, handle
        self._skip = frozenset(skip)
        self.tiers: dict[str, Tier] = {"fast": Tier(), "gpm": Tier(), "slow": Tier()}
        self._ring_seen_us: dict[str, int] = {}
        self._ring_offset_ns: int | None = None
        self.ring_clock = ""
        """Which clock the driver's own timestamps follow: epoch, boot, monotonic or unknown."""

    def probe(self, on_call: OnCall = lambda _: None) -> None:
        """Makes every call once or twice, keeps what answers, and sorts it into tiers by cost."""
        served: set[str] = set()
        refused: dict[str, tuple[str, Failure]] = {}
        for reader in candidates(self._nvml, self._handle):
            wanted = [i for i, name in enumerate(reader.metrics) if name not in served]
            if not wanted or (reader.unless and served.issuperset(reader.unless)):
                continue
            if reader.label in self._skip:
                why = Failure(Status.ERROR, f"left out: {reader.label} did not answer before")
                refused.update({reader.metrics[i]: (reader.tier, why) for i in wanted})
                continue
            on_call(reader.label)
            values, cost_s = _probe_one(reader)
            on_call("")
            keep = []
            for i in wanted:
                value = values[i]
                if isinstance(value, Failure) and value.final:
                    refused.setdefault(reader.metrics[i], (reader.tier, value))
                else:
                    keep.append(i)
            if keep:
                kept = reader.keeping(keep)
                served.update(kept.metrics)
                dear = cost_s > DEMOTE_AFTER_S and not reader.paced
                self.tiers["slow" if dear else reader.tier].readers.append(kept)
        for name, (tier, why) in refused.items():
            if name not in served:
                self.tiers[tier].missing[name] = why

    def read(self, tier: str, on_call: OnCall = lambda _: None) -> list[Value]:
        """The values of `tiers[tier].metrics`, in their order."""
        values: list[Value] = []
        for reader in self.tiers[tier].readers:
            on_call(reader.label)
            values.extend(reader.attempt())
        on_call("")
        return values

    def drain_rings(self) -> list[RingValues]:
        """Empties the driver's own buffers; an idle device's are empty, which is no error."""
        drained = []
        for metric, kind, scale in RINGS:
            if "rings" in self._skip:
                break
            seen_us = self._ring_seen_us.get(metric, 0)
            try:
                value_type, samples = self._nvml.nvmlDeviceGetSamples(self._handle, kind, seen_us)
            except Exception:
                continue
            member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")[value_type]
            fresh = [s for s in samples if s.timeStamp > seen_us]
            if not fresh:
                continue
            self._ring_seen_us[metric] = fresh[-1].timeStamp
            offset = self._offset_ns(fresh[-1].timeStamp)
            drained.append(
                RingValues(
                    metric,
                    [s.timeStamp * 1000 + offset for s in fresh],
                    [round(getattr(s.sampleValue, member) * scale, 4) for s in fresh],
                )
            )
        return drained

    def _offset_ns(self, latest_us: int) -> int:
        """What to add to a ring timestamp to have CLOCK_MONOTONIC; found at the first look.

        The interface says "CPU timestamp in microseconds"; drivers were seen to count from the
        epoch and from boot. The clock is the one that the latest sample is close to.
        """
        if self._ring_offset_ns is None:
            now = time.monotonic_ns()
            clocks = {
                "epoch": time.time_ns(),
                "boot": time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                if hasattr(time, "CLOCK_BOOTTIME")
                else now,
                "monotonic": now,
            }
            name, clock = min(clocks.items(), key=lambda item: abs(item[1] - latest_us * 1000))
            near = abs(clock - latest_us * 1000) < RING_CLOCK_TOLERANCE_NS
            self.ring_clock = name if near else "unknown"
            self._ring_offset_ns = now - (clock if near else latest_us * 1000)
        return self._ring_offset_ns


PROBE_TRIES = 4

RING_CLOCK_TOLERANCE_NS = 60 * 10**9
"""The rings hold seconds; a clock that differs by a minute is another clock."""


def _probe_one(reader: Reader) -> tuple[list[Value], float]:
    """The values and what the call costs, in seconds: its best time after one to warm up.

    The best of several, because a busy machine makes any one of them look dear.
    """
    values = reader.attempt()
    if all(isinstance(value, Failure) and value.final for value in values):
        return values, 0.0
    best_s = float("inf")
    for _ in range(PROBE_TRIES):
        started = time.monotonic()
        values = reader.attempt()
        best_s = min(best_s, time.monotonic() - started)
        if best_s <= DEMOTE_AFTER_S or reader.paced:
            break
    return values, best_s


def facts(nvml: Any, handle: Any) -> dict[str, Number | str | bool | None]:
    """What does not change while a device runs. What it does not tell is left out."""
    found: dict[str, Number | str | bool | None] = {}

    def add(name: str, read: Callable[[], Any]) -> None:
        try:
            value = read()
        except Exception as error:
            if failure(error).status is Status.LOST:
                raise
        else:
            found[name] = value.decode(errors="replace") if isinstance(value, bytes) else value

    def each(prefix: str, function: str, *arguments: object, scale: float = 1) -> None:
        def read() -> Any:
            value = getattr(nvml, function)(handle, *arguments)
            return value * scale if scale != 1 else value

        add(prefix, read)

    each("uuid", "nvmlDeviceGetUUID")
    each("name", "nvmlDeviceGetName")
    add("pci_bus_id", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    add(
        "compute_capability",
        lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )
    add("driver", nvml.nvmlSystemGetDriverVersion)
    add("cuda", nvml.nvmlSystemGetCudaDriverVersion)
    add("mem_total_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total)
    each("cores", "nvmlDeviceGetNumGpuCores")
    each("mem_bus_bits", "nvmlDeviceGetMemoryBusWidth")
    each("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 1)
    each("mem_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 2)
    each("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)
    each("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3)
    each("temp_slowdown_c", "nvmlDeviceGetTemperatureThreshold", 1)
    each("temp_max_c", "nvmlDeviceGetTemperatureThreshold", 3)
    each("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration")
    each("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
    each("persistence", "nvmlDeviceGetPersistenceMode")
    each("virtualization", "nvmlDeviceGetVirtualizationMode")
    add("ecc", lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    add("mig", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    each("numa_node", "nvmlDeviceGetNumaNodeId")
    for entry in (Field("nvlinks", NVLINK_COUNT_FIELD), Field("nvlink_mbps", NVLINK_SPEED_FIELD)):
        add(entry.metric, partial(_one_field, nvml, handle, entry))
    return found


def _one_field(nvml: Any, handle: Any, entry: Field) -> Number | None:
    (value,) = read_fields(nvml, handle, [entry])
    return None if isinstance(value, Failure) else value
