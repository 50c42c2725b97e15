"""The injection: the line runs once, and the target computes what it would have computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuprof.attach import inject
from gpuprof.errors import GpuprofError

# Counts until a file says that it is enough, or to a given number, and tells how far it came.
COUNT = """
import math, os, sys
from pathlib import Path
wanted = int(sys.argv[1]) if len(sys.argv) > 1 else None
x, n = 0.5, 0
while n != wanted:
    x = math.sin(x) + 0.3
    n += 1
    if wanted is None and n % 1000 == 0 and os.path.exists("enough"):
        break
Path("result").write_text(f"{n} {x!r}")
"""


def agent(tmp_path: Path, text: str) -> str:
    path = tmp_path / "agent.py"
    path.write_text(text)
    return str(path)


def appears(path: Path, timeout_s: float = 10.0) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if path.exists():
            return True
        time.sleep(0.005)
    return False


def test_the_line_runs_in_the_target_and_leaves_no_name(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """The agent's own names live in a dictionary of its own, not in `__main__`."""
    child = start("import time\nwhile True: time.sleep(0.01)")
    ran = tmp_path / "ran"
    text = (
        f"import __main__, os; own = 1; open({str(ran)!r}, 'w').write(repr(sorted(vars(__main__))))"
    )
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid))
    assert appears(ran)
    time.sleep(0.1)
    assert "own" not in ran.read_text()
    assert child.poll() is None


def test_a_computation_goes_on_bit_by_bit(tmp_path: Path, start, needs_ptrace: None) -> None:
    """Registers, vector registers included, come back as they were: thirty times over."""
    child = start(COUNT)
    line = inject.boot_line(agent(tmp_path, "pass"), child.pid)
    for _ in range(30):
        done = inject.inject(child.pid, line)
        time.sleep(0.02)
        assert done.thread == child.pid
        inject.wipe(child.pid, done, has_run=True)
    child.send_signal(signal.SIGCONT)
    (tmp_path / "enough").touch()
    assert child.wait(60) == 0
    disturbed = (tmp_path / "result").read_text()

    alone = tmp_path / "alone"
    alone.mkdir()
    subprocess.run([sys.executable, "-c", COUNT, disturbed.split()[0]], cwd=alone, check=True)
    assert disturbed == (alone / "result").read_text()


def test_a_child_that_inherits_the_call_does_not_run_it(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """A DataLoader's worker may fork between the call and its turn."""
    child = start("import time\nwhile True: time.sleep(0.01)")
    ran = tmp_path / "ran"
    text = f"open({str(ran)!r}, 'w')"
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid + 1))
    assert not appears(ran, 0.5)


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "1/0", "syntax error", "import nothing_here"]
)
def test_whatever_the_agent_raises_stays_inside(
    tmp_path: Path, start, needs_ptrace: None, text: str
) -> None:
    """The loop sees no exception and the terminal no traceback."""
    child = start("import time\nwhile True: time.sleep(0.01)")
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid))
    time.sleep(0.3)
    assert child.poll() is None
    assert (tmp_path / "stderr").read_bytes() == b""


def test_ctrl_c_during_the_agent_reaches_the_program(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """A KeyboardInterrupt that hits the agent is raised again in the user's code."""
    child = start(
        "import time\ntry:\n  while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt: open('interrupted', 'w')"
    )
    inject.inject(
        child.pid, inject.boot_line(agent(tmp_path, "raise KeyboardInterrupt"), child.pid)
    )
    assert appears(tmp_path / "interrupted")


def test_the_padding_is_zero_again(start, needs_ptrace: None, tmp_path: Path) -> None:
    """What was written into the target's page of code is taken back."""
    child = start("import time\nwhile True: time.sleep(0.01)")
    done = inject.inject(child.pid, inject.boot_line(agent(tmp_path, "pass"), child.pid))
    until = time.monotonic() + 5
    while not inject.wipe(child.pid, done) and time.monotonic() < until:
        time.sleep(0.01)
    with Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory:
        assert os.pread(memory.fileno(), done.size, done.address) == bytes(done.size)


def test_what_is_no_python_is_left_alone(needs_ptrace: None) -> None:
    """One line, and the process goes on."""
    child = subprocess.Popen(["sleep", "30"])
    try:
        with pytest.raises(GpuprofError, match="no CPython"):
            inject.inject(child.pid, "pass")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("call", "result", "expected"),
    [(202, -512, 202), (202, -514, 202), (230, -516, 219), (7, -513, 7)],
)
def test_an_interrupted_call_is_made_again(
    tmp_path: Path, call: int, result: int, expected: int
) -> None:
    """As the kernel itself would: back to the instruction, with the number of the call."""
    memory = tmp_path / "memory"
    memory.write_bytes(b"\0" * 98 + b"\x0f\x05")
    registers = {"orig_rax": call, "rax": result + (1 << 64), "rip": 100}
    with memory.open("rb") as file:
        onwards = inject._onwards(registers, file.fileno())
    assert (onwards["rax"], onwards["rip"]) == (expected, 98)


@pytest.mark.parametrize(("call", "result"), [(-1, -512), (202, 0), (0, -4), (0, 17)])
def test_a_call_that_is_over_is_not_made_again(tmp_path: Path, call: int, result: int) -> None:
    """Its result is the program's; a thread in its own code has made none."""
    registers = {"orig_rax": call % (1 << 64), "rax": result % (1 << 64), "rip": 100}
    memory = os.open(os.devnull, os.O_RDONLY)
    assert inject._onwards(registers, memory) == registers
    os.close(memory)
