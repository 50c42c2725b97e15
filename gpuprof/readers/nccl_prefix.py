"""What stands before NCCL's own text on a line: hosts and pids, time stamps, launchers' labels."""

from __future__ import annotations

import re
from typing import NamedTuple

PREFIX = re.compile(
    rb"(?:([A-Za-z0-9_][\w.\-]*):(\d+):(\d+) )?(?:\[(-?\d+)\] )?"
    rb"(?:\d+\.\d+ )?(?:([\w./\-]+):(\d+)(?: \((\w+)\))? )?$"
)
"""Host, pid, tid, CUDA ordinal, source file, line, function: what stands before `NCCL`."""

TIMESTAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)\]")
"""`NCCL_DEBUG_TIMESTAMP_FORMAT` in its default form (2.26 on; WARN lines only by default)."""

_LABEL = re.compile(
    rb"^\s*(?:\[(?:[^\]\s]{0,100}@)?\d+,(?:mpirank:)?(?P<mpi>\d+)[^\]\s]{0,100}\]<std(?:out|err)>:"
    rb"|\[rank(?P<rank>\d+)\]:|\[default(?P<local>\d+)\]:|(?P<task>\d+): )"
)


class Label(NamedTuple):
    """What a launcher writes before a line.

    kind: "mpi" (Open MPI, also as SageMaker calls it) and "rank" (PyTorch itself) are ranks of the
    job, "local" (torchrun) is that of a process in its node, "task" (srun --label) can be a node.
    """

    number: int
    kind: str


def launcher_label(before: bytes) -> Label | None:
    """The launcher's label at the head of a line."""
    match = _LABEL.match(before)
    if match is None or match.lastgroup is None:
        return None
    return Label(int(match[match.lastgroup]), match.lastgroup)
