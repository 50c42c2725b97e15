"""Reading the sampler's recording, whole or damaged."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.errors import InputError
from gpuprof.readers.samples import is_samples, read_samples
from gpuprof.sample_format import (
    FORMAT,
    Clock,
    Columns,
    Device,
    End,
    Event,
    Header,
    Rank,
    Record,
    Ring,
    Row,
    Status,
    StatusChange,
    Window,
    line,
)

UNIX = 1_800_000_000_000_000_000


def header(segment: int = 0, pid: int = 1, version: int = 1) -> Header:
    return Header(format=FORMAT, version=version, segment=segment, node="n", boot_id="b", pid=pid)


def body() -> list[Record]:
    return [
        Clock(t=0, unix=UNIX),
        Device(g=0, uuid="GPU-a", name="X", facts={"pcie_gen_max": 5}),
        Columns(c=1, scope="gpu:0", tier="fast", names=["util_frac", "power_w"]),
        StatusChange(c=1, t=0, s={"ecc_corrected": "not_supported"}, why={"ecc_corrected": "no"}),
        Row(c=1, t=100, d=5, v=[0.5, 300]),
        StatusChange(c=1, t=190, s={"power_w": "lost", "ecc_corrected": "not_supported"}),
        Row(c=1, t=200, d=5, v=[0.6, None]),
        StatusChange(c=1, t=290, s={"ecc_corrected": "not_supported"}),
        Row(c=1, t=300, d=5, v=[0.7, 310]),
        Row(c=1, t=400, d=5, v=[None, 320]),
        Ring(scope="gpu:0", m="ring_power_w", t=1000, dt=[20, 20], v=[1, 2, 3]),
        Window(scope="gpu:0", window_ns=166_667_000, samples=50),
        Rank(pid=9, rank=2, cpus="0-3", mems="0"),
        Rank(pid=9, rank=2, uuids=["GPU-a"]),
        Event(scope="gpu:0", t=350, type="xid", data=79),
    ]


def write(path: Path, records: Sequence[Record]) -> Path:
    data = b"".join(line(record) for record in records)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_rows_become_series_with_their_statuses(tmp_path: Path) -> None:
    write(tmp_path / "n-0000.jsonl", [header(), *body(), End(t=500, why="done")])
    (found,) = read_samples(tmp_path)
    power, util = found.series["power_w", "gpu:0"], found.series["util_frac", "gpu:0"]
    assert power.time_ns.tolist() == [UNIX + t for t in (100, 200, 300, 400)]
    assert power.status.tolist() == [Status.OK, Status.LOST, Status.OK, Status.OK]
    assert np.isnan(power.value[1])
    # A null that no status explains is an error, never a 0.
    assert util.status.tolist() == [Status.OK, Status.OK, Status.OK, Status.ERROR]
    assert util.read_ns.tolist() == [5, 5, 5, 5]
    why = found.why("ecc_corrected", "gpu:0")
    assert why is not None
    assert (why.status, why.why) == (Status.NOT_SUPPORTED, "no")
    ring = found.series["ring_power_w", "gpu:0"]
    assert ring.time_ns.tolist() == [UNIX + 1000, UNIX + 21_000, UNIX + 41_000]
    assert found.windows == {"gpu:0": 166_667_000}
    assert found.ranks[0].uuids == ("GPU-a",)
    assert found.ranks[0].cpus == "0-3"
    assert found.gpu_of_rank(2) == "gpu:0"
    assert found.events[0].time_ns == UNIX + 350
    assert not found.truncated


def test_segments_join_and_a_compressed_twin_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "n-0000.jsonl", [header(), *body()])
    write(tmp_path / "n-0000.jsonl.gz", [header(), *body()])
    more = [Clock(t=0, unix=UNIX), body()[2], Row(c=1, t=900, v=[1.0, 1])]
    write(tmp_path / "n-0001.jsonl.gz", [header(1), *more])
    (found,) = read_samples(tmp_path)
    assert len(found.series["util_frac", "gpu:0"]) == 5


def test_columns_of_another_sampler_are_other_columns(tmp_path: Path) -> None:
    """A sampler that was started again counts its columns anew."""
    write(tmp_path / "n-0000.jsonl", [header(pid=1), *body()])
    other = [Columns(c=1, scope="host", tier="host", names=["cpus"]), Row(c=1, t=900, v=[8])]
    write(tmp_path / "n-0001.jsonl", [header(1, pid=2), Clock(t=0, unix=UNIX), *other])
    (found,) = read_samples(tmp_path)
    assert found.series["cpus", "host"].value.tolist() == [8]
    assert len(found.series["util_frac", "gpu:0"]) == 4


@pytest.mark.parametrize("number", [2**63, -(2**70), 10**400])
def test_a_number_that_no_column_holds_is_a_damaged_line(tmp_path: Path, number: int) -> None:
    lines = b"".join(map(line, [header(), *body()]))
    for text in ('{"k":"row","c":1,"t":%d,"v":[0.5,1]}', '{"k":"row","c":1,"t":5,"v":[0.5,%d]}'):
        lines += (text % number).encode() + b"\n"
    (tmp_path / "n-0000.jsonl").write_bytes(lines)
    (found,) = read_samples(tmp_path)
    assert len(found.series["util_frac", "gpu:0"]) == 4
    assert "2 damaged lines" in " ".join(found.warnings)


@pytest.mark.parametrize("number", ["1e308", "-1e300", "4e19"])
def test_a_number_that_no_counter_reaches_is_a_damaged_line(tmp_path: Path, number: str) -> None:
    """A sum over a curve with one of them in it overflows."""
    text = f'{{"k":"row","c":1,"t":5,"v":[{number},1]}}\n'
    (tmp_path / "n-0000.jsonl").write_bytes(
        b"".join(map(line, [header(), *body()])) + text.encode()
    )
    (found,) = read_samples(tmp_path)
    assert found.series["util_frac", "gpu:0"].value.tolist()[:3] == [0.5, 0.6, 0.7]
    assert "1 damaged line" in " ".join(found.warnings)


def test_a_clock_that_is_set_is_followed(tmp_path: Path) -> None:
    records = [
        header(),
        Clock(t=0, unix=UNIX),
        Columns(c=1, scope="host", tier="host", names=["cpus"]),
        Row(c=1, t=0, v=[1]),
        Row(c=1, t=50, v=[1]),
        Row(c=1, t=100, v=[1]),
        Clock(t=100, unix=UNIX + 100 + 1000),
    ]
    write(tmp_path / "n-0000.jsonl", records)
    (found,) = read_samples(tmp_path)
    steps = (found.series["cpus", "host"].time_ns - UNIX).tolist()
    assert steps == [0, 550, 1100]


def test_a_newer_format_is_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "n-0000.jsonl", [header(version=99)])
    with pytest.raises(InputError, match="format version 99"):
        read_samples(tmp_path)


def test_foreign_files_are_no_recording(tmp_path: Path) -> None:
    (tmp_path / "n-0000.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "other.txt").write_text("x")
    assert not is_samples(tmp_path)
    with pytest.raises(InputError, match="no recording"):
        read_samples(tmp_path)


def test_lines_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "n-0000.jsonl", [header(), *body()])
    path.write_bytes(path.read_bytes() + b'{"k":"future","x":1}\n[[[\n')
    (found,) = read_samples(tmp_path)
    assert len(found.series["util_frac", "gpu:0"]) == 4
    assert "2 damaged lines" in found.warnings[0]


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), packed=st.booleans())
def test_cut_off_anywhere_it_yields_what_was_whole(
    cut: float, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = write(folder / f"n-0000.jsonl{'.gz' if packed else ''}", [header(), *body()])
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    try:
        (found,) = read_samples(folder)
    except InputError:
        assert cut < 0.5  # the header is not whole: this is no recording yet
        return
    assert found.truncated
    for one in found.series.values():
        assert len(one.time_ns) == len(one.value) == len(one.status)
        assert (np.isnan(one.value) == (one.status != Status.OK)).all()


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200), at=st.floats(0, 1))
def test_noise_in_the_middle_never_raises(
    noise: bytes, at: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("noise")
    path = write(folder / "n-0000.jsonl", [header(), *body()])
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    middle = first + int(at * (len(data) - first))
    path.write_bytes(data[:middle] + noise + data[middle:])
    read_samples(folder)
