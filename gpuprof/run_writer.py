"""Writes a run directory: whole files by renaming, one owner for each rank's files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from gpuprof.process import has_ended
from gpuprof.run import MANIFEST, NCCL, SAMPLES, files_in, rank_file, rank_of, read_rank

CLAIM_MODE = 0o644


def window_kind(kind: str, number: int) -> str:
    """First part of a window's file name; number counts windows of this kind from 1."""
    return kind if number == 1 else f"{kind}-{number}"


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Writes a manifest or a rank's record: whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def clear_rank(folder: Path, rank: int) -> None:
    """Removes what an earlier recording of this rank left in the folder.

    Raises:
        OSError: something can't be removed.
    """
    for path in files_in(folder):
        if rank_of(path.name) == rank:
            path.unlink(missing_ok=True)


def clear_older(folder: Path, before_unix_s: float, node: str) -> None:
    """Removes what an earlier job left: other ranks' files, and this node's samples and logs.

    Args:
        folder: The run directory.
        before_unix_s: When this job started; younger files are its own.
        node: This node's name, first part of its samples' and logs' names.

    Raises:
        OSError: something can't be removed.
    """
    stale = [p for p in files_in(folder) if rank_of(p.name) is not None or p.name == MANIFEST]
    for name in (SAMPLES, NCCL):
        stale += [p for p in files_in(folder / name) if p.name.startswith((f"{node}-", f"{node}."))]
    for path in stale:
        try:
            if path.stat().st_mtime < before_unix_s:
                path.unlink()
        except FileNotFoundError:
            continue  # its own rank was quicker


def claim_rank(folder: Path, rank: int, job: str) -> None:
    """Makes a rank's files this process's own, for this job, and clears what an earlier job left.

    A process that died while it recorded (a job that its launcher or a loop in a shell starts
    anew) gives its rank to the next one. One that finished keeps it: what comes after a training
    script in the same job is another program.

    Raises:
        FileExistsError: another process of the job has the rank.
        OSError: the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    claim = folder / f".{rank_file(rank)}.{job}.claim"
    pid = str(os.getpid())
    try:
        file = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, CLAIM_MODE)
    except FileExistsError:
        holder = claim.read_text()
        if holder != pid and not _died(folder, rank, job, holder):
            raise FileExistsError(f"another process records rank {rank} there") from None
        claim.write_text(pid)
    else:
        os.write(file, pid.encode())
        os.close(file)
    for older in folder.glob(f".{rank_file(rank)}.*.claim"):
        if older != claim:
            older.unlink(missing_ok=True)
    clear_rank(folder, rank)


def _died(folder: Path, rank: int, job: str, holder: str) -> bool:
    """Whether the process that claimed a rank has ended before its recording did."""
    record = read_rank(folder, rank)
    return (
        record is not None
        and (record.job, str(record.pid), record.host) == (job, holder, socket.gethostname())
        and record.state != "finished"
        and has_ended(record.pid)
    )
