"""nvidia-smi --query-gpu logs as people keep them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.errors import InputError
from gpuprof.readers.smi import is_smi, read_smi
from gpuprof.readers.smi_build import parse_cell, parse_time
from gpuprof.sample_format import Status

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases/utilization"

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]"
ROWS = [
    "2026/04/25 16:06:06.780, 0, 50 %, 1024 MiB, 300.50 W",
    "2026/04/25 16:06:06.781, 1, [N/A], 2048 MiB, [GPU is lost]",
    "2026/04/25 16:06:07.780, 0, 60 %, 1024 MiB, 310.00 W",
    "2026/04/25 16:06:07.781, 1, [N/A], 2048 MiB, 90.00 W",
]


def log(folder: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_units_gpus_and_failures(tmp_path: Path, encoding: str) -> None:
    """Whatever shell redirected it: PowerShell writes UTF-16."""
    found = read_smi(log(tmp_path, HEADER, *ROWS, encoding=encoding))
    util, power = found.series["util_frac", "gpu:0"], found.series["power_w", "gpu:1"]
    assert util.value.tolist() == [0.5, 0.6]
    assert int(util.time_ns[1] - util.time_ns[0]) == 10**9
    assert found.series["mem_used_bytes", "gpu:1"].value[0] == 2048 * 2**20
    assert power.status.tolist() == [Status.LOST, Status.OK]
    missing = found.why("util_frac", "gpu:1")
    assert missing is not None
    assert missing.status is Status.NOT_SUPPORTED
    assert not found.epoch  # local time without its zone


def test_a_header_may_come_again_and_change(tmp_path: Path) -> None:
    other = "timestamp, index, utilization.gpu [%]"
    lines = [HEADER, ROWS[0], HEADER, ROWS[2], other, "2026/04/25 16:06:08.780, 0, 70 %"]
    found = read_smi(log(tmp_path, *lines))
    assert found.series["util_frac", "gpu:0"].value.tolist() == [0.5, 0.6, 0.7]
    assert len(found.series["power_w", "gpu:0"]) == 2


def test_lines_with_the_same_time_are_several_gpus(tmp_path: Path) -> None:
    lines = ["timestamp, utilization.gpu [%]"]
    lines += [f"2026/04/25 16:06:0{t}.000, {u} %" for t in (1, 2) for u in (10, 20, 30)]
    found = read_smi(log(tmp_path, *lines))
    assert found.scopes("gpu") == ["gpu:0", "gpu:1", "gpu:2"]
    assert found.series["util_frac", "gpu:2"].value.tolist() == [0.3, 0.3]


def test_the_uuid_tells_gpus_apart_better_than_the_order(tmp_path: Path) -> None:
    lines = ["uuid, name, utilization.gpu [%]", "GPU-b, NVIDIA A10, 1 %", "GPU-a, NVIDIA A10, 2 %"]
    found = read_smi(log(tmp_path, *lines, "GPU-a, NVIDIA A10, 4 %"))
    assert [device.uuid for device in found.devices] == ["GPU-b", "GPU-a"]
    assert found.devices[0].name == "NVIDIA A10"
    assert found.series["util_frac", "gpu:1"].value.tolist() == [0.02, 0.04]
    assert not found.timed


def test_reasons_in_one_mask_or_one_by_one(tmp_path: Path) -> None:
    mask = log(tmp_path, "utilization.gpu [%], clocks_throttle_reasons.active", "9 %, 0x0000000024")
    assert read_smi(mask).series["throttle_reasons", "gpu:0"].value.tolist() == [0x24]
    names = "clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_thermal_slowdown"
    single = log(tmp_path, f"utilization.gpu [%], {names}", "9 %, Active, Not Active")
    assert read_smi(single).series["throttle_reasons", "gpu:0"].value.tolist() == [0x4]


def test_without_header_and_units_nothing_is_guessed(tmp_path: Path) -> None:
    path = log(tmp_path, "2026/04/25 16:06:06.780, 0, 50, 1024")
    assert not is_smi(path)
    with pytest.raises(InputError, match="no nvidia-smi output"):
        read_smi(path)


def test_a_total_never_changes_and_free_memory_does(tmp_path: Path) -> None:
    row = "2026/04/25 16:06:0{}.780, 0 %, 0 %, {} MiB, {} MiB, 27, 11 W"
    free = read_smi(log(tmp_path, row.format(1, 2, 100), row.format(2, 5, 97)))
    total = read_smi(log(tmp_path, row.format(1, 2, 100), row.format(2, 5, 100)))
    assert ("mem_free_bytes", "gpu:0") in free.series
    assert total.devices[0].facts["mem_total_bytes"] == 100 * 2**20
    assert "no header" in free.warnings[0]


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    found = read_smi(log(tmp_path, HEADER, *ROWS, "Unable to determine the device handle", "2026/"))
    assert "2 lines" in found.warnings[0]
    assert len(found.series["util_frac", "gpu:0"]) == 2


def test_a_percentage_of_thousands_is_an_error(tmp_path: Path) -> None:
    found = read_smi(log(tmp_path, "utilization.gpu [%]", "6553 %", "50 %"))
    assert found.series["util_frac", "gpu:0"].status.tolist() == [Status.ERROR, Status.OK]


def test_more_gpus_than_a_node_holds_are_refused(tmp_path: Path) -> None:
    lines = ["index, utilization.gpu [%]", *(f"{i}, 5 %" for i in range(200))]
    with pytest.raises(InputError, match="more than 128 GPUs"):
        read_smi(log(tmp_path, *lines))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1764189075", 1764189075),
        ("2026-04-25T16:06:06Z", 1777133166),
        ("1764189075123", 1764189075),
    ],
)
def test_times_from_the_epoch(text: str, seconds: int) -> None:
    parsed = parse_time(text)
    assert parsed is not None
    assert parsed[1]
    assert parsed[0] // 10**9 == seconds


@given(st.text(max_size=40))
def test_any_cell_is_a_number_or_a_failure(text: str) -> None:
    cell = parse_cell(text)
    assert (cell.value is None) == (cell.status is not Status.OK)


@pytest.mark.parametrize("text", ["0x" + "f" * 400, "9" * 400, "9" * 21 + " %", "0x", "0xg"])
def test_a_number_wider_than_a_counter_is_a_failure(text: str) -> None:
    assert parse_cell(text).status is Status.ERROR


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text(max_size=60), max_size=8))
def test_any_text_is_read_or_refused(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "log.csv"
    path.write_text("\n".join([HEADER, *lines]), encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(InputError):
        read_smi(path)


@pytest.mark.skipif(not CASES.is_dir(), reason="the real logs are not here")
def test_real_logs(tmp_path: Path) -> None:
    """Repeated headers without times; unix times without units; no header."""
    found = {path.name: read_smi(path) for path in sorted(CASES.iterdir())}
    alternating = found["alternating-0-100.out"]
    assert len(alternating.series["util_frac", "gpu:0"]) == 271
    assert not alternating.timed
    half = found["half-used.csv"]
    assert half.epoch
    assert half.devices[0].facts["mem_total_bytes"] == 24576 * 2**20
    idle = found["mostly-idle-noheader.csv"]
    assert len(idle.series["power_w", "gpu:0"]) == 1923
    assert ("mem_free_bytes", "gpu:0") in idle.series
