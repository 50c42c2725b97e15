"""Kineto's events as typed records.

Fields that nobody needs are missing here, so that the decoder skips them in C; seldom needed ones
stay raw bytes until a distinct value is met.
"""

from __future__ import annotations

import math
from decimal import Decimal

import msgspec

NAN = math.nan
EMPTY = msgspec.Raw(b"")

INT64_MAX = (1 << 63) - 1

MAX_DEVICES = 1 << 16
"""A larger ordinal is a process id or damage, not a device."""

PHASES = "XiMsftbneBECPNODSTpFvVRIc("
"""The phases of the Chrome format; Kineto rows come from X, i and M, and arrows are s and f."""


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "corr": "correlation",
        "warps": "warps per SM",
        "occupancy": "est. achieved occupancy %",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "old_dims": "Input dims",
        "call_stack": "Call stack",
        "collective": "Collective name",
    },
):
    """`args` of a complete event; the field's name in the file is on the right above.

    Few, and in the file's order: the decoder compares a key that is none of them with each.
    """

    device: int | str | None = None
    stream: int | str | None = None
    corr: int = 0
    warps: float = NAN
    grid: msgspec.Raw = EMPTY
    block: msgspec.Raw = EMPTY
    occupancy: float = NAN
    bytes: int | str | None = None
    old_dims: msgspec.Raw = EMPTY
    dims: msgspec.Raw = EMPTY
    types: msgspec.Raw = EMPTY
    concrete: msgspec.Raw = EMPTY
    call_stack: str = ""
    collective: msgspec.Raw = EMPTY
    cuda_correlation: int = 0
    hip_correlation: int = 0


class WideArgs(
    Args,
    gc=False,
    rename={
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group": "Process Group Name",
        "group_ranks": "Process Group Ranks",
        "group_size": "Group size",
        "rank_start": "Global rank start",
        "rank_stride": "Global rank stride",
        "seq": "Seq",
        "src_rank": "Src Rank",
        "dst_rank": "Dst Rank",
    },
):
    """The same with what a collective has besides."""

    in_elements: msgspec.Raw = EMPTY
    out_elements: msgspec.Raw = EMPTY
    dtype: msgspec.Raw = EMPTY
    group: msgspec.Raw = EMPTY
    group_ranks: msgspec.Raw = EMPTY
    group_size: msgspec.Raw = EMPTY
    rank_start: msgspec.Raw = EMPTY
    rank_stride: msgspec.Raw = EMPTY
    seq: msgspec.Raw = EMPTY
    src_rank: msgspec.Raw = EMPTY
    dst_rank: msgspec.Raw = EMPTY


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False, kw_only=True):
    """A complete event; times in the file's µs.

    Fields in the file's order, too: the decoder expects each behind the one before it.
    """

    cat: str = ""
    name: str
    pid: int | str = ""
    tid: int | str = ""
    ts: float
    dur: float = NAN
    args: Args | None = None


class WideComplete(Complete, tag_field="ph", tag="X", gc=False, kw_only=True):
    """A complete event of a trace whose collectives say what they do."""

    args: WideArgs | None = None


class InstantArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "size": "Bytes",
        "device_id": "Device Id",
        "device_type": "Device Type",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
    },
):
    """`args` of an allocator event."""

    size: int | None = None
    device_id: int = -1
    device_type: int = 0
    allocated: int = -1
    reserved: int = -1


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An instant; Kineto writes allocator events as instants named [memory]."""

    ts: float
    name: str = ""
    args: InstantArgs | None = None


class MetaArgs(msgspec.Struct, gc=False):
    """`args` of a metadata event."""

    name: str = ""
    labels: str = ""


class Metadata(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """A metadata event: names of processes and threads."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetaArgs | None = None


class FlowPoint(msgspec.Struct, tag_field="ph", tag="s", gc=False):
    """One end of an arrow from a launch to its device event; `id` is the correlation id."""

    ts: float
    id: int | str = 0
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""


class FlowEnd(msgspec.Struct, tag_field="ph", tag="f", gc=False):
    """The other end of such an arrow."""

    ts: float
    id: int | str = 0
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""


class ExactComplete(WideComplete, tag_field="ph", tag="X", gc=False, kw_only=True):
    """A complete event whose start keeps every digit that the file has."""

    ts: Decimal  # type: ignore[assignment]
