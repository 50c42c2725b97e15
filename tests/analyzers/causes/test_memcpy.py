"""Cause 6: what copies between host and device cost, and when they cost nothing."""

from __future__ import annotations

import pytest

from fixtures.traces import TraceBuilder
from fixtures.views import Machine, texts, view
from gpuprof.analyzers.causes import memcpy
from gpuprof.diagnosis import Finding, NotJudged, RuledOut

PAGEABLE = "HtoD (Pageable -> Device)"
PINNED = "HtoD (Pinned -> Device)"
TO_HOST = "DtoH (Device -> Pageable)"


def loop(
    *,
    kind: str = PAGEABLE,
    blocking: bool = True,
    copy_us: float = 300.0,
    size_bytes: int = 3_000_000,
    copies: int = 1,
    stream: int = 7,
    gemm_us: float = 600.0,
    host_us: float = 0.0,
) -> Machine:
    machine = Machine()
    for number in range(6):
        with machine.step(number), machine.python("train.py(30): train_step"):
            for _ in range(copies):
                with machine.python("train.py(31): to_device"):
                    machine.copy(kind, size_bytes, copy_us, blocking=blocking, stream=stream)
            machine.work(host_us)
            machine.kernel("ampere_sgemm_128x128_nn", gemm_us)
    return machine


def test_pageable_copies_in_the_way_are_found_with_their_share_and_gain() -> None:
    """300 µs of copies and 600 µs of kernels one after the other: a third of the step goes."""
    found = memcpy.judge(view(loop().trace))
    assert isinstance(found, Finding)
    assert (found.cause, found.number, found.severity) == ("memcpy", 6, "critical")
    assert found.share == pytest.approx(310 / 910, abs=0.02)
    assert found.gain is not None
    assert found.gain.step_ms == pytest.approx(0.6, abs=0.03)
    said = texts(found.evidence)
    assert "pageable memory" in said
    assert "3 MB each" in said
    assert "10 GB/s" in said
    assert "All of them block the host" in said
    assert "pin_memory" in found.fixes[0].code
    assert "non_blocking=True" in found.fixes[0].code
    assert (found.where[0].file, found.where[0].line) == ("train.py", 31)
    assert found.evidence[0].windows


def test_copies_beside_kernels_cost_nothing() -> None:
    """The same bytes on a stream of their own: hidden, so ruled out with the number."""
    verdict = memcpy.judge(view(loop(kind=PINNED, blocking=False, stream=13, host_us=500).trace))
    assert isinstance(verdict, RuledOut)
    assert "named from 5.0 %" in verdict.why


def test_pinned_memory_is_not_advised_where_it_is_in_use() -> None:
    found = memcpy.judge(view(loop(kind=PINNED, blocking=False).trace))
    assert isinstance(found, Finding)
    assert "None of them blocks the host" in texts(found.evidence)
    assert "Copy out of pinned memory" not in texts(found.fixes)
    assert "torch.cuda.Stream()" in found.fixes[0].code


def test_many_small_copies_are_to_be_put_together() -> None:
    found = memcpy.judge(view(loop(copies=30, size_bytes=2_000, copy_us=8.0).trace))
    assert isinstance(found, Finding)
    assert "30 copies of 2 kB a step" in found.fixes[0].detail


def test_data_that_comes_back_should_stay_on_the_device() -> None:
    machine = Machine()
    for number in range(6):
        with machine.step(number):
            machine.kernel("ampere_sgemm_128x128_nn", 600)
            machine.copy(TO_HOST, 3_000_000, 300, blocking=True)
            machine.work(20)
            machine.copy(PAGEABLE, 3_000_000, 300, blocking=True)
    found = memcpy.judge(view(machine.trace))
    assert isinstance(found, Finding)
    assert found.fixes[0].title == "Keep the data on the device"


def test_copies_within_the_device_are_device_work() -> None:
    verdict = memcpy.judge(view(loop(kind="DtoD (Device -> Device)", blocking=False).trace))
    assert isinstance(verdict, RuledOut)
    assert "nothing was copied between host and device" in verdict.why


def test_copies_of_a_checkpoint_belong_to_the_checkpoint() -> None:
    machine = Machine()
    for number in range(6):
        with machine.step(number):
            machine.kernel("ampere_sgemm_128x128_nn", 600)
            with machine.annotation("torch.save"):
                machine.copy(TO_HOST, 3_000_000, 300, blocking=True)
    assert isinstance(memcpy.judge(view(machine.trace)), RuledOut)


def test_a_host_that_sets_the_pace_hides_the_copies_price() -> None:
    """With 2 ms of host work a step, copies beside the kernels would save nothing."""
    machine = loop(kind=PINNED, blocking=False, copy_us=150, gemm_us=100, host_us=2_000)
    verdict = memcpy.judge(view(machine.trace))
    assert isinstance(verdict, RuledOut)
    assert "shorter: other work comes out" in verdict.why


def test_without_the_host_the_waiting_is_not_judged() -> None:
    """Device rows alone show copies, but not whether the idle time after them is theirs."""
    trace = TraceBuilder()
    for step in range(5):
        trace.memcpy(PAGEABLE, size_bytes=1000, start_us=1000 * step, dur_us=10)
        trace.launch_kernel("gemm", start_us=1000 * step + 500, dur_us=300)
    verdict = memcpy.judge(view(trace))
    assert isinstance(verdict, NotJudged)
    assert "ProfilerActivity.CUDA" in verdict.command


def test_on_a_cpu_nothing_is_copied() -> None:
    trace = (
        TraceBuilder(gpu="").step(0, start_us=0, dur_us=100).op("aten::mm", start_us=5, dur_us=90)
    )
    assert isinstance(memcpy.judge(view(trace)), RuledOut)
