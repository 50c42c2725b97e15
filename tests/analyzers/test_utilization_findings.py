"""From samples to the curve's first guess."""

from __future__ import annotations

from dataclasses import replace

from fixtures.samples import samples
from gpuprof.analyzers.utilization_findings import (
    curve_findings,
    job_scopes,
    read_curves,
    skew_s,
)
from gpuprof.samples import RankFacts

SAW = [0.98] * 12 + [0.0] * 8


def test_the_guess_is_a_finding_without_a_price() -> None:
    (finding,) = curve_findings(samples({("util_frac", "gpu:0"): SAW * 20}))
    assert finding.cause == "dataloader"
    assert finding.number == 1
    assert finding.gain is None
    assert finding.severity == "critical"
    assert finding.evidence[0].source == "nvml"
    assert finding.evidence[0].windows


def test_only_the_gpus_of_the_job_count() -> None:
    """A neighbour's idle GPU is no imbalance of this job."""
    recorded = samples(
        {("util_frac", "gpu:0"): [0.97] * 200, ("util_frac", "gpu:1"): [0.3] * 200},
        ranks=[RankFacts(pid=1, rank=0, uuids=("GPU-0",))],
    )
    assert job_scopes(recorded) == ["gpu:0"]
    assert read_curves(recorded).guesses == ()
    assert curve_findings(recorded) == []


def test_failed_reads_are_no_zeros() -> None:
    nan = float("nan")
    values = ([0.98] * 12 + [nan] * 8) * 20
    reading = read_curves(samples({("util_frac", "gpu:0"): values}))
    assert reading.shapes["gpu:0"].kind == "busy"


def test_the_skew_comes_from_the_reads_themselves() -> None:
    both = samples({("util_frac", "gpu:0"): SAW * 5, ("util_frac", "gpu:1"): SAW * 5})
    assert skew_s(both, ["gpu:0", "gpu:1"]) == 0.0


def test_slow_polls_are_filled_up_from_the_drivers_buffer() -> None:
    """At 1 Hz a saw of 2 s is a guess; the driver itself sampled it six times a second."""
    polled = samples({("util_frac", "gpu:0"): [0.98] * 60}, step_s=1)
    ring = samples({("ring_util_frac", "gpu:0"): ([0.98] * 7 + [0.0] * 5) * 30}, step_s=1 / 6)
    both = replace(polled, series={**polled.series, **ring.series})
    assert read_curves(polled).shapes["gpu:0"].kind == "busy"
    assert read_curves(both).shapes["gpu:0"].kind != "busy"
