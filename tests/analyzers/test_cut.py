"""A file that ends early: what it does not tell is not taken for idle time."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from fixtures.simulator import draw_run, plant, simulate, write_traces
from gpuprof.api import analyze
from gpuprof.diagnosis import CAUSES, Diagnosis

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "traces"
CUTS = (0.95, 0.85, 0.75, 0.6, 0.4)
EIGHT = {cause for cause, number in CAUSES.items() if number}


@lru_cache(maxsize=4)
def blocks_by_thread(kind: str, cause: str, folder: Path) -> bytes:
    """A recording as Kineto writes it: what the host did, then the calls and device events of one
    thread after the other."""
    (path,) = write_traces(simulate(plant(draw_run(kind, 2), cause, 0.4)), folder)
    document = json.loads(path.read_text())
    calls = {
        e["args"]["correlation"]: e["tid"]
        for e in document["traceEvents"]
        if e.get("cat") == "cuda_runtime"
    }

    def block(event: dict[str, Any]) -> int:
        launch = event.get("args", {}).get("correlation")
        return 0 if launch is None else int(calls.get(launch, 1))

    document["traceEvents"].sort(key=block)
    events = ",\n".join(map(json.dumps, document.pop("traceEvents")))
    return f'{json.dumps(document)[:-1]}, "traceEvents": [\n{events}\n]}}'.encode()


def recorded(name: str) -> bytes:
    path = next((CASES / name).iterdir()) if (CASES / name).is_dir() else None
    if path is None:
        pytest.skip("no labelled recordings here")
    text = path.read_bytes()
    return gzip.decompress(text) if path.suffix == ".gz" else text


def cut(text: bytes, part: float, folder: Path) -> Diagnosis:
    path = folder / f"{part}.json"
    path.write_bytes(text[: int(len(text) * part)])
    return analyze(path)


def is_of_the_whole(part: Diagnosis, whole: Diagnosis) -> bool:
    """The same verdict. Shares differ a little over fewer steps: what is near the threshold may
    come or go."""
    named = {f.cause for f in part.findings if f.share >= 0.1}
    return (
        part.bound.class_ == whole.bound.class_
        and [f.cause for f in part.findings][:1] == [f.cause for f in whole.findings][:1]
        and named <= {f.cause for f in whole.findings}
    )


def cannot_tell(part: Diagnosis) -> bool:
    return not part.findings and {n.cause for n in part.not_judged} == EIGHT


def holds(text: bytes, folder: Path) -> list[bool]:
    whole = cut(text, 1.0, folder)
    told = []
    for part in CUTS:
        diagnosis = cut(text, part, folder)
        assert cannot_tell(diagnosis) or is_of_the_whole(diagnosis, whole), part
        told.append(not cannot_tell(diagnosis))
    return told


@pytest.mark.parametrize(
    ("kind", "cause"), [("cnn", "dataloader"), ("transformer", "sync-points"), ("cnn", "memcpy")]
)
def test_a_part_gives_the_verdict_of_the_whole_or_none(
    kind: str, cause: str, tmp_path: Path
) -> None:
    told = holds(blocks_by_thread(kind, cause, tmp_path), tmp_path)
    assert told[0]  # the last twentieth is no more than a step or two
    assert not told[-1]  # without the backward thread nothing can be told


@pytest.mark.parametrize("name", ["lm-batch32", "lm-cuda-graphs", "a100-host-bound-ddp"])
def test_a_part_of_a_labelled_recording_gives_its_verdict_or_none(
    name: str, tmp_path: Path
) -> None:
    holds(recorded(name), tmp_path)


def test_steps_that_are_left_out_are_said(tmp_path: Path) -> None:
    diagnosis = cut(blocks_by_thread("cnn", "dataloader", tmp_path), 0.95, tmp_path)
    assert diagnosis.run.steps.excluded
    assert {step.why for step in diagnosis.run.steps.excluded} == {"cut off by the end of the file"}
    assert diagnosis.run.steps.count + len(diagnosis.run.steps.excluded) == 6


def test_what_to_do_about_a_part_is_said(tmp_path: Path) -> None:
    diagnosis = cut(blocks_by_thread("cnn", "dataloader", tmp_path), 0.6, tmp_path)
    assert cannot_tell(diagnosis)
    assert "the file is cut off" in diagnosis.headline
    assert all("whole file" in each.command for each in diagnosis.not_judged)


def test_a_rank_whose_file_is_cut_is_left_out_of_a_job(tmp_path: Path) -> None:
    """It would look like a rank that idles, or that trains on the CPU."""
    job = tmp_path / "job"
    job.mkdir()
    paths = write_traces(simulate(plant(draw_run("ddp", 2), "host-overhead", 0.3)), job)
    whole = analyze(job)
    text = paths[-1].read_bytes()
    paths[-1].write_bytes(text[: int(len(text) * 0.4)])
    part = analyze(job)
    assert [f.cause for f in part.findings] == [f.cause for f in whole.findings]
    assert any("is left out" in warning and "cut off" in warning for warning in part.warnings)
