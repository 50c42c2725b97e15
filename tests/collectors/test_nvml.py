"""Reading a GPU: what is probed, what a failure is called, and that it is never 0."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fixtures.nvml.build import OLD_DRIVER
from fixtures.nvml.scenario import (
    A100,
    GEFORCE,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Scenario,
)
from fixtures.nvml.testing import needs_stand_in, playing
from gpuprof.collectors.nvml import Gpu, facts, load_pynvml
from gpuprof.collectors.nvml_readers import Failure, checked_frac, failure
from gpuprof.sample_format import Status

pytestmark = needs_stand_in


def busy(_t: float, _gpu: int) -> float:
    return 98


def opened(nvml, index: int = 0, **options) -> Gpu:  # type: ignore[no-untyped-def]
    gpu = Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), **options)
    gpu.probe()
    return gpu


def values(gpu: Gpu, tier: str) -> dict[str, object]:
    return dict(zip(gpu.tiers[tier].metrics, gpu.read(tier), strict=True))


def test_a_healthy_gpu_tells_everything_in_its_units(tmp_path: Path) -> None:
    with playing(Scenario(1).curve(busy, until_s=60), tmp_path) as (nvml, stand_in):
        time.sleep(0.12)  # GPM compares two moments
        gpu = opened(nvml)
        stand_in.set_time(10.0)
        fast, slow = values(gpu, "fast"), values(gpu, "slow")
    assert fast["util_frac"] == 0.98
    assert fast["mem_used_bytes"] == 61000 * 2**20
    assert fast["power_w"] == pytest.approx(90 + 560 * 0.98)
    assert fast["energy_j"] == pytest.approx(10 * (90 + 560 * 0.98), rel=0.02)
    assert fast["nvlink_tx_bytes"] == pytest.approx(10 * 9e6 * 0.98 * 1024, rel=0.02)
    assert slow["pcie_gen"] == 5
    assert gpu.tiers["gpm"].metrics[0] == "sm_active_frac"
    assert not any(tier.missing for tier in gpu.tiers.values())


def test_what_a_card_lacks_is_not_supported_and_not_read_again(tmp_path: Path) -> None:
    with playing(Scenario(1, GEFORCE).curve(busy, until_s=60), tmp_path) as (nvml, stand_in):
        gpu = opened(nvml)
        asked = stand_in.calls("nvmlGpmQueryDeviceSupport")
        gpu.read("gpm")
        assert stand_in.calls("nvmlGpmQueryDeviceSupport") == asked
    missing = {
        name: why.status for tier in gpu.tiers.values() for name, why in tier.missing.items()
    }
    assert missing["nvlink_tx_bytes"] is Status.NOT_SUPPORTED
    assert missing["ecc_uncorrected"] is Status.NOT_SUPPORTED
    assert missing["sm_active_frac"] is Status.NOT_SUPPORTED
    assert "ecc_uncorrected" not in gpu.tiers["slow"].metrics


def test_an_old_driver_is_read_through_its_older_functions(tmp_path: Path) -> None:
    with playing(Scenario(1).curve(busy, until_s=60), tmp_path, hidden=OLD_DRIVER) as (nvml, _):
        gpu = opened(nvml)
        fast, slow = values(gpu, "fast"), values(gpu, "slow")
    assert fast["mem_used_bytes"] == (61000 + 551) * 2**20  # the old call counts reserved memory
    assert slow["throttle_reasons"] == 0
    assert gpu.tiers["gpm"].missing["tensor_frac"].status is Status.NOT_SUPPORTED


def test_power_and_energy_have_a_stand_by(tmp_path: Path) -> None:
    """Where field values fail altogether, the plain calls serve what they can."""
    scenario = Scenario(1).curve(busy, until_s=60)
    scenario.fault("nvmlDeviceGetFieldValues", ret=NOT_SUPPORTED)
    scenario.fault("nvmlGpmQueryDeviceSupport", ret=NOT_SUPPORTED)
    with playing(scenario, tmp_path) as (nvml, _):
        gpu = opened(nvml)
    assert {"power_w", "energy_j"} <= set(gpu.tiers["fast"].metrics)
    assert "power_w" not in gpu.tiers["fast"].missing
    assert "pcie_tx_bytes_per_s" in {*gpu.tiers["slow"].metrics, *gpu.tiers["fast"].metrics}


def test_a_lost_gpu_is_lost_and_not_zero(tmp_path: Path) -> None:
    scenario = Scenario(2).curve(busy, until_s=60)
    scenario.fault("nvmlDevice*", gpu=1, ret=GPU_IS_LOST, since=20)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        stand_in.set_time(10)
        gpus = [opened(nvml, index) for index in (0, 1)]
        stand_in.set_time(21)
        good, lost = (gpu.read("fast") for gpu in gpus)
    assert not any(isinstance(value, Failure) for value in good)
    assert {value.status for value in lost if isinstance(value, Failure)} == {Status.LOST}
    assert len(lost) == len(good)


def test_a_passing_error_is_not_given_up(tmp_path: Path) -> None:
    """Only "not supported" and "no permission" end the asking; anything else may pass."""
    scenario = Scenario(1).curve(busy, until_s=60)
    scenario.fault("nvmlDeviceGetUtilizationRates", ret=UNKNOWN, until=5)
    with playing(scenario, tmp_path) as (nvml, stand_in):
        stand_in.set_time(1)
        gpu = opened(nvml)
        assert isinstance(values(gpu, "fast")["util_frac"], Failure)
        stand_in.set_time(6)
        assert values(gpu, "fast")["util_frac"] == 0.98


def test_no_permission_is_told_apart(tmp_path: Path) -> None:
    scenario = Scenario(1).fault("nvmlGpmSampleGet", ret=NO_PERMISSION)
    with playing(scenario, tmp_path) as (nvml, _):
        gpu = opened(nvml)
    assert gpu.tiers["gpm"].missing["dram_bw_frac"].status is Status.NO_PERMISSION


def test_a_dear_call_moves_to_the_slow_tier(tmp_path: Path) -> None:
    scenario = Scenario(1).fault("nvmlDeviceGetClockInfo", ms=4)
    with playing(scenario, tmp_path) as (nvml, _):
        gpu = opened(nvml)
    assert "sm_clock_mhz" in gpu.tiers["slow"].metrics
    assert "util_frac" in gpu.tiers["fast"].metrics


def test_a_reader_that_hung_is_left_out(tmp_path: Path) -> None:
    with playing(Scenario(1, A100), tmp_path) as (nvml, stand_in):
        gpu = opened(nvml, skip=["fields_fast"])
        assert "nvlink_tx_bytes" in gpu.tiers["fast"].missing
        assert "power_w" in gpu.tiers["fast"].metrics  # from its stand-by
        assert stand_in.calls("nvmlDeviceGetPowerUsage") > 0


@pytest.mark.parametrize("clock", ["epoch", "boot"])
def test_ring_timestamps_are_brought_to_the_monotonic_clock(tmp_path: Path, clock: str) -> None:
    """Drivers count them from the epoch or from boot; both must land on the same clock."""
    scenario = Scenario(1, ring_clock=clock).curve(busy, until_s=60)
    with playing(scenario, tmp_path) as (nvml, _):
        gpu = opened(nvml)
        time.sleep(0.4)
        rings = {ring.metric: ring for ring in gpu.drain_rings()}
        now = time.monotonic_ns()
        assert abs(now - rings["ring_power_w"].time_ns[-1]) < 5e9
        before = rings["ring_power_w"].time_ns[-1]
        time.sleep(0.05)
        again = [ring for ring in gpu.drain_rings() if ring.metric == "ring_power_w"]
        assert all(t > before for ring in again for t in ring.time_ns)


def test_facts_leave_out_what_is_not_told(tmp_path: Path) -> None:
    with playing(Scenario(1, GEFORCE), tmp_path) as (nvml, _):
        known = facts(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    assert known["name"] == "NVIDIA GeForce RTX 4090"
    assert known["pcie_gen_max"] == 4
    assert "ecc" not in known


def test_a_missing_function_is_not_supported_whatever_pynvml_raises() -> None:
    """pynvml raises NVMLLibraryMismatchError for process functions, which is no NVMLError."""

    class NVMLLibraryMismatchError(Exception):
        pass

    assert failure(NVMLLibraryMismatchError("x")).status is Status.NOT_SUPPORTED
    assert failure(load_pynvml().NVMLError(13)).status is Status.NOT_SUPPORTED
    assert failure(AttributeError("nvmlNew")).status is Status.NOT_SUPPORTED  # an old pynvml
    assert failure(OSError("x")).status is Status.ERROR


def test_a_share_of_thousands_is_an_error() -> None:
    assert checked_frac(100) == 1.0
    assert isinstance(checked_frac(6553), Failure)
