"""The stand-in answers the real pynvml and nvitop as a driver with a scripted past would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.nvml.build import OLD_DRIVER, environment
from fixtures.nvml.scenario import GPU_IS_LOST, NOT_SUPPORTED, Scenario
from fixtures.nvml.testing import needs_stand_in, playing

pytestmark = needs_stand_in


def saw(t: float, _gpu: int) -> float:
    """0.8 s of nothing every 2 s."""
    return 98 if t % 2 < 1.2 else 0


def test_utilization_is_the_mean_over_the_window(tmp_path: Path) -> None:
    """A pit shorter than the driver's window must show only in part, as on a real device."""
    scenario = Scenario(1).curve(lambda t, g: 0 if 0.6 <= t < 0.65 else 100, until_s=10)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        stand_in.set_time(0.7)
        assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 70


def test_rings_hold_what_was_sampled_since_the_last_look(tmp_path: Path) -> None:
    with playing(Scenario(1).curve(saw, until_s=60), tmp_path) as (nvml, stand_in):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        stand_in.set_time(4.0)
        _, ring = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        values = [sample.sampleValue.uiVal for sample in ring]
        assert values[:12] == [98, 98, 98, 98, 98, 98, 98, 20, 0, 0, 0, 0]
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, ring[-1].timeStamp)


def test_counters_are_integrals_of_the_series(tmp_path: Path) -> None:
    scenario = Scenario(1).row(0, power_w=100, reasons=0).row(2, power_w=300, reasons=4)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        stand_in.set_time(5.0)
        assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) == (2 * 100 + 3 * 300) * 1000
        (capped,) = nvml.nvmlDeviceGetFieldValues(handle, [74])
        assert capped.value.ullVal == 3 * 10**9


def test_a_loop_goes_on_counting(tmp_path: Path) -> None:
    """Counters must not run backwards when the script starts over."""
    with playing(Scenario(1).curve(saw, until_s=2), tmp_path) as (nvml, stand_in):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        seen = []
        for t in (1.0, 2.0, 3.0, 4.5):
            stand_in.set_time(t)
            seen.append(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        assert seen == sorted(seen)
        assert seen[3] > seen[2]


def test_gpm_metrics_are_means_between_two_samples(tmp_path: Path) -> None:
    with playing(Scenario(1).curve(saw, until_s=60), tmp_path) as (nvml, stand_in):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        query.metrics[0].metricId, query.metrics[1].metricId = 2, 400
        before, after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        stand_in.set_time(2.0)
        nvml.nvmlGpmSampleGet(handle, before)
        stand_in.set_time(4.0)
        nvml.nvmlGpmSampleGet(handle, after)
        query.sample1, query.sample2 = before, after
        nvml.nvmlGpmMetricsGet(query)
        assert query.metrics[0].value == pytest.approx(72 * 0.98 * 0.6, abs=2)
        assert query.metrics[1].nvmlReturn == NOT_SUPPORTED


def test_faults_hit_their_gpu_at_their_time(tmp_path: Path) -> None:
    scenario = Scenario(2).fault("nvmlDeviceGet*", gpu=1, ret=GPU_IS_LOST, since=20)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
        stand_in.set_time(19)
        assert nvml.nvmlDeviceGetName(handles[1])
        stand_in.set_time(20)
        assert nvml.nvmlDeviceGetName(handles[0])
        with pytest.raises(nvml.NVMLError_GpuIsLost):
            nvml.nvmlDeviceGetName(handles[1])


def test_an_old_driver_lacks_functions(tmp_path: Path) -> None:
    with playing(Scenario(1), tmp_path, hidden=OLD_DRIVER) as (nvml, _):
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetMemoryInfo(handle).total > 0
        with pytest.raises(nvml.NVMLError_FunctionNotFound):
            nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)


def test_events_come_when_they_are_due(tmp_path: Path) -> None:
    scenario = Scenario(2).event(1, 5.0, xid=79)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        stand_in.set_time(1.0)
        events = nvml.nvmlEventSetCreate()
        for index in (0, 1):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        with pytest.raises(nvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 1)
        stand_in.set_time(5.0)
        data = nvml.nvmlEventSetWait_v2(events, 1)
        assert (data.eventType, data.eventData) == (nvml.nvmlEventTypeXidCriticalError, 79)
        assert nvml.nvmlDeviceGetIndex(data.device) == 1


def test_nvitop_shows_the_devices_and_their_processes(tmp_path: Path) -> None:
    """The stand-in must satisfy nvitop unmodified, in a process of its own."""
    scenario = Scenario(3).curve(lambda t, g: 98, until_s=60).process(2, os.getpid(), mem_mib=61000)
    done = subprocess.run(
        [sys.executable, "-m", "nvitop", "-1"],
        env=environment(scenario.write(tmp_path / "s")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("H100 80GB HBM3") == 3
    assert str(os.getpid()) in done.stdout
