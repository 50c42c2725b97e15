"""Says in one line what a file is that is no Kineto trace, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter

from gpuprof.errors import InputError
from gpuprof.readers.files import encoding_of, sniff_bytes
from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_categories import CATEGORIES
from gpuprof.readers.kineto_columns import ColumnBuilder

KINETO_KEYS = ("deviceProperties", "schemaVersion", "baseTimeNanoseconds", "distributedInfo")
RECORD = "record one with torch.profiler and export_chrome_trace"

MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run git lfs pull"),
    (b"SQLite format 3\0", "an SQLite database, such as nsys exports", RECORD),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it first"),
    (b"BZh", "compressed with bzip2", "decompress it first"),
    (b"\xfd7zXZ", "compressed with xz", "decompress it first"),
    (b"ustar", "a tar archive", "unpack it first"),
    (b"\x89HDF", "an HDF5 file", RECORD),
    (b"\x7fELF", "a program", RECORD),
)
HTML = re.compile(rb"\s*<(?:!doctype html|html|head|\?xml|script)", re.IGNORECASE)
MEMORY_TIMELINE = re.compile(rb"\s*\[\s*(?:\[\s*)?-?\d")
"""A list of times, or of lists of numbers."""

OTHER_KINDS = {
    "nccl-log": "an NCCL log",
    "smi-csv": "an nvidia-smi CSV",
    "flight-recorder": "a flight-recorder dump",
    "execution-trace": "a PyTorch execution trace (Chakra), which has no times on the device",
}


def refuse(
    path: str, stream: EventStream, builder: ColumnBuilder, damaged: str, dropped: Counter[str]
) -> None:
    """Raises unless the file held events of a Kineto trace.

    Args:
        damaged: What is wrong with the compressed stream, "" where nothing is.
        dropped: Events that couldn't be decoded, by reason.

    Raises:
        InputError: it did not; the message says what it is instead.
    """
    known = any(name in CATEGORIES for name in builder.categories)
    kineto = known or any(key in stream.header for key in KINETO_KEYS)
    if builder.rows and kineto:
        return
    if stream.saw_events and kineto:
        lost = sum(builder.dropped.values()) + sum(dropped.values())
        what = "it holds no events"
        if lost:
            what = (
                "its one event can't be read"
                if lost == 1
                else f"none of its {lost:,} events can be read"
            )
        raise InputError(
            f"{path} is a Kineto trace, but {what}",
            hint="record at least one whole step inside the profiler",
        )
    what, todo = _other(stream, builder, damaged, sum(dropped.values()))
    raise InputError(f"{path} {what}", hint=todo)


def _other(stream: EventStream, builder: ColumnBuilder, damaged: str, lost: int) -> tuple[str, str]:
    start, keys = stream.start, stream.header.keys()
    encoding = encoding_of(start)
    if encoding:
        return (
            f"is text in {encoding}, not in UTF-8",
            "save it as UTF-8 (a shell on Windows writes UTF-16 with >)",
        )
    if not start.strip():
        return (f"cannot be read, {damaged}", RECORD) if damaged else ("is empty", RECORD)
    for magic, what, todo in MAGICS:
        if start.startswith(magic) or (magic == b"ustar" and start[257:262] == magic):
            return f"is {what}", todo
    if HTML.match(start):
        return "is a web page, not a trace", "download the raw file"
    kind = sniff_bytes(start)
    if kind in OTHER_KINDS:
        return f"is {OTHER_KINDS[kind]}, not a Kineto trace", RECORD
    if not stream.is_json:
        return "is no JSON, so no Kineto trace", RECORD
    if {"nodes", "schema"} <= keys:
        return f"is {OTHER_KINDS['execution-trace']}", RECORD
    if {"segments", "device_traces"} & keys:
        return "is a CUDA memory snapshot, not a Kineto trace", RECORD
    if any(re.fullmatch(r"cpu|(?:cuda|xpu|hip):\d+", key) for key in keys) or (
        stream.saw_events and not builder.events and MEMORY_TIMELINE.match(start)
    ):
        return "is a memory timeline, not a Kineto trace", RECORD
    if stream.saw_events:
        names = [*builder.process_names.values(), *builder.thread_names.values()]
        if any(name.startswith(("/device:", "/host:")) or "XLA" in name for name in names):
            return "is a TensorFlow or XLA trace, not a Kineto trace", RECORD
        if builder.events:
            found = ", ".join(name[:32] for name in list(builder.categories)[:3] if name)
            return (
                "is a Chrome trace of something else than PyTorch"
                + (f" (categories: {found})" if found else ""),
                RECORD,
            )
        if lost:
            return f"is JSON whose events can't be read ({lost:,} of them)", RECORD
        return "is JSON without events", RECORD
    if stream.truncated:
        return "ends before its traceEvents", "record it again, or copy the whole file"
    return "is JSON without traceEvents, so no Kineto trace", RECORD
