"""Who this process is in its job: rank, job name, cores that it can count on, GPUs."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpuprof.run import Gpu

SECRET = re.compile(r"(token|secret|passw|api[-_]?key|credential)", re.IGNORECASE)
MAX_ARGUMENTS = 1000
MAX_ARGUMENT_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """A process's place in its job. known: whether anything but the lack of a launcher says so."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    known: bool = False


def identity() -> Identity:
    """This process's place: torch.distributed's word, else the launcher's, else the only one."""
    environ = os.environ
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
    if rank is None or (world_size is not None and rank >= world_size):
        # A child of torch.multiprocessing.spawn learns its rank only when it joins the group.
        return Identity(known=multiprocessing.parent_process() is None)
    world_size = world_size or rank + 1
    launched = "LOCAL_RANK" in environ
    local_rank = _number("LOCAL_RANK") if launched else rank
    local_world_size = _number("LOCAL_WORLD_SIZE") if launched else world_size
    return Identity(
        rank=rank,
        local_rank=local_rank or 0,
        world_size=world_size,
        local_world_size=max(1, min(local_world_size or 1, world_size)),
        known=True,
    )


def is_worker() -> bool:
    """Whether this process is a DataLoader's worker."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def job_name() -> str:
    """A name that the processes of one start share, and the next start does not.

    The launcher's own id where it has one; on one node, the start and pid of the common parent.
    """
    environ = os.environ
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return _plain(f"{run_id}-{attempt()}")
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID"):
        return _plain(f"slurm-{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}")
    shared = environ.get("RANK") or multiprocessing.parent_process() is not None
    pid = os.getppid() if shared else os.getpid()
    began = process_started_unix_s(pid)
    # Sessions of one process that follow each other differ by their time.
    moment = began if shared and began else time.time()
    return of_attempt(f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(moment))}-{pid}")


def attempt() -> int:
    """How often torchrun has started this job's workers anew, 0 for their first start."""
    return _number("TORCHELASTIC_RESTART_COUNT") or 0


def of_attempt(job: str) -> str:
    """A job's name, told apart for workers that were started anew: they are other processes with
    the ranks of those before them."""
    return f"{job}-{attempt()}" if attempt() else job


def job_started_unix_s() -> float:
    """When this job started: files in its run directory that are older are another job's."""
    if os.environ.get("RANK") or multiprocessing.parent_process() is not None:
        return process_started_unix_s(os.getppid()) or time.time()
    return time.time()


def process_started_unix_s(pid: int) -> float | None:
    """When a process started, to a hundredth of a second."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def has_ended(pid: int) -> bool:
    """Whether no process of this number runs on this node any more."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def command_line() -> list[str]:
    """How this process was started; what looks like a secret is left out."""
    return without_secrets(getattr(sys, "orig_argv", sys.argv))


def without_secrets(arguments: list[str]) -> list[str]:
    """A command line with the values of secret options replaced by "***", cut to a sane length."""
    kept: list[str] = []
    hide = False
    for argument in arguments[:MAX_ARGUMENTS]:
        name, equals, _ = argument.partition("=")
        if hide and not argument.startswith("-"):
            kept.append("***")
            hide = False
            continue
        hide = argument.startswith("-") and not equals and bool(SECRET.search(name))
        secret = bool(equals) and bool(SECRET.search(name))
        kept.append(f"{name}=***" if secret else argument[:MAX_ARGUMENT_CHARS])
    return kept


def host_name() -> str:
    """This node's name as the sampler writes it: a safe part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:64] or "node"


@dataclass(frozen=True, slots=True)
class Cores:
    """CPU cores that this process may use. each: its part when the node's ranks share them."""

    affinity: int
    quota: float | None
    each: float


def usable_cores(local_world_size: int = 1) -> Cores:
    """What the affinity mask and the control group's quota leave, split over the node's ranks.

    Ranks that are pinned to cores of their own share none: their masks are smaller than the node.
    """
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    else:
        affinity = os.cpu_count() or 1
    quota = _quota()
    pinned = affinity < (os.cpu_count() or affinity) and local_world_size > 1
    each = float(affinity) if pinned else affinity / local_world_size
    if quota is not None:
        each = min(each, quota / local_world_size)
    return Cores(affinity, quota, max(0.1, math.floor(10 * each) / 10))


def _quota() -> float | None:
    from gpuprof.collectors.host_cgroup import Cgroup

    try:
        value = Cgroup().read()[0]
    except OSError:
        return None
    return float(value) if isinstance(value, (int, float)) else None


def gpus() -> list[Gpu]:
    """The GPUs that this process has touched; it is never made to touch one."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return []
    device = int(cuda.current_device())
    facts = cuda.get_device_properties(device)
    uuid = str(getattr(facts, "uuid", "") or "")
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    return [Gpu(index=device, name=str(facts.name), uuid=uuid)]


def versions() -> tuple[str, str, str]:
    """Python's version, torch's and that of the CUDA or ROCm it was built for; "" for none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return platform.python_version(), "", ""
    built = getattr(torch, "version", None)
    toolkit = getattr(built, "cuda", None) or getattr(built, "hip", None) or ""
    return platform.python_version(), str(getattr(torch, "__version__", "")), str(toolkit)


def default_folder() -> Path:
    """Where a session records that is not told where."""
    return Path("gpuprof-runs") / job_name()


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80] or "job"
