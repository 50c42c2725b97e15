"""Reads `nvidia-smi -q`: an indented tree a GPU, once or over and over (`-l`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuprof.errors import InputError
from gpuprof.readers.smi_build import (
    ASSUMED_STEP_NS,
    Cell,
    SmiBuilder,
    parse_cell,
    parse_time,
)
from gpuprof.readers.text import text_lines
from gpuprof.samples import GpuProcess, Samples

BANNER = "NVSMI LOG"
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")

METRICS: dict[str, str] = {
    "Utilization/Gpu": "util_frac",
    "Utilization/GPU": "util_frac",
    "Utilization/Memory": "mem_util_frac",
    "FB Memory Usage/Used": "mem_used_bytes",
    "Temperature/GPU Current Temp": "temp_c",
    "Temperature/Memory Current Temp": "mem_temp_c",
    "Power Readings/Power Draw": "power_w",
    "GPU Power Readings/Power Draw": "power_w",
    "GPU Power Readings/Instantaneous Power Draw": "power_w",
    "GPU Power Readings/Average Power Draw": "power_mean_w",
    "Power Readings/Enforced Power Limit": "power_limit_w",
    "GPU Power Readings/Current Power Limit": "power_limit_w",
    "Clocks/SM": "sm_clock_mhz",
    "Clocks/Memory": "mem_clock_mhz",
    "PCI/GPU Link Info/PCIe Generation/Current": "pcie_gen",
    "PCI/GPU Link Info/Link Width/Current": "pcie_width",
    "PCI/Replays Since Reset": "pcie_replays",
    "PCI/Tx Throughput": "pcie_tx_bytes_per_s",
    "PCI/Rx Throughput": "pcie_rx_bytes_per_s",
    "Remapped Rows/Correctable Error": "remap_corrected",
    "Remapped Rows/Uncorrectable Error": "remap_uncorrected",
    "Remapped Rows/Pending": "remap_pending",
    "Remapped Rows/Remapping Failure Occurred": "remap_failed",
}
SUMS: dict[str, str] = {
    "ECC Errors/Volatile/SRAM Correctable": "ecc_corrected",
    "ECC Errors/Volatile/DRAM Correctable": "ecc_corrected",
    "ECC Errors/Volatile/SRAM Uncorrectable": "ecc_uncorrected",
    "ECC Errors/Volatile/SRAM Uncorrectable Parity": "ecc_uncorrected",
    "ECC Errors/Volatile/SRAM Uncorrectable SEC-DED": "ecc_uncorrected",
    "ECC Errors/Volatile/DRAM Uncorrectable": "ecc_uncorrected",
}
FACTS: dict[str, str] = {
    "Product Name": "name",
    "Product Architecture": "architecture",
    "GPU UUID": "uuid",
    "PCI/Bus Id": "pci_bus_id",
    "FB Memory Usage/Total": "mem_total_bytes",
    "Max Clocks/SM": "sm_clock_max_mhz",
    "Max Clocks/Memory": "mem_clock_max_mhz",
    "PCI/GPU Link Info/PCIe Generation/Max": "pcie_gen_max",
    "PCI/GPU Link Info/Link Width/Max": "pcie_width_max",
    "Power Readings/Default Power Limit": "power_default_w",
    "GPU Power Readings/Default Power Limit": "power_default_w",
    "Temperature/GPU Slowdown Temp": "temp_slowdown_c",
    "Temperature/GPU Max Operating Temp": "temp_max_c",
    "Persistence Mode": "persistence",
    "MIG Mode/Current": "mig",
    "ECC Mode/Current": "ecc",
    "GPU Reset Status/Reset Required": "reset_required",
}
REASONS: dict[str, int] = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
_REASON_GROUPS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_TEXT_FACTS = frozenset({"name", "architecture", "uuid", "pci_bus_id", "driver"})


def is_smi_query(lines: Iterable[str]) -> bool:
    """Whether these first lines are of nvidia-smi -q."""
    for line in lines:
        if line.strip():
            return BANNER in line
    return False


def tree(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(path, value) of each line: headings above it joined by "/", depth told by indentation.

    A GPU's heading yields its bus id under the path "GPU"; its own entries start below it.
    """
    stack: list[tuple[int, str]] = []
    for line in lines:
        bare = line.strip()
        if not bare or bare.startswith("="):
            continue
        match = _GPU.fullmatch(bare)
        if match is not None:
            stack = []
            yield "GPU", match[1]
            continue
        indent = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        name, colon, value = bare.partition(" : ")
        path = "/".join([*(heading for _, heading in stack), name.strip()])
        if colon:
            yield path, value.strip()
        else:
            stack.append((indent, bare))


def read_smi_query(path: Path) -> Samples:
    """The log as samples: one sample a GPU and query.

    Raises:
        InputError: no GPU in it.
    """
    builder = SmiBuilder("nvidia-smi")
    gpu, tick = -1, -1
    time_ns = 0
    invalid: set[str] = set()
    reasons: dict[tuple[int, int], int] = {}
    sums: dict[tuple[int, int, str], float] = {}
    process: dict[str, str] = {}
    driver = ""
    for name, value in tree(text_lines(path)):
        if name == "Timestamp":
            tick, gpu = tick + 1, -1
            parsed = parse_time(value)
            builder.timed, builder.epoch = builder.timed and parsed is not None, False
            time_ns = parsed[0] if parsed is not None else tick * ASSUMED_STEP_NS
        elif name == "Driver Version":
            driver = value
        elif name == "GPU":
            gpu = builder.gpu(value)
            builder.fact(gpu, "pci_bus_id", value)
            if driver:
                builder.fact(gpu, "driver", driver)
        elif gpu < 0:
            continue
        elif name.split("/")[-1].startswith("Invalid "):
            invalid.add(name.split("/")[-1])
        elif name.startswith("Processes/"):
            _process_line(builder, (gpu, time_ns), process, name.split("/")[-1], value)
        elif name.split("/")[0] in _REASON_GROUPS:
            bit = REASONS.get(name.split("/")[-1], 0)
            cell = parse_cell(value)
            if bit and cell.value is not None:
                key = gpu, time_ns
                reasons[key] = reasons.get(key, 0) | (bit if cell.value else 0)
        elif name in SUMS:
            counted = parse_cell(value).value
            if counted is not None:
                key_of = gpu, time_ns, SUMS[name]
                sums[key_of] = sums.get(key_of, 0) + counted
        elif name in METRICS:
            builder.add(gpu, time_ns, METRICS[name], parse_cell(value))
        elif name in FACTS:
            _fact(builder, gpu, FACTS[name], value)
    if not builder.keys:
        raise InputError(f"{path}: no GPU in this nvidia-smi -q log")
    for (gpu, time_ns), bits in reasons.items():
        builder.add(gpu, time_ns, "throttle_reasons", Cell(float(bits)))
    for (gpu, time_ns, metric), total in sums.items():
        builder.add(gpu, time_ns, metric, Cell(total))
    if invalid:
        builder.warnings.append(
            f"{path.name}: the driver marks {', '.join(sorted(invalid))} as invalid; left out"
        )
    return builder.finish()


def _fact(builder: SmiBuilder, gpu: int, name: str, value: str) -> None:
    cell = parse_cell(value)
    if name in _TEXT_FACTS:
        builder.fact(gpu, name, value)
    elif cell.value is not None:
        builder.fact(gpu, name, cell.value)


def _process_line(
    builder: SmiBuilder, where: tuple[int, int], process: dict[str, str], name: str, value: str
) -> None:
    """Entries of a process follow each other; the memory it uses is the last of them."""
    gpu, time_ns = where
    if name == "Process ID":
        process.clear()
    process[name] = value
    if name == "Used GPU Memory" and process.get("Process ID", "").isdigit():
        used = parse_cell(value).value
        pid, bytes_used = int(process["Process ID"]), None if used is None else int(used)
        builder.processes.append(
            GpuProcess(time_ns, f"gpu:{gpu}", pid, bytes_used, None, process.get("Name", ""))
        )
