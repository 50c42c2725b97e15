"""What of the software around gpuprof decides what can be recorded: Python, torch, attaching."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gpuprof.attach.standstill import spy_program
from gpuprof.doctor import Check

LEAST_TORCH = (2, 1)
OTHER_DISTRIBUTION = "gpuprof"
"""Another project on the public index: it installs a package and a command of the same name."""

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def probe_software() -> list[Check]:
    """Checks of Python, torch, the other gpuprof, and of what attaching needs."""
    checks = [
        Check("Python", "ok", f"version {platform.python_version()} at {sys.executable}"),
        _torch(),
        _attaching(),
    ]
    return [*checks, *_other_gpuprof()]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Check:
    version = _version("torch")
    if version is None:
        return Check(
            "torch",
            "limited",
            "not installed here",
            "recording and the demo need it; reading traces does not",
            "pip install torch",
        )
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())
    if numbers < LEAST_TORCH:
        return Check(
            "torch",
            "limited",
            f"{version} is older than 2.1",
            "its profiler lacks what the recorder uses",
            "pip install -U torch",
        )
    return Check("torch", "ok", version)


def _attaching() -> Check:
    """Whether another process of the same user may be looked into."""
    tool = "py-spy is installed" if spy_program() else "py-spy is not installed"
    try:
        scope = int(_PTRACE_SCOPE.read_text().strip())
    except (OSError, ValueError):
        return Check("ptrace", "ok", f"no Yama restriction; {tool}")
    if scope == 0:
        return Check("ptrace", "ok", f"allowed for processes of the same user; {tool}")
    return Check(
        "ptrace",
        "limited",
        f"restricted (ptrace_scope {scope}); {tool}",
        "stacks of a running job can only be read by root",
        "run as root, or: sysctl kernel.yama.ptrace_scope=0",
    )


def _other_gpuprof() -> Iterator[Check]:
    version = _version(OTHER_DISTRIBUTION)
    if version is not None:
        yield Check(
            "gpuprof",
            "broken",
            f"the distribution `{OTHER_DISTRIBUTION}` {version} is installed as well",
            "it is another project and overwrites this one's package and command",
            f"pip uninstall {OTHER_DISTRIBUTION}; pip install --force-reinstall gpuprof-toolkit",
        )
