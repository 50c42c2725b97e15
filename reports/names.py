"""The table of names in a timeline: frequent ones first, rare ones left out when they must be."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.reports import text
from gpuprof.reports.lanes import (
    CATEGORIES,
    CLASSES,
    IDLE_CLASS,
    Arranged,
    class_of,
    gap_key,
    merged_key,
)
from gpuprof.reports.linked import HELD
from gpuprof.reports.words import Catalog
from gpuprof.trace import I64, Trace

MAX_NAMES = 60_000
"""Distinct names; ids fit 16 bits in the page."""

MAX_NAME_LENGTH = 240
"""Characters of a name that the page holds: real kernel names reach thousands."""

NAMES_SHARE = 0.25
"""Part of the byte budget that names may take."""


def name_ids(
    traces: Sequence[Trace], chunks: Sequence[Arranged], room_bytes: int, words: Catalog
) -> tuple[list[tuple[str, int]], list[NDArray[np.uint32]], int]:
    """Names by how often they occur, each chunk's ids, and how many names were left out.

    The most frequent names come first, so that most ids take one byte.
    """
    counted: dict[tuple[str, int], int] = {}
    found: list[tuple[list[tuple[str, int]], I64, NDArray[np.int32] | None]] = []
    others = [(words.say("other.name"), index) for index in range(len(CLASSES))]
    cut_off = 0
    for trace, chunk in zip(traces, chunks, strict=True):
        top = (len(trace.names) + 1 + len(HELD)) * CATEGORIES
        if top <= max(4 * len(chunk.key), 65_536):
            counts = np.bincount(chunk.key, minlength=top)
            keys = np.flatnonzero(counts)
            counts = counts[keys]
            local = np.zeros(top, dtype=np.int64)
            local[keys] = np.arange(len(keys))
            events: NDArray[np.int32] | None = chunk.key
        else:  # more names than events: a table of all of them would be larger than the trace
            keys, local, counts = np.unique(chunk.key, return_inverse=True, return_counts=True)
            events = None
        pairs: list[tuple[str, int]] = []
        merged, gap = merged_key(trace), gap_key(trace)
        rare = int(np.sort(counts)[-MAX_NAMES]) if len(keys) > MAX_NAMES else 0
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            if count < rare or (rare == 1 and len(pairs) >= MAX_NAMES):
                pair = others[CLASSES.index(class_of("", key % CATEGORIES))]
                cut_off += 1
            elif key >= gap:
                pair = _gap_name((key - gap) // CATEGORIES, words)
            elif key >= merged:
                kind = class_of("", key % CATEGORIES)
                pair = words.say("merged.name"), CLASSES.index(kind)
            else:
                name = trace.names[key // CATEGORIES]
                kind = class_of(name, key % CATEGORIES)
                pair = text.clean(name, MAX_NAME_LENGTH), CLASSES.index(kind)
            pairs.append(pair)
            counted[pair] = counted.get(pair, 0) + count
        found.append((pairs, local, events))
    names: list[tuple[str, int]] = []
    ids: dict[tuple[str, int], int] = {}
    for pair in sorted(counted, key=lambda item: -counted[item]):
        room_bytes -= len(json.dumps(pair[0])) + 5
        if room_bytes < 0 or len(names) >= MAX_NAMES:
            break
        ids[pair] = len(names)
        names.append(pair)
    left_out = len(counted) - len(names)
    rest = {}
    if left_out:
        rest = {other[1]: len(names) + index for index, other in enumerate(others)}
        names.extend(others)
    left_out += cut_off
    columns = []
    for pairs, local, events in found:
        lookup = [ids[pair] if pair in ids else rest[pair[1]] for pair in pairs]
        lookup.append(0)  # a trace may have no event left, and a table of its names all the same
        column = np.array(lookup, dtype=np.uint32).take(local)
        columns.append(column if events is None else column.take(events))
    return names, columns, left_out


def _gap_name(code: int, words: Catalog) -> tuple[str, int]:
    """What a gap is called, and its class."""
    bucket = HELD[code]
    name = words.say("timeline.idle") if code == 0 else words.name("bucket", bucket)
    return name, CLASSES.index(IDLE_CLASS.get(bucket, "idle"))


def labelled(name: str, index: int) -> list[str | int]:
    """Name, class, and for a kernel the short name that its rectangle is labelled with."""
    if CLASSES[index] in ("compute", "comm"):
        short = text.short_kernel_name(name)
        if short != name:
            return [name, index, short]
    return [name, index]
