"""Tells what NVML can record here, as JSON: `python -m gpuprof.collectors.nvml_probe`.

It runs in a process of its own, because a driver that hangs or crashes shall not take
`gpuprof doctor` with it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from gpuprof.collectors.nvml import Gpu, facts, load_pynvml
from gpuprof.collectors.nvml_readers import failure


class GpuProbe(msgspec.Struct):
    """One GPU: its facts, the metrics that it can tell by tier, and why it cannot tell others."""

    index: int
    name: str = ""
    uuid: str = ""
    error: str = ""
    metrics: dict[str, list[str]] = {}
    missing: dict[str, tuple[str, str]] = {}
    """Metric -> (status word, why)."""
    events: bool = False


class Probe(msgspec.Struct):
    """The whole answer. `error` says why there is none, with the name of the exception."""

    error: str = ""
    error_kind: str = ""
    binding: str = ""
    driver: str = ""
    gpus: list[GpuProbe] = []


def probe() -> Probe:
    """Asks the driver everything that the sampler would ask."""
    try:
        nvml = load_pynvml()
        nvml.nvmlInit()
        found = Probe(binding=str(nvml.__file__), driver=str(nvml.nvmlSystemGetDriverVersion()))
        count = int(nvml.nvmlDeviceGetCount())
    except Exception as error:
        return Probe(error=str(error), error_kind=type(error).__name__)
    found.gpus = [_gpu(nvml, index) for index in range(count)]
    return found


def _gpu(nvml: Any, index: int) -> GpuProbe:
    answer = GpuProbe(index)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        known = facts(nvml, handle)
        answer.name, answer.uuid = str(known.get("name", "")), str(known.get("uuid", ""))
        gpu = Gpu(nvml, handle)
        gpu.probe()
    except Exception as error:
        answer.error = failure(error).why or type(error).__name__
        return answer
    answer.metrics = {name: tier.metrics for name, tier in gpu.tiers.items()}
    answer.missing = {
        name: (why.status.word, why.why)
        for tier in gpu.tiers.values()
        for name, why in tier.missing.items()
    }
    try:
        answer.events = bool(nvml.nvmlDeviceGetSupportedEventTypes(handle))
    except Exception:
        answer.events = False
    return answer


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(probe()))
    sys.stdout.flush()
    os._exit(0)  # without nvmlShutdown, which can hang as any other call
