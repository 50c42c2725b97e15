"""The folder through which gpuprof and its agent talk.

It lies in the target's own temporary folder, is the target's user's, and closed to everybody else.
Seen from here it is below `/proc/PID/root`, so a container's is reached like any other. What the
agent writes is input from a stranger: sizes are bounded, links are not followed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.errors import GpuprofError

PLACES = ("/tmp", "/var/tmp", "/dev/shm")
MAX_WORD_BYTES = 256 << 20
"""An agent's observations of an hour are some 20 MB."""
MAX_TRACE_BYTES = 16 << 30
STALE_S = 60.0
"""A mailbox whose lease is older belongs to nobody: an agent would have left, and cleared it."""
FREE_BYTES = 256 << 20
"""A window of ten steps is some 10 MB, one of a large model ten times that."""


class Mailbox:
    """One attachment's folder. here: as this process sees it; there: as the target does.

    It is held open: `/proc/PID/root` goes with the process, what the agent left does not.
    """

    def __init__(self, parent: Path, place: str, name: str) -> None:
        self._name = name
        self._parent = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = os.open(
            name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._parent
        )
        self.here = Path(f"/proc/self/fd/{self._folder}")
        self.there = f"{place}/{name}"

    def put(self, name: str, value: object) -> None:
        """Says a word to the agent: whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        unfinished = f"{name}.{secrets.token_hex(4)}"
        self.write(unfinished, msgspec.json.encode(value))
        (self.here / unfinished).replace(self.here / name)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file of a new name: the folder is the target's, who may have put a link there.

        Raises:
            OSError: it can't be written, or is there.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.here / name, flags, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)

    def get(self, name: str) -> Any:
        """A word of the agent's; None where there is none, or none that can be read."""
        try:
            file = os.open(self.here / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if os.fstat(file).st_size > MAX_WORD_BYTES:
                return None
            with os.fdopen(file, "rb", closefd=False) as words:
                return msgspec.json.decode(words.read())
        except (OSError, msgspec.MsgspecError):
            return None
        finally:
            os.close(file)

    def is_removed(self) -> bool:
        """Whether somebody has removed the folder."""
        return os.fstat(self._folder).st_nlink == 0

    def has(self, name: str) -> bool:
        return (self.here / name).exists()

    def renew(self) -> None:
        """Tells the agent that somebody is still there."""
        with suppress(OSError):
            os.utime(self.here / "lease", follow_symlinks=False)

    def wait(self, name: str, timeout_s: float, alive: Callable[[], bool]) -> Any:
        """The agent's word, once it comes; None where it does not, or the target ends."""
        until = time.monotonic() + timeout_s
        while True:
            found = self.get(name)
            over = time.monotonic() > until or not alive() or self.is_removed()
            if found is not None or over:
                return found
            time.sleep(0.02)

    def cancel(self) -> None:
        """Takes the agent's text away: a line that runs late then finds nothing."""
        with suppress(OSError):
            (self.here / "agent.py").unlink()

    def remove(self) -> None:
        """Removes the folder with all that is in it, and lets go of it."""
        if self._folder < 0:
            return
        with suppress(OSError):
            for path in list(self.here.iterdir()):
                path.unlink()
            os.rmdir(self._name, dir_fd=self._parent)
        self.close()

    def close(self) -> None:
        """Lets go of the folder."""
        for file in (self._folder, self._parent):
            if file >= 0:
                os.close(file)
        self._folder = self._parent = -1


def make(pid: int, agent: str, within: str = "") -> Mailbox:
    """Makes a mailbox for a process, with the agent's text in it.

    Args:
        pid: The process.
        agent: The text, "" for none.
        within: The folder for it in the process's eyes, "" for a temporary one.

    Raises:
        GpuprofError: there is no folder that both sides can use.
    """
    root = Path(f"/proc/{pid}/root")
    owner = root.parent.stat()
    why = "it has no temporary folder"
    for place in (within,) if within else PLACES:
        parent = root / place.lstrip("/")
        try:
            if parent.is_symlink() or not parent.is_dir():
                continue
            space = os.statvfs(parent)
            if space.f_bavail * space.f_frsize < FREE_BYTES:
                why = f"{place} has less than {FREE_BYTES >> 20} MiB free"
                continue
            _clear_stale(parent, "gpuprof-attach-")
            name = f"gpuprof-attach-{pid}-{secrets.token_hex(8)}"
            (parent / name).mkdir(mode=0o700)
            box = Mailbox(parent, place, name)
            here = box.here
            try:
                (here / "agent.py").write_text(agent)
                (here / "lease").touch()
                if os.geteuid() != owner.st_uid:
                    for path in (here / "agent.py", here / "lease", parent / name):
                        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
            except OSError:
                box.remove()
                raise
        except OSError as error:
            why = f"{place}: {error.strerror or error}"
            continue
        return box
    raise GpuprofError(
        f"nothing can be written where process {pid} could read it ({why})",
        hint="free space there, or use --no-inject",
    )


def _clear_stale(parent: Path, stem: str) -> None:
    """Removes what attachers have left that were killed before their agent was in."""
    for path in parent.glob(f"{stem}*"):
        with suppress(OSError):
            if time.time() - (path / "lease").stat().st_mtime > STALE_S and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
