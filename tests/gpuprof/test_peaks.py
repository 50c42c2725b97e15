"""Peaks: the right device or none at all."""

from __future__ import annotations

import pytest

from gpuprof.peaks import known_devices, lookup

GIB = 2**30


@pytest.mark.parametrize(
    ("device", "expected", "peak", "gb_per_s"),
    [
        (("Tesla V100-SXM2-16GB", 16945512448, 80), "NVIDIA V100 SXM", ("fp16", 125), 900),
        (("Tesla V100-DGXS-32GB", 34084028416, 80), "NVIDIA V100 SXM", ("fp32", 15.7), 900),
        (("Tesla V100-PCIE-16GB", 16945512448, 80), "NVIDIA V100 PCIe", ("fp16", 112), 900),
        (("NVIDIA A100-PG509-200", 42505273344, 108), "NVIDIA A100 40GB", ("bf16", 312), 1555),
        (("NVIDIA A100-SXM4-40GB", 42481549312, 108), "NVIDIA A100 40GB", ("tf32", 156), 1555),
        (("NVIDIA A100-PCIE-40GB", 42346610688, 108), "NVIDIA A100 40GB", ("bf16", 312), 1555),
        (("NVIDIA A100-SXM4-80GB", 84990623744, 108), "NVIDIA A100 80GB SXM", ("bf16", 312), 2039),
        (("NVIDIA A100 80GB PCIe", 84990623744, 108), "NVIDIA A100 80GB PCIe", ("bf16", 312), 1935),
        (("NVIDIA H100 80GB HBM3", 85018279936, 132), "NVIDIA H100 SXM", ("bf16", 989), 3352),
        (("NVIDIA H100 PCIe", 85018279936, 114), "NVIDIA H100 PCIe", ("bf16", 756), 2039),
        (("NVIDIA H200", 150754820096, 132), "NVIDIA H200", ("fp8", 1979), 4800),
        (("NVIDIA B200", 191503138816, 148), "NVIDIA B200", ("bf16", 2250), 7672),
        (
            ("NVIDIA GeForce RTX 3060", 12487294976, 28),
            "NVIDIA GeForce RTX 3060",
            ("fp32", 12.7),
            360,
        ),
        (("NVIDIA GeForce RTX 4090", 0, 0), "NVIDIA GeForce RTX 4090", ("bf16", 165.2), 1008),
        (("NVIDIA L40S", 0, 142), "NVIDIA L40S", ("fp8", 733), 864),
        (("AMD Instinct MI210", 68702699520, 104), "AMD Instinct MI210", ("bf16", 181), 1638),
        (("AMD Instinct MI250X", 68702699520, 110), "AMD Instinct MI250X", ("fp16", 191.5), 1638),
        (("AMD Instinct MI250", 68702699520, 104), "AMD Instinct MI250", ("fp16", 181), 1638),
        (("AMD Instinct MI300X", 206141652992, 304), "AMD Instinct MI300X", ("bf16", 1307.4), 5300),
        (("AMD Instinct MI325X", 256 * GIB, 304), "AMD Instinct MI325X", ("fp8", 2614.9), 6000),
        (("AMD Instinct MI355X", 288 * GIB, 256), "AMD Instinct MI355X", ("bf16", 2516.6), 8000),
    ],
)
def test_device_names_of_real_drivers_find_their_figures(
    device: tuple[str, int, int], expected: str, peak: tuple[str, float], gb_per_s: float
) -> None:
    peaks = lookup(*device)
    dtype, tflops = peak
    assert peaks is not None
    assert peaks.name == expected
    assert peaks.flops(dtype) == pytest.approx(tflops * 1e12, rel=2e-3)
    assert peaks.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize(
    ("name", "memory_bytes", "sm_count"),
    [
        ("", 206141652992, 304),
        ("AMD Radeon Graphics", 68702699520, 104),
        ("Some Future GPU", 0, 0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4_900_000_000, 14),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0),
        ("NVIDIA GeForce RTX 4090 D", 0, 0),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 0, 30),
        ("NVIDIA A100-SXM-64GB", 68_000_000_000, 124),
        ("NVIDIA H20-3e", 150_754_820_096, 78),
        ("A100 " * 1000, 0, 0),
    ],
)
def test_a_device_that_is_not_in_the_table_is_unknown(
    name: str, memory_bytes: int, sm_count: int
) -> None:
    """Falling back on another device's peak would make every utilization silently wrong."""
    assert lookup(name, memory_bytes, sm_count) is None


def test_the_memory_tells_boards_apart_whose_names_do_not() -> None:
    small = lookup("NVIDIA A100-PG509-200", 42505273344, 108)
    large = lookup("NVIDIA A100-PG509-210", 84990623744, 108)
    assert small is not None
    assert large is not None
    assert small.memory_bytes_per_s < large.memory_bytes_per_s


def test_volta_has_no_bf16_and_runs_tf32_as_fp32() -> None:
    peaks = lookup("Tesla V100-SXM2-32GB")
    assert peaks is not None
    assert peaks.flops("bf16") is None
    assert peaks.flops("tf32") == peaks.flops("fp32")
    assert peaks.ridge("bf16") is None


def test_matrix_units_count_only_where_they_may_be_in_use() -> None:
    peaks = lookup("AMD Instinct MI210")
    assert peaks is not None
    assert peaks.flops("fp32", matrix=False) == pytest.approx(22.6e12)
    assert peaks.flops("fp32", matrix=True) == peaks.flops("fp32") == pytest.approx(45.3e12)


def test_every_entry_is_whole_consistent_and_finds_itself() -> None:
    for peaks in known_devices():
        assert peaks.sources, peaks.name
        assert peaks.memory_bytes_per_s > 1e11, peaks.name
        assert peaks.sm_count > 0, peaks.name
        types = peaks.dense_flops
        assert types["fp16"] >= types["fp32"], peaks.name
        assert types.get("fp8", types["fp16"]) >= types["fp16"], peaks.name
