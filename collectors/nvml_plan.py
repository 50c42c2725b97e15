"""What the NVML collector reads: names, units and the numbers NVML knows them by.

Cumulative counters come first wherever there is one: they lose nothing between two samples.
Names carry their unit; `_frac` is a share of 1. Sources: the field comments of NVIDIA's public
NVML interface as the pynvml binding lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field that asks for the sum over all NVLinks."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of nvmlDeviceGetFieldValues; the metric is the value times `scale`."""

    metric: str
    id: int
    scale: float = 1
    scope: int = 0


FAST_FIELDS: tuple[Field, ...] = (
    Field("power_w", 186, 1e-3),  # mW, instantaneous
    Field("energy_j", 83, 1e-3),  # mJ since the driver was loaded
    Field("throttle_power_cap_ns", 74),
    Field("throttle_sync_boost_ns", 76),
    Field("throttle_board_limit_ns", 77),
    Field("throttle_sw_thermal_ns", 269),
    Field("throttle_hw_thermal_ns", 270),
    Field("throttle_power_brake_ns", 271),
    Field("pcie_tx_bytes", 197),
    Field("pcie_rx_bytes", 198),
    Field("nvlink_tx_bytes", 138, 1024, ALL_LINKS),  # KiB
    Field("nvlink_rx_bytes", 139, 1024, ALL_LINKS),
)
SLOW_FIELDS: tuple[Field, ...] = (
    Field("mem_temp_c", 82),
    Field("ecc_corrected", 3),
    Field("ecc_uncorrected", 4),
    Field("remap_corrected", 142),
    Field("remap_uncorrected", 143),
    Field("remap_pending", 144),
    Field("remap_failed", 145),
    Field("pcie_replays", 94),
    Field("nvlink_replays", 161),
    Field("nvlink_recoveries", 162),
    Field("nvlink_crc_errors", 163),
)
NVLINK_COUNT_FIELD = 91
NVLINK_SPEED_FIELD = 90


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """One GPU performance monitoring metric (Hopper and newer)."""

    metric: str
    id: int
    scale: float


MIB = 1048576.0
GPM_METRICS: tuple[GpmMetric, ...] = (
    GpmMetric("sm_active_frac", 2, 0.01),
    GpmMetric("sm_occupancy_frac", 3, 0.01),
    GpmMetric("tensor_frac", 5, 0.01),
    GpmMetric("dram_bw_frac", 10, 0.01),
    GpmMetric("fp64_frac", 11, 0.01),
    GpmMetric("fp32_frac", 12, 0.01),
    GpmMetric("fp16_frac", 13, 0.01),
    GpmMetric("pcie_tx_bytes_per_s", 20, MIB),
    GpmMetric("pcie_rx_bytes_per_s", 21, MIB),
    GpmMetric("nvlink_rx_bytes_per_s", 60, MIB),
    GpmMetric("nvlink_tx_bytes_per_s", 61, MIB),
)
GPM_MIN_INTERVAL_S = 0.1
"""Two GPM samples closer than this give invalid values (the interface's own comment)."""

RINGS: tuple[tuple[str, int, float], ...] = (
    ("ring_util_frac", 1, 0.01),
    ("ring_power_w", 0, 1e-3),
)
"""Buffers that the driver fills by itself: metric, NVML's sampling type, scale."""

EVENTS: dict[int, str] = {
    0x1: "ecc_corrected",
    0x2: "ecc_uncorrected",
    0x8: "xid",
    0x200: "ecc_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failed",
    0x1000: "poison",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}

DEMOTE_AFTER_S = 0.002
"""A call of the fast tier that takes longer than this is moved to the slow tier: at 10 Hz and 8
GPUs the driver, which serves one call after the other, would be busy 16 % of the time with it."""
