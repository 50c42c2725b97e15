"""The driver calls of the NVML collector: each one, the metrics it serves, and what failures mean.

Every call yields numbers or `Failure`s, one a metric; a failed read is never 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.collectors.nvml_plan import (
    FAST_FIELDS,
    GPM_METRICS,
    GPM_MIN_INTERVAL_S,
    SLOW_FIELDS,
    Field,
)
from gpuprof.sample_format import Number, Status

MAX_PERCENT = 100
"""Broken process contexts make drivers answer shares of thousands; such a value is an error."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a value could not be read."""

    status: Status
    why: str = ""

    @property
    def final(self) -> bool:
        """Whether there is no use in asking again."""
        return self.status in (Status.NOT_SUPPORTED, Status.NO_PERMISSION)


Value = Number | Failure

_STATUS_BY_CODE = {
    3: Status.NOT_SUPPORTED,
    4: Status.NO_PERMISSION,
    13: Status.NOT_SUPPORTED,  # the driver has no such function
    15: Status.LOST,
    16: Status.LOST,  # it needs a reset first
    25: Status.NOT_SUPPORTED,  # a struct version that this driver does not know
}


def failure(error: BaseException) -> Failure:
    """What an exception of pynvml means.

    Where a driver lacks a process function, pynvml raises NVMLLibraryMismatchError, which is no
    NVMLError; it means the same as its FunctionNotFound.
    """
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return Failure(Status.NOT_SUPPORTED, "the driver does not have this function")
    if isinstance(error, AttributeError):
        return Failure(Status.NOT_SUPPORTED, f"this version of pynvml lacks it: {error}"[:200])
    code = getattr(error, "value", None)
    status = _STATUS_BY_CODE.get(code, Status.ERROR) if isinstance(code, int) else Status.ERROR
    return Failure(status, str(error)[:200])


@dataclass(frozen=True, slots=True)
class Reader:
    """One driver call and the metrics that it serves.

    `narrow` makes a reader of some of the metrics. `unless`: metrics that make the call needless
    when others serve them. `paced`: the call waits by design, its time says nothing of its cost.
    """

    label: str
    metrics: tuple[str, ...]
    read: Callable[[], Sequence[Value]]
    tier: str = "fast"
    unless: tuple[str, ...] = ()
    paced: bool = False
    narrow: Callable[[Sequence[int]], Reader] | None = None

    def attempt(self) -> list[Value]:
        """The values; an exception of the driver's is a failure of all of them."""
        try:
            return list(self.read())
        except Exception as error:
            return [failure(error)] * len(self.metrics)

    def keeping(self, places: Sequence[int]) -> Reader:
        """This reader with the metrics at these places only."""
        if len(places) == len(self.metrics):
            return self
        if self.narrow is not None:
            return self.narrow(places)

        def read() -> list[Value]:
            values = self.read()
            return [values[i] for i in places]

        kept = tuple(self.metrics[i] for i in places)
        return Reader(self.label, kept, read, self.tier, paced=self.paced)


def read_fields(nvml: Any, handle: Any, fields: Sequence[Field]) -> list[Value]:
    """One nvmlDeviceGetFieldValues call for all `fields`.

    Drivers were seen to write one entry past the end on NVLink queries, so one spare is added.
    """
    asked = [(entry.id, entry.scope) for entry in fields]
    answers = nvml.nvmlDeviceGetFieldValues(handle, [*asked, asked[-1]])
    return [_field_value(nvml, entry, answers[i]) for i, entry in enumerate(fields)]


_UNION_MEMBER = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")


def _field_value(nvml: Any, entry: Field, answer: Any) -> Value:
    if answer.nvmlReturn:
        return failure(nvml.NVMLError(answer.nvmlReturn))
    if answer.valueType >= len(_UNION_MEMBER):
        return Failure(Status.ERROR, f"value type {answer.valueType} is unknown")
    value: Number = getattr(answer.value, _UNION_MEMBER[answer.valueType])
    return value if entry.scale == 1 else value * entry.scale


def _field_reader(nvml: Any, handle: Any, label: str, tier: str, fields: Sequence[Field]) -> Reader:
    def narrow(places: Sequence[int]) -> Reader:
        return _field_reader(nvml, handle, label, tier, [fields[i] for i in places])

    names = tuple(entry.metric for entry in fields)
    return Reader(label, names, lambda: read_fields(nvml, handle, fields), tier, narrow=narrow)


class _Gpm:
    """GPU performance monitoring: two sample buffers, swapped at each read."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._query: Any = None
        self._before: Any = None
        self._after: Any = None
        self._at_s = 0.0

    def read(self) -> list[Value]:
        """Means since the read before; the first one waits until there is something to compare."""
        nvml = self._nvml
        if self._query is None:
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                why = Failure(Status.NOT_SUPPORTED, "GPM needs Hopper or newer")
                return [why] * len(GPM_METRICS)
            self._start()
        time.sleep(max(0.0, self._at_s + 1.1 * GPM_MIN_INTERVAL_S - time.monotonic()))
        self._before, self._after = self._after, self._before
        nvml.nvmlGpmSampleGet(self._handle, self._after)
        self._at_s = time.monotonic()
        self._query.sample1, self._query.sample2 = self._before, self._after
        nvml.nvmlGpmMetricsGet(self._query)
        return [self._value(i) for i in range(len(GPM_METRICS))]

    def _start(self) -> None:
        nvml = self._nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        for i, metric in enumerate(GPM_METRICS):
            query.metrics[i].metricId = metric.id
        self._before, self._after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(self._handle, self._after)
        self._query, self._at_s = query, time.monotonic()

    def _value(self, i: int) -> Value:
        answer = self._query.metrics[i]
        if answer.nvmlReturn:
            return failure(self._nvml.NVMLError(answer.nvmlReturn))
        return float(answer.value) * GPM_METRICS[i].scale


def checked_frac(percent: Number) -> Value:
    """A percentage as a share of 1, or a failure where it is none."""
    if 0 <= percent <= MAX_PERCENT:
        return percent / 100
    return Failure(Status.ERROR, f"{percent} is no percentage")


def candidates(nvml: Any, handle: Any) -> list[Reader]:
    """All calls worth trying on a device, the better source of a metric before its stand-by."""

    def call(name: str, *args: object, scale: float = 1) -> Callable[[], list[Value]]:
        def read() -> list[Value]:
            value: Number = getattr(nvml, name)(handle, *args)
            return [value if scale == 1 else value * scale]

        return read

    def utilization() -> list[Value]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return [checked_frac(rates.gpu), checked_frac(rates.memory)]

    def memory() -> list[Value]:
        return [nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used]

    def memory_v1() -> list[Value]:  # before R510; counts what the driver reserves as used
        return [nvml.nvmlDeviceGetMemoryInfo(handle).used]

    def pcie_throughput() -> list[Value]:  # kB/s over 20 ms, and it blocks for them: a last resort
        return [nvml.nvmlDeviceGetPcieThroughput(handle, way) * 1000 for way in (0, 1)]

    gpm = _Gpm(nvml, handle)
    gpm_names = tuple(metric.metric for metric in GPM_METRICS)
    return [
        Reader("utilization", ("util_frac", "mem_util_frac"), utilization),
        Reader("memory", ("mem_used_bytes",), memory),
        Reader("memory_v1", ("mem_used_bytes",), memory_v1),
        Reader("sm_clock", ("sm_clock_mhz",), call("nvmlDeviceGetClockInfo", 1)),
        _field_reader(nvml, handle, "fields_fast", "fast", FAST_FIELDS),
        Reader("power", ("power_w",), call("nvmlDeviceGetPowerUsage", scale=1e-3)),
        Reader("energy", ("energy_j",), call("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)),
        Reader("gpm", gpm_names, gpm.read, "gpm", paced=True),
        *(
            Reader(label, (metric,), call(name, *args, scale=scale), "slow")
            for label, metric, name, args, scale in _SLOW_CALLS
        ),
        _field_reader(nvml, handle, "fields_slow", "slow", SLOW_FIELDS),
        Reader(
            "pcie_throughput",
            ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
            pcie_throughput,
            "slow",
            unless=("pcie_tx_bytes", "pcie_rx_bytes"),
        ),
    ]


_SLOW_CALLS: tuple[tuple[str, str, str, tuple[int, ...], float], ...] = (
    ("temperature", "temp_c", "nvmlDeviceGetTemperature", (0,), 1),
    ("mem_clock", "mem_clock_mhz", "nvmlDeviceGetClockInfo", (2,), 1),
    ("reasons", "throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons", (), 1),
    ("reasons_old", "throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", (), 1),
    ("pcie_gen", "pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1),
    ("pcie_width", "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1),
    ("power_limit", "power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
)
"""Label, metric, function, its further arguments, scale."""
