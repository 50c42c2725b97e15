"""Reads `nvidia-smi dmon` and `pmon`: columns of text under `#` headers, or their CSV."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuprof.counted import counted
from gpuprof.errors import InputError
from gpuprof.readers.smi_build import (
    ASSUMED_STEP_NS,
    Cell,
    SmiBuilder,
    parse_cell,
    parse_time,
)
from gpuprof.readers.text import text_lines
from gpuprof.sample_format import Status
from gpuprof.samples import GpuProcess, Samples

COLUMNS: dict[str, tuple[str, str]] = {
    "pwr": ("power_w", "W"),
    "gtemp": ("temp_c", "C"),
    "temp": ("temp_c", "C"),
    "mtemp": ("mem_temp_c", "C"),
    "sm": ("util_frac", "%"),
    "mem": ("mem_util_frac", "%"),
    "mclk": ("mem_clock_mhz", "MHz"),
    "pclk": ("sm_clock_mhz", "MHz"),
    "fb": ("mem_used_bytes", "MB"),
    "sbecc": ("ecc_corrected", ""),
    "dbecc": ("ecc_uncorrected", ""),
    "pci": ("pcie_replays", ""),
    "rxpci": ("pcie_rx_bytes_per_s", "MB/s"),
    "txpci": ("pcie_tx_bytes_per_s", "MB/s"),
    "pviol": ("power_violation_frac", "%"),
    "tviol": ("thermal_violation", ""),
}
"""dmon's heading -> metric and the unit that its second heading names."""


def is_smi_monitor(lines: Iterable[str]) -> bool:
    """Whether these first lines are of dmon or pmon."""
    for line in lines:
        if line.strip():
            return line.lstrip().startswith("#") and "gpu" in _words(line)
    return False


def read_smi_monitor(path: Path) -> Samples:
    """The log as samples (dmon) or as processes (pmon).

    Raises:
        InputError: no line of values in it.
    """
    builder = SmiBuilder("nvidia-smi")
    names: list[str] = []
    counts: dict[int, int] = {}
    damaged = values = 0
    for line in text_lines(path):
        words = _words(line)
        if line.lstrip().startswith("#"):
            if "gpu" in words:  # the other heading line names units
                names = words
            continue
        if not words:
            continue
        if not names or len(words) < len(names) or not words[names.index("gpu")].isdigit():
            damaged += 1
            continue
        row = dict(zip(names, words, strict=False))
        gpu = builder.gpu(row["gpu"])
        tick = counts[gpu] = counts.get(gpu, -1) + 1
        parsed = parse_time(f"{row.get('Date', '')} {row.get('Time', '')}".strip())
        if parsed is None:
            builder.timed = False
            time_ns = tick * ASSUMED_STEP_NS
        else:
            builder.epoch, time_ns = False, parsed[0]
        values += 1
        if "pid" in row:
            _add_process(builder, gpu, time_ns, row, " ".join(words[len(names) - 1 :]))
            continue
        for name, (metric, unit) in COLUMNS.items():
            if name in row:
                builder.add(gpu, time_ns, metric, _checked(parse_cell(row[name], unit), unit))
    if not values:
        raise InputError(f"{path}: no line of values in this nvidia-smi log")
    if damaged:
        builder.warnings.append(
            f"{path.name}: {counted(damaged, 'damaged line was', 'damaged lines were')} left out"
        )
    if not builder.timed:
        builder.warnings.append(
            f"{path.name} has no timestamps (dmon -o DT writes them): 1 s between samples assumed"
        )
    return builder.finish()


def _words(line: str) -> list[str]:
    bare = line.strip().lstrip("#").strip()
    return [word.strip() for word in bare.split(",")] if "," in bare else bare.split()


def _checked(cell: Cell, unit: str) -> Cell:
    if unit == "%" and cell.value is not None and not 0 <= cell.value <= 1:
        return Cell(None, unit, Status.ERROR, cell.text)
    return cell


def _add_process(
    builder: SmiBuilder, gpu: int, time_ns: int, row: dict[str, str], command: str
) -> None:
    if not row["pid"].isdigit():
        return  # a GPU without a process has "-" there
    sm = parse_cell(row.get("sm", "-"), "%").value
    used = parse_cell(row.get("fb", "-"), "MB").value
    builder.processes.append(
        GpuProcess(
            time_ns,
            f"gpu:{gpu}",
            int(row["pid"]),
            None if used is None else int(used),
            sm,
            command,
        )
    )
