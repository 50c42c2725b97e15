"""Part of the agent's text: writes a finished trace without holding the program up.

torch writes a trace with the GIL held, as long as stopping took: the loop would stand still a
second time, on whichever step it is by then. So the same C++ function is called without the GIL,
where it is certain that it is the same: its mangled name holds the types that it takes, and that
the object is where it is taken to be is checked before it is used. Else torch is asked.

Like all parts: standard library only, Python 3.8 and newer; see `agent`.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any

SAVE = (
    "_ZN5torch8autograd8profiler14ProfilerResult4save"
    "ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)
"""torch::autograd::profiler::ProfilerResult::save(const std::string&) of libstdc++'s new ABI."""
LAST = b"}"
VALUE_AT = 16
"""Where pybind11 keeps the address of the C++ object: after Python's count and type."""


def save_trace(profile: Any, path: str) -> None:
    """Writes the trace of a stopped profiler, and frees it.

    Raises:
        OSError: it can't be written; torch itself says nothing on a full disk.
    """
    results = getattr(profile.profiler, "kineto_results", None)
    plain = not getattr(profile, "_use_cupti_monitor", False)
    if not (plain and results is not None and save_without_gil(results, path)):
        profile.export_chrome_trace(path)
    # The profiler is in a cycle: else all events would be freed at the program's next full
    # collection, in the middle of some step.
    profile.profiler = None
    del results
    if not is_whole(path):
        raise OSError("torch did not write all of it: is the disk full?")


def is_whole(path: str) -> bool:
    """Whether a file of JSON is there, and not cut off."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 16))
            return file.read().rstrip().endswith(LAST)
    except OSError:
        return False


def save_without_gil(results: Any, path: str) -> bool:
    """Whether it could be done so. results: torch's object of recorded events."""
    try:
        library = _library()
        address = _address(results)
        if not library or not address:
            return False
        import ctypes

        save = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW), SAVE)
    except (AttributeError, OSError, ValueError, struct.error):
        return False
    save.argtypes, save.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    text = os.fsencode(path)
    characters = ctypes.create_string_buffer(text)
    # A std::string of libstdc++: where its characters are, how many, room for more.
    string = (ctypes.c_uint64 * 4)(ctypes.addressof(characters), len(text), len(text), 0)
    save(address, ctypes.addressof(string))
    return True


def _library() -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "libtorch_cpu.so" in line:
                return "/" + line.rstrip("\n").partition("/")[2]
    return ""


def _address(results: Any) -> int:
    """Of the C++ object, 0 where it is not what it should be: its first member is the start of the
    trace. Read through the kernel, which refuses where there is no memory."""
    import ctypes

    if object.__basicsize__ != VALUE_AT or type(results).__basicsize__ < VALUE_AT + 8:
        return 0
    address = ctypes.c_uint64.from_address(id(results) + VALUE_AT).value
    if address % 8 or not 0 < address < 1 << 47:
        return 0
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        (start_ns,) = struct.unpack("<Q", os.pread(memory, 8, address))
    finally:
        os.close(memory)
    is_same = start_ns == int(results.trace_start_ns()) and start_ns > 0
    return address if is_same and sys.byteorder == "little" else 0
