"""Makes CPython's main thread run a line of Python at its next safe point; CPython 3.8 to 3.13.

One thread of the target, best one that sleeps, is sent through a few instructions that call
`Py_AddPendingCall(PyRun_SimpleString, line)`, and back to where it was. The main thread then runs
the line where it runs signal handlers too. No GIL is taken, no memory allocated, no system call
made in the target's name.

The instructions save and restore all registers, vector registers included, *by themselves*. They
lie in the unused end of a page of code, and the thread is let go the moment it is sent there. So
there is no moment at which the target depends on this process: a SIGKILL of it leaves the thread
either where it was, or on a way that leads back there.

`python -m gpuprof.attach.inject PID` reads the line from standard input and answers with JSON.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuprof.attach import elf, ptrace
from gpuprof.errors import GpuprofError

_CODE = bytes.fromhex(
    # lea -128(%rsp),%rsp  the red zone stays; pushfq; cld; push of the 15 general registers
    "488d6424809cfc505152535556574150415141524153415441554156"
    "4157"
    # mov %rsp,%rbp; sub $0x4000,%rsp; and $-64,%rsp  room for xsave
    "4889e54881ec004000004883e4c0"
    # zero xsave's header: lea 512(%rsp),%rdi; xor %eax,%eax; mov $8,%ecx; rep stosq
    "488dbc240002000031c0b908000000f348ab"
    # mov $-1,%eax; mov $-1,%edx; xsave64 (%rsp)
    "b8ffffffffbaffffffff480fae2424"
    # mov PyRun_SimpleString,%rdi; lea line,%rsi; mov Py_AddPendingCall,%rax; call *%rax
    "488b3d54000000488d355d000000488b053e000000ffd0"
    # mov $-1,%eax; mov $-1,%edx; xrstor64 (%rsp); mov %rbp,%rsp
    "b8ffffffffbaffffffff480fae2c244889ec"
    # pop of the 15; popfq; lea 128(%rsp),%rsp; notrack jmp *resume; nop
    "415f415e415d415c415b415a415941585f5e5d5b5a59589d488da424800000003eff25130000000f1f00"
)
"""Followed by three addresses (Py_AddPendingCall, PyRun_SimpleString, where to go on) and the
line, NUL at its end."""
_ADDRESSES = struct.Struct("<3Q")
_CLOCK = struct.Struct("<Q")
_ENTRY_AT = _CLOCK.size
"""When it was put there, in seconds since the epoch, comes first."""
_RESUME_AT = _ENTRY_AT + len(_CODE) + 16
STALE_S = 60
"""What an attacher left that was killed is used again after so long: the way through it takes
microseconds."""

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
"""On a busy machine whoever holds a thread should not wait for a core; only root may."""
_SYSCALL = b"\x0f\x05"
_RESTARTS = {-512, -513, -514}  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
_RESTART_BLOCK, _RESTART_SYSCALL = -516, 219

SLEEPS = frozenset({202, 7, 271, 232, 281, 35, 230, 270, 23, 61, 0, 45, 47, 43, 288})
"""System calls that wait and can be begun again: futex, poll, ppoll, epoll_wait, epoll_pwait,
nanosleep, clock_nanosleep, pselect6, select, wait4, read, recvfrom, recvmsg, accept, accept4."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What was done. address, size: the bytes of the target's padding that were used."""

    thread: int
    stopped_ns: int
    address: int
    size: int


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
    code = _CLOCK.pack(int(time.time())) + _CODE + _ADDRESSES.pack(add, run, 0) + text
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
        address = next(_free(memory, pid, maps, len(code)), None)
        if address is not None:
            os.pwrite(memory, code, address)
        began = time.perf_counter_ns()
        with ptrace.stopped(thread, STOP_S) as held:
            if address is None:
                raise GpuprofError(f"process {pid} has no room in its pages of code")
            registers = held.registers()
            _check(held, registers, memory, maps, functions)
            onwards = _onwards(registers, memory)
            os.pwrite(memory, struct.pack("<Q", onwards["rip"]), address + _RESUME_AT)
            held.set_registers({**onwards, "rip": address + _ENTRY_AT, "orig_rax": -1})
        return Injection(thread, time.perf_counter_ns() - began, address, len(code))
    except _TryAnotherError:
        if address is not None:
            os.pwrite(memory, bytes(len(code)), address)
        raise
    finally:
        os.close(memory)


def _free(memory: int, pid: int, maps: list[elf.Mapping], size: int) -> Iterator[int]:
    """Padding that is still zero, or that an attacher of long ago has left."""
    for address in elf.unused_code(pid, maps, size):
        try:
            found = os.pread(memory, size, address)
            is_ours = found[_ENTRY_AT : _ENTRY_AT + len(_CODE)] == _CODE
            put_s = _CLOCK.unpack_from(found)[0]
            if not any(found) or (is_ours and put_s < time.time() - STALE_S):
                yield address
        except OSError:
            continue


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


def wipe(pid: int, injection: Injection, *, has_run: bool = False) -> bool:
    """Zeroes the padding again, once the borrowed thread has left it for sure.

    Args:
        pid, injection: Where.
        has_run: Whether the main thread has run the line; if it was the borrowed one, it has left.

    Returns:
        False where it could not be seen to have left; the bytes then stay, to nobody's harm.
    """
    first, last = injection.address, injection.address + injection.size
    try:
        state = Path(f"/proc/{pid}/task/{injection.thread}/syscall").read_text().split()
        is_back = has_run and injection.thread == pid
        if not is_back and (len(state) < 3 or first <= int(state[-1], 16) < last):
            return False
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(memory, bytes(injection.size), first)
        finally:
            os.close(memory)
    except FileNotFoundError:
        return False
    except OSError:
        return False
    return True


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
    try:
        done = inject(int(sys.argv[1]), sys.stdin.read())
    except GpuprofError as error:
        sys.stdout.write(json.dumps({"error": error.message, "hint": error.hint}))
        return error.exit_code
    sys.stdout.write(json.dumps(asdict(done)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
