"""Kineto's own door: a job that was started with KINETO_USE_DAEMON asks a daemon for work.

Every few seconds such a process sends a datagram to a socket of an agreed name, and records what
the answer says, in a thread of its own and without the GIL. Here gpuprof is that daemon, for as
long as it takes: nothing is put into the process, and no right to trace it is needed.

The protocol is Kineto's IPC fabric as of PyTorch 2.13: a head of a size and a type, then "ctxt"
(a process says that it is there) or "req" (it asks; the answer is a configuration, or nothing).
Kineto ends the process where an answer comes from a socket that it does not know. So answers go
out from the bound socket only, and the door is not used where its name would read differently
from inside.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprof.attach.access import same_root
from gpuprof.attach.targets import Target
from gpuprof.errors import GpuprofError

ASKED_FOR = "KINETO_USE_DAEMON"
FOLDER = "KINETO_IPC_SOCKET_DIR"
TRACES = "KINETO_ONDEMAND_TRACE_DIR"
"""Newer Kineto writes traces below this folder only."""
NAME = "dynolog"
ABSTRACT = f"\0{NAME}\0"
"""The trailing NUL is part of the name."""
MAX_DATAGRAM_BYTES = 65536
ACTIVITIES = 2
"""The bit of a question that asks for a trace; without it a profiler runs already."""
_HEAD = struct.Struct("<Q32s")
_QUESTION = struct.Struct("<iiq")
_COUNT = struct.Struct("<i")
_WHO = struct.Struct("<iII")  # pid, user, group of the sender


class DoorError(GpuprofError):
    """The daemon's place can't be taken."""


@dataclass(frozen=True, slots=True)
class Question:
    """A process asks. pid: as the kernel says, whatever the question does. free: it can record."""

    pid: int
    free: bool
    sender: str | bytes


def why_closed(target: Target) -> str:
    """Why a process can't be recorded through this door; "" where it can."""
    if not target.environment.get(ASKED_FOR):
        return f"process {target.pid} was started without {ASKED_FOR}"
    if target.environment.get(FOLDER):
        return "" if same_root(target.pid) else f"process {target.pid} sees other files"
    here, there = (Path(f"/proc/{who}/ns/net").stat().st_ino for who in ("self", target.pid))
    return "" if here == there else f"process {target.pid} is in another network namespace"


class Daemon:
    """The socket that processes ask.

    Args:
        folder: Of the socket, as the processes were told; "" for the abstract name.

    Raises:
        DoorError: somebody listens there already, or it may not be made.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / NAME if folder else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            if self._path is not None and self._is_left_over():
                self._path.unlink()
            # The very text that the processes were told: they compare.
            self._socket.bind(f"{folder}/{NAME}" if folder else ABSTRACT)
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                raise DoorError(
                    "another daemon answers the job's Kineto already",
                    hint="ask that one for a trace (dyno gputrace)",
                ) from error
            raise DoorError(
                f"the socket that the job's Kineto asks can't be made: {error.strerror or error}"
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(0)

    def _is_left_over(self) -> bool:
        """Whether nobody listens on the socket that lies there."""
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            probe.connect(str(self._path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        finally:
            probe.close()
        return False

    def questions(self) -> Iterator[Question]:
        """What has been asked since; processes that say that they are there are answered."""
        while True:
            try:
                data, about, _, sender = self._socket.recvmsg(
                    MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_WHO.size)
                )
            except OSError:
                return
            try:
                size, kind = _HEAD.unpack_from(data)
                body = data[_HEAD.size : _HEAD.size + size]
                if kind.rstrip(b"\0") == b"ctxt":
                    self._send(sender, b"ctxt", _COUNT.pack(1))
                elif kind.rstrip(b"\0") == b"req":
                    wanted, _, _ = _QUESTION.unpack_from(body)
                    pid = next((_WHO.unpack(d)[0] for _, _, d in about if len(d) == _WHO.size), 0)
                    yield Question(pid, bool(wanted & ACTIVITIES), sender)
            except struct.error:
                continue

    def answer(self, question: Question, configuration: str) -> bool:
        """Tells what to record, "" for nothing; False where the process has gone."""
        return self._send(question.sender, b"req", configuration.encode())

    def _send(self, sender: str | bytes, kind: bytes, body: bytes) -> bool:
        try:
            self._socket.sendto(_HEAD.pack(len(body), kind) + body, sender)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def configuration(
    file: str, window: Mapping[str, object], *, start_ms: int = 0, seconds: float = 0.0
) -> str:
    """What Kineto is told to record.

    Args:
        file: Where to; Kineto adds the process's pid before the suffix.
        window: Of the plan (see `record.Wanted`).
        start_ms: Common start, in ms since the epoch; 0 for the next step.
        seconds: For so long, where several ranks start together; 0 for the window's steps.
    """
    lines = [f"ACTIVITIES_LOG_FILE={file}"]
    length = seconds or float(str(window["seconds"]))
    if length:
        lines += [
            f"PROFILE_START_TIME={start_ms}",
            f"ACTIVITIES_DURATION_MSECS={round(1e3 * length)}",
            "ACTIVITIES_WARMUP_PERIOD_SECS=0",
        ]
    else:
        lines += [
            "PROFILE_START_ITERATION=0",
            "PROFILE_START_ITERATION_ROUNDUP=1",
            f"ACTIVITIES_ITERATIONS={window['steps']}",
            "ACTIVITIES_WARMUP_ITERATIONS=1",
        ]
    for name, key in (("stacks", "PROFILE_WITH_STACK"), ("shapes", "PROFILE_REPORT_INPUT_SHAPES")):
        if window[name]:
            lines.append(f"{key}=true")
    return "\n".join(lines) + "\n"


def written(file: str, pid: int) -> str:
    """The name under which Kineto writes a file."""
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}_{pid}{dot}{suffix}"
