"""`--all-gpus`: the job whose processes compute on the GPUs of this machine, as the driver says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuprof.attach import targets
from gpuprof.attach.targets import Target
from gpuprof.counted import counted
from gpuprof.errors import GpuprofError

MOST_JOBS_NAMED = 8


def find_on_gpus() -> list[Target]:
    """The processes of the one job that computes here, by rank.

    Raises:
        GpuprofError: the driver is not to be asked, nobody computes, or several jobs do.
    """
    pids = sorted(set(_compute_pids()))
    table = targets.process_table()
    using = [pid for pid in pids if pid in table and targets.uses_torch(pid)]
    if not using:
        seen = (
            f"{counted(len(pids), 'process computes', 'processes compute')} on the GPUs, and none"
            if pids
            else "no process"
        )
        raise GpuprofError(
            f"{seen} that uses torch can be seen here",
            hint="in a container only its own processes are: name one with --pid",
        )
    jobs: dict[int, list[int]] = {}
    for pid in using:
        target = targets.hold(pid, table[pid].born)
        jobs.setdefault(table[pid].parent if target.has_rank() else pid, []).append(pid)
        target.close()
    if len(jobs) > 1:
        named = ", ".join(
            f"--pid {launcher} ({len(ranks)} process{'es' if len(ranks) > 1 else ''})"
            for launcher, ranks in sorted(jobs.items())[:MOST_JOBS_NAMED]
        )
        raise GpuprofError(f"{len(jobs)} jobs compute on the GPUs", hint=f"name one: {named}")
    found = [targets.hold(pid, table[pid].born) for pid in using]
    return sorted(found, key=lambda t: (t.number(targets.RANK_VARIABLES, 0), t.pid))


def _compute_pids() -> Iterable[int]:
    from gpuprof.collectors.nvml import load_pynvml

    try:
        nvml: Any = load_pynvml()
        nvml.nvmlInit()
    except ImportError as error:
        raise GpuprofError(
            f"the GPUs can't be asked: {error}", hint="name processes with --pid"
        ) from error
    except Exception as error:
        raise GpuprofError(
            f"there is no NVIDIA driver to ask who computes ({error})",
            hint="name processes with --pid",
        ) from error
    try:
        for index in range(int(nvml.nvmlDeviceGetCount())):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                running = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            except nvml.NVMLError:
                continue  # a device that is lost tells nothing; the others do
            yield from (int(one.pid) for one in running)
    finally:
        nvml.nvmlShutdown()
