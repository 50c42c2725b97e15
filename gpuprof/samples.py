"""`Samples`: what was sampled over time on one node, as columns.

One `Series` holds one metric of one scope: its times, its values and how each read went. A failed
read is NaN with a status, never 0. `gpuprof.readers.samples` makes it from the sampler's files,
`gpuprof.readers.smi_csv` and its neighbours from nvidia-smi's output.

A scope says what a series belongs to: `gpu:0` (NVML's order), `host`, `rank:3`, `pid:123`,
`nic:eth0`, `ib:mlx5_0/1`. Metric names carry their unit: `_frac` is a share of 1, `_bytes`, `_s`
and `_ns` without `_per_s` are cumulative counters where the name is one of `COUNTERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuprof.sample_format import Number, Status

if TYPE_CHECKING:
    import pandas as pd

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]

COUNTERS: frozenset[str] = frozenset(
    {
        "energy_j", "throttle_power_cap_ns", "throttle_sync_boost_ns", "throttle_board_limit_ns",
        "throttle_sw_thermal_ns", "throttle_hw_thermal_ns", "throttle_power_brake_ns",
        "pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes", "nvlink_rx_bytes",
        "ecc_corrected", "ecc_uncorrected", "remap_corrected", "remap_uncorrected",
        "pcie_replays", "nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors",
        "cpu_busy_s", "cpu_idle_s", "cpu_iowait_s", "cpu_steal_s", "context_switches",
        "major_faults", "pages_swapped_in", "pressure_cpu_some_s", "pressure_io_some_s",
        "pressure_io_full_s", "pressure_mem_some_s", "pressure_mem_full_s", "cgroup_periods",
        "cgroup_throttled_periods", "cgroup_throttled_s", "cgroup_oom_kills", "disk_read_bytes",
        "disk_write_bytes", "disk_busy_s", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped",
        "tx_wait_ticks", "symbol_errors", "link_downed", "cpu_s", "main_thread_cpu_s",
        "switches_voluntary", "switches_involuntary", "minor_faults", "read_bytes",
        "read_cached_bytes", "written_bytes", "workers_cpu_s", "workers_read_bytes",
        "workers_major_faults",
    }
)  # fmt: skip
"""Metrics that only grow; what happened between two samples is their difference."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one scope; all arrays have shape (n,), ordered by time.

    time_ns: when the read began (unix, or from an arbitrary zero: see `Samples.epoch`).
    value: NaN where the read failed. status: a `Status` each.
    read_ns: how long the read took with all others of its tier, 0 where it is not known.
    """

    metric: str
    scope: str
    time_ns: I64
    value: F64
    status: U8
    read_ns: I64

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def ok(self) -> Bools:
        """Which reads succeeded, (n,)."""
        succeeded: Bools = self.status == Status.OK
        return succeeded

    def good(self) -> tuple[I64, F64]:
        """Times and values of the reads that succeeded."""
        ok = self.ok
        return self.time_ns[ok], self.value[ok]

    def rate_per_s(self) -> tuple[I64, F64]:
        """A counter's growth per second between good reads: times of the later ones, rates.

        A counter that runs backwards was reset (or wrapped); that interval is left out.
        """
        time_ns, value = self.good()
        step_s = np.diff(time_ns) / 1e9
        grown = np.diff(value)
        keep = (step_s > 0) & (grown >= 0)
        return time_ns[1:][keep], grown[keep] / step_s[keep]

    def growth(self) -> float:
        """A counter's growth over all good reads, resets left out; NaN below two reads."""
        _, value = self.good()
        if len(value) < 2:
            return float("nan")
        steps = np.diff(value)
        return float(steps[steps > 0].sum())


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU: what does not change. `facts` holds what NVML or nvidia-smi told, by name."""

    index: int
    uuid: str = ""
    name: str = ""
    facts: Mapping[str, Number | str | bool | None] = field(default_factory=dict)
    status: Status = Status.OK
    why: str = ""

    def number(self, name: str) -> float | None:
        """A fact as a number, or None."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class RankFacts:
    """A process of the job; `uuids` are its GPUs, its own one first."""

    pid: int
    rank: int
    uuids: tuple[str, ...] = ()
    cpus: str = ""
    mems: str = ""


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """Something that happened at a moment: an Xid (`data` is its number), an ECC event, …"""

    time_ns: int
    scope: str
    type: str
    data: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process seen on a GPU."""

    time_ns: int
    scope: str
    pid: int
    used_bytes: int | None
    sm_frac: float | None
    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a metric has no values at all."""

    status: Status
    why: str = ""


@dataclass(frozen=True, slots=True)
class Samples:
    """All that was sampled on one node.

    epoch: whether times count from the Unix epoch; else only their differences mean something.
    timed: whether the times were recorded at all; else they are the samples' numbers at an
    assumed interval. windows: scope -> the driver's averaging window of utilization, ns.
    """

    node: str
    source: str
    devices: tuple[DeviceFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    series: Mapping[tuple[str, str], Series] = field(default_factory=dict)
    """(metric, scope) -> Series."""
    missing: Mapping[tuple[str, str], Missing] = field(default_factory=dict)
    """(metric, scope) -> why there is no series."""
    windows: Mapping[str, int] = field(default_factory=dict)
    events: tuple[SampleEvent, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    epoch: bool = True
    timed: bool = True
    truncated: bool = False
    """Whether the recording did not end in order."""

    def get(self, metric: str, scope: str) -> Series | None:
        """The series, or None; `why` then says why."""
        return self.series.get((metric, scope))

    def why(self, metric: str, scope: str) -> Missing | None:
        """Why a metric has no series; None where it has one or was never asked for."""
        return self.missing.get((metric, scope))

    def scopes(self, kind: str) -> list[str]:
        """The scopes of a kind ("gpu", "rank", "nic", …) that have a series, in natural order."""
        found = {scope for _, scope in self.series if scope.split(":")[0] == kind}
        return sorted(found, key=_natural)

    def device(self, scope: str) -> DeviceFacts | None:
        """The GPU behind a scope such as `gpu:0`."""
        return next((d for d in self.devices if scope == f"gpu:{d.index}"), None)

    def gpu_of_rank(self, rank: int) -> str | None:
        """The scope of a rank's own GPU, joined by UUID; None where it is not known."""
        uuids = next((r.uuids for r in self.ranks if r.rank == rank), ())
        return next((f"gpu:{d.index}" for d in self.devices if uuids[:1] == (d.uuid,)), None)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """First and last sample."""
        ends = [(s.time_ns[0], s.time_ns[-1]) for s in self.series.values() if len(s)]
        if not ends:
            return None
        return int(min(first for first, _ in ends)), int(max(last for _, last in ends))

    def frame(self, metric: str) -> pd.DataFrame:
        """One metric of all scopes as a long table: scope, time_ns, value, status."""
        import pandas as pd

        parts = [
            pd.DataFrame(
                {
                    "scope": scope,
                    "time_ns": series.time_ns,
                    "value": series.value,
                    "status": series.status,
                }
            )
            for (name, scope), series in self.series.items()
            if name == metric
        ]
        columns = ["scope", "time_ns", "value", "status"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def series(
    metric: str,
    scope: str,
    time_ns: I64,
    value: F64,
    *,
    status: U8 | None = None,
    read_ns: I64 | None = None,
) -> Series:
    """A series in order of time; where no status is given, NaN means an error."""
    order = np.argsort(time_ns, kind="stable")
    if status is None:
        status = np.where(np.isnan(value), int(Status.ERROR), int(Status.OK)).astype(np.uint8)
    if read_ns is None:
        read_ns = np.zeros(len(time_ns), dtype=np.int64)
    return Series(metric, scope, time_ns[order], value[order], status[order], read_ns[order])


def _natural(scope: str) -> tuple[str, int, str]:
    kind, _, rest = scope.partition(":")
    return kind, int(rest) if rest.isdigit() else -1, rest
