"""The injection: the line runs once, and the target computes what it would have computed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.attached import IDLE, PATIENCE_S, wait_until
from gpuprof.attach import inject, trampoline
from gpuprof.errors import GpuprofError

# Counts until a file says that it is enough, or to a given number, and tells how far it came.
COUNT = """
import math, os, sys
from pathlib import Path
wanted = int(sys.argv[1]) if len(sys.argv) > 1 else None
x, n = 0.5, 0
Path("ready").write_text("ready")
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


def run_line(tmp_path: Path, pid: int) -> None:
    """Has the process run another line, and waits for it: all lines before it have run then."""
    ran = tmp_path / f"ran-{time.monotonic_ns()}"
    path = tmp_path / "another.py"
    path.write_text(f"open({str(ran)!r}, 'w').close()")
    inject.inject(pid, inject.boot_line(str(path), pid))
    wait_until(ran.exists, "the line ran")


def test_the_line_runs_in_the_target_and_leaves_no_name(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """The agent's own names live in a dictionary of its own, not in `__main__`."""
    child = start(IDLE)
    ran = tmp_path / "ran"
    text = (
        f"import __main__, os; own = 1; open('part', 'w').write(repr(sorted(vars(__main__))));"
        f" os.rename('part', {str(ran)!r})"
    )
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid))
    wait_until(ran.exists, "the line ran")
    assert "__name__" in ran.read_text()
    assert "own" not in ran.read_text()
    assert child.poll() is None


def test_a_computation_goes_on_bit_by_bit(tmp_path: Path, start, needs_ptrace: None) -> None:
    """Registers, vector registers included, come back as they were: thirty times over."""
    child = start(COUNT)
    ran = tmp_path / "ran"
    line = inject.boot_line(agent(tmp_path, f"open({str(ran)!r}, 'a').write('x')"), child.pid)
    for number in range(30):
        done = inject.inject(child.pid, line)
        wait_until(lambda: ran.exists() and ran.stat().st_size > number, "the line ran")  # noqa: B023
        assert done.thread == child.pid
        trampoline.wipe(child.pid, done, has_run=True)
    (tmp_path / "enough").touch()
    assert child.wait(PATIENCE_S) == 0
    disturbed = (tmp_path / "result").read_text()

    alone = tmp_path / "alone"
    alone.mkdir()
    subprocess.run([sys.executable, "-c", COUNT, disturbed.split()[0]], cwd=alone, check=True)
    assert disturbed == (alone / "result").read_text()


def test_a_child_that_inherits_the_call_does_not_run_it(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """A DataLoader's worker may fork between the call and its turn."""
    child = start(IDLE)
    ran = tmp_path / "ran"
    text = f"open({str(ran)!r}, 'w')"
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid + 1))
    run_line(tmp_path, child.pid)
    assert not ran.exists()


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "1/0", "syntax error", "import nothing_here"]
)
def test_whatever_the_agent_raises_stays_inside(
    tmp_path: Path, start, needs_ptrace: None, text: str
) -> None:
    """The loop sees no exception and the terminal no traceback."""
    child = start(IDLE)
    inject.inject(child.pid, inject.boot_line(agent(tmp_path, text), child.pid))
    run_line(tmp_path, child.pid)
    assert child.poll() is None
    assert (tmp_path / "stderr").read_bytes() == b""


def test_ctrl_c_during_the_agent_reaches_the_program(
    tmp_path: Path, start, needs_ptrace: None
) -> None:
    """A KeyboardInterrupt that hits the agent is raised again in the user's code."""
    child = start(
        "import time\ntry:\n  open('ready', 'w').write('x')\n  while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt: open('interrupted', 'w')"
    )
    inject.inject(
        child.pid, inject.boot_line(agent(tmp_path, "raise KeyboardInterrupt"), child.pid)
    )
    wait_until((tmp_path / "interrupted").exists, "the program was interrupted")


def test_the_padding_is_zero_again(start, needs_ptrace: None, tmp_path: Path) -> None:
    """What was written into the target's page of code is taken back."""
    child = start(IDLE)
    done = inject.inject(child.pid, inject.boot_line(agent(tmp_path, "pass"), child.pid))
    wait_until(lambda: trampoline.wipe(child.pid, done), "the borrowed thread has left")
    with Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory:
        assert os.pread(memory.fileno(), done.size, done.address) == bytes(done.size)


def test_only_what_was_put_there_is_zeroed(start, needs_ptrace: None) -> None:
    """A program that has replaced itself (exec) has something of its own at that address."""
    child = start(IDLE)
    maps = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
    stack = next(line for line in maps if "[stack]" in line)
    address = int(stack.split()[0].split("-")[1], 16) - 4096
    theirs = trampoline.Injection(thread=child.pid, stopped_ns=0, address=address, size=4096)
    with Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory:
        before = os.pread(memory.fileno(), 4096, address)
        assert any(before)  # its environment is there
        assert trampoline.wipe(child.pid, theirs, has_run=True)
        assert os.pread(memory.fileno(), 4096, address) == before


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
