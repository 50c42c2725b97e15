"""Allocator events (`profile_memory`) as tables: time, device, bytes, allocated, reserved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_events import INT64_MAX, MAX_DEVICES, Instant
from gpuprof.readers.kineto_times import I64, MAX_US, to_ns

MEMORY_NAME = "[memory]"

DEVICE_TYPE_CPU = 0
"""c10::DeviceType::CPU, the only host type an allocator event carries."""

IMPOSSIBLE = "allocator events with impossible values"


def decoded_memory(events: list[Instant], dropped: Counter[str]) -> I64:
    """The table of those instants that are the allocator's, int64 (5, n)."""
    found = [
        (
            event.ts,
            -1 if args.device_type == DEVICE_TYPE_CPU else args.device_id,
            args.size,
            args.allocated,
            args.reserved,
        )
        for event in events
        if (args := event.args) is not None and args.size is not None and event.name == MEMORY_NAME
    ]
    kept = [
        row
        for row in found
        if abs(row[0]) < MAX_US
        and -1 <= row[1] < MAX_DEVICES
        and all(abs(value) <= INT64_MAX for value in row[2:])
    ]
    dropped[IMPOSSIBLE] += len(found) - len(kept)
    table = np.empty((5, len(kept)), np.int64)
    table[0] = to_ns(np.array([row[0] for row in kept], np.float64))
    for column in range(1, 5):
        table[column] = [row[column] for row in kept]
    return table


def scanned_memory(columns: dict[str, NDArray[Any]], dropped: Counter[str]) -> I64:
    """The same of events that were read without decoding, by their columns."""
    start = columns["ts"]
    table = np.empty((5, len(start)), np.int64)
    table[0] = to_ns(start)
    on_host = columns.get("device_type", np.int64(DEVICE_TYPE_CPU)) == DEVICE_TYPE_CPU
    table[1] = np.where(on_host, -1, columns.get("device_id", np.int64(-1)))
    table[2] = columns["size"]
    table[3] = columns.get("allocated", -1)
    table[4] = columns.get("reserved", -1)
    good = (np.abs(start) < MAX_US) & (table[1] >= -1) & (table[1] < MAX_DEVICES)
    if not good.all():
        dropped[IMPOSSIBLE] += int(len(good) - good.sum())
        table = table[:, good]
    return table
