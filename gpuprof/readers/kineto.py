"""Reads a Kineto trace (`torch.profiler`'s JSON, gzip or plain, of any version) into a `Trace`.

The file streams through in blocks: memory holds one block of events and the columns. Blocks in
Kineto's own layout are read as they stand (`kineto_scan`), others are decoded. Nothing is trusted:
what cannot be read is left out and counted in `Trace.dropped` and `Trace.warnings`, and a file that
is no Kineto trace is refused in one line that says what it is.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpuprof.pause import without_gc
from gpuprof.readers.files import ByteSource
from gpuprof.readers.jsonstream import EventStream
from gpuprof.readers.kineto_assembly import Assembly
from gpuprof.readers.kineto_columns import ColumnBuilder
from gpuprof.readers.kineto_decode import EventDecoder
from gpuprof.readers.kineto_foreign import refuse
from gpuprof.trace import Trace

if TYPE_CHECKING:
    from gpuprof.readers.kineto_scan import BlockScanner

BLOCK_BYTES = 1 << 22
"""Plain bytes a batch, some 10,000 events, so that calls do not count. On 350 MB of JSON, 1 MiB
took 35 % longer."""

DECODED_BLOCK_BYTES = 1 << 20
"""The same where each event becomes an object, so that these stay in the cache: 4 MiB took 20 %
longer."""

MARGIN_BYTES = 640
"""What has to follow the events of a block for `BlockScanner`."""


def read_trace(path: str | os.PathLike[str], *, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Reads one rank's Kineto trace.

    Args:
        path: A `.json` or `.json.gz` file; gzip is told by its content, not by its name.
        block_bytes: How much of the plain text is decoded at a time. It never changes the result.

    Raises:
        InputError: the file cannot be opened, is something else, or holds no event.
    """
    builder, decoder = ColumnBuilder(), EventDecoder()
    scanner: BlockScanner | None = None
    with ByteSource(path, block_bytes=block_bytes) as source, without_gc():

        def take(text: bytes) -> bool:
            events = decoder.batch(text)
            while events is not None and not builder.add(events):
                decoder.decode_as(builder.record)
                events = decoder.batch(text)
            return events is not None

        def scan(text: bytes, end: int) -> bool | None:
            nonlocal scanner
            if scanner is None:
                from gpuprof.readers.kineto_scan import BlockScanner

                scanner = BlockScanner(builder, decoder)
            done = scanner.take(text, end)
            if scanner.given_up:
                source.block_bytes = min(block_bytes, DECODED_BLOCK_BYTES)
                return None
            return done

        def take_each(texts: list[bytes]) -> None:
            before = decoder.dropped.copy()
            while not builder.add(decoder.one_by_one(texts)):
                decoder.decode_as(builder.record)
                decoder.dropped = before.copy()

        scans = scan if sys.byteorder == "little" else None  # it reads words as x86 and Arm do
        stream = EventStream(source.blocks(), take, take_each, scans, MARGIN_BYTES)
        stream.run()
        source.finish()
        if scanner is not None:
            scanner.close()
    refuse(source.path, stream, builder, source.damaged, decoder.dropped)
    return Assembly(source, stream, builder, decoder).trace()
