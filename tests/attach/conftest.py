"""Running processes to attach to; they skip where attaching is not allowed or not supported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuprof.attach import ptrace

TRAINING = """
import sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
log = open("losses", "w", buffering=1)
for step in range(steps):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    log.write(loss.item().hex() + "\\n")
    time.sleep(0.002)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
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
    children: list[subprocess.Popen[bytes]] = []

    def run(
        text: str, *arguments: str, wait_for: str = "", wrap: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        script = tmp_path / f"program{len(children)}.py"
        script.write_text(text)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (tmp_path / "stderr").open("wb") as errors:
            child = subprocess.Popen(
                [*wrap, sys.executable, script, *arguments],
                cwd=tmp_path,
                env=environment,
                stderr=errors,
            )
        children.append(child)
        until = time.monotonic() + 60
        while wait_for and time.monotonic() < until:
            path = tmp_path / wait_for
            if path.exists() and path.stat().st_size > 200:
                return child
            assert child.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.05)
        time.sleep(0 if wait_for else 0.4)
        return child

    yield run
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def start_training(start: Start, needs_ptrace: None) -> Start:
    """Starts a training loop that knows nothing of gpuprof; `losses` grows by a line a step."""
    pytest.importorskip("torch")
    return lambda *arguments, **more: start(TRAINING, *arguments, wait_for="losses", **more)


@pytest.fixture
def training(start_training: Start) -> subprocess.Popen[bytes]:
    """A training loop without end."""
    return start_training()
