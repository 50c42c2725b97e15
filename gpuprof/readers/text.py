"""Text that other programs wrote, as whole lines in UTF-8, whatever it came through.

Logs arrive packed, in UTF-16 from a shell on Windows, coloured, and wrapped by what collected
them. One line of the result is one line of the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from gpuprof.readers.files import (
    GZIP_MAGIC,
    SNIFF_BYTES,
    UTF16_MARKS,
    ByteSource,
    head,
    open_file,
    shown,
)
from gpuprof.readers.wrapping import Keep, unwrapped, wrapping_of

CHUNK_BYTES = 8 << 20
"""Large enough that the cost per chunk vanishes, small enough that its lines fit in 50 MB."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is no log line (NCCL cuts its own at 1 KiB): cut, so that memory is bounded."""

MAX_LINE_CHARACTERS = 65_536
MAX_TEXT_BYTES = 512 << 20
"""Of a file that is read line by line: nvidia-smi's log of 8 GPUs at 1 Hz has 50 MB a day."""

MAX_PACKED_BYTES = 256 << 20
"""What is unpacked of a file to see its end: about a second."""


def text_chunks(
    path: Path, keep: Keep = "nothing", damaged: list[str] | None = None
) -> Iterator[bytes]:
    """Chunks of whole lines; carriage returns of Windows and of progress bars are left in.

    Args:
        keep: What of the wrapping is left.
        damaged: Gets a line if the file is compressed and its end is lost.

    Raises:
        InputError: the file cannot be read.
    """
    lines = _whole_lines(_utf8(_blocks(path, damaged)))
    first = next(lines, b"")
    wrapping = wrapping_of(first[:SNIFF_BYTES], keep)
    for data in chain((first,), lines):
        yield wrapping.off(data)


def text_lines(path: Path, keep: Keep = "nothing") -> Iterator[str]:
    """Lines without their ends, each cut at `MAX_LINE_CHARACTERS`, up to `MAX_TEXT_BYTES` in all.

    Raises:
        InputError: the file cannot be read.
    """
    left = MAX_TEXT_BYTES
    for data in text_chunks(path, keep):
        for line in data.splitlines():
            yield line[:MAX_LINE_CHARACTERS].decode("utf-8", "replace")
        left -= len(data)
        if left <= 0:
            return


def text_head(path: Path, count: int = SNIFF_BYTES) -> str:
    """The beginning of a file: `count` bytes, less what wraps its lines.

    Raises:
        InputError: the file cannot be read.
    """
    return text_of(head(path, count))


def text_of(data: bytes) -> str:
    """The text in the first bytes of a file, or in all of them."""
    return unwrapped(utf8_of(data)).decode("utf-8", "replace")


def utf8_of(data: bytes) -> bytes:
    """A part of a file in UTF-8, also where the file is in UTF-16."""
    return b"".join(_utf8(iter((data,))))


def tail(path: Path, count: int) -> bytes:
    """The last bytes of a file's plain content; of a packed one that goes beyond
    `MAX_PACKED_BYTES`, the last before that.

    Raises:
        InputError: the file cannot be read.
    """
    with open_file(path) as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            stream.seek(max(0, path.stat().st_size - count))
            return stream.read(count)
    kept = b""
    passed = 0
    with ByteSource(path, block_bytes=1 << 20) as source:
        for block in source.blocks():
            kept = (kept + block)[-count:]
            passed += len(block)
            if passed > MAX_PACKED_BYTES:
                break
    return kept


def _blocks(path: Path, damaged: list[str] | None) -> Iterator[bytes]:
    with open_file(path) as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            stream.seek(0)
            while block := stream.read(CHUNK_BYTES):
                yield block
            return
    with ByteSource(path, block_bytes=CHUNK_BYTES) as source:
        yield from source.blocks()
        if source.damaged and damaged is not None:
            damaged.append(f"{shown(path)}: {source.damaged}, so its end is missing")


def _utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same text in UTF-8 without a mark, where it is in UTF-16 by its mark or its zeros."""
    first = next(blocks, b"")
    if first.startswith(UTF16_MARKS):
        encoding = "utf-16"
    elif len(first) >= 4 and first[0] and first[1] == 0 and first[2] and first[3] == 0:
        encoding = "utf-16-le"  # without its mark, as an appended log has it
    else:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in chain((first,), blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _whole_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    held = 0
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if (end == 0 and held < MAX_LINE_BYTES) or held + len(block) < CHUNK_BYTES // 2:
            rest.append(block)
            held += len(block)
            continue
        end = end or len(block)
        yield b"".join((*rest, block[:end]))
        rest = [block[end:]]
        held = len(rest[0])
    if held:
        yield b"".join(rest)
