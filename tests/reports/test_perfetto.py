"""The exported trace holds what was recorded, and is well-formed for those who read it."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fixtures.diagnoses import HOSTILE, hostile_diagnosis, hostile_traces
from fixtures.runs import cpu_training, training
from fixtures.samples import run_samples
from gpuprof.analyzers.account import account_rank
from gpuprof.api import Analysis, analyze_paths
from gpuprof.cli import main
from gpuprof.diagnosis import Window
from gpuprof.errors import GpuprofError
from gpuprof.readers.kineto import read_trace
from gpuprof.reports.perfetto import write_perfetto
from gpuprof.trace import Category, Trace

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "traces"


def written(analysis: Analysis, path: Path) -> dict[str, Any]:
    """The exported document, read by the json module."""
    write_perfetto(analysis.diagnosis, analysis.accounts, path)
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def work_of(traces: Sequence[Trace]) -> tuple[int, int]:
    """Device events, and the time of all kernels in ns."""
    kernels = [trace.rows_of(Category.KERNEL) for trace in traces]
    return (
        sum(len(trace.device) for trace in traces),
        sum(int(trace.dur_ns[rows].sum()) for trace, rows in zip(traces, kernels, strict=True)),
    )


def misnested(document: dict[str, Any], cats: set[str]) -> int:
    """Slices that overlap another one of their track without lying in it."""
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in cats:
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, -round(event["dur"] * 1000)))
    wrong = 0
    for slices in tracks.values():
        stack: list[int] = []
        for start, length in sorted(slices):
            while stack and stack[-1] <= start:
                stack.pop()
            wrong += bool(stack and start - length > stack[-1])
            stack.append(start - length)
    return wrong


DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def assert_same_work(analysis: Analysis, path: Path) -> dict[str, Any]:
    document = written(analysis, path)
    back = read_trace(path)
    assert work_of([back]) == work_of(analysis.traces)
    assert not back.dropped
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    assert round(1000 * sum(e["dur"] for e in kernels)) == work_of(analysis.traces)[1]
    assert misnested(document, DEVICE | {"gpuprof.finding", "gpuprof.idle"}) == 0
    return document


def test_a_second_reader_finds_the_same_work(tmp_path: Path) -> None:
    trace = training(5, load_us=3_000, items=2, collective_us=400).trace.write(
        tmp_path / "t.json.gz"
    )
    analysis = analyze_paths(trace)
    document = assert_same_work(analysis, tmp_path / "out.json.gz")
    phases = Counter(event["ph"] for event in document["traceEvents"])
    assert phases["X"] >= len(analysis.traces[0])
    assert phases["s"] == phases["f"] == int(analysis.accounts[0].launches.known.sum())


def test_arrows_end_on_slices_and_have_one_id_each(tmp_path: Path) -> None:
    trace = training(3).trace.write(tmp_path / "t.json.gz")
    document = written(analyze_paths(trace), tmp_path / "out.json.gz")
    starts = {(e["pid"], e["tid"], e["ts"]) for e in document["traceEvents"] if e["ph"] == "X"}
    arrows = [e for e in document["traceEvents"] if e["ph"] in "sf"]
    assert all((e["pid"], e["tid"], e["ts"]) in starts for e in arrows)
    assert set(Counter(e["id"] for e in arrows).values()) == {2}
    # Perfetto's own importer drops a flow whose id is text such as "1-7".
    assert all(isinstance(e["id"], int) and e["id"] < 2**53 for e in arrows)


def test_gaps_are_named_by_what_held_them_and_last_as_long(tmp_path: Path) -> None:
    trace = training(5, load_us=3_000).trace.write(tmp_path / "t.json.gz")
    analysis = analyze_paths(trace)
    document = written(analysis, tmp_path / "out.json.gz")
    gaps = [e for e in document["traceEvents"] if e.get("cat") == "gpuprof.idle"]
    assert "idle: Waiting for input" in {gap["name"] for gap in gaps}
    account = analysis.accounts[0].main.budget.gaps
    assert round(1000 * sum(gap["dur"] for gap in gaps)) == int(
        (account.end_ns - account.start_ns).sum()
    )
    findings = [e for e in document["traceEvents"] if e.get("cat") == "gpuprof.finding"]
    assert findings and findings[0]["name"].startswith("1. ")


def test_ranks_are_processes_of_their_own_with_counters(tmp_path: Path) -> None:
    for rank in range(2):
        job = training(4, load_us=500)
        job.trace.rank, job.trace.world_size = rank, 2
        job.trace.write(tmp_path / f"rank{rank}.json.gz")
    analysis = analyze_paths(tmp_path / "rank0.json.gz", tmp_path / "rank1.json.gz")
    assert len(analysis.traces) == 2
    document = assert_same_work(analysis, tmp_path / "out.json.gz")
    names = {
        e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"
    }
    ranks = [name for name in names.values() if name.startswith("Rank ")]
    assert len(ranks) == len(set(ranks)) == len(analysis.traces)
    counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
    busy = [e["args"]["value"] for e in counters if e["name"].endswith("busy %")]
    assert busy and all(0 <= value <= 100 for value in busy)
    assert any("run-ahead" in e["name"] for e in counters)
    assert {e["pid"] for e in counters} == set(range(1, len(analysis.traces) + 1))


def test_a_run_on_the_cpu_is_drawn_as_well(tmp_path: Path) -> None:
    trace = cpu_training(4, load_us=500).trace.write(tmp_path / "t.json.gz")
    document = written(analyze_paths(trace), tmp_path / "out.json.gz")
    assert any(e["name"] == "CPU busy %" for e in document["traceEvents"])


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    accounts = [account_rank(trace, i) for i, trace in enumerate(hostile_traces())]
    window = Window(start_ns=-(2**62), end_ns=2**62, rank=0)
    base = hostile_diagnosis()
    evidence = msgspec.structs.replace(base.findings[0].evidence[0], windows=(window, window))
    finding = msgspec.structs.replace(base.findings[0], evidence=(evidence,))
    diagnosis = msgspec.structs.replace(base, findings=(finding,))
    summary = write_perfetto(diagnosis, accounts, tmp_path / "out.json.gz")
    document = json.loads(gzip.decompress(summary.path.read_bytes()))
    names = {event["name"] for event in document["traceEvents"]}
    assert any("<script>" in name for name in names), (
        "JSON needs no HTML escapes: the names are whole"
    )
    assert HOSTILE[:10] in "".join(names)


def test_nothing_to_draw_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GpuprofError, match="no trace"):
        write_perfetto(hostile_diagnosis(), [], tmp_path / "out.json.gz")


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = training(3).trace.write(tmp_path / "t.json.gz")
    out = tmp_path / "folder" / "out.json.gz"
    with pytest.raises(SystemExit) as caught:
        main(["report", str(trace), "--format", "perfetto", "-o", str(out)])
    assert caught.value.code == 0
    assert str(out) in capsys.readouterr().out
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled recordings are not here")
@pytest.mark.parametrize(
    "case", ["resnet50-workers0", "lm-cuda-graphs", "mi250-toy", "dlrm-8-ranks", "b200-eager"]
)
def test_real_recordings_come_back_whole(case: str, tmp_path: Path) -> None:
    analysis = analyze_paths(CASES / case)
    assert_same_work(analysis, tmp_path / "out.json.gz")


def test_what_was_sampled_becomes_counters_of_the_ranks_process(tmp_path: Path) -> None:
    trace = training(5, load_us=3_000).trace.write(tmp_path / "t.json.gz")
    analysis = analyze_paths(trace)
    begun = int(analysis.traces[0].start_ns[0]) - 2 * 10**9
    node = run_samples(1, begun, 8.0)
    write_perfetto(analysis.diagnosis, analysis.accounts, tmp_path / "o.json.gz", samples=[node])
    document = json.loads(gzip.decompress((tmp_path / "o.json.gz").read_bytes()))
    counters = [e for e in document["traceEvents"] if e["ph"] == "C"]
    powers = [e["args"]["value"] for e in counters if e["name"] == "Power W"]
    sampled = [90 + 560 * busy for busy in (0.0, 0.05, 0.9)]
    assert powers and all(min(abs(p - one) for one in sampled) < 0.1 for p in powers)
