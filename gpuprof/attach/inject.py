"""Makes CPython's main thread run a line of Python at its next safe point; CPython 3.8 to 3.13.

One thread of the target, best one that sleeps, is sent through a few instructions that call
`Py_AddPendingCall(PyRun_SimpleString, line)`, and back to where it was. The main thread then runs
the line where it runs signal handlers too. No GIL is taken, no memory allocated, no system call
made in the target's name.

The instructions (`trampoline`) save and restore all registers *by themselves*, and the thread is
let go the moment it is sent there. So there is no moment at which the target depends on this
process: a SIGKILL of it leaves the thread either where it was, or on a way that leads back there.

`python -m gpuprof.attach.inject PID` reads the line from standard input and answers with JSON.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gpuprof.attach import elf, ptrace, trampoline
from gpuprof.attach.trampoline import Injection
from gpuprof.errors import GpuprofError

ROOM_BYTES = 0x4000 - 1024
"""Room for vector registers; a processor with AMX needs 11 kB."""
STACK_BYTES = 0x4000 + 64 * 1024
"""Stack that must be left: the room, and what a signal handler may want on top."""
MAX_LINE_BYTES = 700
STOP_S = 1.0
"""A thread that runs or sleeps stops within microseconds; one in the disk's hands may not."""
PATIENCE_S = 3.0
"""How long a thread is looked for that may be borrowed."""
HURRY = -10
REAL_TIME = 1
"""On a busy machine whoever holds a thread must not wait for a core: with the lowest of the
real-time priorities a stop takes 0.4 ms at a load of 12 on two cores, with niceness alone 9 ms.
Both are root's."""
_SYSCALL = b"\x0f\x05"
_RESTARTS = {-512, -513, -514}  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
_RESTART_BLOCK, _RESTART_SYSCALL = -516, 219

SLEEPS = frozenset({202, 7, 271, 232, 281, 35, 230, 270, 23, 61, 0, 45, 47, 43, 288})
"""System calls that wait and can be begun again: futex, poll, ppoll, epoll_wait, epoll_pwait,
nanosleep, clock_nanosleep, pselect6, select, wait4, read, recvfrom, recvmsg, accept, accept4."""


class _TryAnotherError(Exception):
    """This thread can't be borrowed at this moment."""


def inject(pid: int, line: str, *, thread: int | None = None) -> Injection:
    """Has the main thread of a process run one line of Python.

    Args:
        pid: The process, as this namespace counts.
        line: It must never raise; `boot_line` makes one.
        thread: Which thread to borrow (default: the quietest).

    Raises:
        GpuprofError: not allowed, no CPython, or no thread could be borrowed. The target is as it
            was before.
    """
    if not ptrace.is_supported():
        raise GpuprofError(
            "attaching to Python older than 3.14 works on Linux x86-64 only",
            hint="start the job with gpuprof run",
        )
    text = line.encode() + b"\0"
    if len(text) > MAX_LINE_BYTES:
        raise ValueError("the line is too long for the end of a page")
    try:
        maps = elf.mappings(pid)
        interpreter = elf.find_interpreter(pid, maps)
    except OSError as error:
        raise GpuprofError(_refused(pid, error)) from error
    if interpreter is None:
        raise GpuprofError(f"process {pid} is no CPython that exports its functions")
    if interpreter.free_threaded:
        raise GpuprofError(f"process {pid} is a Python without GIL: attaching to it is not tried")
    functions = interpreter.functions
    add, run = functions["Py_AddPendingCall"][0], functions["PyRun_SimpleString"][0]
    code = trampoline.build(add, run, text)
    until = time.monotonic() + PATIENCE_S
    why = "it has no thread"
    while time.monotonic() < until:
        for candidate in [thread] if thread is not None else _threads(pid):
            try:
                return _through(pid, candidate, code, maps, functions)
            except _TryAnotherError as error:
                why = str(error)
            except OSError as error:
                if error.errno in (errno.ESRCH, errno.ENOENT):
                    why = f"thread {candidate} has ended"
                    continue
                raise GpuprofError(_refused(pid, error)) from error
        time.sleep(0.01)
    raise GpuprofError(f"no thread of process {pid} could be borrowed: {why}", hint="try again")


def _refused(pid: int, error: OSError) -> str:
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return f"process {pid} has ended"
    return f"process {pid} can't be attached to: {error.strerror or error}"


def _threads(pid: int) -> list[int]:
    """Threads by how little they would be missed: sleeping ones first, the main thread last."""
    asleep, others = [], []
    for entry in Path(f"/proc/{pid}/task").iterdir():
        number = int(entry.name)
        try:
            state = Path(f"/proc/{pid}/task/{number}/syscall").read_text().split()
        except OSError:
            continue
        if state and state[0].isdigit() and int(state[0]) in SLEEPS and number != pid:
            asleep.append(number)
        elif number == pid:
            others.append(number)
    return [*sorted(asleep), *others]


def _through(
    pid: int,
    thread: int,
    code: bytes,
    maps: list[elf.Mapping],
    functions: dict[str, tuple[int, int]],
) -> Injection:
    ptrace.seize(thread)
    memory = os.open(f"/proc/{thread}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Written while the thread still runs: nobody goes there until it is sent.
        address = next(trampoline.free(memory, pid, maps, len(code)), None)
        if address is not None:
            os.pwrite(memory, code, address)
        began = time.perf_counter_ns()
        with ptrace.stopped(thread, STOP_S) as held:
            if address is None:
                raise GpuprofError(f"process {pid} has no room in its pages of code")
            registers = held.registers()
            _check(held, registers, memory, maps, functions)
            onwards = _onwards(registers, memory)
            os.pwrite(memory, struct.pack("<Q", onwards["rip"]), address + trampoline.RESUME_AT)
            held.set_registers({**onwards, "rip": address + trampoline.ENTRY_AT, "orig_rax": -1})
        return Injection(thread, time.perf_counter_ns() - began, address, len(code))
    except _TryAnotherError:
        if address is not None:
            os.pwrite(memory, bytes(len(code)), address)
        raise
    finally:
        os.close(memory)


def _check(
    held: ptrace.StoppedThread,
    registers: ptrace.Registers,
    memory: int,
    maps: list[elf.Mapping],
    functions: dict[str, tuple[int, int]],
) -> None:
    """Whether the thread may be borrowed right where it stands."""
    if not ptrace.is_64_bit(registers):
        raise GpuprofError("it runs 32-bit code")
    if held.extended_bytes() > ROOM_BYTES:
        raise GpuprofError("its vector registers are larger than any known here")
    pointer = registers["rsp"]
    stack = next((m for m in maps if m.start <= pointer < m.end), None)
    room = pointer - stack.start if stack is not None else 0
    if stack is None or (stack.path != "[stack]" and room < STACK_BYTES):
        raise _TryAnotherError("its stack is nearly full")
    sequence = held.restartable_sequence()
    if sequence and struct.unpack("<Q", os.pread(memory, 8, sequence + 8))[0]:
        raise _TryAnotherError("it is inside a restartable sequence")
    # The lock of pending calls may be held by whoever is inside these: waiting for it from the
    # same thread would never end.
    words = struct.unpack("<256Q", os.pread(memory, 2048, pointer).ljust(2048, b"\0"))
    for name in ("Py_AddPendingCall", "Py_MakePendingCalls"):
        start, size = functions.get(name, (0, 0))
        if any(start <= word < start + (size or 512) for word in (registers["rip"], *words)):
            raise _TryAnotherError("it handles a pending call")


def _onwards(registers: ptrace.Registers, memory: int) -> ptrace.Registers:
    """The registers with which the thread goes on: an interrupted call is made again, as the
    kernel itself would have it."""
    call = _signed(registers["orig_rax"])
    result = _signed(registers["rax"])
    if call < 0 or not (result in _RESTARTS or result == _RESTART_BLOCK):
        return dict(registers)
    at = registers["rip"] - len(_SYSCALL)
    if os.pread(memory, len(_SYSCALL), at) != _SYSCALL:
        raise _TryAnotherError("it came into the kernel in a way that is not known here")
    number = _RESTART_SYSCALL if result == _RESTART_BLOCK else call
    return {**registers, "rax": number, "rip": at}


def _signed(value: int) -> int:
    """An unsigned 64-bit number read as a signed one."""
    return value - (1 << 64) if value >= 1 << 63 else value


def boot_line(path: str, pid: int) -> str:
    """A line that runs a file inside the target, leaves no name behind and raises nothing.

    Args:
        path: The file, as the target sees it.
        pid: The target's own number for itself: a child that forks before the line runs inherits
            the pending call, and must not run it.
    """
    return (
        "try:\n"
        f" __import__('os').getpid()=={pid} and exec(compile(open({path!r}).read(),"
        "'<gpuprof attach>','exec'),{'__name__':'_gpuprof_agent','__file__':" + repr(path) + "})\n"
        # Not at once: it would be raised in here.
        "except KeyboardInterrupt: __import__('_thread').start_new_thread(eval,"
        " (\"__import__('time').sleep(.05) or __import__('_thread').interrupt_main()\", {}))\n"
        "except BaseException: pass\n"
    )


def main() -> int:
    """Injects in a process of its own: whatever becomes of it, the kernel lets the thread go."""
    with suppress(OSError):
        os.nice(HURRY)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REAL_TIME))
    gc.disable()
    try:
        done = inject(int(sys.argv[1]), sys.stdin.read())
    except GpuprofError as error:
        sys.stdout.write(json.dumps({"error": error.message, "hint": error.hint}))
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(done)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
