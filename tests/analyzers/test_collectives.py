"""The collectives of one trace."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.traces import TraceBuilder
from gpuprof.analyzers.collective_kinds import CollectiveKind, collective_kind, item_bytes
from gpuprof.analyzers.collectives import find_collectives

OLD = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", CollectiveKind.ALL_REDUCE),
        ("nccl:all_reduce", CollectiveKind.ALL_REDUCE),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", CollectiveKind.ALL_REDUCE),
        ("ncclKernelAllReduceRingLLKernel_sum_f32(ncclColl)", CollectiveKind.ALL_REDUCE),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)", CollectiveKind.ALL_REDUCE),
        ("_allgather_base", CollectiveKind.ALL_GATHER),
        ("nccl:all_gather_into_tensor_coalesced", CollectiveKind.ALL_GATHER),
        ("reduce_scatter_tensor_coalesced", CollectiveKind.REDUCE_SCATTER),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", CollectiveKind.REDUCE_SCATTER),
        ("alltoall_base", CollectiveKind.ALL_TO_ALL),
        (OLD, CollectiveKind.SEND_RECV),
        ("nccl:recv 1<-0", CollectiveKind.SEND_RECV),
        ("gloo:barrier", CollectiveKind.BARRIER),
        ("broadcast", CollectiveKind.BROADCAST),
        ("reduce", CollectiveKind.REDUCE),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", CollectiveKind.UNKNOWN),
        ("ncclDevKernel_Generic_1(ncclDevComm*)", CollectiveKind.UNKNOWN),
    ],
)
def test_kinds_of_all_dialects(name: str, kind: CollectiveKind) -> None:
    """Names of NCCL 2.4 to 2.27, RCCL, gloo and of c10d's own records."""
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4),
        ("BFloat16", 2),
        ("c10::Half", 2),
        ("long int", 8),
        ("Float8_e4m3fn", 1),
        ("", 0),
        ("what", 0),
    ],
)
def test_item_sizes(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size


def test_arguments_on_the_kernel() -> None:
    """PyTorch 2.3 and newer write everything on the kernel itself."""
    trace = (
        TraceBuilder()
        .launch_collective(
            "allreduce", start_us=20, dur_us=30, launch_us=5, elements=1000, dtype="BFloat16",
            ranks=(0, 1, 2, 3), seq=7,
        )
        .trace()
    )  # fmt: skip
    table = find_collectives(trace)
    assert len(table) == 1
    assert table.kind[0] == CollectiveKind.ALL_REDUCE
    assert (table.in_bytes[0], table.out_bytes[0], table.seq[0]) == (2000, 2000, 7)
    assert table.groups[0].name == "0"
    assert table.groups[0].ranks == (0, 1, 2, 3)
    assert table.group_size.tolist() == [4]
    assert table.duration_ns.tolist() == [30_000]
    assert table.issued_ns[0] < table.start_ns[0]


def test_arguments_on_the_record_that_launched_it() -> None:
    """The join: correlation id → runtime call → the record_param_comms around it on its thread."""
    builder = TraceBuilder()
    builder.collective("all_to_all", start_us=0, dur_us=20, elements=64, ranks=(0, 1), seq=3)
    builder.launch_kernel(OLD, launch_us=5, launch_dur_us=3, start_us=40, dur_us=9, stream=20)
    builder.collective("allreduce", start_us=60, dur_us=2, elements=5, seq=4)  # launches nothing
    table = find_collectives(builder.trace())
    assert table.kind.tolist() == [CollectiveKind.ALL_TO_ALL]
    assert (table.in_bytes[0], table.seq[0], table.groups[0].size) == (256, 3, 2)


def test_shapes_of_the_annotation_stand_in_for_missing_arguments() -> None:
    """Traces older than PyTorch 2.3 have no arguments, but "nccl:all_to_all" has its tensors."""
    builder = TraceBuilder()
    builder.op(
        "nccl:all_to_all", start_us=0, dur_us=20, dims=[[8, 1024], [3]], types=["float", "long int"]
    )
    builder.launch_kernel(OLD, launch_us=5, launch_dur_us=3, start_us=40, dur_us=9, stream=20)
    table = find_collectives(builder.trace())
    assert table.kind.tolist() == [CollectiveKind.ALL_TO_ALL]
    assert table.in_bytes.tolist() == [8 * 1024 * 4 + 24]
    assert table.groups[0].name == ""


def test_old_kernels_without_anything() -> None:
    """Sizes and groups stay unknown, streams stand in for groups in the order of first use."""
    builder = TraceBuilder()
    for i, stream in enumerate((31, 20, 31)):
        builder.launch_kernel(
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            launch_us=10 * i, start_us=10 * i + 5, dur_us=3, stream=stream,
        )  # fmt: skip
    table = find_collectives(builder.trace())
    assert table.in_bytes.tolist() == [-1, -1, -1]
    assert [table.groups[i].stream for i in table.communicator.tolist()] == [0, 1, 0]


def test_one_message_in_several_kernels_has_no_size_of_its_own() -> None:
    builder = TraceBuilder().collective("allreduce", start_us=0, dur_us=50, elements=100)
    for i in range(2):
        builder.launch_kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
            launch_us=5 + 10 * i, launch_dur_us=2, start_us=100 + 10 * i, dur_us=5, stream=20,
        )  # fmt: skip
    table = find_collectives(builder.trace())
    assert table.in_bytes.tolist() == [-1, -1]
    assert [group.name for group in table.groups] == ["0"]


def test_collectives_of_the_host_where_there_is_no_device() -> None:
    """gloo runs them on threads of its own; the annotation lasts until all ranks are served."""
    builder = TraceBuilder(backend="gloo")
    builder.op("c10d::allreduce_", start_us=0, dur_us=3)
    builder.annotation("gloo:all_reduce", start_us=5, dur_us=100, thread=9)
    table = find_collectives(builder.trace())
    assert table.kind.tolist() == [CollectiveKind.ALL_REDUCE]
    assert table.event.tolist() == [-1]
    assert table.duration_ns.tolist() == [100_000]


def test_a_trace_without_collectives() -> None:
    table = find_collectives(TraceBuilder().op("aten::mm", start_us=0, dur_us=5).trace())
    assert len(table) == 0
    assert table.group_size.tolist() == []


def test_absurd_sizes_are_unknown() -> None:
    """A damaged number must not become a message of exabytes."""
    builder = TraceBuilder().launch_collective(
        "allreduce", start_us=20, dur_us=30, launch_us=5, elements=10**17
    )
    table = find_collectives(builder.trace())
    assert np.all(table.in_bytes == -1)
