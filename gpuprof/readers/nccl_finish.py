"""What can be said only when the whole log is read: ranks of processes, the library's version."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from dataclasses import replace
from importlib import resources

import numpy as np

from gpuprof.commlog import CommLog, LineTable, Process, VersionRow
from gpuprof.readers.nccl_grammar import FINGERPRINTS, INFO_KINDS, RELEASES, version_key
from gpuprof.readers.nccl_prefix import Label

MAX_LINES = 200_000
"""Kept lines: about 60 MB at most."""

MIN_SOURCE_PAIRS = 4
"""Source positions that must agree before a version is taken from them: with fewer, the sets of
versions that fit are wide and sometimes wrong (study of 16 dated logs: 8 of 8 right with four)."""


class ProcessKeeper:
    """Numbers the processes by host and pid."""

    def __init__(self) -> None:
        self._index: dict[tuple[bytes, int], int] = {}
        self._labels: list[Label | None] = []

    def index(self, host: bytes, pid: int, label: Label | None) -> int:
        key = (host, pid)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self._labels)
            self._labels.append(label)
        elif self._labels[found] is None:
            self._labels[found] = label
        return found

    def labels_are_ranks(self) -> bool:
        """A label is a rank when no two processes share it (srun -l may print the node)."""
        labels = [label.number for label in self._labels if label is not None]
        return bool(labels) and max(Counter(labels).values()) == 1

    def rows(self) -> list[Process]:
        return [
            Process(
                host.decode("utf-8", "replace"),
                pid,
                None if label is None else label.number,
                {},
                label_is_local=label is not None and label.kind == "local",
            )
            for (host, pid), label in zip(self._index, self._labels, strict=True)
        ]


class LineKeeper:
    """Kept lines, in columns."""

    def __init__(self) -> None:
        self._line = array("q")
        self._process = array("i")
        self._kind = array("h")
        self._text: list[str] = []

    def add(self, line: int, process: int | None, kind: int, text: str) -> None:
        if len(self._text) < MAX_LINES:
            self._line.append(line)
            self._process.append(-1 if process is None else process)
            self._kind.append(kind)
            self._text.append(text)

    def table(self) -> LineTable:
        return LineTable(
            np.array(self._line, np.int64),
            np.array(self._process, np.int32),
            np.array(self._kind, np.int16),
            tuple(kind.name for kind in INFO_KINDS),
            tuple(self._text),
        )


def name_ranks(log: CommLog, devices: list[int | None], labels_are_ranks: bool) -> None:
    """Gives processes and events the rank they have in the largest communicator of the process."""
    ranks: list[dict[int, int]] = [{} for _ in log.processes]
    for comm in sorted(log.communicators, key=lambda comm: comm.size):
        for member, process in comm.processes.items():
            ordinal = comm.devices.get(member, (-1, ""))[0]
            if comm.size > 1 or not ranks[process]:
                ranks[process][ordinal] = member
    for transport in log.transports:  # printed by the sender, on the network also by the receiver
        if transport.process is not None and not ranks[transport.process]:
            rank = transport.target if transport.direction == "receive" else transport.source
            if rank is not None and transport.kind in ("p2p", "shm", "net"):
                ranks[transport.process] = {-1: rank}
    local_are_ranks = log.multi_node is not True
    for index, one in enumerate(log.processes):
        named = ranks[index]
        usable = labels_are_ranks and (local_are_ranks or not one.label_is_local)
        if not named and usable and one.label is not None:
            named = {-1: one.label}
        log.processes[index] = replace(one, ranks=named)
    for index, event in enumerate(log.events):
        if event.rank is not None or event.process is None:
            continue
        found = dict(log.processes[event.process].ranks)
        device = devices[index]
        rank = next(iter(found.values())) if len(set(found.values())) == 1 else None
        if rank is None and device is not None:
            rank = found.get(device)
        if rank is not None:
            log.events[index] = replace(event, rank=rank)


def date_log(log: CommLog) -> None:
    """Adds a version that the log does not state, when its texts or source lines leave one range.

    Two methods: texts that only some versions print, and pairs of source file and line of WARN and
    error-path lines, which move with every release. The row has `stated=False`; a range reads
    `2.8.3-2.10.3`.
    """
    if log.versions:
        return
    fits = _by_source_lines(log) or _by_texts(log)
    if fits and len(fits) < len(RELEASES):
        text = fits[0] if len(fits) == 1 else f"{fits[0]}-{fits[-1]}"
        log.versions.append(VersionRow(None, "NCCL", text, "", 0, stated=False))


def _by_texts(log: CommLog) -> list[str]:
    low, high = version_key(RELEASES[0]), version_key(RELEASES[-1])
    texts = set(log.lines.text) if log.lines is not None else set()
    texts |= {event.text for event in log.events}
    hit = False
    for expression, since, until in FINGERPRINTS:
        pattern = re.compile(expression)
        if any(pattern.search(text) for text in texts):
            hit = True
            low, high = max(low, version_key(since)), min(high, version_key(until))
    if not hit:
        return []
    return [release for release in RELEASES if low <= version_key(release) <= high]


def source_table() -> dict[str, list[str]]:
    """`file:line` to the versions that are known to print from there (data/nccl_source_lines)."""
    text = resources.files("gpuprof").joinpath("data/nccl_source_lines.json").read_text("utf-8")
    table: dict[str, list[str]] = json.loads(text)["positions"]
    return table


def _by_source_lines(log: CommLog) -> list[str]:
    pairs: set[str] = set()
    for event in log.events:
        if event.source and event.source_line is not None:
            pairs.add(f"{event.source}:{event.source_line}")
        path = re.match(r"([\w./\-]+):(\d+)(?: \(\w+\))? -> \d", event.text)
        if path is not None:
            pairs.add(f"{path[1]}:{path[2]}")
    table = source_table()
    votes = Counter(version for pair in pairs for version in table.get(pair, ()))
    if not votes:
        return []
    best = max(votes.values())
    if best < MIN_SOURCE_PAIRS:
        return []
    return sorted((v for v, n in votes.items() if n == best), key=version_key)
