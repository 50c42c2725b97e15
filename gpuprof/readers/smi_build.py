"""What nvidia-smi's outputs have in common: cells, names, times, and the way to `Samples`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from gpuprof.errors import InputError
from gpuprof.sample_format import MOST, Number, Status
from gpuprof.samples import DeviceFacts, GpuProcess, Missing, Samples, Series, series

MAX_GPUS = 128
ASSUMED_STEP_NS = 10**9
"""Interval of samples without a timestamp: nvidia-smi's own default for dmon, and the usual -l 1.
`Samples.timed` is False then, and nobody may conclude anything from durations."""

UNIT_SCALE: dict[str, float] = {
    "MiB": 1 << 20,
    "MB": 1 << 20,  # dmon says MB and means MiB
    "GiB": 1 << 30,
    "KiB": 1 << 10,
    "mW": 1e-3,
    "kB/s": 1e3,
    "KB/s": 1e3,
    "MB/s": 1e6,
}

_STATUS_BY_TEXT: tuple[tuple[str, Status], ...] = (
    ("n/a", Status.NOT_SUPPORTED),
    ("not supported", Status.NOT_SUPPORTED),
    ("deprecated", Status.NOT_SUPPORTED),
    ("requested functionality has been deprecated", Status.NOT_SUPPORTED),
    ("insufficient permissions", Status.NO_PERMISSION),
    ("gpu is lost", Status.LOST),
    ("gpu requires reset", Status.LOST),
    ("unknown error", Status.ERROR),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a number in base units (bytes, shares, watts, …), or why there is none."""

    value: float | None
    unit: str = ""
    status: Status = Status.OK
    text: str = ""


_NUMBER = re.compile(r"([-+]?\d{1,20}(?:\.\d{1,20})?)\s*([^\s\d].*)?")
_MASK = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
"""Both hold what fits into 64 bits; longer ones are damage."""


def parse_cell(text: str, unit: str = "") -> Cell:
    """A cell with or without its unit; `unit` is that of the column where the cell has none.

    >>> parse_cell("1949 MiB").value == 1949 * 2**20, parse_cell("[N/A]").status.name
    (True, 'NOT_SUPPORTED')
    """
    bare = text.strip()
    lowered = bare.strip("[]").lower()
    for words, status in _STATUS_BY_TEXT:
        if lowered.startswith(words):
            return Cell(None, unit, status, bare)
    if bare in ("", "-"):
        return Cell(None, unit, Status.NOT_SUPPORTED, bare)
    if lowered.startswith("0x"):
        if _MASK.fullmatch(bare):
            return Cell(float(int(bare, 16)), "", text=bare)
        return Cell(None, unit, Status.ERROR, bare)
    if lowered in ("active", "enabled", "yes"):
        return Cell(1.0, "", text=bare)
    if lowered in ("not active", "disabled", "no"):
        return Cell(0.0, "", text=bare)
    match = _NUMBER.fullmatch(bare)
    if match is None:
        return Cell(None, unit, Status.ERROR, bare)
    own = (match[2] or unit).strip()
    if own == "x":
        own = ""  # "16x" is a link width
    if own == "%":
        return Cell(float(match[1]) / 100, own, text=bare)
    return Cell(float(match[1]) * UNIT_SCALE.get(own, 1), own, text=bare)


_TIME_FORMATS = (
    "%Y/%m/%d %H:%M:%S.%f",
    "%Y/%m/%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%d %H:%M:%S",
    "%Y%m%d %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
)


def parse_time(text: str) -> tuple[int, bool] | None:
    """Nanoseconds, and whether they count from the epoch; None where it is no time.

    nvidia-smi writes local time without its zone: taken as UTC, it is good for differences only.
    """
    bare = text.strip()
    if re.fullmatch(r"\d{9,10}(\.\d+)?", bare):
        return int(float(bare) * 1e9), True
    if re.fullmatch(r"\d{13}", bare):
        return int(bare) * 10**6, True
    for pattern in _TIME_FORMATS:
        try:
            moment = datetime.strptime(bare, pattern).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        return _unix_ns(moment), False
    try:
        moment = datetime.fromisoformat(bare.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return _unix_ns(moment.replace(tzinfo=timezone.utc)), False
    return _unix_ns(moment), True


def _unix_ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


@dataclass
class SmiBuilder:
    """Collects readings GPU by GPU and makes `Samples` of them.

    A reading that failed is kept as NaN with its status; a metric that never succeeded becomes
    an entry of `missing`.
    """

    source: str
    points: dict[tuple[str, str], list[tuple[int, float, Status]]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    facts: dict[int, dict[str, Number | str | bool | None]] = field(default_factory=dict)
    processes: list[GpuProcess] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    epoch: bool = True
    timed: bool = True

    def gpu(self, key: str) -> int:
        """The index of the GPU with this key (its index, UUID or bus id), by first appearance.

        Raises:
            InputError: the log names more GPUs than a node can hold.
        """
        if key not in self.keys:
            if len(self.keys) >= MAX_GPUS:
                raise InputError(f"more than {MAX_GPUS} GPUs in one nvidia-smi log")
            plain = int(key) if key.isdigit() and int(key) < 10_000 else len(self.keys)
            self.keys[key] = plain if plain not in self.keys.values() else len(self.keys)
        return self.keys[key]

    def add(self, gpu: int, time_ns: int, metric: str, cell: Cell) -> None:
        value = float("nan") if cell.value is None else cell.value
        if abs(time_ns) <= MOST:  # a time beyond it is damage, and no column holds it
            self.points.setdefault((metric, f"gpu:{gpu}"), []).append((time_ns, value, cell.status))

    def fact(self, gpu: int, name: str, value: Number | str) -> None:
        self.facts.setdefault(gpu, {})[name] = value

    def finish(self, node: str = "") -> Samples:
        found: dict[tuple[str, str], Series] = {}
        missing: dict[tuple[str, str], Missing] = {}
        for (metric, scope), points in self.points.items():
            status = np.array([point[2] for point in points], dtype=np.uint8)
            if not (status == Status.OK).any():
                missing[metric, scope] = Missing(Status(int(status[0])), "nvidia-smi had no value")
                continue
            time = np.array([point[0] for point in points], dtype=np.int64)
            value = np.array([point[1] for point in points], dtype=np.float64)
            found[metric, scope] = series(metric, scope, time, value, status=status)
        known = sorted({*self.facts, *self.keys.values()})
        return Samples(
            node=node,
            source=self.source,
            devices=tuple(self._device(index) for index in known),
            series=found,
            missing=missing,
            processes=tuple(self.processes),
            warnings=tuple(self.warnings),
            epoch=self.epoch and self.timed,
            timed=self.timed,
        )

    def _device(self, index: int) -> DeviceFacts:
        facts = self.facts.get(index, {})
        return DeviceFacts(index, str(facts.get("uuid", "")), str(facts.get("name", "")), facts)
