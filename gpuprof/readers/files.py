"""Opening inputs: what kind of file it is, gzip by content, one hash, bounded memory.

`sniff` looks at the first bytes only. `ByteSource` streams a file's plain content whether or not
it is compressed, hashes what it reads from disk on the way, and says afterwards whether the
compressed stream was whole.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from gpuprof.errors import InputError
from gpuprof.readers.wrapping import unwrapped

SNIFF_BYTES = 64 * 1024
"""Enough for a trace's header up to its first events (deviceProperties of 16 GPUs: 8 KiB)."""

DISK_CHUNK_BYTES = 1 << 20
"""Read size: a chunk of gzip makes several blocks, so that few of them are small."""

MAX_PLAIN_BYTES = 64 << 30
"""A trace beyond 64 GiB of JSON is no trace that anyone recorded, but a decompression bomb."""

TRAILER_BYTES = 8
"""Checksum and length at the end of a gzip stream (RFC 1952)."""

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

KINETO_SIGNS = re.compile(
    rb'"traceEvents"|"deviceProperties"|"baseTimeNanoseconds"|"ph"\s*:\s*"[A-Za-z]"'
)
SMI_SIGNS = re.compile(
    rb"utilization\.(?:gpu|memory)|memory\.(?:used|total)|power\.draw|clocks(?:\.\w+)?\.(?:sm|mem)"
)
SMI_VALUE = re.compile(rb"\d (?:%|MiB|W|MHz)(?![\w/])")
NCCL_SIGNS = re.compile(
    rb"\bN(?:CCL) (?:INFO|WARN|TRACE|VERSION|version)|NCCL version \d|RCCL version"
)
EXECUTION_TRACE_SIGNS = re.compile(
    rb'"schema"\s*:\s*"[0-9.]+[^"]*"|"pid"\s*:.*"nodes"\s*:', re.DOTALL
)
FLIGHT_RECORDER_SIGNS = (b"pg_config", b"collective_seq_id", b"pg_status", b"nccl_version")


def shown(path: str | os.PathLike[str]) -> str:
    """A path as text that can be printed and written: bytes that are no UTF-8 stand escaped."""
    return os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
        InputError: it is missing, a folder, no regular file, or may not be read.
    """
    place = Path(path)
    if "\0" in str(place):
        raise InputError("a path cannot hold a NUL character", hint="check the path")
    try:
        if place.is_dir():
            raise InputError(
                f"{place} is a folder, not a trace", hint="name one of the files in it"
            )
        if not place.exists():
            raise InputError(f"{place} does not exist", hint="check the path")
        if not place.is_file():
            raise InputError(f"{place} is not a regular file", hint="copy it to a file first")
        return place.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read {place}", hint=reason) from error


class ByteSource:
    """Streams a file's plain bytes in blocks; decompresses gzip, with any number of members.

    After the blocks are through: `size_bytes` and `sha256` are those of the file on disk,
    `damaged` is "" or says in a few words why the compressed stream yields no more; `doubtful` is
    "" or says what is wrong with a stream whose content is all there. `block_bytes` may change
    between two blocks.
    """

    def __init__(self, path: str | os.PathLike[str], *, block_bytes: int) -> None:
        self.path = str(path)
        self.size_bytes = 0
        self.damaged = ""
        self.doubtful = ""
        self._held = b""
        self.block_bytes = max(1, block_bytes)
        self._hash = hashlib.sha256()
        self._file = open_file(path)

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Yields the plain content in order, in blocks of at most `block_bytes`.

        Raises:
            InputError: the disk fails, or the content goes beyond `MAX_PLAIN_BYTES`.
        """
        first = self._read(min(self.block_bytes, DISK_CHUNK_BYTES) if self.block_bytes > 1 else 2)
        while 0 < len(first) < len(GZIP_MAGIC):
            more = self._read(1)
            if not more:
                break
            first += more
        plain = self._gunzip(first) if first.startswith(GZIP_MAGIC) else self._plain(first)
        total = 0
        for block in plain:
            total += len(block)
            if total > MAX_PLAIN_BYTES:
                raise InputError(
                    f"{self.path} holds more than {MAX_PLAIN_BYTES >> 30} GiB of data",
                    hint="record fewer steps",
                )
            yield block

    def finish(self) -> None:
        """Reads what the consumer left, so that size and hash cover the whole file."""
        while self._read(DISK_CHUNK_BYTES):
            pass

    def _read(self, count: int) -> bytes:
        try:
            data = self._file.read(count)
        except OSError as error:
            raise InputError(f"cannot read {self.path}", hint=error.strerror or "") from error
        self.size_bytes += len(data)
        self._hash.update(data)
        return data

    def _plain(self, first: bytes) -> Iterator[bytes]:
        data = first
        while data:
            yield data
            data = self._read(self.block_bytes)

    def _gunzip(self, first: bytes) -> Iterator[bytes]:
        from isal import isal_zlib

        zlib: Any = isal_zlib

        data = self._ahead(first)
        while True:
            inflater: Any = zlib.decompressobj(wbits=31)
            while not inflater.eof:
                at_end = False
                if not data:
                    # What is decompressed already comes out first: a wrong checksum takes all with
                    # it that its own call would have yielded.
                    while block := inflater.decompress(b"", self.block_bytes):
                        yield block
                    data = self._ahead()
                    at_end = not self._held
                    if not data:
                        self.damaged = "the gzip stream is cut off"
                        return
                try:
                    block = inflater.decompress(data, self.block_bytes)
                except zlib.error:
                    if at_end and len(data) == TRAILER_BYTES:
                        self.doubtful = "the checksum of the gzip stream is wrong"
                    else:
                        self.damaged = "the gzip stream is damaged"
                    return
                data = inflater.unconsumed_tail
                if block:
                    yield block
            data = inflater.unused_data
            while data == b"" or (len(data) < len(GZIP_MAGIC) and GZIP_MAGIC.startswith(data)):
                more = self._ahead()
                if not more:
                    if data:
                        self.damaged = "the gzip stream is cut off"
                    return
                data += more
            if not data.startswith(GZIP_MAGIC):
                if data.strip(b"\0"):
                    self.doubtful = "the gzip stream is followed by other data"
                return

    def _ahead(self, first: bytes = b"") -> bytes:
        """The next bytes from disk, all but the last `TRAILER_BYTES` that were read: those come
        alone when nothing follows. b"" at the end."""
        data = self._held + first
        while len(data) <= TRAILER_BYTES:
            more = self._read(DISK_CHUNK_BYTES)
            if not more:
                self._held = b""
                return data
            data += more
        self._held = data[-TRAILER_BYTES:]
        return data[:-TRAILER_BYTES]


def head(path: str | os.PathLike[str], count: int = SNIFF_BYTES) -> bytes:
    """The first bytes of a file's plain content, decompressed where it is gzip.

    Raises:
        InputError: the file cannot be opened.
    """
    parts: list[bytes] = []
    held = 0
    with ByteSource(path, block_bytes=count) as source:
        for block in source.blocks():
            parts.append(block)
            held += len(block)
            if held >= count:
                break
    return b"".join(parts)[:count]


def sniff(path: str | os.PathLike[str]) -> str:
    """What kind of input a path is, from its first bytes.

    Returns:
        "kineto", "nccl-log", "smi-csv", "flight-recorder", "execution-trace", "run-dir", or
        "unknown" (also for a folder without a manifest.json).

    Raises:
        InputError: the path does not exist or cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        return "run-dir" if (place / "manifest.json").is_file() else "unknown"
    return sniff_bytes(unwrapped(head(place)))


def sniff_bytes(start: bytes) -> str:
    """`sniff` for a file's first plain bytes."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return "unknown"
    if _is_pickle(start) or text[:1] in b"{[":
        # A trace names the process groups and NCCL's version, too: its own signs come first.
        if text[:1] in b"{[" and KINETO_SIGNS.search(text):
            return "kineto"
        if sum(sign in start for sign in FLIGHT_RECORDER_SIGNS) >= 2:
            return "flight-recorder"
        if text[:1] not in b"{[":
            return "unknown"
        if b'"nodes"' in text and EXECUTION_TRACE_SIGNS.search(text):
            return "execution-trace"
        return "unknown"
    first_line = text.split(b"\n", 1)[0]
    if SMI_SIGNS.search(first_line):
        return "smi-csv"
    if NCCL_SIGNS.search(text):
        return "nccl-log"
    if _looks_like_smi_rows(text):
        return "smi-csv"
    return "unknown"


def encoding_of(start: bytes) -> str:
    """The encoding that a text's first bytes give away, where it is not UTF-8; else "".

    By its mark, or by every second byte of ASCII text being zero.
    """
    if start.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    part = start[:16]
    for text, zeros in ((part[::2], part[1::2]), (part[1::2], part[::2])):
        if len(zeros) >= 4 and not any(zeros) and text.isascii() and 0 not in text:
            return "UTF-16"
    return ""


def _is_pickle(start: bytes) -> bool:
    """Pickle protocols 2 to 5 start with PROTO and the protocol's number."""
    return len(start) > 2 and start[0] == 0x80 and start[1] in (2, 3, 4, 5)


def _looks_like_smi_rows(text: bytes) -> bool:
    """An nvidia-smi CSV without a header: the same number of commas and a % or MiB in each row."""
    rows = [row for row in text.split(b"\n")[:5] if row.strip()]
    commas = {row.count(b",") for row in rows}
    return (
        bool(rows)
        and commas != {0}
        and len(commas) == 1
        and all(SMI_VALUE.search(row) for row in rows)
    )
