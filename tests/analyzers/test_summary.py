"""The tables and the sentence of a diagnosis."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fixtures.layouts import layouts
from fixtures.runs import ELEMENTWISE, GEMM, Job, cpu_training, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.account import account_rank
from gpuprof.analyzers.summary import (
    MOST_KERNELS,
    accounted_events,
    headline,
    heaviest_kernels,
    mean_budget,
    rank_summaries,
    steps_summary,
)
from gpuprof.diagnosis import BUCKETS, Bound, Estimate, Finding, NotJudged


@settings(max_examples=40, deadline=None)
@given(layouts())
def test_the_budget_adds_up_to_one_after_rounding(trace: TraceBuilder) -> None:
    account = account_rank(trace.trace(), 0)
    budget = mean_budget([account])
    assert set(budget) == set(BUCKETS)
    assert min(budget.values()) >= 0
    if account.main.budget.total_ns:
        assert sum(budget.values()) == pytest.approx(1.0, abs=1e-9)


def test_the_budget_is_the_mean_over_ranks() -> None:
    waiting, busy = training(6, load_us=3_000, settled=True), training(6, settled=True)
    budget = mean_budget([waiting.account(0), busy.account(1)])
    assert budget["input"] == pytest.approx(3_000 / 4_008 / 2, abs=1e-5)


def test_the_budget_of_a_run_without_time_is_unknown_and_still_adds_up() -> None:
    trace = TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=0)
    budget = mean_budget([account_rank(trace.trace(), 0)])
    assert budget["unknown"] == sum(budget.values()) == 1.0


def with_warm_up() -> Job:
    job = Job()
    with job.step(0):
        job.work(5_000)
        job.kernel("warm-up only", 1_000)
        job.synchronize()
    for number in range(1, 6):
        with job.step(number):
            job.kernel(GEMM, 600)
            job.kernel(ELEMENTWISE, 300)
            job.synchronize()
    return job


def test_the_steps_and_those_left_out() -> None:
    summary = steps_summary([with_warm_up().account(2)])
    assert (summary.count, summary.source) == (5, "ProfilerStep")
    assert summary.median_ms == pytest.approx(0.908, abs=0.005)
    (left_out,) = summary.excluded
    assert (left_out.step, left_out.rank) == ("ProfilerStep#0", 2)
    assert "warm-up" in left_out.why


def test_the_count_is_that_of_the_rank_with_fewest_steps() -> None:
    assert steps_summary([training(6).account(0), training(4).account(1)]).count == 4


def test_without_steps_the_count_is_zero() -> None:
    summary = steps_summary([training(4, marks=False).account()])
    assert (summary.count, summary.source) == (0, "none")
    assert summary.median_ms == pytest.approx(4.0, abs=0.02)


def test_events_of_left_out_steps_are_in_no_table() -> None:
    account = with_warm_up().account()
    assert len(accounted_events(account, account.main)) == 10
    assert {row.name for row in heaviest_kernels(account)} == {GEMM, ELEMENTWISE}


def test_the_heaviest_kernels_with_count_time_and_share() -> None:
    first, second = heaviest_kernels(with_warm_up().account())
    assert (first.name, first.count, first.total_ms, first.mean_us) == (GEMM, 5, 3.0, 600.0)
    assert first.share == pytest.approx(3.0 / (5 * 0.91), abs=0.02)
    assert first.limit == "compute"
    assert second.limit == "bandwidth"


def test_the_table_is_bounded() -> None:
    job = Job()
    for number in range(3):
        with job.step(number):
            for i in range(30):
                job.kernel(f"kernel_{i}", 10 + i)
    rows = heaviest_kernels(job.account())
    assert len(rows) == MOST_KERNELS
    assert [row.total_ms for row in rows] == sorted((r.total_ms for r in rows), reverse=True)


def test_a_cpu_run_has_no_kernels() -> None:
    assert heaviest_kernels(cpu_training(3).account()) == ()


def test_one_row_a_rank_and_device() -> None:
    rows = rank_summaries([training(4).account(0), training(4).account(1)], {1: 0.25}, [1])
    assert [(r.rank, r.trace, r.device_index) for r in rows] == [(0, 0, 0), (1, 1, 0)]
    assert [r.late for r in rows] == [False, True]
    assert [r.wait_frac for r in rows] == [None, 0.25]
    assert len(rows[0].step_ms) == 4
    assert sum(rows[0].budget.values()) == pytest.approx(1.0, abs=1e-5)
    assert rows[0].device == "NVIDIA A100-SXM4-80GB"


# The sentence


def say(job: Job, findings: tuple[Finding, ...] = (), class_: str = "compute") -> str:
    bound = Bound(class_=class_, also=("compute", "input"), why="")  # type: ignore[arg-type]
    estimate = Estimate(step_ms=2.5, reduction=0.5) if findings else None
    text = headline([job.account()], bound, findings, estimate, 5.0)
    return text.replace("\u00a0", " ")


def found(cause: str) -> Finding:
    return Finding(
        cause=cause, number=1, title="", severity="warning", confidence=1.0, share=0.4, gain=None
    )


def test_the_first_finding_leads_with_its_share_and_the_most_that_can_be_saved() -> None:
    text = say(training(3), (found("dataloader"),))
    assert text.startswith("The GPU waits for data 40 % of each 5.00 ms step")
    assert "up to 2.50 ms" in text


def test_without_findings_the_bound_is_said() -> None:
    assert "limited by arithmetic" in say(training(3))
    assert "arithmetic and data loading" in say(training(3), class_="mixed")
    assert "can't be told" in say(training(3), class_="unknown")


def test_what_was_not_judged_is_not_called_absent() -> None:
    """`none of the known causes` is only said where all of them were looked for."""
    accounts = [training(3).account()]
    bound = Bound(class_="communication")
    missing = tuple(NotJudged(cause=c, missing="x") for c in ("nccl-wait", "imbalance"))
    text = headline(accounts, bound, (), None, 5.0, missing)
    assert "waiting in communication and imbalance between ranks could not be judged" in text
    assert "none of the known causes" not in text
    assert "none of the known causes holds it up" in headline(accounts, bound, (), None, 5.0)


def test_work_in_fp32_leads_where_it_stands_first() -> None:
    text = say(training(3), (found("low-precision"), found("nccl-wait")))
    assert text.startswith("The GPU computes in fp32 beside its tensor cores 40 %")


def test_a_cpu_run_is_not_called_a_gpu() -> None:
    assert say(cpu_training(3)).startswith("Training on the CPU is busy 100 %")
    assert "spends outside of operators" in say(cpu_training(3), (found("host-overhead"),))


def test_a_recording_without_steps_is_not_called_a_step() -> None:
    assert "of the recording" in say(training(3, marks=False))


def test_causes_beside_the_eight_do_not_lead() -> None:
    text = say(training(3), (found("throttling"), found("memcpy")))
    assert "waits for copies" in text


def test_waits_of_other_ranks_are_not_called_waits_for_ones_own_host() -> None:
    """What a late host costs the others is more than the account charges to hosts."""
    accounts = [training(6, kernels=(500, 500)).account() for _ in range(2)]
    bound = Bound(class_="host")
    text = headline(accounts, bound, (found("host-overhead"),), None, 1.0)
    assert "late hosts, its own and other ranks', 40 %" in text
    text = headline(accounts[:1], bound, (found("host-overhead"),), None, 1.0)
    assert "waits for the host to launch work 40 %" in text
