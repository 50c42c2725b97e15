"""Blocks in Kineto's own layout are read without decoding: the answer must be the decoder's.

Each trace is read twice, with the scanner and without it, in blocks small enough that it works.
"""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.kineto_text import kineto_text
from fixtures.traces import Dialect, TraceBuilder
from gpuprof.errors import InputError
from gpuprof.readers.files import ByteSource
from gpuprof.readers.jsonstream import scan_events
from gpuprof.readers.kineto import read_trace
from gpuprof.readers.kineto_bytes import BlockBytes, Literal
from gpuprof.readers.kineto_columns import Block
from gpuprof.readers.kineto_scan import BlockScanner
from gpuprof.readers.kineto_slices import SliceCodes
from gpuprof.trace import Trace

BLOCK_BYTES = 1 << 13
CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "traces"
DIALECTS = get_args(Dialect)


def told(trace: Trace) -> dict[str, Any]:
    """All that a trace says, comparable; codes and the texts behind them included."""
    said = {
        name: getattr(trace, name) for name in Trace.__slots__ if name not in ("device", "memory")
    }
    for part in (trace.device, trace.memory):
        said |= {f"{type(part).__name__}.{name}": getattr(part, name) for name in part.__slots__}
    return {
        name: np.nan_to_num(value, nan=-7).tolist() if isinstance(value, np.ndarray) else value
        for name, value in said.items()
    }


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What the scanner answered for each block; it has to have done some."""
    answers: list[bool] = []
    take = BlockScanner.take

    def noted(self: BlockScanner, data: bytes, end: int) -> bool:
        answers.append(take(self, data, end))
        return answers[-1]

    monkeypatch.setattr(BlockScanner, "take", noted)
    yield answers


def both(path: Path, block_bytes: int = BLOCK_BYTES) -> tuple[Any, Any]:
    """What is said with the scanner, and without it."""
    results: list[Any] = []
    for scan in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not scan:
                patch.setattr(BlockScanner, "take", lambda self, data, end: False)
            try:
                results.append(told(read_trace(path, block_bytes=block_bytes)))
            except InputError as error:
                results.append(str(error))
    return results[0], results[1]


def varied(steps: int = 40) -> TraceBuilder:
    """Steps with all kinds of events, whose numbers differ in sign, length and fraction."""
    builder = TraceBuilder(rank=1, world_size=2)
    for number in range(steps):
        at = number * 1000.0 + number / 8
        builder.step(number, start_us=at, dur_us=900)
        builder.op(
            "aten::mm", start_us=at + 1, dur_us=20, dims=[[64, number], []], types=["half", ""]
        )
        builder.op('say "hi" \\ é', start_us=at + 22, dur_us=0.5)
        builder.launch_kernel(
            f"gemm<{number % 3}>", launch_us=at + 10, launch_dur_us=4, start_us=at + 30, dur_us=50
        )
        builder.memcpy(
            size_bytes=10**number if number < 15 else number,
            launch_us=at + 85,
            start_us=at + 95,
            dur_us=3,
            stream=8,
        )
        builder.memset(size_bytes=64, launch_us=at + 110, start_us=at + 120, dur_us=1)
        builder.python("train.py(7): step", start_us=at + 130, dur_us=300)
        builder.memory(
            time_us=at + 6,
            size_bytes=512 - number * 100,
            allocated_bytes=1024 * number,
            reserved_bytes=2048,
        )
    return builder


TEXTS = {dialect: kineto_text(varied().document(dialect)) for dialect in DIALECTS}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_in_kinetos_layout_reads_as_decoded(
    dialect: Dialect, tmp_path: Path, scanned: list[bool]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXTS[dialect])
    with_scanner, without = both(path)
    assert with_scanner == without
    if dialect != "strings":  # numbers in quotes are for a decoder
        assert sum(scanned) > len(scanned) / 2


def test_the_blocks_never_change_what_is_said(tmp_path: Path) -> None:
    """Also not the codes: they count in the order of the rows."""
    path = tmp_path / "trace.json"
    path.write_bytes(TEXTS["modern"])
    results = [told(read_trace(path, block_bytes=size)) for size in (1 << 20, 5000, 9001)]
    assert results[0] == results[1] == results[2]


ODD_EVENTS: list[dict[str, Any]] = [
    {"args": {"correlation": -5}},
    {"args": {"correlation": 12.5}},
    {"args": {"correlation": "77"}},
    {"args": {"correlation": 10**17}},
    {"args": {"correlation": 5, "Collective name": "allreduce", "In msg nelems": 8}},
    {"args": {"Input Dims": [[3]], "correlation": 5, "Input type": ["float"]}},
    {"args": {"Call stack": "a;b"}},
    {"args": {"stream": None}},
    {"args": {"bytes": 7, "stream": -1, "device": 3}},
    {"args": {"warps per SM": 0.1234567890123456789}},
    {"args": {"grid": "1"}},
    {"args": {}},
    {"cat": "Trace", "name": "PyTorch Profiler (0)"},
    {"name": "x" * 5000},
    {"dur": -1},
    {"dur": None},
    {"ts": 1e300},
    {"ts": 9999999999999999},
    {"pid": "Spans"},
    {"id": 3},
    {"ph": "?"},
]


@pytest.mark.parametrize("odd", ODD_EVENTS, ids=lambda odd: json.dumps(odd)[:40])
@pytest.mark.parametrize("category", ["cpu_op", "kernel", "cuda_runtime"])
def test_an_odd_event_among_usual_ones_reads_as_decoded(
    odd: dict[str, Any], category: str, tmp_path: Path
) -> None:
    document = varied(12).document("modern")
    usual = next(event for event in document["traceEvents"] if event.get("cat") == category)
    events = document["traceEvents"]
    for place in (len(events) // 2, len(events) * 3 // 4):
        arguments = {**usual["args"], **odd.get("args", {})}
        events.insert(place, {**usual, **odd, "args": arguments})
    path = tmp_path / "trace.json"
    path.write_bytes(kineto_text(document))
    with_scanner, without = both(path)
    assert with_scanner == without


def test_members_that_recur_elsewhere_are_not_taken_for_others(tmp_path: Path) -> None:
    """A key counts where Kineto writes it: a correlation beside `args` is none."""
    document = varied(12).document("modern")
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["correlation"] = 99
        if event.get("cat") == "kernel":
            event["grid"] = [7, 7, 7]
    path = tmp_path / "trace.json"
    path.write_bytes(kineto_text(document))
    with_scanner, without = both(path)
    assert with_scanner == without


PIECES = [b"{", b"}", b",", b'"', b"\\", b"null", b"-", b"0", b"007", b".5", b"e9", b"\n", b"\xff"]
PIECES += [b"\n  },\n  {\n", b"[", b"]", b'"correlation": 1, ', b', "args": {', b"9" * 30, b"  "]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = TEXTS[draw(st.sampled_from(DIALECTS))]
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + draw(st.integers(1, 40)) :]
        elif kind == 2:
            data = data[:at] + draw(st.sampled_from(PIECES)) + data[at:]
        else:
            digit = data.find(b"1", at)
            data = (
                data[:digit]
                + draw(st.sampled_from([b"", b"1.5", b"01", b"-1"]))
                + data[digit + 1 :]
            )
    return data


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=damaged(), block_bytes=st.sampled_from([2000, BLOCK_BYTES, 30_000]))
def test_damage_reads_as_decoded(
    data: bytes, block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("scan") / "trace.json"
    path.write_bytes(data)
    with_scanner, without = both(path, block_bytes)
    assert with_scanner == without


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled cases are not here")
@pytest.mark.parametrize(
    "case", ["a100-many-items", "mi300-rccl-wait", "particle-batch2", "v100-host-and-nccl"]
)
def test_real_traces_read_as_decoded(case: str, tmp_path: Path, scanned: list[bool]) -> None:
    with ByteSource(CASES / case / "trace.json.gz", block_bytes=1 << 20) as source:
        text = b"".join(block for block, _ in zip(source.blocks(), range(2), strict=False))
    begun = text.index(b"[", text.index(b'"traceEvents"')) + 1
    _, position, _ = scan_events(text[begun:])
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[: begun + position].rstrip(b", \n") + b"\n  ]}", 1))
    with_scanner, without = both(path, 1 << 16)
    assert with_scanner == without
    assert sum(scanned) > len(scanned) / 2


# The parts


@given(
    st.lists(
        st.one_of(
            st.integers(0, 10**16 - 1).map(str),
            st.decimals(0, 10**9, places=3).map(str),
            st.text("0123456789.eE-+", max_size=12),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_numbers_are_read_as_json_reads_them(texts: list[str]) -> None:
    data = "".join(f"<{text}," for text in texts).encode() + b" " * 600
    at = np.cumsum([0, *(len(text) + 2 for text in texts)])[:-1].astype(np.int64)
    same, numbers = BlockBytes(data).numbers(at, Literal(b"<"))
    assert same.all()
    values, known = numbers.floats()
    whole_text = np.frombuffer(data, np.uint8)[numbers.end] == ord(",")
    for text, value, sure, good, end in zip(
        texts,
        values.tolist(),
        known.tolist(),
        numbers.good.tolist(),
        whole_text.tolist(),
        strict=True,
    ):
        if good and end:
            assert not sure or json.loads(text) == value
        elif text.replace(".", "", 1).isdecimal():
            with pytest.raises(ValueError):
                json.loads(text)


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=40))
def test_slices_have_one_code_each(slices: list[bytes]) -> None:
    kinds: list[bytes] = []

    def make(text: bytes) -> int:
        kinds.append(text)
        return len(kinds) - 1

    known = SliceCodes(make)
    data = b"".join(slices) + b"\0" * 600
    length = np.array([len(part) for part in slices], np.int64)
    start = np.cumsum(length) - length
    for _ in range(2):
        codes = known.codes(BlockBytes(data), start, length)
        assert [kinds[code] for code in codes.tolist()] == slices
    assert len(kinds) == len(set(slices))


def test_nothing_of_a_reading_outlives_it(tmp_path: Path) -> None:
    """The collector is paused while traces are read: a cycle would keep all blocks alive."""
    path = tmp_path / "trace.json"
    path.write_bytes(TEXTS["modern"])
    gc.collect()
    gc.disable()
    try:
        trace = read_trace(path, block_bytes=BLOCK_BYTES)
        alive = [item for item in gc.get_objects() if isinstance(item, Block)]
    finally:
        gc.enable()
    assert len(trace)
    assert not alive
