"""Facts about the host, from counters; what is ordinary yields none."""

from __future__ import annotations

import pytest

from fixtures.samples import START_NS, samples
from gpuprof.analyzers.host_evidence import Stretch, host_evidence, input_evidence, rate

N = 60


def counter(per_s: float, n: int = N) -> list[float]:
    return [1000 + per_s * k for k in range(n)]


ORDINARY = {
    ("cgroup_periods", "host"): counter(10),
    ("cgroup_throttled_periods", "host"): counter(0.1),
    ("pressure_io_some_s", "host"): counter(0.01),
    ("cpu_steal_s", "host"): counter(0.01),
    ("cpus", "host"): [8.0] * N,
    ("main_thread_cpu_s", "rank:0"): counter(0.4),
    ("switches_involuntary", "rank:0"): counter(20),
}


def test_an_ordinary_host_adds_nothing() -> None:
    recorded = samples(ORDINARY, step_s=1)
    assert input_evidence(recorded, 0) == ()
    assert host_evidence(recorded, 0) == ()


def test_what_was_not_sampled_is_not_claimed() -> None:
    assert input_evidence(samples({}), 0) == ()


def test_a_used_up_quota_names_its_size() -> None:
    values = {
        **ORDINARY,
        ("cgroup_throttled_periods", "host"): counter(4),
        ("cgroup_cpu_quota_cores", "host"): [2.0] * N,
    }
    (fact,) = input_evidence(samples(values, step_s=1), 0)
    assert fact.value == pytest.approx(0.4)
    assert "2.0 CPUs" in fact.text
    assert fact.source == "host"


@pytest.mark.parametrize(("cpu_s", "words"), [(3.9, "compute all the time"), (0.4, "wait")])
def test_workers_compute_or_wait(cpu_s: float, words: str) -> None:
    """Slow transforms and slow storage need different fixes."""
    values = {("workers", "rank:0"): [4.0] * N, ("workers_cpu_s", "rank:0"): counter(cpu_s)}
    (fact,) = input_evidence(samples(values, step_s=1), 0)
    assert words in fact.text
    assert fact.value == pytest.approx(cpu_s / 4)


def test_a_busy_and_preempted_main_thread() -> None:
    values = {
        ("main_thread_cpu_s", "rank:0"): counter(0.99),
        ("switches_involuntary", "rank:0"): counter(2000),
        ("cpu_steal_s", "host"): counter(0.8),
        ("cpus", "host"): [8.0] * N,
    }
    texts = [fact.text for fact in host_evidence(samples(values, step_s=1), 0)]
    assert len(texts) == 3
    assert "one core is the limit" in texts[0]
    assert "more threads than cores" in texts[1]
    assert "10%" in texts[2]


def test_only_the_stretch_counts() -> None:
    """A stall outside of the traced window is not the window's."""
    stall = [0.0] * 30 + [0.5 * k for k in range(30)]
    recorded = samples({("pressure_io_some_s", "host"): stall}, step_s=1)
    early = Stretch(START_NS, START_NS + 20 * 10**9)
    late = Stretch(START_NS + 40 * 10**9, START_NS + 50 * 10**9)
    assert rate(recorded, "pressure_io_some_s", "host", early) == 0
    assert rate(recorded, "pressure_io_some_s", "host", late) == pytest.approx(0.5)
    assert len(input_evidence(recorded, 0, late)) == 1
