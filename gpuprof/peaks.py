"""What a device can do at best: dense FLOP/s by data type and device memory bandwidth.

The figures are the vendors', per device as the driver shows it, and each carries its sources
(data/peaks.json). An unknown device is None, never a guess: a wrong denominator makes every
utilization wrong without anyone noticing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAME_LIMIT = 256
"""Device names are a few words; a longer one is not a device name and is not worth matching."""

MEMORY_LOW, MEMORY_HIGH = 0.88, 1.08
"""Reported GiB ÷ nominal GB. Drivers hold some back and ECC takes 1/16 of GDDR (22.0 GiB of a 24 GB
A10G), while HBM parts show their full binary size; neighbouring sizes differ by 20 % or more."""

FALLBACK = {"tf32": "fp32", "fp32_matrix": "fp32", "fp64_matrix": "fp64"}
"""Where matrix units have no mode of their own, the work runs at the plain rate of the type."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The roofs of one device.

    dense_flops: FLOP/s by data type (fp64, fp32, tf32, fp16, bf16, fp8, int8, fp4), without
    structured sparsity. memory_bytes_per_s: device memory, read and write together.
    link_bytes_per_s: NVLink or Infinity Fabric, both directions together, 0 where there is none.
    link_devices: how many cards a bridge connects at most (the vendors' product briefs), 0 for
        modules, which a board connects all.
    """

    name: str
    dense_flops: dict[str, float]
    memory_bytes_per_s: float
    link_bytes_per_s: float
    sm_count: int
    sources: tuple[str, ...]
    note: str = ""
    link_devices: int = 0

    def links_all(self, n_ranks: int) -> bool:
        """Whether its links can connect so many of them."""
        return bool(self.link_bytes_per_s) and not 0 < self.link_devices < n_ranks

    def flops(self, dtype: str, *, matrix: bool | None = None) -> float | None:
        """Dense peak in FLOP/s of a data type, None where the device has no figure for it.

        Args:
            dtype: "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8" or "fp4".
            matrix: Whether the matrix units (tensor cores) do the work; None where not known, which
                stands for the faster of the two. It matters for fp32 and fp64 alone, whose plain
                units have a figure of their own.
        """
        wide = f"{dtype}_matrix"
        if matrix is not False and wide in self.dense_flops:
            return self.dense_flops[wide]
        if dtype not in self.dense_flops:
            dtype = FALLBACK.get(dtype, dtype)
        return self.dense_flops.get(dtype)

    def ridge(self, dtype: str, *, matrix: bool | None = None) -> float | None:
        """Arithmetic intensity, FLOP per byte, above which the type is limited by compute."""
        peak = self.flops(dtype, matrix=matrix)
        return None if peak is None else peak / self.memory_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Entry:
    pattern: re.Pattern[str]
    memory_gb: tuple[float, ...]
    memory_must_be_known: bool
    peaks: Peaks


def lookup(name: str, memory_bytes: int = 0, sm_count: int = 0) -> Peaks | None:
    """The peaks of a device by the name that its driver reports, None for an unknown device.

    What else is known must agree with the entry: a part with fewer SMs (a MIG slice, a laptop
    variant, a cut-down export model) or another memory is another device.

    Args:
        name: For example "NVIDIA H100 80GB HBM3". AMD's generic names say nothing: unknown.
        memory_bytes: Device memory, 0 where not known.
        sm_count: Streaming multiprocessors or compute units, 0 where not known.
    """
    if not name or len(name) > NAME_LIMIT:
        return None
    for entry in _table():
        if not entry.pattern.search(name):
            continue
        if sm_count and sm_count != entry.peaks.sm_count:
            continue
        if not memory_bytes and entry.memory_must_be_known:
            continue
        if memory_bytes and not _memory_agrees(memory_bytes, entry.memory_gb):
            continue
        return entry.peaks
    return None


def find(name: str) -> Peaks | None:
    """The device that a person means by a name, None where there is none. Of several the one with
    the fastest links, and not a card: by "H100" and "A100" people mean the module."""
    if not name or len(name) > NAME_LIMIT:
        return None
    wanted = name.lower().removeprefix("nvidia ")
    table = _table()
    found = [entry.peaks for entry in table if entry.peaks.name.lower().endswith(wanted)]
    found = found or [e.peaks for e in table if wanted in e.peaks.name.lower()]
    found = found or [e.peaks for e in table if e.pattern.search(name)]
    return max(found, key=lambda p: (p.link_bytes_per_s, not p.link_devices), default=None)


def known_devices() -> tuple[Peaks, ...]:
    """Every device of the table, the more specific names first."""
    return tuple(entry.peaks for entry in _table())


def _memory_agrees(memory_bytes: int, nominal_gb: tuple[float, ...]) -> bool:
    return any(MEMORY_LOW <= memory_bytes / 2**30 / size <= MEMORY_HIGH for size in nominal_gb)


@cache
def _table() -> tuple[_Entry, ...]:
    text = files("gpuprof").joinpath("data", "peaks.json").read_text(encoding="utf-8")
    return tuple(
        _Entry(
            pattern=re.compile(device["match"]),
            memory_gb=tuple(device["memory_gb"]),
            memory_must_be_known=device.get("memory_must_be_known", False),
            peaks=Peaks(
                name=device["name"],
                dense_flops={key: value * 1e12 for key, value in device["dense_tflops"].items()},
                memory_bytes_per_s=device["memory_gb_per_s"] * 1e9,
                link_bytes_per_s=device["link_gb_per_s"] * 1e9,
                sm_count=device["sm_count"],
                sources=tuple(device["sources"]),
                note=device.get("note", ""),
                link_devices=device.get("link_devices", 0),
            ),
        )
        for device in json.loads(text)["devices"]
    )
