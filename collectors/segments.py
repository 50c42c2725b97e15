"""An append-only file of lines that is bounded in size: whole segments, the middle ones go first.

A line is in the kernel's hands when `write` returns, so a SIGKILL of anybody loses nothing that
was written. Closed segments are compressed. When the sum outgrows its bound, the oldest segment
but the first one is dropped: the start of a run and its recent past stay.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SEGMENT_BYTES = 8 << 20
MAX_BYTES = 256 << 20
"""About a day of 8 GPUs at 10 Hz, compressed."""
RETRY_S = 5.0
"""A full or missing disk is tried again this often; what comes in between is lost, and counted."""


class SegmentWriter:
    """Writes lines to `FOLDER/STEM-0000.jsonl`, `-0001` and so on.

    `head` makes the first lines of a segment from its number. Errors of the disk never raise:
    `failed` says what is wrong, `lost_lines` how much was not written.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        head: Callable[[int], Iterable[bytes]],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._folder, self._stem, self._head = folder, stem, head
        self._segment_bytes, self._max_bytes = segment_bytes, max_bytes
        self._file: int | None = None
        self._identity = (0, 0)
        self._written = 0
        self._number = 1 + max((number for number, _ in self._segments()), default=-1)
        self._torn = False
        self._retry_at_s = 0.0
        self._packer: threading.Thread | None = None
        self.failed = ""
        self.lost_lines = 0
        self.dropped_segments = 0

    def write(self, lines: bytes) -> bool:
        """Appends whole lines; False where they could not be written."""
        if self.failed and time.monotonic() < self._retry_at_s:
            self.lost_lines += lines.count(b"\n")
            return False
        try:
            if not self._is_ours():
                self._shut()
            if self._file is not None and self._written >= self._segment_bytes:
                self._rotate()
            if self._file is None:
                self._open()
            elif os.fstat(self._file).st_nlink == 0:  # written to nobody's use
                raise FileNotFoundError(errno.ENOENT, "the recording was deleted")
            self._append(lines)
        except OSError as error:
            self.failed = error.strerror or str(error)
            self._retry_at_s = time.monotonic() + RETRY_S
            self.lost_lines += lines.count(b"\n")
            self._shut()
            return False
        self.failed = ""
        return True

    def close(self) -> None:
        """Closes the last segment; a compression under way is left to finish by itself."""
        self._shut()

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        if self._torn:  # a short write left half a line: let it end there
            lines = b"\n" + lines
        view = memoryview(lines)
        while view:
            done = os.write(self._file, view)
            self._torn = done < len(view)
            self._written += done
            view = view[done:]

    def _open(self) -> None:
        if not self._folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the output folder is gone")
        path = self._path(self._number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(path, flags, 0o644)
        facts = os.fstat(self._file)
        self._identity = (facts.st_dev, facts.st_ino)
        self._written, self._torn = 0, False
        self._append(b"".join(self._head(self._number)))

    def _rotate(self) -> None:
        closed = self._path(self._number)
        self._shut()
        if self._packer is not None:
            self._packer.join()
        self._packer = threading.Thread(target=self._pack, args=(closed,), daemon=True)
        self._packer.start()

    def _shut(self) -> None:
        if self._file is not None:
            if self._is_ours():
                os.close(self._file)
            self._file = None
            self._number += 1

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the file that was opened.

        A job may close all descriptors that it finds, as daemons do, and the next file that it
        opens gets the number: ours would be written into it, and it would be closed at the end.
        """
        if self._file is None:
            return False
        try:
            facts = os.fstat(self._file)
        except OSError:
            return False
        return (facts.st_dev, facts.st_ino) == self._identity

    def _pack(self, path: Path) -> None:
        """Compresses a closed segment, then drops what is over the bound."""
        packed, work = path.with_name(path.name + ".gz"), path.with_name(path.name + ".gz.tmp")
        try:
            with path.open("rb") as source, gzip.open(work, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target)
            work.replace(packed)
            path.unlink()
        except OSError:
            work.unlink(missing_ok=True)
        try:
            self._drop()
        except OSError:
            return

    def _drop(self) -> None:
        segments = self._segments()
        total = sum(path.stat().st_size for _, path in segments) + self._segment_bytes
        for _, path in segments[1:-1]:
            if total <= self._max_bytes:
                return
            total -= path.stat().st_size
            path.unlink()
            self.dropped_segments += 1

    def _segments(self) -> list[tuple[int, Path]]:
        """The segments on disk with their numbers, oldest first."""
        pattern = re.compile(re.escape(self._stem) + r"-(\d{4,})\.jsonl(\.gz)?")
        if not self._folder.is_dir():
            return []
        found = ((pattern.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}-{number:04}.jsonl"
