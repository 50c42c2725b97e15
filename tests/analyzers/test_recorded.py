"""What a recording leaves out is said; nothing is concluded from what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.runs import Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.diagnose import Recorded, diagnose
from gpuprof.analyzers.recorded import missing_work, recording_warnings
from gpuprof.diagnosis import CAUSES, Diagnosis
from gpuprof.trace import Trace


def trace_of(job: Job | TraceBuilder, **meta: Any) -> Trace:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    return replace(trace, meta=replace(trace.meta, **meta))


def answer(*traces: Trace) -> Diagnosis:
    return diagnose(Recorded(traces), "0")[0]


def over_nccl() -> Trace:
    return trace_of(cpu_training(4, compute_us=400, python_us=600), backend="nccl")


def launching() -> Trace:
    builder = cpu_training(4, compute_us=400, python_us=600).trace
    builder.runtime("cudaLaunchKernel", start_us=10, dur_us=5)
    return trace_of(builder)


def cut_off() -> Trace:
    devices = training(1).trace.trace().meta.devices
    return trace_of(cpu_training(4), devices=devices, truncated=True)


@pytest.mark.parametrize("trace", [over_nccl(), launching(), cut_off()])
def test_training_on_a_gpu_without_its_kernels_is_not_taken_for_training_on_the_cpu(
    trace: Trace,
) -> None:
    diagnosis = answer(trace)
    assert diagnosis.bound.class_ == "unknown"
    assert diagnosis.findings == diagnosis.ruled_out == ()
    assert sorted(n.cause for n in diagnosis.not_judged) == sorted(
        cause for cause, number in CAUSES.items() if number
    )
    assert "not recorded" in diagnosis.headline
    remedy = "whole file" if trace.meta.truncated else "ProfilerActivity.CUDA"
    assert remedy in diagnosis.bound.why
    assert diagnosis.budget["unknown"] == 1.0
    assert any("no gain is quoted" in warning for warning in diagnosis.warnings)


def test_marks_alone_say_nothing_about_the_time_between_them() -> None:
    builder = TraceBuilder()
    for number in range(4):
        builder.step(number, start_us=number * 100.0, dur_us=100.0)
    diagnosis = answer(trace_of(builder, backend=""))
    assert diagnosis.bound.class_ == "unknown"
    assert diagnosis.findings == ()


def test_training_on_the_cpu_is_judged_as_before() -> None:
    assert missing_work([trace_of(cpu_training(4))]) == ""
    assert missing_work([trace_of(cpu_training(4), backend="cpu:gloo,cuda:nccl")]) == ""
    assert answer(trace_of(cpu_training(4))).bound.class_ != "unknown"


def test_training_on_the_cpu_of_a_machine_with_a_gpu_is_judged_with_a_warning() -> None:
    devices = training(1).trace.trace().meta.devices
    diagnosis = answer(trace_of(cpu_training(4), devices=devices))
    assert diagnosis.bound.class_ != "unknown"
    assert any("holds no work of it" in warning for warning in diagnosis.warnings)


def test_a_device_without_a_warning_of_this_kind() -> None:
    assert recording_warnings([trace_of(training(3))]) == []


def test_ranks_of_different_jobs_are_told_by_their_number_and_their_time() -> None:
    first, second = trace_of(training(3), world_size=8), trace_of(training(3), world_size=4)
    assert "different jobs" in recording_warnings([first, second])[0]
    later = replace(first, start_ns=first.start_ns + 3_600_000_000_000)
    assert "60 minutes apart" in recording_warnings([first, later])[0]
    assert recording_warnings([first, first]) == []
