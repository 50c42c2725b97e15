"""Pauses of the host: an empty queue that a blocking call left behind, and code that launches
nothing, are told apart."""

from __future__ import annotations

import pytest

from fixtures.runs import GEMM, LOADER, Job, diagnosed
from gpuprof.analyzers.idle import IDLE_BUCKETS
from gpuprof.analyzers.pauses import PAUSE_NS, PAUSE_RATIO

PAUSE_US = 3_000.0
assert PAUSE_US * 1e3 > PAUSE_NS


def reading(
    pause_us: float, *, each_us: float = 20, kernel_us: float = 300, label: str = ""
) -> Job:
    """A loss is read in each step; the host works `pause_us` after it, then launches 20 kernels,
    `each_us` apart."""
    job = Job()
    for number in range(6):
        with job.step(number):
            if label:
                job.load(pause_us, loader=label)
            else:
                job.work(pause_us)
            for _ in range(20):
                job.work(each_us)
                job.kernel(GEMM, kernel_us)
            job.item()
    return job


def idle_us(job: Job, step: int = 2) -> dict[str, float]:
    per_step = job.account().main.budget.per_step_ns
    return {bucket: float(per_step[bucket][step]) / 1e3 for bucket in IDLE_BUCKETS}


def test_python_after_a_read_is_the_hosts() -> None:
    """3 ms of Python after a read of 20 µs: the read only brings it out."""
    idle = idle_us(reading(PAUSE_US))
    assert idle["host"] == pytest.approx(PAUSE_US, abs=50)
    assert idle["sync"] < 100


def test_a_refill_at_the_hosts_own_pace_is_the_reads() -> None:
    """Half a millisecond between steps is what any loop does: a queue would hide it."""
    idle = idle_us(reading(500))
    assert idle["sync"] == pytest.approx(500, abs=50)
    assert idle["host"] < 50


def test_a_host_that_is_slow_between_all_launches_does_not_pause() -> None:
    """Where launches are 400 µs apart, 3 ms is not far longer than usual."""
    each_us = 400.0
    assert PAUSE_RATIO * each_us > PAUSE_US
    idle = idle_us(reading(PAUSE_US, each_us=each_us, kernel_us=600))
    assert idle["sync"] == pytest.approx(PAUSE_US + each_us, abs=50)


def test_time_with_a_name_is_no_pause() -> None:
    idle = idle_us(reading(PAUSE_US, label=LOADER))
    assert idle["input"] == pytest.approx(PAUSE_US, abs=50)
    assert idle["host"] < 50


def test_a_pause_without_a_read_costs_nothing_while_the_queue_lasts() -> None:
    """The same Python in a loop that reads nothing hides behind 6 ms of kernels."""
    job = Job()
    for number in range(6):
        with job.step(number):
            job.work(PAUSE_US)
            for _ in range(20):
                job.work(20)
                job.kernel(GEMM, 300)
    assert sum(idle_us(job).values()) == pytest.approx(0, abs=1)


def test_the_python_is_named_first_where_either_repair_is_enough() -> None:
    """Without the read, or without the Python, the step would be as short."""
    findings = [f for f in diagnosed(reading(PAUSE_US)).findings if f.number is not None]
    assert findings[0].cause == "host-overhead"
    assert findings[0].gain is not None
    assert findings[0].gain.reduction == pytest.approx(0.33, abs=0.03)
