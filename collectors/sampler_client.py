"""Starts a sampler, hands processes to it and lets it go: what the training process calls.

Nothing here talks to the driver, and nothing waits longer than two seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpuprof.collectors.sampler_lock import Member, NodeLock, Roster, alive, born_ticks

DISK_EXIT = 4
"""The sampler's exit status when its folder could not be written."""
STOP_S = 1.5
"""How long a stopped sampler is waited for before it is killed."""

_CHILD = (
    "import sys; sys.path[:] = __import__('json').loads(sys.argv.pop(1)); import os;"
    " from gpuprof.collectors.sampler import main; os._exit(main())"
)
"""The path of the caller in place of the working directory: gpuprof may lie where only the script
looks for it, and a `random.py` that lies about is not the library's."""


class SamplerHandle:
    """A started sampler, as the process sees it that started it."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.process, self._out = process, out

    def problem(self) -> str:
        """What went wrong, in one line; "" as long as nothing is known to have."""
        code = self.process.poll()
        if code is None or code == 0:
            return ""
        if code == DISK_EXIT:
            return f"{self._out} could not be written: samples of GPUs and host are missing"
        return f"the sampler ended (exit status {code}): samples of GPUs and host are missing"

    def leave(self, pids: Sequence[int]) -> None:
        """Takes processes off the list without waiting; the sampler ends when none is left."""
        for pid in pids:
            Roster(self._out).append(Member(pid=pid, leave=True))

    def stop(self, pids: Sequence[int]) -> None:
        """Takes processes off the list; where that ends the sampler, waits for its last record.

        Returns within two seconds whatever the driver does. Where other ranks still use the
        sampler, it goes on for them.
        """
        self.leave(pids)
        lock, until = NodeLock(self._out), time.monotonic() + STOP_S
        while time.monotonic() < until:
            self.process.poll()  # reaps it where it was the second one
            if any(alive(member) for member in _members(self._out)):
                return
            if lock.take():  # whichever of the job's samplers it was, it is done
                lock.release()
                return
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.kill()


def _members(out: Path) -> list[Member]:
    """Who is on the roster now."""
    members: dict[int, Member] = {}
    for member in Roster(out).news():
        members.pop(member.pid, None)
        if not member.leave:
            members[member.pid] = member
    return list(members.values())


def start(
    out: Path,
    *,
    ranks: Sequence[tuple[int, int]],
    parents: Sequence[int] = (),
    uuids: Sequence[str] = (),
    options: Sequence[str] = (),
) -> SamplerHandle:
    """Starts a sampler for processes of this node, or hands them to the one that runs.

    Args:
        out: Folder for the recording; it is made.
        ranks: (pid, rank) of each process; rank -1 where it is unknown.
        parents: Further processes that keep the sampler alive.
        uuids: The GPUs of the ranks, where the caller knows them.
        options: More command-line options.

    Raises:
        OSError: the process cannot be started.
    """
    shown = [f"{pid}:{rank}:{','.join(uuids)}" for pid, rank in ranks]
    paths = json.dumps([os.fspath(Path(path).resolve()) for path in sys.path])
    command = [sys.executable, "-c", _CHILD, paths, "--out", str(out)]
    command += [part for pid in parents for part in ("--parent", str(pid))]
    command += [*options, *(["--pids", *shown] if shown else [])]
    return launch(command, out)


def launch(command: Sequence[str], out: Path, *, new_session: bool = False) -> SamplerHandle:
    """Makes the folder and runs a command that samples into it, in a session of its own if asked.

    Raises:
        OSError: the process cannot be started.
    """
    with contextlib.suppress(OSError):  # the sampler says what is wrong with it
        out.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=new_session,
    )
    return SamplerHandle(process, out)


def let_go(out: Path, pid: int, sampler: SamplerHandle | None) -> None:
    """Takes a process off the list, and waits for the sampler where this process started it."""
    if sampler is not None:
        sampler.stop([pid])
    else:
        Roster(out).append(Member(pid=pid, leave=True))


def tell_rank(out: Path, pid: int, rank: int, uuids: Sequence[str] = ()) -> None:
    """Adds a process, or what became known of it (its rank, its GPUs), to a running sampler."""
    Roster(out).append(Member(pid=pid, born=born_ticks(pid) or 0, rank=rank, uuids=list(uuids)))
