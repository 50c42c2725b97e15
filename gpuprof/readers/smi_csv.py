"""Reads `nvidia-smi --query-gpu=… --format=csv` logs: with a header, without, or with many of them.

Without a header the columns are told by their units and order, which only works where the units
are there; what was assumed is a warning of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuprof.counted import agrees, counted
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
from gpuprof.samples import Samples


@dataclass(frozen=True, slots=True)
class Column:
    """What a query field becomes. kind: metric, fact, id (tells GPUs apart), time or bit."""

    name: str
    kind: str = "metric"
    unit: str = ""
    bit: int = 0


_MIB, _PERCENT, _REASON = "MiB", "%", "throttle_reasons"
FIELDS: dict[str, Column] = {
    "timestamp": Column("timestamp", "time"),
    "index": Column("index", "id"),
    "uuid": Column("uuid", "id"),
    "gpu_uuid": Column("uuid", "id"),
    "pci.bus_id": Column("pci_bus_id", "id"),
    "gpu_bus_id": Column("pci_bus_id", "id"),
    "name": Column("name", "fact"),
    "gpu_name": Column("name", "fact"),
    "driver_version": Column("driver", "fact"),
    "memory.total": Column("mem_total_bytes", "fact", _MIB),
    "clocks.max.sm": Column("sm_clock_max_mhz", "fact"),
    "clocks.max.memory": Column("mem_clock_max_mhz", "fact"),
    "clocks.max.mem": Column("mem_clock_max_mhz", "fact"),
    "pcie.link.gen.max": Column("pcie_gen_max", "fact"),
    "pcie.link.width.max": Column("pcie_width_max", "fact"),
    "power.default_limit": Column("power_default_w", "fact"),
    "utilization.gpu": Column("util_frac", unit=_PERCENT),
    "utilization.memory": Column("mem_util_frac", unit=_PERCENT),
    "memory.used": Column("mem_used_bytes", unit=_MIB),
    "memory.free": Column("mem_free_bytes", unit=_MIB),
    "power.draw": Column("power_w"),
    "power.draw.instant": Column("power_w"),
    "power.draw.average": Column("power_mean_w"),
    "power.limit": Column("power_limit_w"),
    "enforced.power.limit": Column("power_limit_w"),
    "temperature.gpu": Column("temp_c"),
    "temperature.memory": Column("mem_temp_c"),
    "clocks.sm": Column("sm_clock_mhz"),
    "clocks.current.sm": Column("sm_clock_mhz"),
    "clocks.gr": Column("gr_clock_mhz"),
    "clocks.current.graphics": Column("gr_clock_mhz"),
    "clocks.mem": Column("mem_clock_mhz"),
    "clocks.current.memory": Column("mem_clock_mhz"),
    "pcie.link.gen.current": Column("pcie_gen"),
    "pcie.link.gen.gpucurrent": Column("pcie_gen"),
    "pcie.link.width.current": Column("pcie_width"),
    "ecc.errors.corrected.volatile.total": Column("ecc_corrected"),
    "ecc.errors.uncorrected.volatile.total": Column("ecc_uncorrected"),
    "remapped_rows.correctable": Column("remap_corrected"),
    "remapped_rows.uncorrectable": Column("remap_uncorrected"),
    "remapped_rows.pending": Column("remap_pending"),
    "remapped_rows.failure": Column("remap_failed"),
    **{
        f"{prefix}.{name}": Column(_REASON, "bit" if bit else "metric", bit=bit)
        for prefix in ("clocks_throttle_reasons", "clocks_event_reasons")
        for name, bit in {
            "active": 0,
            "gpu_idle": 0x1,
            "applications_clocks_setting": 0x2,
            "sw_power_cap": 0x4,
            "hw_slowdown": 0x8,
            "sync_boost": 0x10,
            "sw_thermal_slowdown": 0x20,
            "hw_thermal_slowdown": 0x40,
            "hw_power_brake_slowdown": 0x80,
        }.items()
    },
}
_IDS = ("uuid", "pci_bus_id", "index")
"""The better key first: an index changes with a reboot."""


def is_smi_csv(lines: Iterable[str]) -> bool:
    """Whether these first lines look like a --query-gpu log, with a header or with units."""
    for line in lines:
        if line.strip():
            return bool(header(line)) or _guess(_cells(line)) is not None
    return False


def header(line: str) -> list[Column | None] | None:
    """The columns of a header line (None for a field that is not used), or None for other lines."""
    names = [re.sub(r"\s*\[[^\]]*\]", "", cell).strip() for cell in _cells(line)]
    known = [FIELDS.get(name) for name in names]
    looks = all(re.fullmatch(r"[a-z_]+[a-z0-9_.]*", name) for name in names)
    return known if looks and any(known) else None


def read_smi_csv(path: Path) -> Samples:
    """The log as samples, one series a metric and GPU.

    Raises:
        InputError: it is empty, or its columns cannot be told.
    """
    builder = SmiBuilder("nvidia-smi")
    columns: list[Column | None] | None = None
    rows: list[list[str]] = []
    damaged, guessed = 0, False
    for line in text_lines(path):
        if not line.strip():
            continue
        new = header(line)
        if new is not None:
            if columns is not None and new != columns:
                _add_rows(builder, columns, rows)
                rows = []
            columns = new
            continue
        cells = _cells(line)
        if columns is None:
            columns = _guess(cells)
            if columns is None:
                raise InputError(
                    f"{path}: no header and no units, so the columns cannot be told",
                    hint="log with --format=csv (without noheader,nounits)",
                )
            guessed = True
        if len(cells) == len(columns):
            rows.append(cells)
        else:
            damaged += 1
    if columns is None or not rows:
        raise InputError(f"{path}: no sample in it")
    if guessed:
        columns = _used_and_free(columns, rows)
        named = ", ".join(column.name if column else "?" for column in columns)
        builder.warnings.append(f"{path.name} has no header; its columns were taken as {named}")
    _add_rows(builder, columns, rows)
    if damaged:
        builder.warnings.append(
            f"{path.name}: {counted(damaged, 'line')} with other columns"
            f" {agrees(damaged, 'was', 'were')} left out"
        )
    if not builder.timed:
        builder.warnings.append(f"{path.name} has no timestamps: durations are unknown")
    return builder.finish()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _add_rows(builder: SmiBuilder, columns: list[Column | None], rows: list[list[str]]) -> None:
    at = {column.name: i for i, column in enumerate(columns) if column is not None}
    time_at = at.get("timestamp")
    key_at = next((at[name] for name in _IDS if name in at), None)
    order: dict[str, int] = {}
    for number, cells in enumerate(rows):
        stamp = cells[time_at] if time_at is not None else ""
        parsed = parse_time(stamp) if time_at is not None else None
        if time_at is not None and parsed is None:
            continue
        if key_at is not None:
            gpu = builder.gpu(cells[key_at])
        elif stamp:
            # Several GPUs without a name are lines with the same timestamp, in their order.
            order[stamp] = order.get(stamp, -1) + 1
            gpu = builder.gpu(str(order[stamp]))
        else:
            gpu = builder.gpu("0")
        if parsed is None:
            builder.timed = False
            seen = len(builder.points.get((_first_metric(columns), f"gpu:{gpu}"), ()))
            time_ns = (seen if key_at is not None else number) * ASSUMED_STEP_NS
        else:
            time_ns = parsed[0]
            builder.epoch = builder.epoch and parsed[1]
        _add_row(builder, gpu, time_ns, columns, cells)


def _first_metric(columns: list[Column | None]) -> str:
    return next((c.name for c in columns if c is not None and c.kind in ("metric", "bit")), "")


def _add_row(
    builder: SmiBuilder, gpu: int, time_ns: int, columns: list[Column | None], cells: list[str]
) -> None:
    bits, seen_bits = 0, False
    for column, text in zip(columns, cells, strict=True):
        if column is None or column.kind == "time":
            continue
        cell = parse_cell(text, column.unit)
        if column.kind == "bit":
            seen_bits = seen_bits or cell.value is not None
            bits |= column.bit if cell.value else 0
        elif column.kind == "metric":
            builder.add(gpu, time_ns, column.name, _plausible(column, cell))
        elif column.kind == "id" or cell.value is None:
            if cell.status in (Status.OK, Status.ERROR):  # a name is no number, and no failure
                builder.fact(gpu, column.name, text)
        else:
            builder.fact(gpu, column.name, text if column.name == "driver" else cell.value)
    if seen_bits:
        builder.add(gpu, time_ns, "throttle_reasons", Cell(float(bits)))


def _plausible(column: Column, cell: Cell) -> Cell:
    if column.unit == _PERCENT and cell.value is not None and not 0 <= cell.value <= 1:
        return Cell(None, cell.unit, Status.ERROR, cell.text)
    return cell


_GUESSES: dict[str, tuple[str, ...]] = {
    "%": ("utilization.gpu", "utilization.memory"),
    "MiB": ("memory.used", "memory.total"),
    "W": ("power.draw", "power.limit"),
    "MHz": ("clocks.sm", "clocks.mem"),
}
TEMPERATURE_C = (10, 125)
"""A whole number without a unit in this range, beside values with units, is a temperature."""


def _guess(cells: list[str]) -> list[Column | None] | None:
    """Columns of a line without a header, from units and order; None where they do not tell."""
    counts: dict[str, int] = {}
    columns: list[Column | None] = []
    for text in cells:
        cell = parse_cell(text)
        wanted = _GUESSES.get(cell.unit)
        place = counts.get(cell.unit, 0)
        if parse_time(text) is not None and "timestamp" not in counts:
            columns.append(FIELDS["timestamp"])
            counts["timestamp"] = 1
        elif wanted is not None and place < len(wanted):
            columns.append(FIELDS[wanted[place]])
            counts[cell.unit] = place + 1
        elif re.fullmatch(r"GPU-[0-9a-f-]{36}", text):
            columns.append(FIELDS["uuid"])
        elif (
            text.isdigit()
            and TEMPERATURE_C[0] <= int(text) <= TEMPERATURE_C[1]
            and "temperature" not in counts
        ):
            columns.append(FIELDS["temperature.gpu"])
            counts["temperature"] = 1
        else:
            columns.append(None)
    return columns if counts.get("%") else None


def _used_and_free(columns: list[Column | None], rows: list[list[str]]) -> list[Column | None]:
    """The second memory column of a log without a header: a total never changes, free does."""
    total = FIELDS["memory.total"]
    return [
        FIELDS["memory.free"]
        if column is total and len({cells[i] for cells in rows}) > 1
        else column
        for i, column in enumerate(columns)
    ]
