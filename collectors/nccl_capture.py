"""Has NCCL write its own log into the run directory, where that changes nothing of the user's.

NCCL reads its environment once, when the first communicator is made. So the variables are set only
if that has not happened yet, only if the user has set none of them (nor in NCCL's configuration
files), and they are taken back at the end. The subsystems are those that speak at set-up; TUNING
and COLL write a line for every collective, which is neither bounded nor free.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,NVLS"
"""Names that an older version does not know are ignored by it."""

USERS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
"""Any of these says that the user wants NCCL's log somewhere else, or not at all."""

FRACTIONS_FROM = (2, 27, 3)
"""2.26 prints wrong fractions of a second; where the version is older or unknown, whole seconds
stand in the log."""

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA's driver, AMD's and WSL's: without one there is no NCCL to listen to."""

MAX_CONFIG_BYTES = 1 << 20


def settings(folder: Path, version: tuple[int, ...] | None = None) -> dict[str, str]:
    """The variables that make NCCL write `HOST.PID.log` into a folder.

    Args:
        folder: Where to; it must exist when NCCL starts.
        version: NCCL's version, where it is known.
    """
    place = os.fspath(folder.resolve()).replace("%", "%%")
    chosen = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_DEBUG_FILE": f"{place}/%h.%p.log",
        "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
    }
    if version is not None and version >= FRACTIONS_FROM:
        chosen["NCCL_DEBUG_TIMESTAMP_FORMAT"] = "[%F %T.%6f] "
    return chosen


def why_not(environ: MutableMapping[str, str], config_files: tuple[Path, ...] | None = None) -> str:
    """Why NCCL's log can't be had without changing what the user set; "" where it can."""
    for name in USERS:
        if name in environ:
            return f"{name} is set by the user; unset it to have the log in the run directory"
    if config_files is None:
        user_file = environ.get("NCCL_CONF_FILE")
        home = Path(environ.get("HOME", "/nonexistent"))
        config_files = (
            Path("/etc/nccl.conf"),
            Path(user_file) if user_file else home / ".nccl.conf",
        )
    for file in config_files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                text = lines.read(MAX_CONFIG_BYTES)
        except OSError:
            continue
        if any(line.strip().startswith(USERS) for line in text.splitlines()):
            return f"{file} sets NCCL_DEBUG"
    if _initialized():
        return (
            "NCCL was running already; start the session before init_process_group, or the job"
            " with gpuprof run"
        )
    return ""


def is_possible(drivers: tuple[str, ...] = DRIVERS) -> bool:
    """Whether this machine has a GPU driver, and the torch that is loaded (if one is) has NCCL."""
    distributed = sys.modules.get("torch.distributed")
    asked = getattr(distributed, "is_nccl_available", None)
    if asked is not None and not asked():
        return False
    return any(Path(driver).exists() for driver in drivers)


@contextmanager
def captured(folder: Path, environ: MutableMapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sets the variables while it is open, and takes those back that nobody has changed.

    Yields:
        Status ("captured", "not used" or "missed"), and why.
    """
    if not is_possible():
        yield "not used", "no GPU driver with NCCL here"
        return
    reason = why_not(environ)
    if reason:
        yield "missed", reason
        return
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {k: v for k, v in settings(folder, _version()).items() if k not in environ}
    environ.update(chosen)
    try:
        yield "captured", ""
    finally:
        for name, value in chosen.items():
            if environ.get(name) == value:
                del environ[name]


def _initialized() -> bool:
    """Whether a communicator may exist in this process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return "nccl" in str(distributed.get_backend()).lower()


def _version() -> tuple[int, ...] | None:
    """The version of NCCL that the loaded torch was built with."""
    nccl = sys.modules.get("torch.cuda.nccl")
    try:
        found = nccl.version() if nccl is not None else None
    except Exception:  # built without NCCL: each version of torch says so in another way
        return None
    return tuple(int(part) for part in found[:3]) if isinstance(found, tuple) else None
