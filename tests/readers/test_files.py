"""Opening files: `sniff` names a file's kind from its first bytes, whatever its name says."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from fixtures.traces import DIALECTS, Dialect, TraceBuilder
from gpuprof.errors import InputError
from gpuprof.readers import files
from gpuprof.readers.files import ByteSource, encoding_of, sniff

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"
SMI = b"timestamp, utilization.gpu [%], memory.used [MiB]\n2026/04/25 16:06:06.780, 0 %, 2 MiB\n"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_traces_are_told_in_every_dialect(tmp_path: Path, dialect: Dialect, name: str) -> None:
    builder = TraceBuilder().op("aten::mm", start_us=0, dur_us=1)
    assert sniff(builder.write(tmp_path / name, dialect)) == "kineto"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "unknown"),
        (b"hello\n", "unknown"),
        (b'{"a": 1}', "unknown"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "execution-trace"),
        (b"node:7:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n", "nccl-log"),
        (b"something else\nnode:7:9 [0] NCCL WARN Call to connect failed\n", "nccl-log"),
        (SMI, "smi-csv"),
        (b"utilization.gpu [%]\n0 %\n4 %\n", "smi-csv"),
        (SMI.split(b"\n", 1)[1], "smi-csv"),
        (
            b"\x80\x02}q\0(X\x07\0\0\0versionX\x09\0\0\0pg_configX\x09\0\0\0pg_status",
            "flight-recorder",
        ),
        (b'{"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": []}', "flight-recorder"),
    ],
)
def test_kinds_are_told_by_content(tmp_path: Path, data: bytes, kind: str) -> None:
    for packed in (data, gzip.compress(data)):
        path = tmp_path / "input"
        path.write_bytes(packed)
        assert sniff(path) == kind


def test_a_folder_with_a_manifest_is_a_run(tmp_path: Path) -> None:
    assert sniff(tmp_path) == "unknown"
    (tmp_path / "manifest.json").write_text("{}")
    assert sniff(tmp_path) == "run-dir"


@pytest.mark.skipif(not CASES.is_dir(), reason="the real cases are not here")
@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("traces/*/*.json.gz", "kineto"),
        ("nccl/*.gz", "nccl-log"),
        ("utilization/*", "smi-csv"),
        ("flight_recorder/*__dump_*", "flight-recorder"),
    ],
)
def test_real_files_are_told(pattern: str, kind: str) -> None:
    paths = sorted(CASES.glob(pattern))
    assert paths
    assert {str(path): sniff(path) for path in paths if sniff(path) != kind} == {}


def test_content_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small gzip file can hold terabytes of zeros."""
    monkeypatch.setattr(files, "MAX_PLAIN_BYTES", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    with ByteSource(path, block_bytes=1 << 16) as source, pytest.raises(InputError, match="holds"):
        assert all(len(block) <= 1 << 16 for block in source.blocks())


@pytest.mark.parametrize("cut", [1, 5, 12, -1, -6, -9])
def test_a_cut_gzip_file_says_so(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"0123456789" * 100)[:cut])
    with ByteSource(path, block_bytes=64) as source:
        data = b"".join(source.blocks())
    assert (b"0123456789" * 100).startswith(data) or cut == 1
    assert bool(source.damaged) == (cut != 1)


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("at", [-1, -4, -5, -8])
def test_a_wrong_checksum_loses_nothing_and_is_told(
    tmp_path: Path, at: int, block_bytes: int
) -> None:
    """The last 8 bytes are checksum and length: what stands before them is all there."""
    content = bytes(random.Random(1).randbytes(3_000)) + b"0123456789" * 5_000
    packed = bytearray(gzip.compress(content))
    packed[at] ^= 0x55
    path = tmp_path / "wrong.gz"
    path.write_bytes(packed)
    with ByteSource(path, block_bytes=block_bytes) as source:
        assert b"".join(source.blocks()) == content
    assert (source.damaged, "checksum" in source.doubtful) == ("", True)


def test_a_change_within_a_gzip_file_is_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(random.Random(1).randbytes(1_000) + b"a" * 9_000))
    packed[10] = 0xFF  # a kind of block that there is not
    path = tmp_path / "changed.gz"
    path.write_bytes(packed)
    with ByteSource(path, block_bytes=64) as source:
        b"".join(source.blocks())
    assert source.damaged == "the gzip stream is damaged"


@pytest.mark.parametrize(
    ("encoding", "told"),
    [("utf-8", ""), ("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"),
     ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")],
)  # fmt: skip
def test_the_encoding_of_a_text_is_told(encoding: str, told: str) -> None:
    assert encoding_of('{"schemaVersion": 1, "µ": 2}'.encode(encoding)) == told
    assert encoding_of(b"") == encoding_of(bytes(64)) == ""


def test_zeros_behind_a_gzip_file_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "padded.gz"
    path.write_bytes(gzip.compress(b"text") + bytes(100))
    with ByteSource(path, block_bytes=64) as source:
        assert b"".join(source.blocks()) == b"text"
    assert source.damaged == ""
