"""Says what a file is that is no Kineto trace."""

from __future__ import annotations

from gpuprof.errors import InputError
from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_columns import CATEGORIES, SPAN_CATEGORY, ColumnBuilder

KINETO_KEYS = ("deviceProperties", "schemaVersion", "baseTimeNanoseconds", "distributedInfo")


def refuse(path: str, stream: EventStream, builder: ColumnBuilder, size_bytes: int) -> None:
    """Raises unless the file held events of a Kineto trace.

    Raises:
        InputError: it did not; the message says what it is instead.
    """
    known = [name for name in builder.categories if name in CATEGORIES or name == SPAN_CATEGORY]
    if known:
        return
    raise InputError(f"{path} is not a Kineto trace", hint="record one with torch.profiler")
