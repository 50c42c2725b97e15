"""Properties of the verdict on simulated runs (issue 4, item 3), on a small sample."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from fixtures.simulator import draw_run, plant, simulate, write_traces
from fixtures.simulator.kineto import DIALECTS
from fixtures.simulator.machine import Simulated
from fixtures.simulator.plan import Collective, Copy, Fetch, Malloc, Read, Save, Synchronize
from gpuprof.analyzers.account import account_rank
from gpuprof.api import analyze
from gpuprof.diagnosis import CAUSES, Diagnosis
from gpuprof.readers.kineto import read_trace

SAMPLES = (
    ("cnn", "dataloader", 0.5),
    ("transformer", "sync-points", 0.4),
    ("ddp", "nccl-wait", 0.3),
    ("cnn", "host-overhead", 0.4),
    ("transformer", "memcpy", 0.3),
    ("cnn", "checkpoint", 0.3),
)
KINDS_OF_RUN = ("cnn", "transformer", "inference", "ddp", "pipeline")


@lru_cache(maxsize=32)
def _simulated(kind: str, cause: str, amount: float) -> Simulated:
    return simulate(plant(draw_run(kind, 2), cause, amount))


def _diagnosed(
    simulated: Simulated, folder: Path, dialect: str = "modern", **how: int
) -> Diagnosis:
    folder.mkdir(exist_ok=True)
    write_traces(simulated, folder, dialect, **how)
    return analyze(folder)


def _verdict(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    return diagnosis.bound.class_, [f.cause for f in diagnosis.findings if f.cause in CAUSES]


@pytest.mark.parametrize("kind", KINDS_OF_RUN)
def test_replaying_the_trace_reproduces_the_simulated_step(kind: str, tmp_path: Path) -> None:
    """The simulator's honesty: within 1 %."""
    simulated = simulate(draw_run(kind, 2))
    for rank, path in enumerate(write_traces(simulated, tmp_path)):
        pricing = account_rank(read_trace(path), rank).main.pricing
        assert pricing is not None
        assert pricing.error < 0.01


@pytest.mark.parametrize(("kind", "cause", "amount"), SAMPLES)
def test_buckets_add_up(kind: str, cause: str, amount: float, tmp_path: Path) -> None:
    diagnosis = _diagnosed(_simulated(kind, cause, amount), tmp_path)
    assert sum(diagnosis.budget.values()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("kind", "cause", "amount"), SAMPLES)
def test_the_planted_cause_is_found_first(
    kind: str, cause: str, amount: float, tmp_path: Path
) -> None:
    assert _verdict(_diagnosed(_simulated(kind, cause, amount), tmp_path))[1][:1] == [cause]


@pytest.mark.parametrize(("kind", "cause", "amount"), SAMPLES)
def test_more_of_a_cause_never_lowers_its_share(
    kind: str, cause: str, amount: float, tmp_path: Path
) -> None:
    shares = []
    for i, part in enumerate((0.0, 0.5, 1.0)):
        found = _diagnosed(_simulated(kind, cause, part * amount), tmp_path / str(i)).findings
        shares.append(next((f.share for f in found if f.cause == cause), 0.0))
    assert shares == sorted(shares)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("kind", "cause", "amount"), SAMPLES[:3])
def test_the_dialect_never_changes_the_verdict(
    kind: str, cause: str, amount: float, dialect: str, tmp_path: Path
) -> None:
    simulated = _simulated(kind, cause, amount)
    same = _verdict(_diagnosed(simulated, tmp_path / "a"))[1]
    assert _verdict(_diagnosed(simulated, tmp_path / "b", dialect))[1] == same


def test_another_clock_never_changes_the_verdict(tmp_path: Path) -> None:
    simulated = _simulated("ddp", "nccl-wait", 0.3)
    same = _verdict(_diagnosed(simulated, tmp_path / "a"))
    assert _verdict(_diagnosed(simulated, tmp_path / "b", shift_ns=7_123_456_789)) == same


def _shuffle(document: dict[str, Any]) -> None:
    random.Random(1).shuffle(document["traceEvents"])


def _rename(document: dict[str, Any]) -> None:
    """Kernels get names that say nothing."""
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel" and "nccl" not in event["name"]:
            event["name"] = f"k_{len(event['name'])}"


@pytest.mark.parametrize("change", [_shuffle, _rename])
@pytest.mark.parametrize(("kind", "cause", "amount"), SAMPLES)
def test_order_and_names_never_change_the_findings(
    change: Callable[[dict[str, Any]], None], kind: str, cause: str, amount: float, tmp_path: Path
) -> None:
    simulated = _simulated(kind, cause, amount)
    same = _verdict(_diagnosed(simulated, tmp_path / "a"))[1]
    other = tmp_path / "b"
    other.mkdir()
    for path in write_traces(simulated, other):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
    assert _verdict(analyze(other))[1] == same


def test_how_ranks_are_spread_over_folders_never_changes_the_verdict(tmp_path: Path) -> None:
    simulated = _simulated("ddp", "nccl-wait", 0.3)
    same = _verdict(_diagnosed(simulated, tmp_path / "a"))
    places = []
    for path in sorted((tmp_path / "a").iterdir()):
        folder = tmp_path / f"of {path.stem}"
        folder.mkdir()
        places.append(path.rename(folder / "trace.json"))
    assert _verdict(analyze(*reversed(places))) == same


ABSENT: dict[str, tuple[type, ...]] = {
    "checkpoint": (Save,),
    "allocator": (Malloc,),
    "input": (Fetch,),
    "sync": (Read, Synchronize),
    "communication": (Collective,),
    "copies": (Copy, Save),
}
"""Parts of a step, and the operations of a plan without which it has none."""


@pytest.mark.parametrize("kind", KINDS_OF_RUN)
def test_removing_what_is_not_there_leaves_the_step_as_it_was_measured(
    kind: str, tmp_path: Path
) -> None:
    simulated = simulate(draw_run(kind, 2))
    priced = 0
    for rank, path in enumerate(write_traces(simulated, tmp_path)):
        pricing = account_rank(read_trace(path), rank).main.pricing
        assert pricing is not None
        ops = [op for step in simulated.run.steps[rank] for op in step]
        for part, of in ABSENT.items():
            if any(isinstance(op, of) for op in ops):
                continue
            price = pricing.without(part)
            assert (price.reduction, price.low, price.high) == (0.0, 0.0, 0.0), part
            assert price.step_ns == pytest.approx(pricing.measured_ns, rel=0.01)
            priced += 1
    assert priced >= 2
