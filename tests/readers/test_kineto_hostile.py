"""Bad values and foreign files: a Trace with a warning that counts, or one line; nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.traces import DIALECTS, TraceBuilder
from gpuprof.errors import InputError
from gpuprof.readers import jsonstream
from gpuprof.readers.kineto import read_trace
from gpuprof.trace import Trace


def event(**changes: Any) -> dict[str, Any]:
    """A valid operator with some fields changed; a value of ... takes a field away."""
    values = {"ph": "X", "cat": "cpu_op", "name": "bad", "pid": 1, "tid": 2, "ts": 5.0, "dur": 1.0}
    return {key: value for key, value in (values | changes).items() if value is not ...}


def load(folder: Path, text: bytes, **options: Any) -> Trace:
    path = folder / "trace.json"
    path.write_bytes(text)
    return read_trace(path, **options)


def beside_good(folder: Path, *bad: str | dict[str, Any], **options: Any) -> Trace:
    """A trace of bad events between two good ones, `good` at 0 µs and at 10 µs."""
    texts = [text if isinstance(text, str) else json.dumps(text) for text in bad]
    ends = [json.dumps(event(name="good", ts=ts)) for ts in (0.0, 10.0)]
    body = ", ".join([ends[0], *texts, ends[1]])
    return load(folder, f'{{"schemaVersion": 1, "traceEvents": [{body}]}}'.encode(), **options)


def names(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.name]


# Events that are left out


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event(dur=-1), "negative or impossible duration"),
        (event(dur=...), "negative or impossible duration"),
        (event(dur="soon"), "negative or impossible duration"),
        (event(dur=None), "negative or impossible duration"),
        (event(dur=1e300), "negative or impossible duration"),
        (event(ts=...), "impossible start"),
        (event(ts=1e18), "impossible start"),
        (event(ts=10**400), "impossible start"),
        (event(ts=True), "impossible start"),
        (event(ts=[]), "impossible start"),
        (event(ts=3e15), "more than a week away"),
        (event(dur=1e12), "more than a week away"),
        (event(ph="?"), "without a known phase"),
        (event(ph=...), "without a known phase"),
        (event(ph=7), "without a known phase"),
        (json.dumps(event()).replace("5.0", "NaN"), "impossible start"),
        (json.dumps(event()).replace("5.0", "1e999"), "impossible start"),
        (json.dumps(event()).replace("1.0", "-Infinity"), "negative or impossible duration"),
        ('{"ph": "X", "name": bad}', "unreadable"),
        ('{"ph": "X", "name": "bad" "ts": 1}', "unreadable"),
        ('{"ph": "X", "args": ' + "[" * 5000 + "]" * 5000 + "}", ""),
    ],
)
def test_a_bad_event_is_left_out_and_counted(
    tmp_path: Path, bad: str | dict[str, Any], reason: str
) -> None:
    trace = beside_good(tmp_path, bad)
    assert names(trace) == ["good", "good"]
    assert sum(trace.dropped.values()) == 1
    assert any(reason in line and " 1 " in line for line in trace.warnings)


@pytest.mark.parametrize(
    "bad",
    [
        event(ts="5", dur="1.0"),
        event(ts=5, dur=1),
        event(args=None),
        event(args=[]),
        event(args={"correlation": None, "stream": []}),
        event(args={"Input Dims": "nonsense", "Input type": 7}),
        event(args={"Collective name": {"a": 1}, "Group size": "many"}),
        event(cat=None),
        event(cat=3),
        event(extra="\ud800"),
    ],
)
def test_an_odd_event_is_mended(tmp_path: Path, bad: dict[str, Any]) -> None:
    trace = beside_good(tmp_path, bad)
    assert names(trace) == ["good", "bad", "good"]
    assert trace.start_ns.tolist() == [0, 5000, 10000]
    assert trace.dur_ns.tolist() == [1000, 1000, 1000]


@pytest.mark.parametrize("odd", ["null", "7", '"text"', "[]", "[[{}]]", "{}", "true"])
def test_values_that_are_no_events_are_passed_over(tmp_path: Path, odd: str) -> None:
    assert names(beside_good(tmp_path, odd)) == ["good", "good"]


def test_missing_ids_are_said(tmp_path: Path) -> None:
    trace = beside_good(tmp_path, event(pid=..., tid=...))
    assert names(trace) == ["good", "bad", "good"]
    assert trace.lanes[trace.lane[1]].pid == -1
    assert "missing process or thread ids: 1" in trace.warnings[0]


def test_names_of_a_million_characters_are_cut(tmp_path: Path) -> None:
    trace = beside_good(tmp_path, event(name="x" * 1_000_000))
    assert max(map(len, trace.names)) == 4096
    assert any("4,096" in line for line in trace.warnings)


def test_names_that_are_no_text_can_be_written_again(tmp_path: Path) -> None:
    trace = beside_good(tmp_path, '{"ph":"X","cat":"cpu_op","name":"\\ud800","ts":1,"dur":1}')
    assert "\ud800" not in "".join(trace.names)
    "".join(trace.names).encode()


def test_bytes_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    data = TraceBuilder().op("plain", start_us=0, dur_us=1).json().replace(b"plain", b"pl\xffin")
    assert names(load(tmp_path, data)) == ["pl\ufffdin"]


def test_huge_correlation_ids_are_ignored_and_counted(tmp_path: Path) -> None:
    bad = [
        event(cat="cuda_runtime", args={"correlation": value}) for value in (1 << 63, -5, 1 << 70)
    ]
    trace = beside_good(tmp_path, *bad)
    assert trace.corr.tolist() == [0] * 5
    assert any("correlation ids outside of 64 bits: 3" in line for line in trace.warnings)


def test_a_correlation_id_belongs_to_the_first_call_that_claims_it(tmp_path: Path) -> None:
    calls = [event(cat="cuda_runtime", ts=ts, args={"correlation": 4}) for ts in (6.0, 5.0)]
    kernel = event(cat="kernel", ts=7.0, pid=0, tid=7, args={"correlation": 4})
    trace = beside_good(tmp_path, *calls, kernel)
    assert trace.corr.tolist() == [0, 4, 0, 4, 0]
    assert any("correlation ids that a second call claims: 1" in line for line in trace.warnings)


def test_odd_device_values_become_unknown(tmp_path: Path) -> None:
    args = {
        "device": 1 << 40,
        "stream": "seven",
        "grid": [1, "x", 3],
        "block": [1 << 40, 1 << 40],
        "bytes": -3,
        "warps per SM": "many",
        "est. achieved occupancy %": None,
    }
    device = beside_good(tmp_path, event(cat="kernel", pid=2, tid=7, args=args)).device
    assert device.device.tolist() == [2]
    assert device.stream.tolist() == [-1]
    assert (device.blocks.tolist(), device.threads.tolist()) == ([-1], [-1])
    assert device.bytes.tolist() == [-1]
    assert np.isnan(device.warps_per_sm[0])


def test_allocator_events_with_impossible_values_are_counted(tmp_path: Path) -> None:
    bad = {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": 1 << 70, "Device Type": 1}}
    trace = beside_good(tmp_path, bad)
    assert len(trace.memory.time_ns) == 0
    assert trace.dropped == {"allocator events with impossible values": 1}


def test_an_event_that_never_ends_does_not_take_the_rest_along(tmp_path: Path) -> None:
    trace = beside_good(tmp_path, '{"ph": "X", "args": {"a": 1}')
    assert names(trace) == ["good", "good"]
    assert trace.dropped == {"unreadable": 1}


def test_events_beyond_the_size_limit_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonstream, "MAX_EVENT_BYTES", 10_000)
    huge = '{"ph": "X", "name": "' + "a" * 50_000
    trace = beside_good(tmp_path, huge, block_bytes=4096)
    assert names(trace) == ["good", "good"]


def test_large_header_values_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "MAX_HEADER_BYTES", 1000)
    builder = TraceBuilder(header={"metadata": ["x" * 50] * 1000}).op("a", start_us=0, dur_us=1)
    trace = load(tmp_path, builder.json(), block_bytes=512)
    assert trace.meta.rank == 0
    assert len(trace) == 1


# Foreign files


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"SQLite format 3\0" + bytes(100), "SQLite"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04" + bytes(50), "zip archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd"),
        (b"hello", "no JSON"),
        (bytes(range(256)), "no JSON"),
        (b"{'traceEvents': []}", "no JSON"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}', "Chakra"),
        (b'{"segments": [], "device_traces": []}', "memory snapshot"),
        (b'{"cuda:0": [[1, 2], [3, 4]]}', "memory timeline"),
        (b"[[1, 2, 3], [4, 5, 6]]", "memory timeline"),
        (b'{"a": 1}', "without traceEvents"),
        (b"{}", "without traceEvents"),
        (b"[]", "without events"),
        pytest.param(b"[" * 3000, "without events", id="deep list"),
        pytest.param(
            b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
            "can't be read (1 of them)",
            id="deep event",
        ),
        (b'{"a": [1, 2', "ends before its traceEvents"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "holds no events"),
        (b"node1:12:34 [0] NCCL INFO Bootstrap : Using eth0\n", "NCCL log"),
        (b"timestamp, utilization.gpu [%]\n1, 5 %\n", "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_foreign_file_is_named_in_one_line(
    tmp_path: Path, data: bytes, what: str, packed: bool
) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, gzip.compress(data) if packed else data)
    assert what in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_traces_of_other_programs_are_named(tmp_path: Path) -> None:
    xla = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0, "name": "fusion"},
    ]
    with pytest.raises(InputError, match="TensorFlow or XLA"):
        load(tmp_path, json.dumps({"traceEvents": xla}).encode())
    with pytest.raises(InputError, match=r"Chrome trace .*categories: toplevel"):
        load(tmp_path, json.dumps({"traceEvents": [event(cat="toplevel")]}).encode())


def test_a_kineto_trace_without_a_readable_event_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event(dur=-1)]}).encode()
    with pytest.raises(InputError, match="its one event can't be read"):
        load(tmp_path, text)


def test_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="NUL"):
        read_trace("nul\0byte")


# Any damage at all


def small(dialect: Any) -> bytes:
    builder = TraceBuilder(groups=[{"pg_name": "0", "ranks": [0, 1]}])
    for number in range(4):
        at = number * 100
        builder.step(number, start_us=at, dur_us=90)
        builder.op("aten::mm", start_us=at + 1, dur_us=5, dims=[[2, 3], [[4]]], stack="a.py(1): f")
        builder.launch_kernel("k<a, b>(c*)", launch_us=at + 2, start_us=at + 9.125, dur_us=3)
        builder.launch_collective("allreduce", launch_us=at + 4, start_us=at + 20, dur_us=3)
        builder.memory(time_us=at, size_bytes=4)
    return builder.json(dialect)


SMALL = {dialect: small(dialect) for dialect in DIALECTS}
PIECES = [b"", b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"null", b"-1", b"1e999", b"NaN", b"\xff"]
PIECES += [b"},{", b"}]}", b'{"ph": "X"', b"9" * 30, b'"args": {', b"\0", b'"ts": "x"']


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = SMALL[draw(st.sampled_from(DIALECTS))]
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + draw(st.integers(1, 300)) :]
        elif kind == 2:
            data = data[:at] + draw(st.sampled_from(PIECES)) + data[at:]
        elif draw(st.booleans()):
            data = data[:at]
    return data


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=damaged(), block_bytes=st.sampled_from([1, 50, 333, 4096]), packed=st.booleans())
def test_damage_gives_a_trace_or_one_line_and_never_depends_on_the_blocks(
    data: bytes, block_bytes: int, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damage") / "trace.json"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    results = []
    for size in (1 << 20, block_bytes):
        try:
            trace = read_trace(path, block_bytes=size)
        except InputError as error:
            results.append(str(error))
            assert "\n" not in str(error)
        else:
            assert np.all(np.diff(trace.start_ns) >= 0)
            assert np.all(trace.dur_ns >= 0)
            results.append(summary(trace))
    assert results[0] == results[1]


def summary(trace: Trace) -> Any:
    """All that a trace says, comparable."""
    names = [trace.names[code] for code in trace.name]
    lanes = [trace.lanes[code] for code in trace.lane]
    shapes = [trace.arg_sets[code] if code >= 0 else None for code in trace.op_args]
    device = [
        np.nan_to_num(getattr(trace.device, key), nan=-7).tolist() for key in trace.device.__slots__
    ]
    return (
        trace.meta,
        trace.start_ns.tolist(),
        trace.dur_ns.tolist(),
        trace.category.tolist(),
        trace.corr.tolist(),
        names,
        lanes,
        shapes,
        device,
        trace.memory.time_ns.tolist(),
        trace.collectives,
        trace.dropped,
        trace.warnings,
    )


def test_a_trace_with_a_wrong_checksum_keeps_its_last_event(tmp_path: Path) -> None:
    """All is there, so nothing is called cut off; that bytes were changed is told."""
    whole = (
        TraceBuilder()
        .op("aten::mm", start_us=0, dur_us=5)
        .op("aten::add", start_us=9, dur_us=5)
        .write(tmp_path / "whole.json")
    )
    packed = bytearray(gzip.compress(whole.read_bytes()))
    packed[-6] ^= 0xFF
    path = tmp_path / "wrong.json.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert len(trace) == len(read_trace(whole))
    assert not trace.meta.truncated
    assert any("checksum of the gzip stream is wrong" in w for w in trace.warnings)
