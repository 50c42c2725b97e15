"""What a job that stands still has to say itself: flight-recorder dumps, logs, and NCCL's RAS.

PyTorch's recorder leaves its dumps where TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE
says, when a time-out comes; a job that was started with TORCH_NCCL_DEBUG_INFO_PIPE_FILE writes them
at once when something is written into the pipes of that name. RAS listens on a port of its own.
Of the logs only lines of the communication libraries are kept: NCCL_DEBUG_FILE's as they are, and
what they and PyTorch's watchdog have written to a standard error that is a file.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuprof import run
from gpuprof.attach.job_ranks import Member
from gpuprof.attach.targets import process_table

DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_DUMPS = ("/tmp/nccl_trace_rank_",)
PIPE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
MAX_DUMP_BYTES = 256 << 20
DUMPED_S = 2.0
"""How long dumps are waited for that were asked for."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

MAX_LOG_BYTES = 32 << 20
"""The end of a log; what made the job stand is not far from it."""
_OF_LIBRARIES = re.compile(rb"NCCL (?:INFO|WARN|version)|ProcessGroup|Watchdog caught|RCCL|Gloo")

RAS_VARIABLE = "NCCL_RAS_ADDR"
RAS_DEFAULT = ("localhost", 28028)
RAS_CONNECT_S = 0.5
RAS_ANSWER_S = 2.0
RAS_APART_S = 1.0
MAX_ANSWER_BYTES = 16 << 20


def keep_dumps(members: Sequence[Member], folder: Path) -> int:
    """Copies the dumps of these ranks into a run directory, and says how many there were.

    Raises:
        OSError: it can't be written.
    """
    asked = [one for one in members if _ask(one)]
    until = time.monotonic() + DUMPED_S
    began = time.time()
    while asked and time.monotonic() < until:
        if all(_newer(_dump_of(one), began) for one in asked):
            break
        time.sleep(0.1)
    kept = 0
    for one in members:
        data = _read(_dump_of(one), one)
        if data:
            (folder / run.FLIGHT).mkdir(exist_ok=True)
            (folder / run.FLIGHT / f"rank{one.rank:05d}").write_bytes(data)
            kept += 1
    return kept


def _prefix(one: Member, names: Sequence[str]) -> str:
    return next((one.environment[name] for name in names if one.environment.get(name)), "")


def _dump_of(one: Member) -> Path | None:
    """The dump of a rank, as this process sees it; None where there is none of this job's."""
    for prefix in (_prefix(one, DUMP_VARIABLES), *DEFAULT_DUMPS):
        if not prefix:
            continue
        path = prefix if prefix.startswith("/") else f"{one.folder}/{prefix}"
        found = Path(f"/proc/{one.pid}/root{path}{one.rank}")
        with suppress(OSError):
            if found.is_file() and found.stat().st_mtime >= _started(one):
                return found
    return None


def _started(one: Member) -> float:
    """When the process began, in seconds since the epoch."""
    process = process_table().get(one.pid)
    if process is None:
        return float("inf")
    with suppress(OSError, ValueError):
        up = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - up + process.born / CLOCK_TICKS
    return float("inf")


def _newer(path: Path | None, than_s: float) -> bool:
    with suppress(OSError):
        return path is not None and path.stat().st_mtime >= than_s - 0.01
    return False


def _ask(one: Member) -> bool:
    """Writes into the pipe that makes a rank dump; False where it has none."""
    prefix = _prefix(one, PIPE_VARIABLES)
    if not prefix:
        return False
    path = prefix if prefix.startswith("/") else f"{one.folder}/{prefix}"
    with suppress(OSError):
        pipe = Path(f"/proc/{one.pid}/root{path}{one.rank}.pipe")
        if not pipe.is_fifo():
            return False
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(file, b"1\n") > 0
        finally:
            os.close(file)
    return False


def _read(path: Path | None, one: Member) -> bytes:
    if path is None or not one.alive():
        return b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as dump:
            if os.fstat(file).st_size <= MAX_DUMP_BYTES:
                return dump.read()
    return b""


def keep_logs(members: Sequence[Member], folder: Path) -> int:
    """Copies what the communication libraries have said, and says how many files came of it.

    Raises:
        OSError: the run directory can't be written.
    """
    kept: set[tuple[int, int]] = set()
    for one in members:
        for name, path in (("nccl", _debug_file(one)), ("stderr", Path(f"/proc/{one.pid}/fd/2"))):
            lines = _lines_of_libraries(path, kept) if path is not None else b""
            if lines:
                (folder / run.NCCL).mkdir(exist_ok=True)
                (folder / run.NCCL / f"{name}-rank{one.rank:05d}.log").write_bytes(lines)
    return len(kept)


def _debug_file(one: Member) -> Path | None:
    """Where NCCL writes its log; it fills in host and pid as its own process counts."""
    text = one.environment.get("NCCL_DEBUG_FILE", "")
    if not text:
        return None
    host = socket.gethostname().split(".", 1)[0]
    text = text.replace("%h", host).replace("%p", str(one.inner_pid)).replace("%%", "%")
    path = text if text.startswith("/") else f"{one.folder}/{text}"
    return Path(f"/proc/{one.pid}/root{path}")


def _lines_of_libraries(path: Path, known: set[tuple[int, int]]) -> bytes:
    """The lines that a reader of NCCL's logs has a use for, of the end of a file that is not known
    already: ranks share a standard error."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as log:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in known:
                return b""
            log.seek(max(0, found.st_size - MAX_LOG_BYTES))
            lines = [line for line in log.read().split(b"\n") if _OF_LIBRARIES.search(line)]
            if lines:
                known.add((found.st_dev, found.st_ino))
                return b"\n".join(lines) + b"\n"
    return b""


def keep_ras(members: Sequence[Member], folder: Path) -> bool:
    """Asks NCCL's RAS twice, and writes both answers; False where nothing listens.

    Raises:
        OSError: the run directory can't be written.
    """
    if not any(_uses_nccl(one.pid) for one in members):
        return False
    host, port = _address(members)
    answers = []
    for number in range(2):
        if number:
            time.sleep(RAS_APART_S)
        answer = ask_ras(host, port)
        if not answer:
            return False
        answers.append(answer)
    (folder / run.RAS).write_text("\n".join(answers), encoding="utf-8")
    return True


def ask_ras(host: str, port: int) -> str:
    """The status of all ranks as text; "" where nothing answers."""
    parts: list[bytes] = []
    with suppress(OSError), socket.create_connection((host, port), RAS_CONNECT_S) as door:
        door.settimeout(RAS_ANSWER_S)
        door.sendall(b"VERBOSE STATUS\n")
        size = 0
        while size < MAX_ANSWER_BYTES and (part := door.recv(1 << 16)):
            parts.append(part)
            size += len(part)
    text = b"".join(parts).decode("utf-8", "replace")
    from gpuprof.readers.ras import is_ras

    return text if is_ras(text) else ""


def _address(members: Sequence[Member]) -> tuple[str, int]:
    text = _prefix(members[0], (RAS_VARIABLE,)) if members else ""
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else RAS_DEFAULT


def _uses_nccl(pid: int) -> bool:
    with suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        return "libnccl" in maps or "librccl" in maps or "libtorch_cuda" in maps
    return False
