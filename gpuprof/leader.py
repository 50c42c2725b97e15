"""Whether the `gpuprof run` that has set a process's variables still runs.

The variables are inherited by whatever the job starts, and outlive a `gpuprof run` that was killed,
or a job that left a daemon or a shell behind. Then nobody will report, and nothing is recorded.

The standard library only, and only what is certain counts: on another node, in another container or
outside of Linux the leader can't be seen, and is taken to run.
"""

from __future__ import annotations

import os
from pathlib import Path

RUN_LEADER = "GPUPROF_RUN_LEADER"
"""Set by `gpuprof run` for the job: who it is, as `identity` says."""


def identity() -> str:
    """This process and where its number means it; "" where that can't be said."""
    place, born = _place(), _born(os.getpid())
    return f"{os.getpid()} {born} {place}" if place and born else ""


def is_gone(leader: str) -> bool:
    """Whether a process has ended for sure.

    Args:
        leader: What `identity` said in it.
    """
    number, _, rest = leader.partition(" ")
    born, _, place = rest.partition(" ")
    if not number.isdecimal() or not born or place != _place():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's: it is there
        pass
    now = _born(int(number))
    return bool(now) and now != born


def _place() -> str:
    """Boot and namespaces: numbers and start times of processes mean nothing outside of them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path("/proc/self/ns", kind) for kind in ("pid", "time")]  # the latter since 5.6
        return " ".join([boot, *(str(space.readlink()) for space in spaces if space.is_symlink())])
    except OSError:
        return ""


def _born(pid: int) -> str:
    """When a process was started, in ticks since boot; "" where that can't be read, "ended" for one
    that only waits for its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
