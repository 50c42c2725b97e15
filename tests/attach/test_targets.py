"""Which processes a pid stands for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.attached import IDLE, wait_until
from gpuprof.attach import access, targets
from gpuprof.errors import GpuprofError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

FORKS = """
import os, time, sys
import torch
if os.fork() == 0:
    while True: time.sleep(1)
open("ready", "w").write("x" * 300)
while True: time.sleep(1)
"""
RANKS = """
import os, subprocess, sys, time
if "RANK" in os.environ:
    import torch
    open("ready" + os.environ["RANK"], "w").write("x" * 300)
    while True: time.sleep(1)
children = [subprocess.Popen([sys.executable, __file__],
    env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2"}) for r in (1, 0)]
import atexit, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
atexit.register(lambda: [c.kill() for c in children])
while not (os.path.exists("ready0") and os.path.exists("ready1")): time.sleep(0.05)
open("ready", "w").write("x" * 300)
while True: time.sleep(1)
"""


def test_a_pid_of_nobody() -> None:
    """One line that says so."""
    with pytest.raises(GpuprofError, match="there is no process"):
        targets.find(2**22 - 3)


def test_a_process_that_came_to_its_pid_later_is_another_one() -> None:
    """The start time tells."""
    with pytest.raises(GpuprofError, match="has ended"):
        targets.hold(os.getpid(), born=1)


def test_another_program_in_the_same_process_is_another_one(start) -> None:
    """exec keeps pid and start time; only the memory is new."""
    child = start(
        "import os, sys, time\nopen('ready', 'w').write('x')\n"
        "while not os.path.exists('now'): time.sleep(0.01)\n"
        "program = \"import time; open('second', 'w').write('x'); time.sleep(10000)\"\n"
        "os.execv(sys.executable, [sys.executable, '-c', program])\n"
    )
    folder = Path(f"/proc/{child.pid}/cwd").readlink()
    target = targets.hold(child.pid)
    assert target.alive()
    (folder / "now").touch()
    wait_until((folder / "second").exists, "it has become another program")
    assert not target.alive()
    assert "another program" in target.how_gone()
    assert targets.hold(child.pid, target.process.born).alive()
    child.kill()
    child.wait()
    assert target.how_gone() == "ended"


def test_a_worker_is_told_from_who_trains(start) -> None:
    """And the one who trains is named."""
    pytest.importorskip("torch")
    parent = start(FORKS, wait_for="ready")
    table = targets.process_table()
    worker = next(p.pid for p in table.values() if p.parent == parent.pid)
    with pytest.raises(GpuprofError, match=rf"worker.*--pid {parent.pid}"):
        targets.find(worker)
    os.kill(worker, 9)


def test_a_launcher_stands_for_its_ranks(start) -> None:
    """In the order of their ranks."""
    pytest.importorskip("torch")
    launcher = start(RANKS, wait_for="ready")
    found = targets.find(launcher.pid)
    assert [t.number(targets.RANK_VARIABLES, -1) for t in found] == [0, 1]
    assert all(t.process.parent == launcher.pid for t in found)
    launcher.terminate()
    launcher.wait()


def test_what_is_no_python_is_said(needs_ptrace: None) -> None:
    """With the name of what it is."""
    child = subprocess.Popen(["sleep", "30"])
    try:
        found = access.look(targets.hold(child.pid))
        assert found.way == access.NONE
        assert "is no Python" in found.why
    finally:
        child.kill()
        child.wait()


def test_python_without_torch_is_said(start, needs_ptrace: None) -> None:
    """Nothing is put into it."""
    child = start(IDLE)
    assert "has not loaded torch" in access.look(targets.hold(child.pid)).why


def test_another_user_is_refused_with_the_command_that_helps(start) -> None:
    """As an ordinary user, root's process is not to be attached to."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    child = start(IDLE)
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.setgid(65534)
        os.setuid(65534)
        found = access.look(targets.hold(child.pid))
        os.write(writer, f"{found.why}|{found.remedy}".encode())
        os._exit(0)
    os.waitpid(fork, 0)
    said = os.read(reader, 1000).decode()
    assert "belongs to user root" in said
    assert f"sudo -u root gpuprof attach --pid {child.pid}" in said


def test_time_of_the_main_thread_and_of_others_is_told_apart(start) -> None:
    """By it, a program that works on another thread is told from one that is stuck."""
    child = start(
        "import threading, time\ndef turn():\n    while True: pass\n"
        "threading.Thread(target=turn).start()\nopen('ready', 'w').write('x' * 300)\n"
        "time.sleep(10000)",
        wait_for="ready",
    )
    until = time.monotonic() + 300
    while targets.processor_ticks(child.pid)[1] < 20:
        assert time.monotonic() < until
        time.sleep(0.05)
    main_before = targets.processor_ticks(child.pid)[0]
    seen = targets.processor_ticks(child.pid)[1]
    while targets.processor_ticks(child.pid)[1] < seen + 20:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert targets.processor_ticks(child.pid)[0] - main_before <= 1
    child.kill()
    child.wait()
    assert targets.processor_ticks(child.pid) == (0, 0)
