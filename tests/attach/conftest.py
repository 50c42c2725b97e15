"""Running processes to attach to; they skip where attaching is not allowed or not supported."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.attached import TRAINING, Loop, Programs
from gpuprof.attach import ptrace

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell starts what it puts into the background with Ctrl-C switched off, and children
    inherit that: then none of the programs here could be interrupted."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def needs_ptrace() -> None:
    """Skips where a process may not even trace its own child."""
    if not ptrace.is_supported():
        pytest.skip("injecting is for Linux on x86-64")
    child = subprocess.Popen(["sleep", "30"])
    try:
        ptrace.seize(child.pid)
    except OSError as error:
        pytest.skip(f"tracing is not allowed here: {error}")
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python programs in the test's folder, and ends them."""
    programs = Programs(tmp_path)
    yield programs.start
    programs.end()


@pytest.fixture
def start_training(start: Start, needs_ptrace: None) -> Start:
    """Starts a training loop that knows nothing of gpuprof; `losses` grows by a line a step."""
    pytest.importorskip("torch")
    return lambda *arguments, **more: start(TRAINING, *arguments, wait_for="losses", **more)


@pytest.fixture
def training(start_training: Start) -> subprocess.Popen[bytes]:
    """A training loop without end, of the test's own."""
    return start_training()


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory, needs_ptrace: None) -> Iterator[Loop]:
    """One loop that test after test attaches to, which it must not notice."""
    pytest.importorskip("torch")
    programs = Programs(tmp_path_factory.mktemp("loop"))
    yield Loop(programs.start(TRAINING, wait_for="losses"), programs.folder)
    programs.end()
