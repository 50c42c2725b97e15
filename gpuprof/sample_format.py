"""The sampler's file: one JSON record a line, each with its kind in `k`.

The collectors write these records and `gpuprof.readers.samples` reads them; nothing else knows
them. A line is whole or it is the last one. Every segment of a recording repeats the header and
the declarations (columns, devices, ranks, windows, statuses), so that any segment can be read
alone. Times `t` are CLOCK_MONOTONIC nanoseconds of the node; `Clock` records tie them to the epoch.
A value is a number, or null where the read failed: then the last `StatusChange` of the same
columns says why. A failed read is never 0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

FORMAT = "gpuprof-samples"
VERSION = 1

MOST = 2**61
"""Whole numbers beyond this are damage: a sum of three still fits into 64 bits. As ns since 1970 it
is a day of the year 2043."""

Whole = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]
MOST_READ = 2.0**64
"""No counter of a driver or of Linux is wider. What is beyond it is damage, and sums overflow."""

Number = Whole | Annotated[float, msgspec.Meta(ge=-MOST_READ, le=MOST_READ)]


class Status(IntEnum):
    """How a read went."""

    OK = 0
    NOT_SUPPORTED = 1
    """The device, the driver or the kernel does not have it."""
    NO_PERMISSION = 2
    LOST = 3
    """The device fell off the bus or waits for a reset; the process ended."""
    ERROR = 4
    """Anything else, a call without an answer included."""

    @property
    def word(self) -> str:
        return self.name.lower()


STATUS_WORDS: dict[str, Status] = {status.word: status for status in Status}


REASON_BITS: dict[int, str] = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of `throttle_reasons`. The idle bit is no throttling."""


class Record(msgspec.Struct, tag_field="k", omit_defaults=True):
    """What all records share: nothing but the way they are written."""


class Header(Record, tag="header", kw_only=True, omit_defaults=False):
    """First line of each segment."""

    format: str = FORMAT
    version: Whole = VERSION
    segment: Whole
    node: str
    boot_id: str = ""
    pid: Whole
    gpuprof: str = ""


class Clock(Record, tag="clock"):
    """The same moment on both clocks, ns."""

    t: Whole
    unix: Whole


class Columns(Record, tag="columns"):
    """Declares what the values of rows with this `c` are. `scope` is gpu:0, host, rank:3, …"""

    c: Whole
    scope: str
    tier: str
    names: list[str]


class Device(Record, tag="device"):
    """A GPU: its place in NVML's order, its UUID, and what does not change."""

    g: Whole
    uuid: str = ""
    name: str = ""
    facts: dict[str, Number | str | bool | None] = {}
    status: str = Status.OK.word
    why: str = ""


class Rank(Record, tag="rank"):
    """A process of the job on this node. `rank` is -1 where nobody told.

    `uuids` are the GPUs that it can see, in its own order; the first one is its own where it
    uses one. `cpus` and `mems` are the CPUs and NUMA nodes that it may use, as Linux lists them.
    """

    pid: Whole
    rank: Whole = -1
    uuids: list[str] = []
    cpus: str = ""
    mems: str = ""


class StatusChange(Record, tag="status"):
    """All metrics of these columns that cannot be read from `t` on, and why. Empty: all can."""

    c: Whole
    t: Whole
    s: dict[str, str] = {}
    why: dict[str, str] = {}


class Row(Record, tag="row", kw_only=True):
    """One reading: begun at `t`, done `d` ns later."""

    c: Whole
    t: Whole
    d: Whole = 0
    v: list[Number | None]


class Ring(Record, tag="ring"):
    """Values that the driver sampled by itself: the first at `t`, then `dt` µs apart each."""

    scope: str
    m: str
    t: Whole
    dt: list[Whole]
    v: list[Number]


class Window(Record, tag="window"):
    """The window over which the driver averages utilization, measured on this device."""

    scope: str
    window_ns: Whole
    samples: Whole
    clock: str = ""


class Processes(Record, tag="processes"):
    """Who runs on a GPU: (pid, used bytes or null, SM share or null, name) each."""

    scope: str
    t: Whole
    p: list[tuple[int, int | None, float | None, str]]


class Event(Record, tag="event"):
    """Something that happened at a moment: an Xid (`data` is its number), an ECC event, …"""

    scope: str
    t: Whole
    type: str
    data: Whole = 0
    text: str = ""


class Note(Record, tag="note"):
    """The sampler on itself: a restart of the reader, a hung call, dropped segments."""

    t: Whole
    text: str
    scope: str = ""
    call: str = ""


class End(Record, tag="end"):
    """The last line of a recording that ended in order."""

    t: Whole
    why: str


AnyRecord = (
    Header | Clock | Columns | Device | Rank | StatusChange | Row | Ring | Window | Processes
    | Event | Note | End
)  # fmt: skip

_encoder = msgspec.json.Encoder()
decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def line(record: Record) -> bytes:
    """The record as one line of JSON, with its newline."""
    return _encoder.encode(record) + b"\n"


def sticky_key(record: Record) -> tuple[str, object] | None:
    """Under which key a record is repeated at the head of each new segment; None for most."""
    if isinstance(record, Columns | StatusChange):
        return type(record).__name__, record.c
    if isinstance(record, Device):
        return "Device", record.g
    if isinstance(record, Rank):
        return "Rank", record.pid
    if isinstance(record, Window):
        return "Window", record.scope
    return None
