"""`gpuprof doctor`: what can be recorded on this machine, what cannot, why, and the remedy.

Each probe is a function that returns checks; none of them raises, and none takes long.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from gpuprof.collectors.host import node_sources
from gpuprof.collectors.host_cgroup import Cgroup
from gpuprof.collectors.nvml_probe import GpuProbe, Probe
from gpuprof.collectors.nvml_readers import Failure
from gpuprof.counted import counted
from gpuprof.sample_format import Status

State = Literal["ok", "limited", "missing", "broken"]

NVML_TIMEOUT_S = 30.0
"""Without persistence mode the first call into the driver loads it, which takes many seconds."""
SMALL_SHM_BYTES = 1 << 30
"""Docker's default is 64 MiB; a few workers with prefetched batches need more than this."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `remedy` is what to do; "" where nothing needs to be done."""

    name: str
    state: State
    what: str
    why: str = ""
    remedy: str = ""


# ---- GPUs ----------------------------------------------------------------------------------


def probe_nvml(command: Sequence[str] | None = None) -> list[Check]:
    """What the GPU sampler can read here. `command` is another prober, for tests."""
    command = command or [sys.executable, "-m", "gpuprof.collectors.nvml_probe"]
    checks = shadowed_binding()
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=NVML_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [
            *checks,
            Check(
                "nvml",
                "missing",
                "the driver does not answer",
                f"no answer within {NVML_TIMEOUT_S:.0f} s",
                "look for Xids in dmesg; turn on persistence mode (sudo nvidia-smi -pm 1)",
            ),
        ]
    except OSError as error:
        return [*checks, Check("nvml", "missing", "the prober cannot be started", str(error))]
    if done.returncode < 0:
        return [
            *checks,
            Check(
                "nvml",
                "missing",
                "the driver's library crashed",
                f"signal {-done.returncode}",
                "the driver and its library may not match: reinstall the driver, reboot",
            ),
        ]
    try:
        answer = msgspec.json.decode(done.stdout, type=Probe)
    except msgspec.MsgspecError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return [*checks, Check("nvml", "missing", "the prober failed", " ".join(last))]
    return [*checks, *checks_of(answer)]


def checks_of(answer: Probe) -> list[Check]:
    """The prober's answer as checks."""
    if answer.error:
        return [_no_nvml(answer)]
    count = len(answer.gpus)
    if not count:
        return [
            Check(
                "nvml",
                "missing",
                "the driver has no GPU",
                f"driver {answer.driver} lists none",
                "give the container its GPUs (docker run --gpus all)",
            )
        ]
    checks = [Check("nvml", "ok", f"driver {answer.driver}, {counted(count, 'GPU')}")]
    for gpu in answer.gpus:
        checks.extend(_gpu_checks(gpu))
    return checks


def _no_nvml(answer: Probe) -> Check:
    kind = answer.error_kind
    remedies = {
        "NVMLError_LibraryNotFound": "without an NVIDIA GPU nothing is missing; else install the "
        "driver, or start the container with --gpus all",
        "NVMLError_LibRmVersionMismatch": "the driver was updated while loaded: reboot",
        "NVMLError_DriverNotLoaded": "load the driver (sudo modprobe nvidia)",
        "NVMLError_NoPermission": "give this user access to /dev/nvidia*",
        "NVMLError_Unknown": "in a container, `systemctl daemon-reload` on the host takes its "
        "GPUs away: restart the container",
        "ImportError": "uninstall nvidia-ml-py3 and pynvml, then install nvidia-ml-py",
        "ModuleNotFoundError": "pip install nvidia-ml-py",
    }
    return Check("nvml", "missing", "no GPU samples", answer.error, remedies.get(kind, ""))


def _gpu_checks(gpu: GpuProbe) -> list[Check]:
    name = f"gpu:{gpu.index}"
    if gpu.error:
        remedy = "reset the GPU or reboot; look for Xids in dmesg"
        return [Check(name, "missing", "cannot be read", gpu.error, remedy)]
    served = {metric for metrics in gpu.metrics.values() for metric in metrics}
    checks = [Check(name, "ok", f"{gpu.name}: {len(served)} metrics")]
    if "util_frac" not in served:
        word, why = gpu.missing.get("util_frac", ("", ""))
        checks.append(
            Check(
                f"{name} utilization",
                "limited",
                "no utilization curve",
                why or word,
                "a MIG instance has none: GPM takes its place on Hopper and newer",
            )
        )
    if not gpu.metrics.get("gpm"):
        word, why = gpu.missing.get("sm_active_frac", ("not_supported", ""))
        remedy = (
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root"
            if word == Status.NO_PERMISSION.word
            else ""
        )
        checks.append(
            Check(
                f"{name} GPM",
                "limited",
                "SM activity, tensor cores and memory bandwidth are not sampled",
                why or word,
                remedy,
            )
        )
    refused = sorted(m for m, (w, _) in gpu.missing.items() if w == Status.NO_PERMISSION.word)
    if refused:
        what = f"not readable by this user: {', '.join(refused)}"
        checks.append(Check(f"{name} permissions", "limited", what, "", "run as root"))
    if not gpu.events:
        what = "Xids are not reported while sampling"
        remedy = "keep dmesg: gpuprof analyze reads its Xid lines"
        checks.append(Check(f"{name} events", "limited", what, "not supported here", remedy))
    return checks


def shadowed_binding() -> list[Check]:
    """Whether an abandoned package puts its own `pynvml` in the place of the maintained one."""
    found = []
    for name in ("nvidia-ml-py3", "pynvml"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        # The last pynvml packages only forward to nvidia-ml-py: harmless.
        if name == "pynvml" and int(version.split(".")[0] or "0") >= 12:
            continue
        found.append(
            Check(
                "pynvml",
                "limited",
                f"{name} {version} can shadow the NVML binding",
                "it installs a module of the same name and is no longer maintained",
                f"pip uninstall {name} && pip install --force-reinstall nvidia-ml-py",
            )
        )
    return found


# ---- host ----------------------------------------------------------------------------------


def probe_host(root: Path = Path("/")) -> list[Check]:
    """What the host sampler can read here; `root` is another root folder, for tests."""
    if not sys.platform.startswith("linux"):
        why = f"this is {sys.platform}"
        return [Check("host", "missing", "no host samples", why, "they need Linux")]
    checks = [
        _sources(root),
        _pressure(root),
        _quota(root),
        _shared_memory(root),
        _infiniband(root),
        _kernel_log(root),
    ]
    return [check for check in checks if check is not None]


def _sources(root: Path) -> Check:
    failed = [
        name
        for source in node_sources(root)
        if not name_is_optional(source.metrics[0])
        for name, value in zip(source.metrics, source.attempt(), strict=True)
        if isinstance(value, Failure)
    ]
    if failed:
        return Check("host", "limited", f"not readable: {', '.join(failed)}", "no /proc entry")
    return Check("host", "ok", "CPU, memory, disks and network are sampled")


def name_is_optional(metric: str) -> bool:
    """Groups of metrics that have a check of their own."""
    return metric.startswith(("pressure_", "cgroup_", "shm_"))


def _pressure(root: Path) -> Check:
    if (root / "proc/pressure/io").exists():
        return Check("pressure", "ok", "stalls on CPU, disk and memory are sampled")
    return Check(
        "pressure",
        "limited",
        "stalls on CPU, disk and memory are not sampled",
        "the kernel has no pressure information (/proc/pressure)",
        "boot with psi=1 (kernel 4.20 or newer)",
    )


def _quota(root: Path) -> Check:
    quota = Cgroup(root=root).read()[0]
    cpus = os.cpu_count() or 1
    if isinstance(quota, Failure):
        return Check("cpu quota", "ok", f"none: all {cpus} CPUs may be used")
    if quota < cpus:
        return Check(
            "cpu quota",
            "limited",
            f"{quota:.1f} of {cpus} CPUs may be used",
            "the control group throttles what goes over it, DataLoader workers too",
            "set num_workers by the quota, or raise it (docker run --cpus)",
        )
    return Check("cpu quota", "ok", f"{quota:.1f} CPUs, no less than the machine has")


def _shared_memory(root: Path) -> Check:
    path = root / "dev/shm"
    if not path.is_dir():
        remedy = "mount a tmpfs there: DataLoader workers need it"
        return Check("shared memory", "missing", "no /dev/shm", "", remedy)
    total = shutil.disk_usage(path).total
    if total < SMALL_SHM_BYTES:
        return Check(
            "shared memory",
            "limited",
            f"/dev/shm has {total / 2**20:.0f} MiB",
            "DataLoader workers hand over batches through it and die of a bus error when it is "
            "full",
            "docker run --shm-size=16g, or --ipc=host",
        )
    return Check("shared memory", "ok", f"/dev/shm has {total / 2**30:.0f} GiB")


def _infiniband(root: Path) -> Check | None:
    ports = list((root / "sys/class/infiniband").glob("*/ports/*/counters/port_xmit_data"))
    if ports:
        return Check("InfiniBand", "ok", f"{len(ports)} ports are sampled")
    if (root / "sys/class/infiniband").is_dir():
        what = "adapters without readable counters"
        return Check("InfiniBand", "limited", what, "", "mount /sys into the container")
    return None


def _kernel_log(root: Path) -> Check:
    path = root / "proc/sys/kernel/dmesg_restrict"
    try:
        restricted = path.read_text().strip() == "1"
    except OSError:
        restricted = True
    if restricted and os.geteuid() != 0:
        return Check(
            "kernel log",
            "limited",
            "dmesg is not readable",
            "kernel.dmesg_restrict is 1",
            "GPU errors are still reported by the driver's events; for the log, add CAP_SYSLOG",
        )
    return Check("kernel log", "ok", "dmesg is readable")
