"""One thread of another process, stopped for well under a millisecond; Linux on x86-64.

Nothing here may be left half done: the kernel lets a thread go by itself when the process that
holds it ends, with whatever registers it has then. So registers are written once, all together,
and to values with which the thread gets on by itself.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

_SEIZE, _INTERRUPT, _CONTINUE, _DETACH = 0x4206, 0x4207, 7, 17
_GET_REGISTERS, _SET_REGISTERS = 0x4204, 0x4205
_RSEQ_CONFIGURATION = 0x420F
_GENERAL, _EXTENDED = 1, 0x202
_WAIT_ALL = 0x40000000
_EVENT_STOP = 128
_CODE_64_BIT = 0x33

# fmt: off
NAMES = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9",
    "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs",
    "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)
# fmt: on
_LAYOUT = struct.Struct(f"<{len(NAMES)}Q")
_MASK = (1 << 64) - 1

Registers = dict[str, int]

POLL_S = 0.00005


class PtraceError(OSError):
    """The kernel refused a request, or the thread did not do what it was asked to."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def is_supported() -> bool:
    """Whether this is a machine whose registers are known here."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return library


def _request(number: int, thread: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    result = int(_libc().ptrace(number, thread, address, data))
    error = ctypes.get_errno()
    if result == -1 and error:
        raise PtraceError(error, os.strerror(error))
    return result


class StoppedThread:
    """A thread that stands still until the block ends that `stopped` opened."""

    def __init__(self, thread: int) -> None:
        self.thread = thread

    def registers(self) -> Registers:
        """The general registers by name, as unsigned 64-bit numbers."""
        return dict(zip(NAMES, _LAYOUT.unpack(self._get(_GENERAL)), strict=True))

    def set_registers(self, registers: Registers) -> None:
        """Replaces all general registers in one request."""
        data = _LAYOUT.pack(*(registers[name] & _MASK for name in NAMES))
        buffer = ctypes.create_string_buffer(data, len(data))
        vector = _Vector(ctypes.addressof(buffer), len(data))
        _request(_SET_REGISTERS, self.thread, _GENERAL, ctypes.addressof(vector))

    def extended_bytes(self) -> int:
        """How large the thread's vector registers are when saved."""
        return len(self._get(_EXTENDED))

    def restartable_sequence(self) -> int | None:
        """Address of the thread's rseq area, 0 for none; None where the kernel does not say."""
        answer = ctypes.create_string_buffer(24)
        try:
            _request(_RSEQ_CONFIGURATION, self.thread, 24, ctypes.addressof(answer))
        except PtraceError:
            return None
        return int(struct.unpack_from("<Q", answer)[0])

    def _get(self, which: int, size: int = 65536) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        vector = _Vector(ctypes.addressof(buffer), size)
        _request(_GET_REGISTERS, self.thread, which, ctypes.addressof(vector))
        return buffer.raw[: vector.length]


def is_64_bit(registers: Registers) -> bool:
    return registers["cs"] == _CODE_64_BIT


def seize(thread: int) -> None:
    """Becomes the thread's tracer without stopping it.

    Raises:
        PtraceError: not allowed, or somebody traces it already.
    """
    _request(_SEIZE, thread)


@contextmanager
def stopped(thread: int, timeout_s: float) -> Iterator[StoppedThread]:
    """Stops a seized thread, and lets it go at the end of the block, whatever happened in it.

    Signals that arrive meanwhile are handed on.

    Raises:
        PtraceError: the thread has gone, or did not stop in time (it sleeps where no signal
            reaches it); the kernel lets it go when this process ends.
    """
    _request(_INTERRUPT, thread)
    status = _wait(thread, timeout_s)
    while status >> 16 != _EVENT_STOP:
        _request(_CONTINUE, thread, 0, os.WSTOPSIG(status))
        status = _wait(thread, timeout_s)
    try:
        yield StoppedThread(thread)
    finally:
        with suppress(PtraceError):
            _request(_DETACH, thread)


def _wait(thread: int, timeout_s: float) -> int:
    until = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(thread, _WAIT_ALL | os.WNOHANG)
        if found == thread:
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                raise PtraceError(3, f"thread {thread} has ended")
            return status
        if time.monotonic() > until:
            raise PtraceError(62, f"thread {thread} did not stop within {timeout_s:g} s")
        time.sleep(POLL_S)
