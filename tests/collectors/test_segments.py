"""The recording's file: bounded, whole lines, and no exception whatever the disk does."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
from pathlib import Path

import pytest

from gpuprof.collectors.segments import SegmentWriter


def head(number: int) -> list[bytes]:
    return [f"head {number}\n".encode()]


def fill(writer: SegmentWriter, lines: int) -> None:
    for i in range(lines):
        writer.write(f"{i:07}\n".encode())
    if writer._packer is not None:
        writer._packer.join()


def test_every_segment_begins_with_the_head_and_closed_ones_are_compressed(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n", head, segment_bytes=80)
    fill(writer, 25)
    writer.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "n-0000.jsonl.gz"
    assert names[-1].endswith(".jsonl")
    whole = b""
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        assert text.startswith(b"head ")
        whole += text
    lines = [line for line in whole.splitlines() if not line.startswith(b"head")]
    assert lines == [f"{i:07}".encode() for i in range(25)]


def test_the_sum_stays_bounded_and_the_beginning_stays(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n", head, segment_bytes=800, max_bytes=3000)
    fill(writer, 4000)
    writer.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000 + 800
    assert names[0].startswith("n-0000")
    assert writer.dropped_segments > 0


def test_a_second_writer_goes_on_after_the_first(tmp_path: Path) -> None:
    """A sampler that is started again must not write over what its predecessor left."""
    for _ in range(2):
        writer = SegmentWriter(tmp_path, "n", head)
        writer.write(b"x\n")
        writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n-0000.jsonl", "n-0001.jsonl"]


def test_a_deleted_folder_is_no_exception_and_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = SegmentWriter(folder, "n", head, segment_bytes=10)
    assert writer.write(b"0123456789\n")
    shutil.rmtree(folder)
    assert not writer.write(b"x\n")
    assert not writer.write(b"y\n")
    assert not folder.exists()
    assert writer.failed
    assert writer.lost_lines == 2
    writer.close()


def test_a_full_disk_loses_what_it_must_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that stops in the middle of a line must not spoil the line after it."""
    writer = SegmentWriter(tmp_path, "n", head)
    writer.write(b"one\n")
    real, room = os.write, [2]

    def write(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(file, bytes(data)[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    assert not writer.write(b"two\n")
    assert writer.failed == "No space left on device"
    assert not writer.write(b"three\n")
    assert writer.lost_lines == 2
    monkeypatch.setattr(os, "write", real)
    writer._retry_at_s = 0.0
    assert writer.write(b"four\n")
    writer.close()
    text = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert b"four" in text.splitlines()
    assert b"one" in text.splitlines()


def test_a_job_that_closes_all_descriptors_keeps_its_own_files(tmp_path: Path) -> None:
    """Ours goes on in the next segment, and neither writes into nor closes what took its number."""
    writer = SegmentWriter(tmp_path, "n", head)
    writer.write(b"one\n")
    assert writer._file is not None
    os.close(writer._file)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, writer._file)
    taken = writer._file
    assert writer.write(b"two\n")
    writer.close()
    os.close(taken)  # raises where it was closed for them
    assert (tmp_path / "theirs").read_bytes() == b""
    assert (tmp_path / "n-0001.jsonl").read_bytes() == b"head 1\ntwo\n"


def test_closing_after_the_descriptor_is_gone_is_no_exception(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n", head)
    writer.write(b"one\n")
    assert writer._file is not None
    os.close(writer._file)
    writer.close()


def test_a_descriptor_that_is_gone_is_no_exception(tmp_path: Path) -> None:
    """The next line opens a segment anew."""
    writer = SegmentWriter(tmp_path, "n", head)
    writer.write(b"one\n")
    assert writer._file is not None
    os.close(writer._file)
    assert writer.write(b"two\n")
    writer.close()
    assert (tmp_path / "n-0001.jsonl").read_bytes() == b"head 1\ntwo\n"
