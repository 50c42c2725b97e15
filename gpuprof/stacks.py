"""Python stacks of the ranks of a job, and how long each has stood where it stands.

In a run directory `stacks-rank00000.jsonl` holds those of one rank, line by line:

    {"format": "gpuprof-stacks", "version": 1, "rank": 0, …}      first: whose they are
    {"frame": 0, "at": [file, function, line], "code": "…"}       a frame, before its first use
    {"t": ns, "thread": "MainThread", "stack": [0, …]}            one stack, innermost frame first
    {"watched": {…}}                                              what the kernel counted meanwhile
    {"ended": "…"}                                                there is no such process any more

`gpuprof attach` writes it, from within a job that runs or from outside one that stands still;
`gpuprof.readers.stacks` reads it, and what py-spy prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

FORMAT = "gpuprof-stacks"
VERSION = 1
MAIN = "MainThread"

Pile = tuple["Frame", ...]
"""A stack, innermost frame first."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A line that a thread is in. code: its text, "" where it is not known."""

    file: str
    function: str
    line: int
    code: str = ""


class Watched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the kernel counted while a process was watched from outside.

    from_ns, to_ns: when, since the epoch. moved: whether the main thread was given a processor at
    all. cpu_frac: of one core, by the main thread; process_cpu_frac: by all threads. state: of the
    main thread, as `/proc` has it (S sleeps, R runs, D in the disk's hands, T stopped). call:
    the system call that it is in, "" where it is in none. holds_gil: whether the main thread was
    running Python when its stack was taken.
    """

    from_ns: int
    to_ns: int
    moved: bool = False
    cpu_frac: float = 0.0
    process_cpu_frac: float = 0.0
    state: str = ""
    call: str = ""
    holds_gil: bool = False


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Whose stacks they are. rank: minus the pid where nothing names it. environment: variables
    that decide how ranks find each other. device: whether the process has a GPU's driver loaded."""

    format: str = FORMAT
    version: int = VERSION
    rank: int = 0
    world_size: int = 0
    host: str = ""
    pid: int = 0
    environment: dict[str, str] = {}
    device: bool = False


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank.

    stack: of its main thread, as it was seen last; empty where it ran no Python. since_ns: from
    when on it was seen unchanged; seen_ns: when last. values: local variables of the user's code
    that count something, as text. others: stacks of the other threads, by their names. ended: why
    there is nothing to be seen of it, "" where there is.
    """

    header: Header
    stack: Pile = ()
    since_ns: int = 0
    seen_ns: int = 0
    values: Mapping[str, str] = field(default_factory=dict)
    others: tuple[tuple[str, Pile], ...] = ()
    watched: Watched | None = None
    ended: str = ""
    path: str = ""

    @property
    def rank(self) -> int:
        return self.header.rank

    @property
    def stood_s(self) -> float:
        """Seconds for which it was seen to stand where it stands."""
        return max(0, self.seen_ns - self.since_ns) / 1e9

    @property
    def moves(self) -> bool:
        """Whether its main thread got on while it was watched."""
        return self.watched is not None and self.watched.moved
