"""The list of causes, the bands and the confidence that they share."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.runs import FixedPricing, cpu_training, priced, training, view
from fixtures.traces import TraceBuilder
from gpuprof.analyzers import causes
from gpuprof.analyzers.causes import CAUSES
from gpuprof.analyzers.causes.base import (
    Cause,
    confidence,
    finding,
    severity,
    too_little,
)
from gpuprof.analyzers.run_view import CRITICAL_FROM, NAMED_FROM, NAMED_WITHOUT_STEPS
from gpuprof.diagnosis import CAUSES as NUMBERS
from gpuprof.diagnosis import Finding, Gain, NotJudged, RuledOut

MODULES = sorted(
    path.stem
    for path in Path(str(causes.__file__)).parent.glob("*.py")
    if path.stem not in ("__init__", "base")
)


def test_the_eight_are_there_in_the_order_of_their_numbers() -> None:
    numbered = [cause.id for cause in CAUSES if cause.number is not None]
    assert numbered == sorted(NUMBERS, key=lambda id_: NUMBERS[id_])


def test_those_beside_the_eight_come_after_them() -> None:
    numbers = [cause.number is None for cause in CAUSES]
    assert numbers == sorted(numbers)


def test_each_id_is_there_once() -> None:
    ids = [cause.id for cause in CAUSES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", MODULES)
def test_every_module_of_the_folder_is_in_the_list(name: str) -> None:
    """A new file that nobody registers judges nothing."""
    module = importlib.import_module(f"gpuprof.analyzers.causes.{name}")
    assert module.CAUSE in CAUSES
    assert module.CAUSE.id == name.replace("_", "-") or module.CAUSE.id == module.ID


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_every_cause_is_documented(cause: Cause) -> None:
    """The module's docstring is its page."""
    assert cause.title
    for heading in (
        "What it finds:",
        "Why it costs:",
        "How it is measured:",
        "How to fix:",
        "Limits:",
    ):
        assert heading in cause.docs


RUNS = {
    "plain": training(3),
    "everything": training(4, load_us=300, items=2, collective_us=100, work_us=50),
    "no marks": training(3, marks=False),
    "one step": training(1),
    "cpu": cpu_training(3, load_us=100, gloo_us=100),
    "device only": TraceBuilder().launch_kernel("k", start_us=0, dur_us=5),
    "one operator": TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=5),
    "no time": TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=0),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_every_cause_answers_on_any_run(cause: Cause, run: object) -> None:
    verdict = cause.judge(view(run))  # type: ignore[arg-type]
    if isinstance(verdict, Finding):
        assert 0 <= verdict.share <= 1
        assert 0 <= verdict.confidence <= 1
        assert verdict.evidence
        assert verdict.fixes
    elif isinstance(verdict, RuledOut):
        assert verdict.why
    else:
        assert isinstance(verdict, NotJudged)
        assert verdict.missing


# Bands


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0499, "info"), (0.05, "warning"), (0.1999, "warning"), (0.2, "critical")],
)
def test_a_fifth_is_critical(share: float, expected: str) -> None:
    assert severity(share) == expected
    assert CRITICAL_FROM == 0.2


def test_the_band_is_doubled_without_steps() -> None:
    assert view(training(3)).named_from == NAMED_FROM == 0.05
    assert view(training(3, marks=False)).named_from == NAMED_WITHOUT_STEPS == 0.10


def test_the_severity_is_the_band_of_the_gain() -> None:
    """Of what stands in the order of gains, no finding may be graver than the one above it."""
    gain = Gain(step_ms=1.0, reduction=0.3, low=0.3, high=0.3)
    found = finding("dataloader", "", share=0.1, gain=gain, confidence=1, evidence=(), fixes=())
    assert found.severity == "critical"
    assert found.number == 1
    little = Gain(step_ms=1.0, reduction=0.03, low=0.03, high=0.03)
    hidden = finding("nccl-wait", "", share=0.6, gain=little, confidence=1, evidence=(), fixes=())
    assert hidden.severity == "info"
    unpriced = finding("nccl-wait", "", share=0.6, gain=None, confidence=1, evidence=(), fixes=())
    assert unpriced.severity == "critical"
    assert (
        finding("throttling", "", share=0, gain=None, confidence=1, evidence=(), fixes=()).number
        is None
    )


GAIN = Gain(step_ms=1.0, reduction=0.3, low=0.3, high=0.3)


def test_confidence_falls_with_what_is_missing() -> None:
    many, one = view(training(4)), view(training(1))
    none = view(training(4, marks=False))
    assert confidence(many, 0.3, GAIN) == 0.97
    assert confidence(many, 0.3, GAIN, certain=0.8) == 0.8
    assert confidence(one, 0.3, GAIN) == 0.75
    assert confidence(none, 0.3, GAIN) == 0.7
    assert confidence(many, 0.3, None) == 0.6
    assert confidence(many, 0.3, None, compared=True) == 0.97


def test_a_gain_near_nothing_is_less_sure_than_a_large_one() -> None:
    """A small error of the replay decides whether the repair saves anything."""
    run = view(training(5))
    sure = [
        confidence(run, 0.3, Gain(step_ms=1.0, reduction=gain, low=gain, high=gain))
        for gain in (0.02, 0.035, 0.05)
    ]
    assert sure == [0.6, pytest.approx(0.75), 0.97]


def test_too_little_says_the_share_and_the_band() -> None:
    text = too_little("waiting", 0.031, view(training(3))).replace("\u00a0", " ")
    assert text == "waiting: 3.1 % of the step, named from 5.0 %"


# The view


def test_shares_and_prices_are_means_over_ranks() -> None:
    run = view(training(6, load_us=3_000, settled=True))
    both = replace(run, ranks=(*run.ranks, training(6, settled=True).account(1)))
    assert both.share("input") == pytest.approx(run.share("input") / 2)
    assert both.ranks_with("input") == (0,)
    assert both.step_ms() == pytest.approx((4.008 + 1.008) / 2)
    gain = both.price("input")
    assert gain is not None
    assert gain.reduction == pytest.approx(3_000 / 4_008 / 2)


def test_one_rank_that_can_not_be_replayed_leaves_no_price() -> None:
    run = view(training(4, load_us=2_000))
    off = priced(run, FixedPricing(error=0.031)).ranks
    assert run.price("input") is not None
    assert replace(run, ranks=(*run.ranks, *off)).price("input") is None
    assert replace(run, ranks=off).prices("input") is None


def test_the_longest_gaps_come_first() -> None:
    job = training(2, settled=True)
    for number, us in enumerate((500, 900, 700, 100), start=2):
        with job.step(number):
            job.load(us)
            job.kernel("k", 100)
            job.synchronize()
    run = view(job)
    windows = run.longest_gaps(run.first, "input")
    lengths = [window.end_ns - window.start_ns for window in windows]
    assert [round(ns / 1e5) for ns in lengths] == [9, 7, 5]
    assert all(window.rank == 0 for window in windows)
