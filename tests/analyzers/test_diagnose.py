"""From traces to the answer, whole."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.layouts import Action, layouts, programs, run
from fixtures.runs import Job, cpu_training, diagnosed, plain, training
from fixtures.traces import BASE_NS, TraceBuilder
from gpuprof.analyzers import diagnose as module
from gpuprof.analyzers import pricing
from gpuprof.analyzers.diagnose import Recorded, diagnose
from gpuprof.diagnosis import CAUSES, Diagnosis


def verdicts(diagnosis: Diagnosis) -> list[str]:
    return [
        *(f.cause for f in diagnosis.findings if f.cause in CAUSES),
        *(r.cause for r in diagnosis.ruled_out),
        *(n.cause for n in diagnosis.not_judged),
    ]


def found(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings]


def everything_holds(diagnosis: Diagnosis) -> None:
    """What is true of every diagnosis."""
    assert sorted(verdicts(diagnosis)) == sorted(CAUSES)
    gains = [f.gain.reduction if f.gain else f.share for f in diagnosis.findings]
    assert gains == sorted(gains, reverse=True)
    best = max((f.gain.reduction for f in diagnosis.findings if f.gain), default=0.0)
    if diagnosis.together is not None:
        assert best - 1e-4 <= diagnosis.together.reduction <= 1.0
        assert diagnosis.together.step_ms >= 0
    else:
        assert not any(f.gain for f in diagnosis.findings)
    if not diagnosis.replay.trusted:
        assert not any(f.gain for f in diagnosis.findings)
        assert any("no gain is quoted" in warning for warning in diagnosis.warnings)
    assert sum(diagnosis.budget.values()) == pytest.approx(1.0, abs=1e-6) or not any(
        diagnosis.budget.values()
    )
    assert not any("failed to judge" in warning for warning in diagnosis.warnings)
    for finding in diagnosis.findings:
        assert 0 <= finding.share <= 1
        if finding.gain is not None:
            assert 0 <= finding.gain.low <= finding.gain.reduction <= finding.gain.high <= 1
            after = (diagnosis.run.steps.length_ms or 0.0) * (1 - finding.gain.reduction)
            assert finding.gain.step_ms == pytest.approx(after, rel=1e-3, abs=1e-3)
    order = [("critical", "warning", "info").index(f.severity) for f in diagnosis.findings]
    assert order == sorted(order), "no finding stands above a graver one"


@settings(max_examples=60, deadline=None)
@given(programs, st.integers(1, 5))
def test_every_diagnosis_of_a_program_holds_together(program: list[Action], steps: int) -> None:
    everything_holds(diagnosed(run(program, steps)))


@settings(max_examples=80, deadline=None)
@given(layouts())
def test_every_diagnosis_of_any_layout_holds_together(trace: TraceBuilder) -> None:
    everything_holds(diagnosed(trace))


@pytest.mark.parametrize(
    "job",
    [
        cpu_training(4, load_us=300, python_us=100),
        training(4, marks=False),
        TraceBuilder().launch_kernel("k", start_us=0, dur_us=5),
        TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=0),
        TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=5),
    ],
    ids=["cpu", "no marks", "device only", "no time", "one operator"],
)
def test_every_odd_run_has_a_diagnosis(job: Job | TraceBuilder) -> None:
    everything_holds(diagnosed(job))


def test_a_planted_loader_is_the_first_finding_with_its_gain() -> None:
    diagnosis = diagnosed(training(6, load_us=4_000, settled=True))
    first = diagnosis.findings[0]
    assert first.cause == "dataloader"
    assert first.gain is not None
    assert first.gain.step_ms == pytest.approx(1.008, abs=1e-3)
    assert diagnosis.bound.class_ == "input"
    assert diagnosis.budget["input"] == pytest.approx(4_000 / 5_008, abs=1e-5)
    assert diagnosis.replay.trusted
    assert diagnosis.replay.error == 0
    assert diagnosis.replay.measured_ms == pytest.approx(5.008)
    assert diagnosis.run.steps.count == 6
    assert diagnosis.run.steps.source == "ProfilerStep"
    assert "waits for data 80 %" in plain(diagnosis.headline)
    assert diagnosis.together is not None
    assert diagnosis.together.reduction >= first.gain.reduction - 1e-4


def test_a_healthy_run_has_no_finding() -> None:
    name = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn"
    job = training(6, kernels=(500,) * 4, kernel=name, load_us=300, work_us=100)
    diagnosis = diagnosed(job)
    assert found(diagnosis) == []
    assert diagnosis.together is None
    assert diagnosis.bound.class_ == "compute"


def test_two_faults_are_both_found_and_not_added_up() -> None:
    """2 ms of loading, a refill of 600 µs, 3 ms of kernels: together they save what the sum does
    at most."""
    job = Job()
    for number in range(8):
        with job.step(number):
            job.load(2_000)
            job.kernel("ampere_sgemm_128x128_nn", 1_500)
            job.item()
            job.work(600)
            job.kernel("ampere_sgemm_128x128_nn", 1_500)
            job.synchronize()
    diagnosis = diagnosed(job)
    assert {"dataloader", "sync-points"} <= set(found(diagnosis))
    assert diagnosis.together is not None
    gains = [f.gain.reduction for f in diagnosis.findings if f.gain]
    assert max(gains) < diagnosis.together.reduction <= sum(gains) + 0.25
    assert diagnosis.together.step_ms == pytest.approx(3.0, rel=0.1)


def test_a_gain_that_removes_nothing_still_counts_for_the_whole() -> None:
    """A larger batch is no part that a replay can take out: the whole is not less than it."""
    diagnosis = diagnosed(training(6, kernels=(10,) * 10, work_us=50, grid=8))
    small = next(f for f in diagnosis.findings if f.cause == "small-batch")
    assert small.gain is not None
    assert diagnosis.together is not None
    assert diagnosis.together.reduction >= small.gain.reduction - 1e-4


# What goes wrong


def test_a_rule_that_raises_is_not_judged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def boom(view: object) -> None:
        raise ZeroDivisionError("by zero")

    causes = tuple(
        replace(cause, judge=boom) if cause.id == "sync-points" else cause
        for cause in module.CAUSES
    )
    monkeypatch.setattr(module, "CAUSES", causes)
    diagnosis = diagnosed(training(6, load_us=4_000))
    assert found(diagnosis)[0] == "dataloader"
    (failed,) = [n for n in diagnosis.not_judged if n.cause == "sync-points"]
    assert "itself failed" in failed.missing
    (warning,) = [w for w in diagnosis.warnings if "sync-points" in w]
    assert "ZeroDivisionError: by zero" in warning


def test_an_untrusted_replay_quotes_no_gain_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "TRUSTED_ERROR", -1.0)
    diagnosis = diagnosed(training(6, load_us=4_000))
    assert not diagnosis.replay.trusted
    assert found(diagnosis)[0] == "dataloader"
    assert all(finding.gain is None for finding in diagnosis.findings)
    assert diagnosis.together is None
    assert any("no gain is quoted: the replay misses" in w for w in diagnosis.warnings)


def test_without_launches_no_gain_is_quoted() -> None:
    diagnosis = diagnosed(TraceBuilder().launch_kernel("k", start_us=0, dur_us=5))
    assert diagnosis.replay.error is None
    assert not diagnosis.replay.trusted
    assert any("launches were not recorded" in w for w in diagnosis.warnings)


def test_a_skewed_clock_is_said_with_its_size() -> None:
    trace = TraceBuilder()
    for i in range(20):
        trace.launch_kernel("k", launch_us=100 * i + 50, start_us=100 * i + 10, dur_us=30)
    (warning,) = [w for w in diagnosed(trace).warnings if "clocks disagree" in w]
    assert "40.0 µs" in plain(warning)


def test_steps_that_are_left_out_are_said() -> None:
    job = Job()
    with job.step(0):
        job.kernel("k", 9_000)
    training(5, job=job)
    (left_out,) = diagnosed(job).run.steps.excluded
    assert left_out.step == "ProfilerStep#0"
    assert "warm-up" in left_out.why


def test_a_recording_without_steps_is_said() -> None:
    assert any("no steps were found" in w for w in diagnosed(training(3, marks=False)).warnings)


def test_lost_launches_are_said() -> None:
    job = training(4)
    for i in range(4):
        job.trace.launch_kernel("lost", start_us=900 * i, dur_us=1, stream=9)
    assert any("4 of 8 device events have no recorded launch" in w for w in diagnosed(job).warnings)


# Ranks


def test_of_two_traces_of_one_rank_the_larger_is_used_and_said() -> None:
    diagnosis = diagnosed(training(3), training(6))
    assert diagnosis.run.ranks == (0,)
    assert diagnosis.run.steps.count == 6
    assert len(diagnosis.inputs) == 1
    assert any("two traces of rank 0" in w and "is left out" in w for w in diagnosis.warnings)


def test_missing_ranks_are_said() -> None:
    diagnosis = diagnosed(training(4, job=Job(rank=2, world_size=8)))
    assert diagnosis.run.world_size == 8
    assert diagnosis.run.ranks == (2,)
    assert any("1 of 8 ranks was given" in w for w in diagnosis.warnings)


def test_a_trace_that_does_not_say_its_rank_is_given_a_free_one() -> None:
    jobs = [training(4, job=Job(rank=rank, world_size=3)) for rank in (0, None, 2)]
    diagnosis = diagnosed(*jobs)
    assert diagnosis.run.ranks == (0, 1, 2)
    assert any("taken for rank 1" in w for w in diagnosis.warnings)


def test_a_lone_trace_without_a_rank_is_rank_0_without_a_warning() -> None:
    diagnosis = diagnosed(training(4, job=Job(rank=None)))
    assert diagnosis.run.ranks == (0,)
    assert not any("rank" in w and "taken for" in w for w in diagnosis.warnings)


def test_two_ranks_are_one_diagnosis_with_a_row_each() -> None:
    jobs = [training(5, collective_us=100, job=Job(rank=r, world_size=2)) for r in (0, 1)]
    diagnosis = diagnosed(*jobs)
    assert diagnosis.run.world_size == 2
    assert [row.rank for row in diagnosis.ranks] == [0, 1]
    everything_holds(diagnosis)


def test_lines_come_from_an_attribution_window() -> None:
    lines = Job()
    for number in range(4):
        with lines.step(number), lines.python("train.py(7): main"):
            lines.load(3_000)
            lines.kernel("k", 500)
            lines.synchronize()
    plain_run = training(6, load_us=3_000, settled=True)
    recorded = Recorded((plain_run.trace.trace(),), {0: lines.trace.trace()})
    diagnosis, _ = diagnose(recorded, "test")
    assert diagnosis.run.steps.count == 6
    assert [(p.file, p.line) for p in diagnosis.findings[0].where] == [("train.py", 7)]


# What changes nothing


def without_places(diagnosis: Diagnosis) -> Any:
    """All of a diagnosis but where in the file or in time things are."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("windows", "inputs", "files")
            return {k: strip(v) for k, v in value.items() if k not in left_out}
        return [strip(v) for v in value] if isinstance(value, (list, tuple)) else value

    return strip(msgspec.to_builtins(diagnosis))


def full() -> TraceBuilder:
    return training(5, kernels=(200, 90), load_us=400, items=2, collective_us=80, work_us=60).trace


@pytest.mark.parametrize("shift_ns", [1, -123_456_789, 10**15])
def test_the_clocks_origin_changes_nothing(shift_ns: int) -> None:
    shifted = replace(full(), header={"baseTimeNanoseconds": BASE_NS + shift_ns})
    assert without_places(diagnosed(shifted)) == without_places(diagnosed(full()))


@settings(max_examples=25, deadline=None)
@given(programs, st.integers(0, 2**32))
def test_the_order_of_rows_in_the_file_changes_nothing(program: list[Action], seed: int) -> None:
    built = run(program, 3).trace
    events = list(built._events)
    random.Random(seed).shuffle(events)
    shuffled = replace(built, _events=events)
    assert without_places(diagnosed(shuffled)) == without_places(diagnosed(built))


def test_the_same_trace_gives_the_same_diagnosis() -> None:
    assert without_places(diagnosed(full())) == without_places(diagnosed(full()))


@pytest.mark.parametrize("dialect", ["epoch", "old", "strings", "flows"])
def test_the_dialect_changes_no_number(dialect: Any) -> None:
    """Times are whole microseconds, which every dialect can write."""
    trace = full()
    expected, _ = diagnose(Recorded((trace.trace(),)), "test")
    got, _ = diagnose(Recorded((trace.trace(dialect),)), "test")
    assert got.budget == expected.budget
    assert got.run.steps == expected.run.steps
    assert [(f.cause, f.share, f.gain) for f in got.findings if f.cause != "small-batch"] == [
        (f.cause, f.share, f.gain) for f in expected.findings if f.cause != "small-batch"
    ]
