"""Limits of device events and their summary, on built traces and on real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.traces import TraceBuilder
from gpuprof.analyzers.device_columns import DTYPES
from gpuprof.analyzers.kernels import Kind
from gpuprof.analyzers.roofline import (
    Basis,
    KernelLimits,
    Limit,
    RooflineSummary,
    kernel_limits,
    summarize,
)
from gpuprof.readers.kineto import read_trace
from gpuprof.trace import Trace

CASES = Path(__file__).parents[3] / "shared" / "cases" / "traces"
TENSOR_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
BF16 = "c10::BFloat16"


def builder() -> TraceBuilder:
    return TraceBuilder(gpu="NVIDIA A100-SXM4-40GB", memory_bytes=42_481_549_312, sm_count=108)


def one(trace: Trace, index: int = 0) -> dict[str, Any]:
    limits = kernel_limits(trace)
    return {
        "limit": Limit(int(limits.limit[index])),
        "basis": Basis(int(limits.basis[index])),
        "flops": float(limits.flops[index]),
        "bytes": float(limits.bytes[index]),
        "ideal_ns": float(limits.ideal_ns[index]),
    }


def product(
    rows: int, inner: int, columns: int, *, dur_us: float, name: str = TENSOR_GEMM
) -> Trace:
    return (
        builder()
        .op(
            "aten::mm",
            start_us=0,
            dur_us=20,
            dims=[[rows, inner], [inner, columns]],
            types=[BF16, BF16],
        )
        .launch_kernel(name, launch_us=5, start_us=30, dur_us=dur_us, grid=(512, 1, 1))
        .trace()
    )


def test_a_large_product_is_limited_by_compute() -> None:
    found = one(product(4096, 4096, 4096, dur_us=600))
    assert (found["limit"], found["basis"]) == (Limit.COMPUTE, Basis.SHAPES)
    assert found["flops"] == 2 * 4096**3
    assert found["ideal_ns"] == pytest.approx(2 * 4096**3 / 312e12 * 1e9)


def test_a_skinny_product_is_limited_by_its_weights() -> None:
    """Decoding: one token against a weight matrix reads every weight for two FLOPs."""
    found = one(product(1, 8192, 8192, dur_us=110))
    assert (found["limit"], found["basis"]) == (Limit.BANDWIDTH, Basis.SHAPES)
    assert found["ideal_ns"] == pytest.approx(2 * (8192**2 + 2 * 8192) / 1555e9 * 1e9)


def test_a_count_that_beats_the_device_is_not_believed() -> None:
    found = one(product(4096, 4096, 4096, dur_us=100))
    assert (found["limit"], found["basis"]) == (Limit.COMPUTE, Basis.FAMILY)
    assert np.isnan(found["flops"])
    assert np.isnan(found["ideal_ns"])


def test_a_short_kernel_is_limited_by_latency_unless_it_reaches_its_roof() -> None:
    assert one(product(64, 64, 64, dur_us=4))["limit"] == Limit.LATENCY
    assert one(product(1, 2048, 1024, dur_us=4))["limit"] == Limit.BANDWIDTH


def test_a_kernel_on_few_sms_is_limited_by_latency() -> None:
    trace = (
        builder()
        .launch_kernel("softmax_few", start_us=0, dur_us=50, grid=(16, 1, 1))
        .launch_kernel("softmax_many", start_us=60, dur_us=50, grid=(400, 1, 1))
        .launch_kernel("ncclDevKernel_AllReduce", start_us=120, dur_us=50, grid=(16, 1, 1))
        .trace()
    )
    limits = kernel_limits(trace).limit.tolist()
    assert limits == [Limit.LATENCY, Limit.BANDWIDTH, Limit.COMMUNICATION]


def test_the_flops_of_a_call_are_counted_once_over_its_kernels() -> None:
    trace = (
        builder()
        .op("aten::linear", start_us=0, dur_us=40, dims=[[512, 512], [512, 512], []])
        .op("aten::addmm", start_us=2, dur_us=30, dims=[[512], [512, 512], [512, 512], [], []])
        .launch_kernel("ampere_sgemm_128x64_tn", launch_us=5, start_us=50, dur_us=30)
        .launch_kernel("ampere_sgemm_128x64_tn", launch_us=12, start_us=80, dur_us=10)
        .launch_kernel("splitKreduce_kernel", launch_us=20, start_us=90, dur_us=8)
        .launch_kernel("ampere_sgemm_128x64_tn", launch_us=34, start_us=100, dur_us=8)
        .trace()
    )
    flops = kernel_limits(trace).flops
    assert flops[:2].tolist() == pytest.approx([2 * 512**3 * 0.75, 2 * 512**3 * 0.25])
    assert np.isnan(flops[2:]).all(), "neither the sum nor the wrapper's kernel counts it again"


def test_an_elementwise_operator_is_measured_against_bandwidth() -> None:
    trace = (
        builder()
        .op("aten::add", start_us=0, dur_us=9, dims=[[1 << 24], [1 << 24], []])
        .launch_kernel("vectorized_elementwise_kernel", launch_us=2, start_us=20, dur_us=200)
        .trace()
    )
    found = one(trace)
    assert (found["limit"], found["basis"]) == (Limit.BANDWIDTH, Basis.SHAPES)
    assert found["bytes"] == 12 * (1 << 24)
    summary = summarize(kernel_limits(trace), trace)
    assert summary.gb_per_s == pytest.approx(12 * (1 << 24) / 200e-6 / 1e9)
    assert summary.mfu is None


def test_without_shapes_the_family_decides_and_an_unknown_name_is_unknown() -> None:
    trace = (
        builder()
        .launch_kernel(TENSOR_GEMM, start_us=0, dur_us=50, grid=(512, 1, 1))
        .launch_kernel("void my_kernel(float*)", start_us=60, dur_us=50, grid=(512, 1, 1))
        .memcpy(size_bytes=4096, start_us=120, dur_us=9)
        .trace()
    )
    limits = kernel_limits(trace)
    assert limits.limit.tolist() == [Limit.COMPUTE, Limit.UNKNOWN, Limit.COPY]
    assert limits.basis.tolist() == [Basis.FAMILY, Basis.NONE, Basis.FAMILY]
    assert limits.bytes[2] == 4096
    assert DTYPES[limits.dtype[0]] == "bf16"


def test_an_unknown_device_has_no_utilization_but_still_a_skinny_product() -> None:
    trace = (
        TraceBuilder(gpu="AMD Radeon Graphics", sm_count=104)
        .op("aten::mm", start_us=0, dur_us=9, dims=[[1, 4096], [4096, 4096]], types=[BF16, BF16])
        .launch_kernel(TENSOR_GEMM, launch_us=2, start_us=20, dur_us=40, grid=(512, 1, 1))
        .trace()
    )
    found = one(trace)
    assert (found["limit"], found["basis"]) == (Limit.BANDWIDTH, Basis.SHAPES)
    summary = summarize(kernel_limits(trace), trace)
    assert summary.mfu is None
    assert summary.tflops is not None


def test_given_operators_are_used_instead_of_the_launches() -> None:
    trace = (
        builder()
        .op("aten::mm", start_us=0, dur_us=9, dims=[[512, 512], [512, 512]], types=[BF16, BF16])
        .launch_kernel(TENSOR_GEMM, start_us=20, dur_us=40, grid=(512, 1, 1))
        .trace()
    )
    assert np.isnan(kernel_limits(trace).flops[0])
    rows = np.array([trace.name_mask(lambda name: name == "aten::mm").argmax()], dtype=np.int64)
    assert kernel_limits(trace, rows).flops[0] == 2 * 512**3


def test_summary_of_a_mixed_window() -> None:
    trace = (
        builder()
        .op("aten::mm", start_us=0, dur_us=9, dims=[[4096, 4096]] * 2, types=[BF16, BF16])
        .launch_kernel(TENSOR_GEMM, launch_us=2, start_us=100, dur_us=600, grid=(512, 1, 1))
        .launch_graph([("triton_poi_fused_add_0", 700, 5), ("softmax", 705, 15)], launch_us=60)
        .launch_kernel("softmax", launch_us=90, start_us=720, dur_us=180, grid=(54, 1, 1))
        .trace()
    )
    limits = kernel_limits(trace)
    summary = summarize(limits, trace, wall_ns=1_000_000)
    assert summary.device_ns == 800_000
    assert summary.limit_ns["compute"] == 600_000
    assert summary.kind_ns["gemm"] == 600_000
    assert summary.mfu == pytest.approx(2 * 4096**3 / 312e12 / 1e-3)
    assert summary.tflops == pytest.approx(2 * 4096**3 / 1e-3 / 1e12)
    assert summary.matrix_efficiency == pytest.approx(2 * 4096**3 / 312e12 / 600e-6)
    assert summary.matrix_units_frac == 1.0
    assert summary.dtype_frac == {"bf16": 1.0}
    assert summary.graph_launched_frac == 0.5
    assert summary.compiled
    assert summary.short_frac == pytest.approx(5 / 800)
    assert summary.underfilled_frac == pytest.approx(200 / 800)
    assert summary.fill_frac == pytest.approx((600 + 180 / 2 + 20 / 108) / 800)
    only_gemm = summarize(limits, trace, limits.kind == Kind.GEMM)
    assert only_gemm.device_ns == 600_000
    assert not only_gemm.limit_ns["latency"]


def test_an_mfu_is_not_quoted_from_a_fraction_of_the_work() -> None:
    trace = (
        builder()
        .op("aten::mm", start_us=0, dur_us=9, dims=[[4096, 4096]] * 2, types=[BF16, BF16])
        .launch_kernel(TENSOR_GEMM, launch_us=2, start_us=100, dur_us=600, grid=(512, 1, 1))
        .launch_kernel(TENSOR_GEMM, start_us=700, dur_us=600, grid=(512, 1, 1))
        .trace()
    )
    summary = summarize(kernel_limits(trace), trace)
    assert summary.counted_frac == pytest.approx(0.5)
    assert summary.mfu is None


def test_a_trace_without_device_events_sums_up_to_nothing() -> None:
    trace = builder().op("aten::mm", start_us=0, dur_us=9, dims=[[4, 4], [4, 4]]).trace()
    limits = kernel_limits(trace)
    assert len(limits) == 0
    summary = summarize(limits, trace)
    assert (summary.device_ns, summary.mfu, summary.fill_frac) == (0, None, None)


def real(case: str) -> tuple[KernelLimits, RooflineSummary]:
    path = CASES / case / "trace.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    trace = read_trace(path)
    limits = kernel_limits(trace)
    return limits, summarize(limits, trace)


@pytest.mark.parametrize(
    ("case", "limit", "share"),
    [
        ("gemm-compute", "compute", 0.9),
        ("add-poor-bandwidth", "bandwidth", 0.9),
        ("v100-compute-bound", "compute", 0.5),
        ("lm-batch32", "compute", 0.7),
        ("resnet50-workers4", "compute", 0.55),
        ("mi300-sglang-decode", "bandwidth", 0.7),
        ("mi300-rccl-wait", "communication", 0.6),
    ],
)
def test_real_runs_come_out_as_what_they_are(case: str, limit: str, share: float) -> None:
    _, summary = real(case)
    assert summary.limit_ns[limit] / summary.device_ns > share


def test_the_flops_of_a_real_resnet50_are_the_textbooks() -> None:
    """4.1 G multiply-adds an image forward, three times that a training step, batch 32, 6 steps;
    the first convolution needs no input gradient."""
    limits, summary = real("resnet50-workers4")
    textbook = 6 * 32 * 3 * 2 * 4.09e9
    assert np.nansum(limits.flops) == pytest.approx(textbook, rel=0.03)
    assert summary.mfu is not None
    assert 0.3 < summary.mfu < 0.5


@pytest.mark.parametrize("case", ["resnet50-workers4", "megatron-tp8", "sam-amg-after"])
def test_no_real_kernel_beats_its_roof(case: str) -> None:
    path = next(iter(sorted((CASES / case).glob("*.gz"))), None)
    if path is None:
        pytest.skip("the shared traces are not here")
    trace = read_trace(path)
    limits = kernel_limits(trace)
    duration = trace.dur_ns[trace.device.rows]
    known = ~np.isnan(limits.ideal_ns)
    assert known.any()
    assert (limits.ideal_ns[known] <= 1.05 * duration[known]).all()
