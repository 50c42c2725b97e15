"""The shapes of utilization curves, and that a curve never claims more than it can show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.analyzers.utilization import (
    COARSE_CONFIDENCE,
    MAX_CONFIDENCE,
    Curve,
    Shape,
    classify,
    drops,
    guesses,
    together,
)
from gpuprof.analyzers.utilization_findings import read_curves
from gpuprof.readers.smi import read_smi

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases/utilization"
WINDOW_S = 1 / 6


def curve(
    busy: Callable[[float], float], *, seconds: float = 60, hz: float = 10, watts: float = 0
) -> Curve:
    """What a driver with a window of 1/6 s answers of a device that is `busy(t)` (0 to 1) at t."""
    fine_s = 0.005
    truth = np.array([busy(k * fine_s) for k in range(int(seconds / fine_s))])
    total = np.concatenate([[0.0], np.cumsum(truth)])
    at = np.arange(0.5, seconds - 0.5, 1 / hz)
    end = (np.floor(at / WINDOW_S) * WINDOW_S / fine_s).astype(int)
    width = int(WINDOW_S / fine_s)
    mean = (total[end] - total[end - width]) / width
    power = 100 + watts * mean if watts else None
    return Curve((at * 1e9).astype(np.int64), np.round(mean, 2), power, window_s=WINDOW_S)


def every(period_s: float, pit_s: float, high: float = 0.98) -> Callable[[float], float]:
    return lambda t: 0.0 if t % period_s < pit_s else high


def causes_of(*curves: Curve) -> list[str]:
    shapes = [classify(one) for one in curves]
    return [guess.cause for guess in guesses(shapes, together(curves))]


def test_falls_to_zero_every_step_are_a_saw() -> None:
    shape = classify(curve(every(2.0, 0.8)))
    assert shape.kind == "saw-tooth"
    assert shape.period_s == pytest.approx(2.0, abs=0.1)
    assert causes_of(curve(every(2.0, 0.8)))[0] == "dataloader"


def test_rare_long_falls_are_valleys() -> None:
    shape = classify(curve(every(30.0, 4.0), seconds=200))
    assert shape.kind == "long-valleys"
    assert shape.period_s == pytest.approx(30.0, abs=0.5)
    assert guesses([shape])[0].cause == "checkpoint"


def test_pits_shorter_than_the_window_show_in_part() -> None:
    """50 ms of idling read as a dip of 30 %: the shape must not need zeros."""
    shape = classify(curve(every(0.5, 0.05)))
    assert shape.kind == "pits"
    assert guesses([shape])[0].cause == "sync-points"
    assert "50 ms" in shape.why or "49 ms" in shape.why or "51 ms" in shape.why


def test_steady_and_low_is_a_batch_or_a_host_that_cannot_fill_it() -> None:
    shape = classify(curve(lambda t: 0.4))
    assert shape.kind == "steady-low"
    assert [guess.cause for guess in guesses([shape])] == ["small-batch", "host-overhead"]


def test_a_busy_gpu_has_no_cause() -> None:
    busy = curve(lambda t: 0.99)
    assert classify(busy).kind == "busy"
    assert causes_of(busy, busy) == []


def test_start_up_does_not_count() -> None:
    """A minute of loading before a minute of work is no low utilization."""
    assert classify(curve(lambda t: 0.0 if t < 30 else 0.99)).kind == "busy"


def test_an_unused_gpu_is_idle_and_nothing_else() -> None:
    idle = curve(lambda t: 0.98 if t < 3 else 0.0)
    assert classify(idle).kind == "idle"
    assert causes_of(idle, idle) == []


def test_a_few_samples_show_nothing() -> None:
    assert classify(curve(every(2.0, 0.8), seconds=2)).kind == "cannot-tell"


def test_gpus_with_unequal_work_are_apart() -> None:
    high, low = curve(lambda t: 0.97), curve(lambda t: 0.6)
    (shape,) = together([high, low])
    assert shape.kind == "apart"
    assert causes_of(high, low)[0] == "imbalance"


def test_one_slow_part_is_no_imbalance() -> None:
    """A GPU that started late differs in the mean, but not all the time."""
    late = curve(lambda t: 0.97 if t > 25 else 0.0)
    assert all(shape.kind != "apart" for shape in together([curve(lambda t: 0.97), late]))


def test_common_pits_point_at_communication_and_separate_ones_do_not() -> None:
    pits = curve(every(0.7, 0.1))
    assert "nccl-wait" in causes_of(pits, pits)
    shifted = curve(lambda t: every(0.7, 0.1)(t + 0.35))
    assert "nccl-wait" not in causes_of(pits, shifted)


def test_input_stalls_of_all_ranks_stay_input_stalls() -> None:
    """Ranks wait for each other, so one starved rank makes all of them dip to zero."""
    saw = curve(every(2.0, 0.8))
    found = causes_of(saw, saw)
    assert found[0] == "dataloader"


def test_reads_too_far_apart_in_time_are_not_compared() -> None:
    pits = curve(every(0.7, 0.1))
    assert all(shape.kind != "together" for shape in together([pits, pits], skew_s=0.3))


def test_waiting_kernels_show_in_the_power_only() -> None:
    """A collective that waits keeps utilization at 100 %."""
    busy = curve(lambda t: 1.0)
    watts = np.where(np.arange(len(busy.time_ns)) % 10 < 3, 250.0, 650.0)
    curves = [Curve(busy.time_ns, busy.util_frac, watts) for _ in range(2)]
    assert [shape.kind for shape in together(curves)] == ["power-together"]
    assert causes_of(*curves) == ["nccl-wait"]


def test_without_times_durations_are_not_claimed() -> None:
    saw = curve(every(2.0, 0.8))
    shape = classify(Curve(saw.time_ns, saw.util_frac, timed=False))
    assert shape.kind == "saw-tooth"
    assert shape.period_s == 0.0
    assert shape.confidence <= COARSE_CONFIDENCE
    assert " s," not in shape.why


def test_drops_at_the_ends_are_not_counted() -> None:
    found = drops(np.array([0.0, 1.0, 0.2, 0.1, 1.0, 0.0]), 0.5)
    assert (found.begin.tolist(), found.end.tolist()) == ([2], [4])
    assert found.minimum.tolist() == [0.1]


@settings(max_examples=80, deadline=None)
@given(
    util=st.lists(st.floats(0, 1), min_size=0, max_size=300),
    step_s=st.sampled_from([0.0, 0.1, 1.0, 60.0]),
    timed=st.booleans(),
)
def test_any_curve_has_a_shape_within_its_confidence(
    util: list[float], step_s: float, timed: bool
) -> None:
    time_ns = (np.arange(len(util)) * step_s * 1e9).astype(np.int64)
    one = Curve(time_ns, np.array(util), timed=timed)
    shapes: list[Shape] = [classify(one), *together([one, one])]
    for guess in guesses(shapes[:1], shapes[1:]):
        assert 0 <= guess.confidence <= MAX_CONFIDENCE
        assert 0 <= guess.shape.lost_frac <= 1


@pytest.mark.skipif(not CASES.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("alternating-0-100.out", "saw-tooth", "dataloader"),
        ("half-used.csv", "steady-low", "small-batch"),
        ("mostly-idle-noheader.csv", "idle", None),
    ],
)
def test_real_logs(name: str, kind: str, cause: str | None) -> None:
    reading = read_curves(read_smi(CASES / name))
    assert reading.shapes["gpu:0"].kind == kind
    assert next((guess.cause for guess in reading.guesses), None) == cause
    assert all(guess.confidence <= COARSE_CONFIDENCE for guess in reading.guesses)
