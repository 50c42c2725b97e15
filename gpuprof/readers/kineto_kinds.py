"""What is wanted of each kind of event that is read without decoding."""

from __future__ import annotations

from collections.abc import Callable

from gpuprof.readers.kineto_layout import FLOAT, WHOLE, Layout, Wanted
from gpuprof.readers.kineto_learn import learn
from gpuprof.readers.kineto_slices import SliceCodes

ROW = Wanted(
    numbers={
        b"correlation": ("corr", WHOLE),
        b"cuda_correlation": ("cuda_correlation", WHOLE),
        b"hip_correlation": ("hip_correlation", WHOLE),
        b"device": ("device", WHOLE),
        b"stream": ("stream", WHOLE),
        b"bytes": ("bytes", WHOLE),
        b"warps per SM": ("warps", FLOAT),
        b"est. achieved occupancy %": ("occupancy", FLOAT),
    },
    lists=frozenset(
        (b"grid", b"block", b"Input Dims", b"Input dims", b"Input type", b"Concrete Inputs")
    ),
    unsigned=frozenset((b"correlation", b"cuda_correlation", b"hip_correlation", b"bytes")),
    refused=frozenset((b"ph", b"cat", b"name", b"pid", b"tid", b"ts", b"dur", b"Collective name")),
    empty=frozenset((b"Call stack",)),
)
"""What is read of a complete event behind its first two lines."""

MEMORY = Wanted(
    numbers={
        b"ts": ("ts", FLOAT),
        b"Bytes": ("size", WHOLE),
        b"Device Id": ("device_id", WHOLE),
        b"Device Type": ("device_type", WHOLE),
        b"Total Allocated": ("allocated", WHOLE),
        b"Total Reserved": ("reserved", WHOLE),
    },
    signed=frozenset((b"Bytes", b"Device Id")),
)
"""What is read of an allocator event."""

NOTHING = Wanted(numbers={})
MEMORY_MARK = b'"[memory]"'
DECODED_PHASES = (b'"X"', b'"M"')
"""Phases of which only a decoder knows what is wanted, unless the first line is as usual."""


Learner = Callable[[bytes, int, Callable[[bytes], SliceCodes]], "Layout | None"]


def learn_row(text: bytes, start: int, lists: Callable[[bytes], SliceCodes]) -> Layout | None:
    """The layout of a complete event behind its duration."""
    return learn(text, start, ROW, lists)


def learn_beside(text: bytes, start: int, lists: Callable[[bytes], SliceCodes]) -> Layout | None:
    """The layout of an event of another phase: of the allocator's, or of one to pass over."""
    layout = learn(text, start, NOTHING, lists)
    if layout is None or layout.constants.get(b"ph", DECODED_PHASES[0]) in DECODED_PHASES:
        return None
    if layout.constants.get(b"name") == MEMORY_MARK:
        return learn(text, start, MEMORY, lists)
    return layout
