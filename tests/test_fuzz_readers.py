"""Every reader on damaged bytes, through analyze: a diagnosis, or one line; short here.

The long run is `python benchmarks/fuzz.py 100000`; its numbers name the same inputs.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from fixtures.mutations import SEGMENT, corpus, write_damaged
from gpuprof.api import analyze_paths
from gpuprof.diagnosis import from_json, to_json
from gpuprof.errors import GpuprofError
from gpuprof.inputs import kind_of

SEEDS = 8


@pytest.mark.parametrize("kind", sorted(corpus()))
def test_a_damaged_recording_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = write_damaged(kind, random.Random(f"{kind} {seed}"), folder)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                diagnosis = analyze_paths(path).diagnosis
            except GpuprofError as error:
                assert "\n" not in str(error)
                continue
        assert from_json(to_json(diagnosis)).budget == diagnosis.budget


def test_what_is_damaged_is_read_where_it_is_whole(tmp_path: Path) -> None:
    """The corpus itself is of the kinds that it is named for: its damage reaches their readers."""
    for kind, data in corpus().items():
        path = tmp_path / (SEGMENT if kind == "samples" else f"{kind}.log")
        path.write_bytes(data)
        expected = {"cpu-trace": "kineto", "trace": "kineto", "nccl-graph": "topology"}
        expected |= dict.fromkeys(("smi-csv", "smi-query", "smi-dmon"), "smi")
        if kind != "run":
            assert kind_of(path) == expected.get(kind, kind)
