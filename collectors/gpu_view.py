"""Who uses which GPU: nvitop's view of processes, and the ranks joined to GPUs by UUID.

Ranks are joined by UUID and not by pid, because in a container NVML reports the host's pids.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprof.sample_format import Processes, Record

MAX_PROCESSES = 64
"""Of one GPU; the biggest users of memory are kept."""
MAX_ENVIRON_BYTES = 1 << 20


def process_view() -> list[Record]:
    """The processes on each GPU as nvitop sees them, with their names but without arguments.

    A GPU that cannot tell yields an empty list.
    """
    from nvitop import Device

    now = time.monotonic_ns()
    return [Processes(scope=f"gpu:{device.index}", t=now, p=_of(device)) for device in Device.all()]


def _of(device: Any) -> list[tuple[int, int | None, float | None, str]]:
    found = []
    for pid, process in device.processes().items():
        used, sm = process.gpu_memory(), process.gpu_sm_utilization()
        found.append(
            (
                int(pid),
                int(used) if isinstance(used, int) else None,
                sm / 100 if isinstance(sm, int) and 0 <= sm <= 100 else None,
                str(process.name())[:80],
            )
        )
    return sorted(found, key=lambda row: -(row[1] or 0))[:MAX_PROCESSES]


def visible_uuids(value: str | None, uuids: Sequence[str]) -> list[str]:
    """The UUIDs that a CUDA_VISIBLE_DEVICES value shows, in the process's own order.

    `uuids` are all devices in NVML's order, which is CUDA's order with
    CUDA_DEVICE_ORDER=PCI_BUS_ID and on nodes of equal GPUs. As CUDA does, the list ends at the
    first entry that names no device. `None` shows all. UUIDs may be shortened.
    """
    if value is None:
        return list(uuids)
    shown: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdigit():
            match = [uuids[int(entry)]] if int(entry) < len(uuids) else []
        else:
            match = [uuid for uuid in uuids if entry and uuid.startswith(entry)]
        if len(match) != 1 or match[0] in shown:
            break
        shown.append(match[0])
    return shown


def rank_uuids(environ: dict[str, str], uuids: Sequence[str]) -> list[str]:
    """The GPUs of a rank from its environment, its own one first.

    A launcher that shows every rank all GPUs tells it apart by LOCAL_RANK.
    """
    shown = visible_uuids(environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    local = environ.get("LOCAL_RANK", "")
    if local.isdigit() and len(shown) > 1 and int(local) < len(shown):
        own = shown[int(local)]
        return [own, *(uuid for uuid in shown if uuid != own)]
    return shown


def rank_environ(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """The few variables of a process's environment that say which GPU and rank it has."""
    wanted = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK")
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            data = file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {key: value for key, _, value in pairs if key in wanted}
