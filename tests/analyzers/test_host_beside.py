"""Samples beside a trace: of the same steps, of the same node, and only where the clocks agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.runs import Job
from fixtures.samples import samples
from gpuprof.analyzers.diagnose import Recorded, diagnose
from gpuprof.analyzers.sources import OtherSources
from gpuprof.diagnosis import Diagnosis
from gpuprof.samples import RankFacts, Samples
from gpuprof.trace import Trace

STEPS = 6
STEP_S = 0.1
RANK = RankFacts(pid=7, rank=0, uuids=("GPU-0",))


def starved() -> Trace:
    """Steps of 100 ms, half of them in the loader."""
    job = Job(gpu="", backend="gloo")
    for number in range(STEPS):
        with job.step(number):
            job.load(50_000)
            with job.op("aten::mm"):
                job.work(50_000)
    return job.trace.trace()


def sampled(busy_from_s: float, busy_to_s: float, **facts: object) -> Samples:
    """Ten samples a second from 2 s before the trace to 2 s after it: two workers that compute in
    a part of it, and a GPU that is half busy then."""
    offsets = [-2.0 + STEP_S * k for k in range(46)]
    spent, busy = [], []
    total = 0.0
    for at in offsets:
        is_busy = busy_from_s <= at < busy_to_s
        total += 2 * STEP_S if is_busy else 0.0
        spent.append(total)
        busy.append(0.5 if is_busy else 0.0)
    values = {
        ("workers", "rank:0"): [2.0] * len(offsets),
        ("workers_cpu_s", "rank:0"): spent,
        ("util_frac", "gpu:0"): busy,
    }
    begin_ns = starved().start_ns.min() - 2_000_000_000
    whole = samples(values, step_s=STEP_S, ranks=(RANK,), start_ns=int(begin_ns))
    return replace(whole, **facts)  # type: ignore[arg-type]


def diagnosed(*nodes: Samples) -> Diagnosis:
    recorded = Recorded(traces=(starved(),), other=OtherSources(samples=nodes))
    return diagnose(recorded, "test")[0]


def host_facts(diagnosis: Diagnosis) -> list[str]:
    (finding,) = [f for f in diagnosis.findings if f.cause == "dataloader"]
    return [fact.text for fact in finding.evidence if fact.source == "host"]


def test_a_finding_takes_what_the_host_showed_in_its_steps() -> None:
    """The loader is behind, and its workers compute all the time."""
    (fact,) = host_facts(diagnosed(sampled(-2.0, 2.5)))
    assert "2 worker processes of rank 0" in fact
    assert "compute all the time" in fact


def test_what_went_on_at_other_times_is_not_taken() -> None:
    """Workers that computed before the window wait in it."""
    (fact,) = host_facts(diagnosed(sampled(-2.0, -0.5)))
    assert "wait for most of it" in fact


@pytest.mark.parametrize(
    "facts",
    [
        {"epoch": False},
        {"timed": False},
        {"ranks": (RankFacts(pid=7, rank=5, uuids=("GPU-0",)),)},
    ],
)
def test_samples_of_another_clock_or_node_are_not_joined(facts: dict[str, object]) -> None:
    """They would be of any other time, or of another machine."""
    diagnosis = diagnosed(sampled(-2.0, 2.5, **facts))
    assert host_facts(diagnosis) == []
    assert "GPU in the recorded steps" not in diagnosis.facts


def test_the_gpu_in_the_recorded_steps_is_a_fact() -> None:
    """Of the rank's own GPU, over the steps and not over the run."""
    assert diagnosed(sampled(-0.5, 1.0)).facts["GPU in the recorded steps"].startswith("50")
    assert diagnosed(sampled(-2.0, -0.5)).facts["GPU in the recorded steps"].startswith("0")
