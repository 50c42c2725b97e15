"""What stands before NCCL's own text on a line: hosts and pids, time stamps, launchers' labels."""

from __future__ import annotations

import re

PREFIX = re.compile(
    rb"(?:([A-Za-z0-9_][\w.\-]*):(\d+):(\d+) )?(?:\[(-?\d+)\] )?"
    rb"(?:\d+\.\d+ )?(?:([\w./\-]+):(\d+)(?: \((\w+)\))? )?$"
)
"""Host, pid, tid, CUDA ordinal, source file, line, function: what stands before `NCCL`."""

TIMESTAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)\]")
"""`NCCL_DEBUG_TIMESTAMP_FORMAT` in its default form (2.26 on; WARN lines only by default)."""

LAUNCHER_RANK = re.compile(
    rb"^\s*(?:\[\d+,(\d+)\]<std(?:out|err)>:|\[(?:rank|default)(\d+)\]:|(\d+): )"
)
"""Rank labels of Open MPI, torchrun and srun -l; the last can be a node, so it is a hint only."""
