"""Matrix work in fp32 beside the tensor cores: named where it would help, with a careful price."""

from __future__ import annotations

import pytest

from fixtures.traces import TraceBuilder
from fixtures.views import Machine, texts, view
from gpuprof.analyzers.causes import low_precision
from gpuprof.diagnosis import Finding, NotJudged, RuledOut

SGEMM = "ampere_sgemm_128x128_nn"
TENSOR = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"

RTX_3060 = {"gpu": "NVIDIA GeForce RTX 3060", "sm_count": 28, "memory_bytes": 12_627_738_624}
V100 = {"gpu": "Tesla V100-SXM2-16GB", "sm_count": 80, "memory_bytes": 16_945_512_448}


def run(
    *,
    gemm: str = SGEMM,
    gemm_us: float = 900.0,
    add_us: float = 100.0,
    host_us: float = 0.0,
    **gpu: object,
) -> Machine:
    machine = Machine(TraceBuilder(**gpu))  # type: ignore[arg-type]
    for number in range(5):
        with machine.step(number):
            machine.work(host_us)
            machine.kernel(gemm, gemm_us, grid=(512, 1, 1))
            machine.kernel(ADD, add_us, grid=(512, 1, 1))
    return machine


def test_fp32_products_on_an_a100_are_found_and_priced_at_three_times() -> None:
    """900 of 1,000 µs, three times as fast: 600 µs go (the ratio of peaks would be eight)."""
    found = low_precision.judge(view(run().trace))
    assert isinstance(found, Finding)
    assert (found.cause, found.number, found.severity) == ("low-precision", None, "critical")
    assert found.share == pytest.approx(0.9, abs=0.01)
    assert found.gain is not None
    assert found.gain.reduction == pytest.approx(0.6, abs=0.01)
    assert "tf32" in found.gain.how
    assert "set_float32_matmul_precision" in found.fixes[0].code
    assert "156 in tf32" in texts(found.evidence)


def test_its_gain_is_a_share_of_the_measured_step_and_sets_its_band() -> None:
    """As of every other cause: of the replayed step it would be another number."""
    run_view = view(mixed().trace)
    small = low_precision.judge(run_view)
    assert isinstance(small, Finding)
    assert small.gain is not None
    assert small.severity == "warning"
    assert 0.05 <= small.gain.reduction < 0.2
    assert small.gain.step_ms == pytest.approx(run_view.step_ms() * (1 - small.gain.reduction))


def mixed() -> Machine:
    machine = Machine()
    for number in range(5):
        with machine.step(number):
            machine.kernel(SGEMM, 100, grid=(512, 1, 1))
            machine.kernel(TENSOR, 900, grid=(512, 1, 1))
    return machine


def test_a_volta_gets_fp16_with_a_scaler_never_bf16() -> None:
    trace = run(gemm="volta_sgemm_128x64_nn", **V100).trace
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", start_us=0, dur_us=1)
    found = low_precision.judge(view(trace))
    assert isinstance(found, Finding)
    assert found.fixes[0].title == "Compute in float16 (autocast)"
    assert "GradScaler" in found.fixes[0].code
    assert "bfloat16" not in texts(found.fixes)


def test_tensor_cores_in_use_rule_it_out() -> None:
    verdict = low_precision.judge(view(run(gemm=TENSOR).trace))
    assert isinstance(verdict, RuledOut)
    assert "0.0 %" in verdict.why


def test_a_host_that_limits_the_run_rules_it_out() -> None:
    verdict = low_precision.judge(view(run(host_us=5_000).trace))
    assert isinstance(verdict, RuledOut)
    assert "arithmetic does not limit this run" in verdict.why


def test_a_device_whose_matrix_units_are_no_faster_rules_it_out() -> None:
    verdict = low_precision.judge(view(run(**RTX_3060).trace))
    assert isinstance(verdict, RuledOut)
    assert "RTX 3060" in verdict.why


def test_an_unknown_device_or_kernel_is_not_judged() -> None:
    assert isinstance(low_precision.judge(view(run(gpu="Some GPU").trace)), NotJudged)
    assert isinstance(low_precision.judge(view(run(gemm=ADD).trace)), NotJudged)
