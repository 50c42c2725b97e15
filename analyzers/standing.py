"""What a rank does where it stands: waits for other ranks, sleeps, reads, computes, has ended.

A Python stack shows calls into libraries only as far as they are Python themselves. What remains of
a collective is the function of torch.distributed that made it; of a call that was made without one
(`work.wait()`) the text of the user's line; of backward, in which DistributedDataParallel waits for
gradients, that it rests there. The system call in which the kernel holds the thread tells a sleep
from a lock and a socket.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from gpuprof.diagnosis import Place
from gpuprof.stacks import Frame, RankStacks

Kind = Literal[
    "collective", "start", "end", "backward", "device", "loader", "checkpoint", "sleep", "lock",
    "read",
    "write", "network", "child", "stopped", "debugger", "ended", "exiting", "busy", "native",
    "idle",
]  # fmt: skip

WAITS: frozenset[str] = frozenset({"collective", "start", "end", "backward", "device"})
"""Kinds in which a rank waits for other ranks."""

BUSY_FROM = 0.2
"""Of one core: a thread that waits uses none, and one that polls a socket some percent."""

STOOD_S = 2.0
"""So long must a rank be seen in one place to be called standing: a step of most programs passes
many lines in that time."""

_INSTALLED = ("site-packages/", "dist-packages/", "/lib/python", "<frozen", "<string>")
_CALLS = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single",
    "all_gather_object", "all_gather_tensor", "all_reduce", "all_reduce_coalesced", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list", "wait_tensor", "_all_gather_base",
    "_reduce_scatter_base",
})  # fmt: skip
"""Functions of torch.distributed that other ranks must call as well."""
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
_START = frozenset({
    "init_process_group", "new_group", "new_subgroups", "split_group", "init_device_mesh",
    "rendezvous", "_new_process_group_helper", "_store_based_barrier", "_rendezvous_helper",
    "_create_c10d_store",
})  # fmt: skip
_END = frozenset({"destroy_process_group", "_shutdown_backend"})
_LOADER = frozenset({"_try_get_data", "_get_data", "_next_data", "_MultiProcessingDataLoaderIter"})
_CALL_OF_KERNEL: dict[str, Kind] = {
    "sleep": "sleep", "futex": "lock", "read": "read", "write": "write", "fsync": "write",
    "poll": "network", "recv": "network", "accept": "network", "connect": "network",
    "wait": "child",
}  # fmt: skip
_WAIT_IN_LINE = re.compile(r"\.(?:wait|synchronize)\(|\b(?:wait_tensor|wait_for)\(")
_SLEEP_IN_LINE = re.compile(r"\bsleep\(")

_WORDS: dict[str, str] = {
    "start": "waits for the others to start the process group",
    "end": "waits for the others to end the process group",
    "backward": "waits inside backward, where gradients are reduced",
    "device": "waits for its device",
    "loader": "waits for its data loader",
    "checkpoint": "writes or reads a checkpoint",
    "sleep": "sleeps",
    "lock": "waits for a lock or a thread of its own",
    "read": "reads from a file or a pipe",
    "write": "writes to a file or a pipe",
    "network": "waits for a connection of its own",
    "child": "waits for a process that it started",
    "stopped": "is stopped by a signal (SIGSTOP)",
    "debugger": "is held in a debugger",
    "exiting": "has left its main program, and a thread or an exit handler keeps it alive",
    "busy": "runs on",
    "native": "is inside a library, which does not return",
    "idle": "rests",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """What one rank does.

    call: the collective, where it waits in one. place: the user's line, the innermost one; path:
    all of the user's lines, outermost first. words: for a sentence that begins with the rank.
    """

    rank: int
    kind: Kind
    call: str
    place: Place | None
    path: tuple[Place, ...]
    words: str
    stood_s: float
    stacks: RankStacks

    @property
    def waits(self) -> bool:
        return self.kind in WAITS

    @property
    def is_point_to_point(self) -> bool:
        return self.call in _POINT_TO_POINT

    @property
    def spot(self) -> tuple[str, str, str, int]:
        """What ranks that are in the same place have in common."""
        line = self.place
        return self.kind, self.call, line.file if line else "", (line.line or 0) if line else 0


def standing(one: RankStacks) -> Standing:
    """What a rank does, as its stack and the kernel's counters show it."""
    kind, call = _kind(one)
    path = tuple(reversed([_place(frame) for frame in one.stack if is_own(frame)]))
    place = path[-1] if path else None
    words = _WORDS.get(kind, "")
    if kind == "collective":
        words = f"waits in {call}"
    elif kind == "ended":
        words = one.ended or "has ended"
    elif kind in ("busy", "native") and place is None and one.stack:
        words += f" in {one.stack[0].function}"
    if kind == "busy" and one.watched is not None:
        words += f", on {one.watched.cpu_frac:.0%} of a core".replace("%", " %")
    return Standing(one.rank, kind, call, place, path, words, one.stood_s, one)


def is_own(frame: Frame) -> bool:
    """Whether a frame is the user's: in no installed package, and not in the standard library."""
    path = frame.file.replace("\\", "/")
    is_library = path.startswith(("torch/", "<")) or any(mark in path for mark in _INSTALLED)
    return not is_library and not (path.startswith("gpuprof/") and "workloads" not in path)


def _place(frame: Frame) -> Place:
    return Place(file=frame.file, line=frame.line, function=frame.function, code=frame.code)


def _kind(one: RankStacks) -> tuple[Kind, str]:
    watched = one.watched
    if one.ended:
        return "ended", ""
    if watched is not None and watched.state in ("T", "t"):
        return "stopped", ""
    found = _by_frames(one)
    if found is not None:
        return found
    if _waits_for_device(one):
        return "device", ""
    if watched is not None and watched.cpu_frac >= BUSY_FROM:
        return "busy", ""
    own = next((frame for frame in one.stack if is_own(frame)), None)
    code = own.code if own is not None else ""
    if watched is not None and watched.call == "sleep":
        return "sleep", ""
    if _WAIT_IN_LINE.search(code) and (watched is None or not watched.moved):
        return "collective", _operation_in(code)
    if _SLEEP_IN_LINE.search(code):
        return "sleep", ""
    if watched is None:
        return ("native" if one.stack else "idle"), ""
    if watched.call in _CALL_OF_KERNEL:
        return _CALL_OF_KERNEL[watched.call], ""
    return ("busy" if watched.moved else "native"), ""


def _waits_for_device(one: RankStacks) -> bool:
    """Whether a line of a program with a GPU rests in a library without Python's lock: copying a
    result to the host, or synchronizing, waits so, spinning or asleep."""
    watched = one.watched
    if watched is None or not one.header.device or watched.holds_gil:
        return False
    return one.stood_s >= STOOD_S and watched.call in ("", "futex")


def _by_frames(one: RankStacks) -> tuple[Kind, str] | None:
    """What the functions of libraries on the stack say, the innermost one first."""
    names = {frame.function.rsplit(".", 1)[-1] for frame in _above_own(one)}
    if names & _START:  # also a barrier at the end of it
        return "start", ""
    if names & _END:
        return "end", ""
    for frame in _above_own(one):
        name = frame.function.rsplit(".", 1)[-1]
        file = frame.file.replace("\\", "/")
        if "torch/distributed/" in file:
            if "torch/distributed/checkpoint/" in file:
                return "checkpoint", ""
            called = _outer_call(one, frame)
            if called:
                return "collective", called
        elif name == "_engine_run_backward" or file.endswith("torch/autograd/graph.py"):
            is_resting = one.watched is not None and one.watched.process_cpu_frac < BUSY_FROM
            return ("backward", "backward") if is_resting else ("busy", "")
        elif "torch/nn/parallel/distributed.py" in file:
            return "collective", "DistributedDataParallel's synchronization"
        elif "torch/utils/data/" in file and (name in _LOADER or name == "__next__"):
            return "loader", ""
        elif file.endswith("torch/serialization.py"):
            return "checkpoint", ""
        elif file.endswith(("/bdb.py", "/pdb.py")) or "debugpy" in file:
            return "debugger", ""
        elif file.endswith("/threading.py") and name == "_shutdown":
            return "exiting", ""
        elif file.endswith("/subprocess.py"):
            return "child", ""
        elif file.endswith(("/socket.py", "/ssl.py", "/selectors.py")):
            return "network", ""
    return None


def _above_own(one: RankStacks) -> list[Frame]:
    """The frames of libraries that the user's innermost line has called, innermost first."""
    return list(itertools.takewhile(lambda frame: not is_own(frame), one.stack))


def _outer_call(one: RankStacks, inner: Frame) -> str:
    """The collective as the user called it: `all_gather_object` rather than the `all_gather` that
    it is made of."""
    called = ""
    for frame in one.stack[one.stack.index(inner) :]:
        if "torch/distributed/" not in frame.file.replace("\\", "/"):
            break
        name = frame.function.rsplit(".", 1)[-1]
        if name in _CALLS:
            called = name
    return called


def _operation_in(code: str) -> str:
    """A name for what `work.wait()` waits for."""
    called = next((name for name in sorted(_CALLS, key=len, reverse=True) if name in code), "")
    return called or "a collective (wait)"
