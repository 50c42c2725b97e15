"""The Kineto reader: every dialect gives the same columns, and damage is counted, not guessed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.traces import BASE_NS, DIALECTS, Dialect, TraceBuilder
from gpuprof.readers.kineto import read_trace
from gpuprof.trace import Category, CollectiveArgs, OpArgs, ProcessGroup, Trace

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "traces"
REAL = sorted(CASES.glob("*/*.json.gz"))


def sample() -> TraceBuilder:
    """A step with an operator, a kernel, a copy, a memset and an allocation."""
    return (
        TraceBuilder(rank=3, world_size=8)
        .step(5, start_us=0, dur_us=200)
        .op("aten::mm", start_us=5, dur_us=20, dims=[[64, 32], [32, 16]], types=["half", "half"])
        .launch_kernel("gemm<1>", launch_us=10, launch_dur_us=4, start_us=30, dur_us=50)
        .memcpy(size_bytes=4096, launch_us=85, start_us=95, dur_us=3, stream=8)
        .memset(size_bytes=64, launch_us=110, start_us=120, dur_us=1)
        .memory(time_us=6, size_bytes=512, allocated_bytes=1024, reserved_bytes=2048)
    )


def write(folder: Path, document: Any) -> Path:
    """The document as a file: bytes as they are, anything else as JSON."""
    path = folder / "trace.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


def load(folder: Path, document: Any, **options: Any) -> Trace:
    return read_trace(write(folder, document), **options)


def columns(trace: Trace) -> dict[str, Any]:
    """What a trace says, without its path, size and hash; NaN made comparable."""
    device = {
        key: np.nan_to_num(getattr(trace.device, key), nan=-7).tolist()
        for key in trace.device.__slots__
    }
    memory = {key: getattr(trace.memory, key).tolist() for key in trace.memory.__slots__}
    return {
        "rows": [
            (
                int(trace.start_ns[row]),
                int(trace.dur_ns[row]),
                int(trace.category[row]),
                trace.names[trace.name[row]],
                trace.lanes[trace.lane[row]],
                int(trace.corr[row]),
                trace.arg_sets[trace.op_args[row]] if trace.op_args[row] >= 0 else None,
                trace.stacks[trace.stack[row]] if trace.stack[row] >= 0 else None,
            )
            for row in range(len(trace))
        ],
        "device": device,
        "memory": memory,
        "collectives": trace.collectives,
        "dropped": trace.dropped,
        "truncated": trace.meta.truncated,
    }


# Dialects


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_rows(dialect: Dialect) -> None:
    trace = sample().trace(dialect)
    start = (trace.start_ns - TraceBuilder.ns(0)).tolist()
    assert start == [0, 5_000, 10_000, 30_000, 85_000, 95_000, 110_000, 120_000]
    assert trace.dur_ns.tolist() == [200_000, 20_000, 4_000, 50_000, 5_000, 3_000, 5_000, 1_000]
    assert trace.category.tolist() == [1, 0, 3, 5, 3, 6, 3, 7]
    assert trace.corr.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert trace.meta.epoch
    assert trace.warnings == ()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_device_columns(dialect: Dialect) -> None:
    device = sample().trace(dialect).device
    assert device.rows.tolist() == [3, 5, 7]
    assert device.device.tolist() == [0, 0, 0]
    assert device.stream.tolist() == [7, 8, 7]
    assert device.bytes.tolist() == [-1, 4096, 64]
    assert device.blocks.tolist() == [108, -1, -1]
    assert device.threads.tolist() == [128, -1, -1]
    assert np.isnan(device.warps_per_sm).all()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_shapes(dialect: Dialect) -> None:
    trace = sample().trace(dialect)
    assert trace.op_args.tolist() == [-1, 0, -1, -1, -1, -1, -1, -1]
    assert trace.arg_sets == [OpArgs(((64, 32), (32, 16)), ("half", "half"), ())]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_lanes_tell_threads_from_streams(dialect: Dialect) -> None:
    trace = sample().trace(dialect)
    lanes = [trace.lanes[lane] for lane in trace.lane]
    assert [(lane.device, lane.stream) for lane in lanes if lane.is_stream] == [
        (0, 7),
        (0, 8),
        (0, 7),
    ]
    assert {lane.name for lane in lanes if not lane.is_stream} == {"thread 1 (python)"}
    assert {(lane.pid, lane.tid) for lane in lanes if not lane.is_stream} == {(1000, 1001)}


def test_allocator_events_of_both_versions() -> None:
    memory = sample().trace().memory
    assert memory.time_ns.tolist() == [TraceBuilder.ns(6)]
    assert memory.delta_bytes.tolist() == [512]
    assert memory.allocated_bytes.tolist() == [1024]
    assert memory.reserved_bytes.tolist() == [2048]
    old = TraceBuilder().op("a", start_us=0, dur_us=1).memory(time_us=2, size_bytes=-8, device=-1)
    assert old.trace("old").memory.device.tolist() == [-1]
    assert old.trace("old").memory.allocated_bytes.tolist() == [-1]


def test_the_header_becomes_meta() -> None:
    builder = TraceBuilder(
        rank=3,
        world_size=8,
        groups=[
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "cuda:nccl",
                "ranks": [0, 3],
            }
        ],
        header={"with_stack": 1, "profile_memory": 0, "host_name": "node7"},
    )
    meta = builder.op("a", start_us=0, dur_us=1).trace().meta
    assert (meta.rank, meta.world_size, meta.backend) == (3, 8, "nccl")
    assert meta.groups == (ProcessGroup("0", "default_pg", (0, 3), "cuda:nccl"),)
    assert (meta.record_shapes, meta.with_stack, meta.profile_memory) == (True, True, False)
    assert meta.host_name == "node7"
    assert meta.devices[0].name == "NVIDIA A100-SXM4-80GB"
    assert meta.devices[0].sm_count == 108
    assert not meta.is_rocm
    assert not meta.truncated


@pytest.mark.parametrize("quote", [json.dumps, str], ids=["json", "python literal"])
def test_header_values_written_as_strings(tmp_path: Path, quote: Any) -> None:
    document = sample().document()
    for key in ("deviceProperties", "distributedInfo"):
        document[key] = quote(document[key])
    meta = load(tmp_path, document).meta
    assert meta.rank == 3
    assert meta.devices[0].memory_bytes == 85_174_583_296


def test_a_string_in_the_header_is_never_evaluated(tmp_path: Path) -> None:
    document = sample().document()
    document["deviceProperties"] = "__import__('os').abort()"
    assert load(tmp_path, document).meta.devices == ()


def test_rocm_is_noticed() -> None:
    assert sample().trace("rocm").meta.is_rocm


def test_missing_rank_is_none() -> None:
    assert TraceBuilder(rank=None).op("a", start_us=0, dur_us=1).trace().meta.rank is None


def test_without_a_base_small_starts_do_not_count_from_the_epoch(tmp_path: Path) -> None:
    document = sample().document()
    del document["baseTimeNanoseconds"]
    trace = load(tmp_path, document)
    assert not trace.meta.epoch
    assert trace.start_ns[0] == TraceBuilder.ns(0) - BASE_NS


def test_a_base_is_not_added_to_starts_that_count_from_the_epoch(tmp_path: Path) -> None:
    document = sample().document("epoch")
    document["baseTimeNanoseconds"] = BASE_NS
    assert load(tmp_path, document).start_ns[0] == TraceBuilder.ns(0)


@pytest.mark.parametrize("keys_first", [True, False])
def test_events_may_stand_before_or_after_the_other_keys(tmp_path: Path, keys_first: bool) -> None:
    document = sample().document()
    events = document.pop("traceEvents")
    order = (
        {**document, "traceEvents": events} if keys_first else {"traceEvents": events, **document}
    )
    trace = load(tmp_path, order)
    assert trace.meta.rank == 3
    assert trace.start_ns[0] == TraceBuilder.ns(0)


def test_a_bare_array_is_a_trace(tmp_path: Path) -> None:
    document = sample().document("epoch")["traceEvents"]
    document = [event for event in document if event.get("cat") != "ac2g"]
    assert len(load(tmp_path, json.dumps(document).encode() + b"\n")) == 8


def test_a_trace_without_a_device() -> None:
    trace = TraceBuilder(gpu="").op("aten::mm", start_us=0, dur_us=1).trace()
    assert trace.meta.devices == ()
    assert len(trace.device) == 0


def test_what_is_drawn_on_a_stream_is_not_all_device_work() -> None:
    trace = (
        TraceBuilder()
        .gpu_annotation("ProfilerStep#3", start_us=0, dur_us=9)
        .sync_record(start_us=1, dur_us=2)
        .overhead("Activity Buffer Request", start_us=2, dur_us=1)
        .launch_kernel("k", start_us=3, dur_us=1)
        .trace()
    )
    assert trace.category.tolist() == [
        Category.GPU_ANNOTATION,
        Category.SYNC,
        Category.OVERHEAD,
        Category.KERNEL,
    ]
    assert [trace.lanes[lane].is_stream for lane in trace.lane] == [True, True, False, True]
    assert trace.device.rows.tolist() == [3]


@pytest.mark.parametrize("key", ["correlation", "cuda_correlation", "hip_correlation"])
def test_correlation_under_more_than_one_key(tmp_path: Path, key: str) -> None:
    document = sample().document()
    for event in document["traceEvents"]:
        args = event.get("args") or {}
        if "correlation" in args:
            args[key] = args.pop("correlation")
    assert load(tmp_path, document).corr.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_graph_launch_stands_for_many_kernels() -> None:
    trace = TraceBuilder().launch_graph([("a", 30, 5), ("b", 40, 5)], launch_us=1).trace()
    assert trace.corr.tolist() == [1, 1, 1]
    assert trace.warnings == ()


def test_starts_since_the_epoch_keep_their_nanoseconds(tmp_path: Path) -> None:
    """float64 has a resolution of 250 ns there."""
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "dur": 1.5, "ts": '
    starts = ["1712195495519689.001", "1712195495519689.002", "1712195495519690"]
    events = ", ".join(event + start + "}" for start in starts)
    text = '{"schemaVersion": 1, "traceEvents": [' + events + "]}"
    trace = load(tmp_path, text.encode())
    assert (trace.start_ns - 1712195495519689_000).tolist() == [1, 2, 1000]
    assert trace.dur_ns.tolist() == [1500, 1500, 1500]


def test_old_annotations_leave_the_operators() -> None:
    trace = TraceBuilder().step(1, start_us=0, dur_us=5).op("aten::a", start_us=1, dur_us=1)
    assert trace.trace("old").category.tolist() == [Category.USER_ANNOTATION, Category.CPU_OP]


def test_rows_are_ordered_by_start_and_the_longer_one_first() -> None:
    trace = (
        TraceBuilder()
        .op("inner", start_us=5, dur_us=1)
        .op("outer", start_us=5, dur_us=9)
        .op("first", start_us=1, dur_us=1)
        .op("twin", start_us=5, dur_us=9)
        .trace()
    )
    assert [trace.names[code] for code in trace.name] == ["first", "outer", "twin", "inner"]


def test_call_stacks_are_shared() -> None:
    stack = "torch/x.py(3): f;train.py(12): <module>"
    trace = (
        TraceBuilder()
        .op("a", start_us=0, dur_us=1, stack=stack)
        .op("b", start_us=2, dur_us=1, stack=stack)
        .op("c", start_us=4, dur_us=1)
        .trace()
    )
    assert trace.stacks == [stack]
    assert trace.stack.tolist() == [0, 0, -1]


def test_shapes_of_tensor_lists_nest() -> None:
    trace = (
        TraceBuilder()
        .op(
            "aten::cat",
            start_us=0,
            dur_us=1,
            dims=[[[2, 3], [4, 3]], []],
            types=["TensorList", "Scalar"],
            concrete=["", "0"],
        )
        .trace()
    )
    assert trace.arg_sets == [OpArgs((((2, 3), (4, 3)), ()), ("TensorList", "Scalar"), ("", "0"))]


def test_collectives_of_operators_and_kernels() -> None:
    trace = (
        TraceBuilder()
        .collective("allreduce", start_us=0, dur_us=2, ranks=[0, 1, 2], elements=77, seq=9)
        .launch_collective("allreduce", launch_us=1, start_us=5, dur_us=9, dtype="BFloat16")
        .trace()
    )
    assert trace.collectives == {
        0: CollectiveArgs("allreduce", "Float", 77, 77, "0", 3, (0, 1, 2), 9),
        2: CollectiveArgs("allreduce", "BFloat16", 1024, 1024, "0", 2, (0, 1)),
    }


def test_abbreviated_ranks_are_rebuilt_from_start_and_stride() -> None:
    args = {
        "Collective name": "allgather",
        "Process Group Ranks": "[0, 2, ..., 30]",
        "Group size": 16,
        "Global rank start": 0,
        "Global rank stride": 2,
    }
    trace = TraceBuilder().op("record_param_comms", start_us=0, dur_us=1, args=args).trace()
    assert trace.collectives[0].group_ranks == tuple(range(0, 32, 2))


def test_the_profilers_own_span_is_no_row() -> None:
    builder = sample().raw(
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": -10,
            "dur": 300,
        }
    )
    trace = builder.trace()
    assert len(trace) == 8
    assert trace.meta.span_ns == (TraceBuilder.ns(-10), TraceBuilder.ns(290))


def test_reading_imports_nothing_heavy() -> None:
    code = (
        "import gpuprof.readers.kineto, sys; print({'pandas', 'torch', 'plotly'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Real traces


@pytest.mark.skipif(not REAL, reason="the real cases are not here")
@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}/{path.name[:5]}")
def test_real_traces_agree_with_a_plain_json_reading(path: Path) -> None:
    trace = read_trace(path)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    rows = [event for event in events if event["ph"] == "X" and event["cat"] != "Trace"]
    assert len(trace) == len(rows)
    assert trace.dropped == {}
    assert np.all(np.diff(trace.start_ns) >= 0)
    micros = sum(round(float(event["dur"]) * 1000) for event in rows)
    assert int(trace.dur_ns.sum()) == micros
    kernels = sum(event["cat"].lower() == "kernel" for event in rows)
    assert len(trace.rows_of(Category.KERNEL)) == kernels
    names = {event["name"] for event in rows}
    assert {trace.names[code] for code in np.unique(trace.name)} == names


@pytest.mark.skipif(not REAL, reason="the real cases are not here")
@pytest.mark.parametrize("case", ["a100-host-bound-ddp", "resnet50-workers0", "mi300-rccl-wait"])
def test_block_size_changes_nothing_on_real_traces(case: str) -> None:
    path = CASES / case / "trace.json.gz"
    first, second = (columns(read_trace(path, block_bytes=size)) for size in (1 << 20, 70_001))
    assert first == second


# Cut and compressed files


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(sample().json()))
    assert len(read_trace(path)) == 8


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_gzip_with_several_members(tmp_path: Path, block_bytes: int) -> None:
    data = sample().json()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data[:900]) + gzip.compress(b"") + gzip.compress(data[900:]))
    trace = read_trace(path, block_bytes=block_bytes)
    assert len(trace) == 8
    assert trace.warnings == ()


def test_size_and_hash_are_those_of_the_file_on_disk(tmp_path: Path) -> None:
    import hashlib

    path = sample().write(tmp_path / "trace.json.gz")
    meta = read_trace(path).meta
    assert meta.size_bytes == path.stat().st_size
    assert meta.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def many(count: int = 300) -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(count):
        builder.op(f"aten::op{number % 7}", start_us=number, dur_us=0.5)
    return builder


def test_cut_json_is_read_up_to_the_last_whole_event(tmp_path: Path) -> None:
    data = many().json()
    trace = load(tmp_path, data[: data.index(b"aten::op3", len(data) // 2)])
    assert 100 < len(trace) < 300
    assert trace.meta.truncated
    assert "up to the last whole event" in trace.warnings[0]


def test_cut_gzip_is_read_up_to_the_last_whole_event(tmp_path: Path) -> None:
    data = gzip.compress(many().json())
    trace = load(tmp_path, data[: len(data) // 2])
    assert 50 < len(trace) < 300
    assert trace.meta.truncated


def test_a_cut_behind_the_events_is_noticed(tmp_path: Path) -> None:
    data = sample().json()
    trace = load(tmp_path, data[: data.rindex(b'"traceName"')])
    assert len(trace) == 8
    assert trace.meta.truncated


def test_rows_that_are_left_out_do_not_count_in_the_order_of_lanes(tmp_path: Path) -> None:
    """Lanes are numbered by the rows that use them."""
    document = sample().op("late", start_us=150, dur_us=1, thread=2).document()
    plain = load(tmp_path, document).lanes
    later = next(event for event in document["traceEvents"] if event.get("name") == "late")
    damaged = {"ph": "X", "cat": "cpu_op", "name": "bad", "ts": 1, "dur": -5}
    document["traceEvents"].insert(0, {**damaged, "pid": later["pid"], "tid": later["tid"]})
    assert load(tmp_path, document).lanes == plain


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace-2-rank00003.json", 3),
        ("attribution-rank00012.json", 12),
        ("rank7.json", None),
        ("my-trace-2-rank00003.json", None),
    ],
)
def test_the_rank_stands_in_the_name_of_gpuprofs_own_recordings(
    tmp_path: Path, name: str, rank: int | None
) -> None:
    """Kineto writes no rank before torch.distributed is set up; others' names promise nothing."""
    trace = TraceBuilder(rank=None).launch_kernel("k", start_us=0, dur_us=5)
    path = trace.write(tmp_path / name)
    assert read_trace(path).meta.rank == rank


def test_a_hole_in_the_file_is_said_with_its_size(tmp_path: Path) -> None:
    """A lost block on a disk reads as zeros: more is missing than the one event that it broke."""
    trace = TraceBuilder()
    for i in range(200):
        trace.launch_kernel("k", launch_us=10 * i, start_us=10 * i + 5, dur_us=3)
    path = trace.write(tmp_path / "trace.json")
    text = bytearray(path.read_bytes())
    middle = len(text) // 2
    text[middle : middle + 8_192] = bytes(8_192)
    path.write_bytes(text)
    read = read_trace(path)
    assert 0 < len(read) < len(trace.trace())
    assert read.meta.truncated
    assert any("0.01 MB within it can't be read" in warning for warning in read.warnings)
