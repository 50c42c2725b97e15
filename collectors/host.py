"""What the node does beside the GPUs: CPU, memory, pressure, quota, shared memory, disks, network.

Everything is read from /proc and /sys, cumulative counters as they are. A file that is not there
is a metric that is not supported, never a 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.collectors.host_cgroup import METRICS as CGROUP_METRICS
from gpuprof.collectors.host_cgroup import Cgroup, parse_flat
from gpuprof.collectors.nvml_readers import Failure, Value
from gpuprof.sample_format import Status

MAX_PORTS = 32
"""At most this many network interfaces and this many InfiniBand ports are recorded."""
SECTOR_BYTES = 512
"""/proc/diskstats counts sectors of 512 bytes whatever the disk says."""
IB_WORD_BYTES = 4
"""port_xmit_data and port_rcv_data count 32-bit words."""

MISSING = Failure(Status.NOT_SUPPORTED, "this kernel does not report it")


@dataclass(frozen=True, slots=True)
class Source:
    """One group of host metrics: `read` yields one value a metric."""

    scope: str
    metrics: tuple[str, ...]
    read: Callable[[], Sequence[Value]]

    def attempt(self) -> list[Value]:
        """The values; an error of the system is a failure of all of them."""
        try:
            return list(self.read())
        except PermissionError as error:
            failed = Failure(Status.NO_PERMISSION, str(error)[:200])
        except (FileNotFoundError, NotADirectoryError):
            failed = MISSING
        except Exception as error:
            failed = Failure(Status.ERROR, str(error)[:200])
        return [failed] * len(self.metrics)


def node_sources(root: Path = Path("/")) -> list[Source]:
    """All sources of this node; `root` is another root folder, for tests."""
    proc, sys = root / "proc", root / "sys"
    cgroup = Cgroup(root=root)
    return [
        Source("host", _CPU, lambda: read_cpu((proc / "stat").read_text())),
        Source("host", _LOAD, lambda: read_load((proc / "loadavg").read_text())),
        Source("host", _MEMORY, lambda: read_memory((proc / "meminfo").read_text())),
        Source("host", _VM, lambda: read_vm((proc / "vmstat").read_text())),
        *(
            Source("host", names, _pressure(proc / "pressure" / kind))
            for kind, names in _PRESSURE.items()
        ),
        Source("host", CGROUP_METRICS, cgroup.read),
        Source("host", _SHM, lambda: read_shm(root / "dev/shm")),
        Source("host", _DISK, lambda: read_disks((proc / "diskstats").read_text(), sys / "block")),
        *_interfaces(proc, sys),
        *_infiniband(sys / "class/infiniband"),
    ]


# ---- CPU and memory ------------------------------------------------------------------------

_CPU = ("cpu_busy_s", "cpu_idle_s", "cpu_iowait_s", "cpu_steal_s", "cpus", "context_switches")


TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def read_cpu(text: str, ticks_per_s: int = TICKS_PER_S) -> list[Value]:
    """From /proc/stat: seconds summed over all CPUs since boot."""
    lines = text.splitlines()
    ticks = [int(word) for word in lines[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (*ticks, *[0] * (8 - len(ticks)))
    switches = next((int(line.split()[1]) for line in lines if line.startswith("ctxt ")), None)
    busy = user + nice + system + irq + softirq
    return [
        *(value / ticks_per_s for value in (busy, idle, iowait, steal)),
        sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit()),
        MISSING if switches is None else switches,
    ]


_LOAD = ("load_1m",)


def read_load(text: str) -> list[Value]:
    return [float(text.split(maxsplit=1)[0])]


_MEMORY = (
    "mem_total_bytes",
    "mem_available_bytes",
    "mem_cached_bytes",
    "mem_dirty_bytes",
    "mem_writeback_bytes",
    "swap_total_bytes",
    "swap_free_bytes",
)
_MEMORY_KEYS = (
    "MemTotal",
    "MemAvailable",
    "Cached",
    "Dirty",
    "Writeback",
    "SwapTotal",
    "SwapFree",
)


def read_memory(text: str) -> list[Value]:
    """From /proc/meminfo."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    kib = {key: int(rest.split()[0]) for key, rest in pairs if rest.split()}
    return [kib[key] * 1024 if key in kib else MISSING for key in _MEMORY_KEYS]


_VM = ("major_faults", "pages_swapped_in")


def read_vm(text: str) -> list[Value]:
    counters = parse_flat(text)
    return [counters.get("pgmajfault", MISSING), counters.get("pswpin", MISSING)]


_PRESSURE = {
    "cpu": ("pressure_cpu_some_s",),
    "io": ("pressure_io_some_s", "pressure_io_full_s"),
    "memory": ("pressure_mem_some_s", "pressure_mem_full_s"),
}


def read_pressure(text: str) -> list[Value]:
    """The totals of a pressure file in seconds: some, then full where there is one.

    "some": at least one task was stalled; "full": all of them were.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        kind, *rest = line.split()
        total = next((word for word in rest if word.startswith("total=")), None)
        if total is not None:
            found[kind] = int(total[6:]) / 1e6
    return [found.get("some", MISSING), found.get("full", MISSING)]


def _pressure(path: Path) -> Callable[[], Sequence[Value]]:
    wanted = len(_PRESSURE[path.name])
    return lambda: read_pressure(path.read_text())[:wanted]


# ---- storage -------------------------------------------------------------------------------

_SHM = ("shm_total_bytes", "shm_free_bytes")


def read_shm(path: Path) -> list[Value]:
    """Shared memory, through which DataLoader workers hand over their batches."""
    facts = os.statvfs(path)
    return [facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize]


_DISK = ("disk_read_bytes", "disk_write_bytes", "disk_busy_s")


def read_disks(text: str, block: Path) -> list[Value]:
    """Sums over whole disks (/sys/block lists them; a partition would count twice)."""
    read = written = busy_ms = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or words[2].startswith(("loop", "ram", "dm-", "md")):
            continue
        if block.is_dir() and not (block / words[2]).exists():
            continue
        read, written = read + int(words[5]), written + int(words[9])
        busy_ms += int(words[12])
    return [read * SECTOR_BYTES, written * SECTOR_BYTES, busy_ms / 1e3]


# ---- network -------------------------------------------------------------------------------

_NIC = ("rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped")


def read_interfaces(text: str) -> dict[str, list[Value]]:
    """Interface -> received and sent bytes, dropped packets, from /proc/net/dev."""
    found: dict[str, list[Value]] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) >= 12:
            found[name.strip()] = [int(words[i]) for i in (0, 8, 3, 11)]
    return found


def _interfaces(proc: Path, sys: Path) -> list[Source]:
    path = proc / "net/dev"
    try:
        names = [name for name in read_interfaces(path.read_text()) if name != "lo"]
    except OSError:
        return []
    real = [name for name in names if (sys / "class/net" / name / "device").exists()] or names

    def source(name: str) -> Source:
        gone: list[Value] = [Failure(Status.LOST, "the interface is gone")] * len(_NIC)
        return Source(
            f"nic:{name}", _NIC, lambda: read_interfaces(path.read_text()).get(name, gone)
        )

    return [source(name) for name in real[:MAX_PORTS]]


_IB = (
    ("rx_bytes", "port_rcv_data", IB_WORD_BYTES),
    ("tx_bytes", "port_xmit_data", IB_WORD_BYTES),
    ("tx_wait_ticks", "port_xmit_wait", 1),
    ("symbol_errors", "symbol_error", 1),
    ("link_downed", "link_downed", 1),
)


def _infiniband(folder: Path) -> list[Source]:
    ports = sorted(folder.glob("*/ports/*"))[:MAX_PORTS] if folder.is_dir() else []

    def source(port: Path) -> Source:
        def read() -> list[Value]:
            return [_counter(port / "counters" / name, scale) for _, name, scale in _IB]

        scope = f"ib:{port.parent.parent.name}/{port.name}"
        return Source(scope, tuple(metric for metric, _, _ in _IB), read)

    return [source(port) for port in ports]


def _counter(path: Path, scale: int) -> Value:
    try:
        return int(path.read_text()) * scale
    except PermissionError:
        return Failure(Status.NO_PERMISSION, f"{path.name} may not be read")
    except (OSError, ValueError):
        return MISSING
