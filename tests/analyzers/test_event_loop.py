"""Waiting in asyncio's event loop: seen for what it is, and nobody's overhead."""

from __future__ import annotations

import pytest

from fixtures.runs import GEMM
from fixtures.traces import TraceBuilder
from fixtures.views import texts, view
from gpuprof.analyzers.causes import host_overhead
from gpuprof.analyzers.event_loop import waiting_frac
from gpuprof.analyzers.run_view import RunView
from gpuprof.diagnosis import Finding, NotJudged

ROUND_US = 1_000.0
SELECT = "/usr/lib/python3.11/selectors.py(468): select"
CALLBACK = "asyncio/events.py(80): _run"


def serving(
    wait_us: float,
    work_us: float,
    *,
    gpu: bool = False,
    library: str = "asyncio/base_events.py(1884): _run_once",
    inside: bool = False,
) -> RunView:
    """20 rounds of an event loop: it waits, then a coroutine works in Python, then the model runs
    for the rest of the round. inside: the coroutine itself waits in `select`, not the loop."""
    trace = TraceBuilder() if gpu else TraceBuilder(gpu="", rank=None, backend="gloo")
    trace.python("serve.py(23): <module>", start_us=0, dur_us=20 * ROUND_US)
    for number in range(20):
        begin = number * ROUND_US
        called = begin if inside else begin + wait_us
        trace.python(library, start_us=begin, dur_us=ROUND_US)
        trace.python(
            "/usr/lib/python3.11/selectors.py(468): select", start_us=begin, dur_us=wait_us
        )
        trace.python(
            "asyncio/events.py(80): _run", start_us=called, dur_us=begin + ROUND_US - called
        )
        at = begin + wait_us + work_us
        rest_us = ROUND_US - wait_us - work_us
        if gpu:
            trace.launch_kernel(GEMM, launch_us=at, start_us=at + 5, dur_us=rest_us - 5)
        else:
            trace.op("aten::mm", start_us=at, dur_us=rest_us)
    return view(trace)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_server_without_requests_is_not_busy_with_python(gpu: bool) -> None:
    """For what it waits can't be told; that it is Python's overhead would be wrong."""
    run = serving(700, 20, gpu=gpu)
    assert waiting_frac(run.ranks) == pytest.approx(0.7, abs=0.05)
    verdict = host_overhead.judge(run)
    assert isinstance(verdict, NotJudged)
    assert "event loop" in verdict.missing
    assert run.bound.class_ == "unknown"
    assert "event loop" in run.bound.why


def test_what_is_python_beside_the_waits_is_found_for_its_own_share() -> None:
    """Without a gain: a replay does not know the waits from the rest."""
    run = serving(400, 300)
    finding = host_overhead.judge(run)
    assert isinstance(finding, Finding)
    assert finding.share == pytest.approx(0.3, abs=0.05)
    assert finding.gain is None
    assert "pass in the event loop" in texts(finding.evidence)
    assert run.bound.reductions["host"] < 0.4


@pytest.mark.parametrize(
    "more",
    [
        {"inside": True},  # a coroutine that blocks the loop, with select, does cost the host
        {"library": "multiprocessing/connection.py(931): wait"},  # no event loop at all
    ],
)
def test_other_calls_of_select_are_not_the_loops(more: dict[str, object]) -> None:
    run = serving(700, 20, **more)  # type: ignore[arg-type]
    assert waiting_frac(run.ranks) == 0
    assert isinstance(host_overhead.judge(run), Finding)
    assert run.bound.class_ == "host"


def test_a_loop_that_hardly_waits_changes_nothing() -> None:
    run = serving(20, 500)
    finding = host_overhead.judge(run)
    assert isinstance(finding, Finding)
    assert finding.gain is not None
