"""The few instructions that a borrowed thread runs, and the bytes of the target that hold them.

They save and restore all registers, vector registers included, *by themselves*, and lie in the
unused end of a page of code (see `elf.unused_code`), which is zeroed again afterwards.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuprof.attach import elf

CODE = bytes.fromhex(
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
ADDRESSES = struct.Struct("<3Q")
CLOCK = struct.Struct("<Q")
ENTRY_AT = CLOCK.size
"""When it was put there, in seconds since the epoch, comes first."""
RESUME_AT = ENTRY_AT + len(CODE) + 16
STALE_S = 60
"""What an attacher left that was killed is used again after so long: the way through it takes
microseconds."""


def build(add: int, run: int, text: bytes) -> bytes:
    """What is put into the target.

    Args:
        add, run: Where `Py_AddPendingCall` and `PyRun_SimpleString` are in it.
        text: The line, NUL at its end.
    """
    return CLOCK.pack(int(time.time())) + CODE + ADDRESSES.pack(add, run, 0) + text


@dataclass(frozen=True, slots=True)
class Injection:
    """What was done. address, size: the bytes of the target's padding that were used."""

    thread: int
    stopped_ns: int
    address: int
    size: int


def free(memory: int, pid: int, maps: list[elf.Mapping], size: int) -> Iterator[int]:
    """Padding that is still zero, or that an attacher of long ago has left."""
    for address in elf.unused_code(pid, maps, size):
        try:
            found = os.pread(memory, size, address)
            is_ours = found[ENTRY_AT : ENTRY_AT + len(CODE)] == CODE
            put_s = CLOCK.unpack_from(found)[0]
            if not any(found) or (is_ours and put_s < time.time() - STALE_S):
                yield address
        except OSError:
            continue


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
            found = os.pread(memory, injection.size, first)
            if found[ENTRY_AT : ENTRY_AT + len(CODE)] == CODE:  # else it is another program by now
                os.pwrite(memory, bytes(injection.size), first)
        finally:
            os.close(memory)
    except FileNotFoundError:
        return False
    except OSError:
        return False
    return True
