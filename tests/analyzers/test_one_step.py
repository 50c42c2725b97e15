"""What one step of a window holds is not taken for what every step holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fixtures.runs import WORKERS_LOADER, FixedPricing, Job, plain, priced, view
from fixtures.views import texts
from gpuprof.analyzers.causes import CAUSES, checkpoint, dataloader
from gpuprof.analyzers.causes.base import CERTAIN, Cause, Verdict
from gpuprof.analyzers.one_step import COMES_BACK, SEEN_ONCE, held_to_recur, in_one_step
from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.analyzers.run_view import RunView
from gpuprof.diagnosis import Finding, NotJudged, RuledOut
from gpuprof.run import LoaderWork

STEP_US = 10_000.0


def loop(extra_us: Sequence[float], name: str = WORKERS_LOADER) -> RunView:
    """A training loop on a CPU whose steps of 10 ms wait in something for so long each."""
    job = Job(gpu="", backend="gloo")
    for number, us in enumerate(extra_us):
        begun = job.now
        with job.op(name):
            job.work(us + 50.0)
        with job.op("aten::mm"):
            job.work(STEP_US)
        job.trace.step(number, start_us=begun, dur_us=job.now - begun)
    return view(job)


def in_one(us: float, steps: int = 10) -> list[float]:
    return [us if step == 4 else 0.0 for step in range(steps)]


def judged(run: RunView, cause: Cause = dataloader.CAUSE) -> Verdict:
    return held_to_recur(run, cause, cause.judge(run))


def test_one_long_fetch_of_ten_does_not_accuse_the_loader() -> None:
    """Half a step of waiting weighs as much as 5 % of every step."""
    verdict = judged(loop(in_one(7_000)))
    assert isinstance(verdict, NotJudged), verdict
    assert "nearly all of it in 1 of 10 steps" in plain(verdict.missing)
    assert "gpuprof run --steps 50" in verdict.command


def test_a_long_stall_is_told_with_even_chances_and_as_what_it_is() -> None:
    verdict = judged(loop(in_one(40_000)))
    assert isinstance(verdict, Finding), verdict
    assert verdict.confidence == SEEN_ONCE
    assert "of the recording for the next batch, nearly all of it in 1 of 10" in plain(
        verdict.title
    )
    assert "whether that step comes back, 10 recorded steps do not tell" in plain(
        texts(verdict.evidence)
    )


@pytest.mark.parametrize(
    "extra_us",
    [
        [600.0] * 10,
        [3_000.0 if step % 3 == 0 else 0.0 for step in range(10)],  # a batch every third step
        [6_000.0 if step in (2, 9) else 0.0 for step in range(10)],  # every seventh
        [5_000.0 if step == 5 else 700.0 for step in range(10)],  # one is long, the others wait too
    ],
)
def test_what_several_steps_have_is_as_sure_as_before(extra_us: list[float]) -> None:
    verdict = judged(loop(extra_us))
    assert isinstance(verdict, Finding), verdict
    assert verdict.confidence == CERTAIN
    assert "1 of 10" not in plain(verdict.title)


def test_without_a_replay_the_account_tells_the_steps_apart() -> None:
    run = priced(loop(in_one(7_000)), FixedPricing(error=0.2))
    assert run.priced("input") is None
    assert isinstance(judged(run), NotJudged)
    steady = priced(loop([700.0] * 10), FixedPricing(error=0.2))
    assert isinstance(judged(steady), Finding)


def test_a_save_is_written_on_purpose() -> None:
    run = loop(in_one(7_000), name="torch.save")
    assert judged(run, checkpoint.CAUSE) == checkpoint.judge(run)
    assert isinstance(checkpoint.judge(run), Finding)


def at_work(busy_frac: float) -> RecordedWindow:
    return RecordedWindow(
        0, 10.0, None, None, None, None, windows_ms=0.0, run_ms=0.0, steps=10,
        loader=LoaderWork(workers=2, span_ms=107.5, busy_frac=busy_frac),
    )  # fmt: skip


def test_workers_that_are_always_at_work_will_be_late_again() -> None:
    """What they have in hand lasts for some steps, and then one step waits for all of them."""
    run = loop(in_one(7_000))
    assert isinstance(judged(replace(run, told={0: at_work(1.0)})), Finding)
    assert isinstance(judged(replace(run, told={0: at_work(0.3)})), NotJudged)


def test_all_steps_of_the_run_say_whether_it_comes_back() -> None:
    run = loop(in_one(7_000))
    every_tenth = np.where(np.arange(300) % 10 == 0, 17_000, 10_050)
    verdict = judged(replace(run, step_us={0: every_tenth}))
    assert isinstance(verdict, Finding), verdict
    assert verdict.confidence == COMES_BACK
    assert "Of 295 steps of the run 29 took as long as that one" in plain(texts(verdict.evidence))
    once = np.where(np.arange(300) == 200, 17_000, 10_050)
    verdict = judged(replace(run, step_us={0: once}))
    assert isinstance(verdict, RuledOut), verdict
    assert verdict.share is not None
    assert verdict.share < 0.01
    assert "of 295 steps of the run 1 took as long as that" in plain(verdict.why)


def test_few_steps_are_not_asked() -> None:
    step_ns = np.full(3, 1e7)
    assert in_one_step(np.array([0.0, 2e6, 0.0]), step_ns, 0.07, 0.05) is None
    assert in_one_step(np.zeros(9), np.full(9, 1e7), 0.07, 0.05) is None


def test_only_a_late_fetch_and_a_save_prove_themselves() -> None:
    """A new cause that claims to recur has to be thought about here."""
    assert {cause.id for cause in CAUSES if cause.recurs is not None} == {
        "dataloader",
        "checkpoint",
    }
