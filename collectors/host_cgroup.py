"""CPU and memory limits of a process's control group, v1 and v2.

`os.cpu_count()` and the affinity mask ignore a CPU quota: a container with 4 CPUs on a machine
with 96 throttles its DataLoader workers although nothing else shows it.
"""

from __future__ import annotations

from pathlib import Path

from gpuprof.collectors.nvml_readers import Failure, Value
from gpuprof.sample_format import Status

METRICS = (
    "cgroup_cpu_quota_cores",
    "cgroup_periods",
    "cgroup_throttled_periods",
    "cgroup_throttled_s",
    "cgroup_mem_used_bytes",
    "cgroup_mem_limit_bytes",
    "cgroup_oom_kills",
)
UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number close to 2^63."""

_NONE = Failure(Status.NOT_SUPPORTED, "the control group sets no such limit")


def parse_flat(text: str) -> dict[str, int]:
    """A file of `key number` lines, as cpu.stat and memory.events are."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].lstrip("-").isdigit()}


class Cgroup:
    """The limits of process `pid`, looked up once; `read` reads the counters."""

    def __init__(self, pid: int | str = "self", root: Path = Path("/")) -> None:
        mount = root / "sys/fs/cgroup"
        self._cpu: list[Path] = []
        self._memory: list[Path] = []
        paths = _memberships(root / "proc" / str(pid) / "cgroup")
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1
        if self.version == 2:
            self._cpu = self._memory = _upwards(mount, paths.get("", "/"))
        else:
            for name, attribute in (("cpu", "_cpu"), ("memory", "_memory")):
                folder = next(
                    (m for m in (mount / name, mount / "cpu,cpuacct") if m.is_dir()), mount / name
                )
                setattr(self, attribute, _upwards(folder, paths.get(name, "/")))

    def read(self) -> list[Value]:
        """The values of `METRICS`."""
        quota, folder = self._quota()
        stat = parse_flat(_text(folder / "cpu.stat")) if folder is not None else {}
        throttled_s: Value = _NONE
        if "throttled_usec" in stat:
            throttled_s = stat["throttled_usec"] / 1e6
        elif "throttled_time" in stat:
            throttled_s = stat["throttled_time"] / 1e9
        return [
            quota,
            stat.get("nr_periods", _NONE),
            stat.get("nr_throttled", _NONE),
            throttled_s,
            *self._memory_values(),
        ]

    def _quota(self) -> tuple[Value, Path | None]:
        """The tightest quota on the way up, in cores, and the group that sets it."""
        tightest: tuple[float, Path] | None = None
        for folder in self._cpu:
            if self.version == 2:
                words = _text(folder / "cpu.max").split()
            else:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                words = [_text(folder / name).strip() for name in names]
            if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
                continue  # "max", -1 or absent: no limit here
            cores = int(words[0]) / int(words[1])
            if tightest is None or cores < tightest[0]:
                tightest = cores, folder
        if tightest is None:
            return _NONE, self._cpu[0] if self._cpu else None
        return tightest

    def _memory_values(self) -> list[Value]:
        used_name, limit_name, events = (
            ("memory.current", "memory.max", "memory.events")
            if self.version == 2
            else ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control")
        )
        if not self._memory:
            return [_NONE, _NONE, _NONE]
        own = self._memory[0]
        used, kills = _text(own / used_name).strip(), parse_flat(_text(own / events))
        limits = [_text(folder / limit_name).strip() for folder in self._memory]
        finite = [int(x) for x in limits if x.isdigit() and int(x) < UNLIMITED_BYTES]
        return [
            int(used) if used.isdigit() else _NONE,
            min(finite) if finite else _NONE,
            kills.get("oom_kill", _NONE),
        ]


def _memberships(path: Path) -> dict[str, str]:
    """Controller -> group, from /proc/PID/cgroup; "" is version 2's one hierarchy."""
    groups = {}
    for line in _text(path).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return groups


def _upwards(mount: Path, group: str) -> list[Path]:
    """The group's folder and those above it, innermost first.

    Inside a container the path can name the host's hierarchy, which is not mounted here: then the
    mount itself is the container's group.
    """
    folder = mount / group.strip("/")
    if ".." in Path(group).parts or not folder.is_dir():
        folder = mount
    folders = [folder]
    while folder != mount and mount in folder.parents:
        folder = folder.parent
        folders.append(folder)
    return [f for f in folders if f.is_dir()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
