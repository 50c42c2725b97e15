"""A job that stands still, seen from outside: nothing is put into it, and nothing of it is stopped.

The agent runs when the main thread runs Python. That of a rank that waits in a collective for ever
does not. So before anything is put into a job of several ranks it is watched: its main threads by
what the kernel counts of them, and where one of them does not move, all stacks by py-spy, which
reads them out of the processes' memory.
"""

from __future__ import annotations

import json
import linecache
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.attach.job_ranks import Member, expected_ranks, members_of
from gpuprof.attach.targets import Target
from gpuprof.stacks import MAIN, Frame, Header, Pile, RankStacks, Watched

PATIENCE_S = 4.0
"""So long must a rank stand. Of a job that goes on, the main thread is given a processor within a
step; where steps take longer than this, --patience says so."""
LOOK_S = 0.1
FIRST_STACKS_S = 0.5
"""Ranks that have moved by then are no hang's; the others' stacks are taken, to compare with."""
SPY_S = 5.0
"""py-spy answers in 20 ms; on a busy machine in some tenths of a second."""
AT_ONCE = 8
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
DRIVERS = ("libcuda.so", "libamdhip64.so")
MAX_VALUES = 8
MAX_CODE_CHARS = 200

CALLS = {
    "sleep": (35, 230), "futex": (202,), "read": (0, 17, 19), "write": (1, 18, 20),
    "fsync": (74, 75), "poll": (7, 271, 232, 281, 23, 270), "recv": (45, 47, 299),
    "accept": (43, 288), "connect": (42,), "wait": (61, 247),
}  # fmt: skip
"""Numbers of system calls on x86-64, by what they wait for."""
CALLS_ARM = {
    "sleep": (101, 115), "futex": (98,), "read": (63, 67), "write": (64, 68), "fsync": (82, 83),
    "poll": (73, 22, 72), "recv": (207, 212), "accept": (202, 242), "connect": (203,),
    "wait": (260, 95),
}  # fmt: skip
"""The same on 64-bit ARM."""

Told = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class _Count:
    """What the kernel has counted of a process. cpu_s: of the main thread; all_s: of all."""

    at_ns: int
    switches: int
    cpu_s: float
    all_s: float
    state: str
    call: str

    def is_same(self, other: _Count) -> bool:
        return self.switches == other.switches and self.cpu_s == other.cpu_s


@dataclass(frozen=True, slots=True)
class _Stacks:
    """Of all threads of a process, at one moment. holds_gil: whether the main one ran Python."""

    at_ns: int
    threads: dict[str, Pile]
    values: dict[str, str]
    holds_gil: bool


@dataclass(slots=True)
class _Seen:
    """One rank while it is watched."""

    member: Member
    first: _Count | None
    last: _Count | None = None
    moved: bool = False
    stacks: list[_Stacks] = field(default_factory=list)

    def look(self) -> None:
        count = _count(self.member.pid)
        if count is None:
            return
        if self.first is None:
            self.first = count
        self.moved = self.moved or not count.is_same(self.first)
        self.last = count


def watch(
    targets: Sequence[Target], patience_s: float = PATIENCE_S, told: Told | None = None
) -> list[RankStacks]:
    """The stacks of all ranks of a job that stands still; none of a job that goes on.

    Args:
        targets: Its processes, as far as they were named; the others of its ranks are looked for.
        patience_s: How long they must stand.
        told: Told what goes on.
    """
    members = members_of(targets)
    if len(members) < 2 and max((one.world_size for one in members), default=1) < 2:
        return []
    spy = spy_program()
    if spy is None:
        return []
    seen = [_Seen(one, _count(one.pid)) for one in members]
    began = time.monotonic()
    while (spent_s := time.monotonic() - began) < patience_s:
        time.sleep(LOOK_S)
        for one in seen:
            one.look()
        if all(one.moved for one in seen):
            return []
        if spent_s > FIRST_STACKS_S and not any(one.stacks for one in seen):
            _take_stacks(seen, spy)
        if told is not None and spent_s > 1:
            told("watching a rank that does not move", int(spent_s), int(patience_s))
    _take_stacks(seen, spy)
    found = [_result(one) for one in seen]
    from gpuprof.analyzers.hang import findings_from_stacks

    found += [_ended(rank, members) for rank in expected_ranks(members)]
    if _is_starting(found) or _only_devices(found):
        return []
    return found if findings_from_stacks(found) else []


def _is_starting(found: Sequence[RankStacks]) -> bool:
    """Whether some ranks wait for others that are on their way: importing torch takes a while."""
    from gpuprof.analyzers.standing import standing

    ranks = [standing(one) for one in found]
    others = [one for one in ranks if not one.waits]
    waits = any(one.kind == "start" for one in ranks)
    return waits and bool(others) and all(one.stacks.moves for one in others)


def _only_devices(found: Sequence[RankStacks]) -> bool:
    """Whether all that wait do so for their devices: a long step looks like that, too. Such a job
    is entered, which tells: its main threads run Python again, or do not."""
    from gpuprof.analyzers.standing import standing

    return {one.kind for one in map(standing, found) if one.waits} == {"device"}


def look_now(targets: Sequence[Target]) -> list[RankStacks]:
    """As `watch`, of a job that is known to stand: its main thread ran no Python when asked to."""
    members = members_of(targets)
    spy = spy_program()
    if spy is None:
        return []
    seen = [_Seen(one, _count(one.pid)) for one in members]
    _take_stacks(seen, spy)
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        time.sleep(LOOK_S)
        for one in seen:
            one.look()
    _take_stacks(seen, spy)
    return [_result(one) for one in seen] + [_ended(r, members) for r in expected_ranks(members)]


def spy_program() -> str | None:
    """py-spy: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def write(found: Sequence[RankStacks], folder: Path) -> None:
    """Writes the ranks' stacks into a run directory (see `gpuprof.stacks`).

    Raises:
        OSError: it can't be written.
    """
    for one in found:
        lines = [msgspec.json.encode(one.header)]
        numbers: dict[Frame, int] = {}
        for thread, pile in ((MAIN, one.stack), *one.others):
            for frame in pile:
                if frame not in numbers:
                    numbers[frame] = len(numbers)
                    word: dict[str, Any] = {
                        "frame": numbers[frame],
                        "at": [frame.file, frame.function, frame.line],
                    }
                    if frame.code:
                        word["code"] = frame.code
                    lines.append(msgspec.json.encode(word))
            stack = [numbers[frame] for frame in pile]
            times = (one.since_ns, one.seen_ns) if thread == MAIN else (one.seen_ns,)
            for at in dict.fromkeys(times):
                row: dict[str, Any] = {"t": at, "thread": thread, "stack": stack}
                if thread == MAIN and one.values:
                    row["values"] = dict(one.values)
                if not one.ended:
                    lines.append(msgspec.json.encode(row))
        if one.watched is not None:
            lines.append(msgspec.json.encode({"watched": one.watched}))
        if one.ended:
            lines.append(msgspec.json.encode({"ended": one.ended}))
        (folder / f"stacks-rank{one.rank:05d}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def _result(one: _Seen) -> RankStacks:
    header = _header(one.member)
    if one.last is None or one.first is None or not one.member.alive():
        return RankStacks(header=header, ended="has ended while it was watched")
    spent_s = max((one.last.at_ns - one.first.at_ns) / 1e9, 1e-3)
    last = one.stacks[-1] if one.stacks else None
    watched = Watched(
        from_ns=one.first.at_ns,
        to_ns=one.last.at_ns,
        moved=one.moved,
        cpu_frac=round((one.last.cpu_s - one.first.cpu_s) / spent_s, 4),
        process_cpu_frac=round((one.last.all_s - one.first.all_s) / spent_s, 4),
        state=one.last.state,
        call=one.last.call,
        holds_gil=last is not None and last.holds_gil,
    )
    if last is None:
        return RankStacks(header=header, watched=watched)
    main = last.threads.get(MAIN, ())
    since_ns = last.at_ns
    for earlier in reversed(one.stacks):
        if earlier.threads.get(MAIN, ()) != main:
            break
        since_ns = earlier.at_ns
    if not one.moved:  # a thread that was given no processor is where it was
        since_ns = min(since_ns, one.first.at_ns)
    return RankStacks(
        header=header,
        stack=main,
        since_ns=since_ns,
        seen_ns=last.at_ns,
        values=last.values,
        others=tuple((name, pile) for name, pile in last.threads.items() if name != MAIN),
        watched=watched,
    )


def _ended(rank: int, members: Sequence[Member]) -> RankStacks:
    header = _header(members[0])
    header = msgspec.structs.replace(header, rank=rank, pid=0, environment={}, device=False)
    return RankStacks(header=header, ended="has ended: no process of it is left on this host")


def _header(member: Member) -> Header:
    return Header(
        rank=member.rank,
        world_size=member.world_size,
        host=socket.gethostname(),
        pid=member.pid,
        environment=member.settings(),
        device=_uses_gpu(member.pid),
    )


def _uses_gpu(pid: int) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(library in maps for library in DRIVERS)


def _count(pid: int) -> _Count | None:
    """What the kernel has counted by now; None where there is no such process any more."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}")
        fields = (own / "stat").read_text(errors="replace").rpartition(")")[2].split()
        whole = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        switches = sum(
            int(line.split()[-1])
            for line in (own / "status").read_text(errors="replace").splitlines()
            if "ctxt_switches" in line
        )
    except (OSError, ValueError, IndexError):
        return None
    if fields[0] in "ZX":
        return None
    return _Count(
        time.time_ns(),
        switches,
        (int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
        (int(whole[11]) + int(whole[12])) / CLOCK_TICKS,
        fields[0],
        _call(own),
    )


def _call(thread: Path) -> str:
    """What the system call waits for that a thread is in, "" where it is in none, or none known."""
    try:
        first = (thread / "syscall").read_text().split()[0]
    except (OSError, IndexError):
        return ""
    table = CALLS_ARM if os.uname().machine == "aarch64" else CALLS
    number = int(first) if first.isdigit() else -1
    return next((name for name, numbers in table.items() if number in numbers), "")


def _take_stacks(seen: Sequence[_Seen], spy: str) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for one, threads in zip(seen, pool.map(lambda o: _spy(o.member, spy), seen), strict=True):
            if threads is not None:
                one.stacks.append(threads)


def _spy(member: Member, spy: str) -> _Stacks | None:
    """Stacks of a process's threads, without stopping it; None where they can't be had."""
    command = [spy, "dump", "--nonblocking", "--json", "--locals", "--full-filenames"]
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*command, "--pid", str(member.pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SPY_S,
            check=False,
        )
        if done.returncode == 0:
            return _threads(json.loads(done.stdout), member)
    return None


def _threads(found: Any, member: Member) -> _Stacks:
    threads: dict[str, Pile] = {}
    values: dict[str, str] = {}
    holds_gil = False
    for thread in found:
        is_main = thread.get("os_thread_id") in (member.pid, member.inner_pid)
        name = MAIN if is_main else str(thread.get("thread_name") or thread.get("os_thread_id"))
        pile = tuple(_frame(frame, member) for frame in thread.get("frames") or ())
        threads[name] = pile
        if is_main:
            values = _counters(thread.get("frames") or ())
            holds_gil = bool(thread.get("owns_gil"))
    return _Stacks(time.time_ns(), threads, values, holds_gil)


def _frame(frame: dict[str, Any], member: Member) -> Frame:
    file = str(frame.get("filename") or "?")
    line = frame.get("line")
    number = line if isinstance(line, int) else 0
    code = ""
    if number and not file.startswith("<"):
        path = file if file.startswith("/") else f"{member.folder}/{file}"
        code = linecache.getline(f"/proc/{member.pid}/root{path}", number).strip()
    return Frame(file, str(frame.get("name") or "?"), number, code[:MAX_CODE_CHARS])


def _counters(frames: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Whole numbers among the local variables of the user's frames: a step, an epoch, an index."""
    found: dict[str, str] = {}
    for frame in frames:
        file = str(frame.get("filename") or "")
        if "site-packages" in file or "/lib/python" in file or file.startswith("<"):
            continue
        for variable in frame.get("locals") or ():
            name, text = str(variable.get("name")), str(variable.get("repr"))
            is_rank = "rank" in name.lower()
            if text.isdigit() and len(text) <= 12 and not is_rank and len(found) < MAX_VALUES:
                found.setdefault(name, text)
    return found
