"""One sampler a node: a lock per user and run directory, and the list of those it watches.

Both lie in the node's own temporary folder, since a run directory is often shared by all nodes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

MAX_ROSTER_BYTES = 4 << 20


class Member(msgspec.Struct, omit_defaults=True):
    """A process that the sampler watches: it stays as long as one of them lives.

    `born` is the process's start in clock ticks since boot: a recycled pid is another process.
    `leave` takes the process off the list. `role` is "rank" or "parent".
    """

    pid: int
    born: int = 0
    rank: int = -1
    uuids: list[str] = []
    role: str = "rank"
    leave: bool = False


def born_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] in "ZXx" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def alive(member: Member) -> bool:
    """Whether the process still runs, and is still the same one."""
    born = born_ticks(member.pid)
    return born is not None and member.born in (0, born)


def _folder() -> Path:
    """The user's own folder for locks, not writable by others.

    Raises:
        PermissionError: somebody else made it.
    """
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"gpuprof-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if hasattr(os, "getuid") and (facts.st_uid != owner or facts.st_mode & 0o022):
        raise PermissionError(f"{folder} belongs to somebody else: remove it or set TMPDIR")
    return folder


def _key(out: Path) -> str:
    return hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:24]


class NodeLock:
    """The right to sample this node for a run directory."""

    def __init__(self, out: Path) -> None:
        self._path = _folder() / f"{_key(out)}.lock"
        self._file: int | None = None

    def take(self) -> bool:
        """True when it is ours now; False when another sampler of this run has it."""
        import fcntl

        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Roster:
    """The members of a run on this node, as an append-only file that anybody of the job extends."""

    def __init__(self, out: Path) -> None:
        self._path = _folder() / f"{_key(out)}.members"
        self._read_to = 0

    def append(self, member: Member) -> None:
        """Adds, renews (same pid: the newer line counts) or takes off a process."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(member) + b"\n")
        finally:
            os.close(file)

    def news(self) -> list[Member]:
        """What was added since the last look."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                data = file.read(MAX_ROSTER_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        members = []
        for text in whole.splitlines():
            try:
                members.append(msgspec.json.decode(text, type=Member))
            except msgspec.MsgspecError:
                continue
        return members

    def forget(self) -> None:
        """Removes the file; only the holder of the lock does, when nobody is left."""
        self._path.unlink(missing_ok=True)
        self._read_to = 0
