"""What was sampled is drawn as it was read: right means, holes, marks in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.diagnoses import T0_NS, sample_diagnosis, sample_traces
from fixtures.samples import START_NS, run_samples, samples
from gpuprof.reports import overview
from gpuprof.reports.counters import LEVELS, counters_of
from gpuprof.reports.curves import Curve, column_means, gpu_curves
from gpuprof.reports.html import write_html
from gpuprof.reports.words import catalog

WORDS = catalog()
SECOND = 10**9


def curve(values: list[float], top: float = 1.0, step_s: float = 1.0) -> Curve:
    time = (np.arange(len(values)) * step_s * SECOND).astype(np.int64)
    known = ~np.isnan(values)
    return Curve("util", "%", time[known], np.array(values)[known], top)


def test_a_column_is_the_mean_over_its_time_not_over_its_samples() -> None:
    uneven = Curve("util", "%", np.array([0, 1, 9]) * SECOND, np.array([1.0, 0.0, 1.0]), 1.0)
    assert column_means(uneven, 0, 10 * SECOND, 1) == pytest.approx([0.2])
    assert column_means(uneven, 0, 10 * SECOND, 10) == pytest.approx([1, *[0] * 8, 1])


def test_columns_of_any_number_keep_the_area() -> None:
    values = np.random.default_rng(1).random(997).tolist()
    drawn = curve(values)
    whole = float(np.mean(values))
    for columns in (1, 7, 400):
        shares = column_means(drawn, 0, 997 * SECOND, columns)
        assert float(shares.mean()) == pytest.approx(whole, rel=1e-6)


def test_a_hole_is_no_zero() -> None:
    shares = column_means(curve([1.0] * 5 + [np.nan] * 20 + [1.0] * 5), 0, 30 * SECOND, 30)
    assert np.isnan(shares[12:24]).all()
    assert shares[:5].tolist() == [1.0] * 5 and shares[26:].tolist() == [1.0] * 4


def test_the_scale_is_the_devices_own_limit_unless_it_was_passed() -> None:
    told = samples({("power_w", "gpu:0"): [300.0, 350.0]}, facts={"power_limit_w": 700.0})
    assert gpu_curves([told], WORDS)[0].curves[0].top == 700.0
    passed = samples({("power_w", "gpu:0"): [300.0, 710.0]}, facts={"power_limit_w": 700.0})
    assert gpu_curves([passed], WORDS)[0].curves[0].top == pytest.approx(745.5)


def test_findings_and_the_traced_steps_are_marked_where_they_are(tmp_path: Path) -> None:
    begun = T0_NS - 12 * SECOND
    gpus = gpu_curves([run_samples(1, begun)], WORDS)
    diagnosis, traces = sample_diagnosis(), sample_traces()
    [figure] = overview.section(diagnosis, traces, gpus, WORDS)
    assert figure["traced"] and figure["marks"] == "marked: findings 1, 2"
    start, end = gpus[0].span_ns
    marks = overview._marks(gpus[0], diagnosis, traces, start, end - start)
    window = diagnosis.findings[0].evidence[0].windows[0]
    first = next(mark for mark in marks if mark.number == 1)
    assert first.start == pytest.approx((window.start_ns - start) / (end - start), abs=1e-6)
    path = tmp_path / "report.html"
    write_html(diagnosis, traces, path, samples=[run_samples(1, begun)])
    page = path.read_text(encoding="utf-8")
    assert 'id="curves"' in page and page.count('class="curve"') == 4


def test_without_samples_there_is_no_section(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(sample_diagnosis(), sample_traces(), path)
    assert 'id="curves"' not in path.read_text(encoding="utf-8")


def test_untimed_samples_get_no_marks_and_say_so() -> None:
    untimed = samples({("util_frac", "gpu:0"): [0.5] * 40}, timed=False)
    [figure] = overview.section(sample_diagnosis(), (), gpu_curves([untimed], WORDS), WORDS)
    assert figure["marks"] == "" and "not recorded" in figure["span"]


def test_each_rank_gets_its_own_gpus_counters_within_its_span() -> None:
    traces = sample_traces(3)
    gpus = gpu_curves([run_samples(3, T0_NS - SECOND, 5.0)], WORDS)
    counters = counters_of(traces, [T0_NS] * 3, gpus, 10**7, WORDS)
    assert [c.group for c in counters] == [0] * 4 + [1] * 4 + [2] * 4
    ends = [int((t.start_ns + t.dur_ns).max()) - T0_NS for t in traces]
    for counter in counters:
        assert counter.time_ns.min() >= 0 and counter.time_ns.max() <= ends[counter.group]
        assert (np.diff(counter.time_ns) >= 0).all()
        assert counter.level.min() >= 0 and counter.level.max() <= LEVELS


def test_counters_stay_within_their_part_of_the_budget() -> None:
    long = {("util_frac", "gpu:0"): np.random.default_rng(2).random(5_000).tolist()}
    node = samples(long, step_s=0.0001, start_ns=T0_NS)
    [counter] = counters_of(sample_traces(1), [T0_NS], gpu_curves([node], WORDS), 50_000, WORDS)
    assert len(counter.level) == 1_000
    mean = float(np.mean(long["util_frac", "gpu:0"]))
    assert counter.level.mean() / LEVELS == pytest.approx(mean, rel=0.01)


def test_samples_without_a_common_clock_are_no_lanes() -> None:
    from dataclasses import replace

    node = replace(run_samples(1, START_NS), epoch=False)
    assert counters_of(sample_traces(1), [T0_NS], gpu_curves([node], WORDS), 10**7, WORDS) == []


def test_a_host_is_drawn_by_its_busy_cores_and_its_memory() -> None:
    """What it counts is time: cores are the growth between two reads."""
    node = samples(
        {
            ("cpu_busy_s", "host"): [0.0, 0.2, 0.3, 0.3],
            ("cpus", "host"): [4.0] * 4,
            ("mem_total_bytes", "host"): [16e9] * 4,
            ("mem_available_bytes", "host"): [12e9, 10e9, 8e9, 8e9],
        }
    )
    [host] = gpu_curves([node], WORDS)
    assert host.is_host and host.label == "Host n"
    cores, memory = host.curves
    assert cores.value.tolist() == pytest.approx([2.0, 1.0, 0.0]) and cores.top == 4.0
    assert memory.value.tolist() == pytest.approx([4.0, 6.0, 8.0, 8.0]) and memory.top == 16.0
    assert counters_of(sample_traces(1), [T0_NS], [host], 10**7, WORDS) == []
