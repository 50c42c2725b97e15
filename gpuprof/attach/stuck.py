"""What `gpuprof attach` does with a job that stands still: one run directory of what was seen.

Nothing is put into such a job. Beside the stacks of all ranks the run directory gets what the job
itself has to say: the dumps of PyTorch's flight recorder, where it has left any or can be asked for
them, and the answer of NCCL's RAS, where that listens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from gpuprof import run
from gpuprof.attach import assemble, job_says, standstill
from gpuprof.attach.job_ranks import Member, members_of
from gpuprof.attach.record import Told, start_folder
from gpuprof.attach.targets import Target
from gpuprof.conclude import complete_manifest
from gpuprof.stacks import RankStacks


def answer_if_stuck(found: Sequence[Target], folder: Path, patience_s: float, told: Told) -> str:
    """Records a job that stands still into a run directory.

    Returns:
        Who did not come to what, in one line; "" for a job that goes on.

    Args:
        found: Its processes.
        folder: The run directory, made only for a job that stands still.
        patience_s: How long its ranks must be seen to stand.
        told: Told what goes on.

    Raises:
        GpuprofError: the run directory can't be written.
    """
    stacks = standstill.watch(found, patience_s, told)
    if not stacks:
        return ""
    keep(found, stacks, folder)
    from gpuprof.analyzers.hang import findings_from_stacks

    return findings_from_stacks(stacks)[0].title


def keep(found: Sequence[Target], stacks: Sequence[RankStacks], folder: Path) -> None:
    """Writes the run directory.

    Raises:
        GpuprofError: it can't be written.
    """
    job = f"attach-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    start_folder(folder, job, found)
    _fill(found, stacks, folder, job)
    complete_manifest(folder, notes=["the job was watched from outside: nothing was put into it"])


def add_if_stuck(found: Sequence[Target], folder: Path) -> bool:
    """Adds what can be seen from outside to the run directory of a job that would not be entered,
    or made no step; False where no rank waits for another one.

    Raises:
        OSError: it can't be written.
    """
    from gpuprof.analyzers.hang import findings_from_stacks

    stacks = standstill.look_now(found)
    if not findings_from_stacks(stacks):
        return False
    _fill(found, stacks, folder, run.load(folder).manifest.job)
    complete_manifest(folder)
    return True


def _fill(found: Sequence[Target], stacks: Sequence[RankStacks], folder: Path, job: str) -> None:
    standstill.write(stacks, folder)
    by_pid = {one.header.pid: one for one in stacks}
    members = members_of(found)
    job_says.keep_dumps(members, folder)
    job_says.keep_logs(members, folder)
    job_says.keep_ras(members, folder)
    for member in members:
        seen = by_pid.get(member.pid)
        if seen is None:
            continue
        record = _record(member, job, seen)
        assemble.finish(record, folder)


def _record(member: Member, job: str, seen: RankStacks) -> run.RankRecord:
    header = seen.header
    return run.RankRecord(
        job=job,
        rank=member.rank,
        world_size=member.world_size,
        host=header.host,
        pid=member.pid,
        started_unix_s=time.time(),
    )
