"""Host activity: which label a stretch of host time gets, and which calls wait for the device."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.runs import LOADER, WORKERS_LOADER, Job, training
from fixtures.traces import TraceBuilder
from gpuprof.analyzers.host import (
    SMALL_BYTES,
    Blocking,
    HostActivity,
    host_activity,
    is_loader_name,
)
from gpuprof.analyzers.intervals import total
from gpuprof.analyzers.launches import find_launches
from gpuprof.analyzers.steps import find_marks


def host_of(job: Job | TraceBuilder) -> HostActivity:
    trace = (job.trace if isinstance(job, Job) else job).trace()
    return host_activity(trace, find_launches(trace), find_marks(trace).lane)


def held_us(host: HostActivity, label: str) -> float:
    return sum(total(spans) for spans in host.spans[label].values()) / 1e3


# Labels


@pytest.mark.parametrize(
    "name",
    [
        LOADER,
        WORKERS_LOADER,
        "enumerate(DataPipe)#Mapper.__next__",
        "torch/utils/data/dataloader.py(631): __next__",
        "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py(631): __next__",
        "input",
        "gpuprof.input",
        "## load_data ##",
        "get_batch",
        "dataloading",
    ],
)
def test_loaders_are_known_by_their_names(name: str) -> None:
    assert is_loader_name(name)


@pytest.mark.parametrize(
    "name", ["aten::mm", "input_projection", "forward", "batch_norm", "loader.py(3): f"]
)
def test_other_names_are_no_loader(name: str) -> None:
    assert not is_loader_name(name)


@pytest.mark.parametrize(
    "name", ["torch.save", "checkpoint", "gpuprof.checkpoint", "save_checkpoint", "save_model"]
)
def test_annotated_saves_are_checkpoints(name: str) -> None:
    job = training(3)
    with job.annotation(name):
        job.work(500)
    assert held_us(host_of(job), "checkpoint") == 500


def test_activation_checkpointing_is_no_checkpoint() -> None:
    job = training(3)
    with job.op("CheckpointFunction"):
        job.work(500)
    assert held_us(host_of(job), "checkpoint") == 0


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemMap"])
def test_driver_allocations_are_the_allocators(call: str) -> None:
    job = training(3)
    job.trace.runtime(call, start_us=job.now, dur_us=300, driver=call.startswith("cuMem"))
    assert held_us(host_of(job), "allocator") == 300


@pytest.mark.parametrize("call", ["cudaMallocAsync", "cudaFreeAsync", "cudaMemsetAsync"])
def test_stream_ordered_allocations_do_not_stop_the_host(call: str) -> None:
    job = training(3)
    job.trace.runtime(call, start_us=job.now, dur_us=300)
    assert held_us(host_of(job), "allocator") == 0


def test_the_outer_reason_wins() -> None:
    """A copy and its wait inside torch.save are part of saving, not of `sync`."""
    job = training(3)
    with job.annotation("torch.save"):
        job.item()
        job.work(100)
    host = host_of(job)
    assert held_us(host, "sync") == 0
    assert held_us(host, "checkpoint") > 100


def test_labels_of_one_thread_never_overlap() -> None:
    job = training(4, load_us=200, items=2)
    with job.annotation("torch.save"):
        job.item()
        job.load(50)
    host = host_of(job)
    spans = [s for by_lane in host.spans.values() for s in by_lane.values()]
    starts = np.concatenate([s.start for s in spans])
    ends = np.concatenate([s.end for s in spans])
    order = np.argsort(starts)
    assert (starts[order][1:] >= ends[order][:-1]).all()


# Threads


def test_the_backward_thread_drives_and_the_others_do_not() -> None:
    trace = TraceBuilder()
    for i in range(3):
        trace.step(i, start_us=1_000 * i, dur_us=1_000)
        trace.launch_kernel("f", launch_us=1_000 * i + 5, start_us=1_000 * i + 20, dur_us=100)
        trace.launch_kernel(
            "b", launch_us=1_000 * i + 300, start_us=1_000 * i + 320, dur_us=100, thread=2
        )
        trace.op("aten::copy_", start_us=1_000 * i, dur_us=900, thread=9)
    host = host_of(trace)
    assert len(host.lanes) == 2
    assert host.main_lane in host.lanes


def test_a_thread_that_shows_nothing_lets_the_others_answer() -> None:
    """The backward thread's launch waits for backward() to be called: what the main thread did
    until then (loading) is the reason."""
    trace = TraceBuilder().step(0, start_us=0, dur_us=2_000)
    trace.op(LOADER, start_us=100, dur_us=500)
    trace.launch_kernel("f", launch_us=10, start_us=30, dur_us=20)
    trace.launch_kernel("b", launch_us=1_000, start_us=1_020, dur_us=50, thread=2)
    made = trace.trace()
    launches = find_launches(made)
    host = host_activity(made, launches, find_marks(made).lane)
    backward = launches.lane[1:2]
    charged = host.charge(backward, np.array([trace.ns(50)]), np.array([trace.ns(1_000)]))
    assert charged["input"].tolist() == [500_000]


def test_charging_an_empty_stretch_is_nothing() -> None:
    host = host_of(training(3, load_us=100))
    charged = host.charge(np.array([-1]), np.array([50]), np.array([40]))
    assert all(int(ns.sum()) == 0 for ns in charged.values())


# Blocking calls


@pytest.mark.parametrize("pinned", [False, True])
def test_an_item_is_a_wait_for_a_value(pinned: bool) -> None:
    """The synchronize after the copy is its second half, whichever of the two waits."""
    job = training(2)
    job.item(pinned=pinned)
    kinds = set(host_of(job).blocking.kind.tolist())
    assert kinds == {int(Blocking.TO_HOST)}


@pytest.mark.parametrize(
    ("size", "kind"),
    [(SMALL_BYTES, Blocking.SMALL_TO_DEVICE), (SMALL_BYTES + 1, Blocking.TO_DEVICE)],
)
def test_copies_to_the_device_are_told_apart_at_64_kib(size: int, kind: Blocking) -> None:
    job = training(2)
    job.copy("HtoD (Pageable -> Device)", size, 30, blocking=True)
    assert host_of(job).blocking.kind.tolist() == [int(kind)]


def test_a_copy_whose_call_came_back_early_does_not_block() -> None:
    job = training(2)
    job.copy("HtoD (Pinned -> Device)", 10**6, 300, blocking=False)
    assert len(host_of(job).blocking.row) == 0


@pytest.mark.parametrize(
    "call",
    [
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "hipDeviceSynchronize",
    ],
)
def test_synchronizes_block(call: str) -> None:
    job = training(2)
    job.trace.runtime(call, start_us=job.now, dur_us=100)
    assert host_of(job).blocking.kind.tolist() == [int(Blocking.SYNCHRONIZE)]


def test_asking_an_event_does_not_block() -> None:
    job = training(2)
    job.trace.runtime("cudaEventQuery", start_us=job.now, dur_us=1)
    job.trace.runtime("cudaStreamWaitEvent", start_us=job.now + 2, dur_us=1)
    assert len(host_of(job).blocking.row) == 0


def test_device_rows_alone_record_no_host() -> None:
    trace = TraceBuilder().launch_kernel("k", start_us=0, dur_us=5)
    assert not host_of(trace).recorded
