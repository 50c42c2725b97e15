"""Reads what NCCL's RAS says of a job: how far each rank of each communicator has come.

RAS (NCCL 2.24 and newer) answers `VERBOSE STATUS` with a text for people, since 2.28 with JSON, too
(`ncclras -f json`). A file may hold several answers, one after the other; the last one counts, and
those before it tell whether the ranks went on meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.errors import InputError
from gpuprof.readers.text import text_chunks, text_head

MAX_BYTES = 64 << 20
"""Of a job of ten thousand ranks it says some megabytes."""

_ANSWER = re.compile(r"^(?:NCCL|RCCL) version \S+ compiled with", re.MULTILINE)
_JOB = re.compile(r"Job summary\n=+", re.MULTILINE)
_COMMUNICATOR = re.compile(
    r"^#(\d+-\d+) \(([0-9a-fA-Fx:]+)\) (MISMATCH|INCOMPLETE|ERROR|TIMEOUT|DEAD|NOCOMM|OK)\b"
)
_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_SEVERAL = re.compile(
    r"(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)"
)
_ONE = re.compile(
    r"Rank (\d+) has (?:launched up to operation (\d+)|not launched any operations)(.*)"
)
_LISTED = re.compile(r"Rank (\d+) -- (.*)")
_PLACE = re.compile(r"GPU (\S+) managed by process (\d+) on node (\S+)")
_DEAD = re.compile(r"Process (\d+) on node (\S+) managing GPU")
_MISSING_COMMA = re.compile(r'([\d"el])(\s*\n\s*)("[^"\n]*"\s*:)')
"""NCCL 2.28.9 leaves one out before the status of a missing rank."""


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank of a communicator. node, pid: where, as far as it is said."""

    rank: int
    node: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class RasCount:
    """Ranks that have come equally far. ranks: those that are named; count: all of them."""

    operations: int
    count: int
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator with something to be said of it.

    name: NCCL's hash. state: MISMATCH, INCOMPLETE, ERROR, TIMEOUT, … operation: whose counts
    differ, "collective" before NCCL 2.26. counts: how far ranks have come, where that differs.
    missing: ranks that do not answer.
    """

    name: str
    state: str
    operation: str = "collective"
    counts: tuple[RasCount, ...] = ()
    missing: tuple[RasRank, ...] = ()


@dataclass(frozen=True, slots=True)
class RasReport:
    """One or more answers of RAS. dead: processes that are gone, as (pid, node). same: whether the
    counts were the same in all answers; None for a single answer."""

    communicators: tuple[RasCommunicator, ...]
    dead: tuple[tuple[int, str], ...] = ()
    same: bool | None = None
    path: str = ""


def is_ras(start: str) -> bool:
    """Whether a text begins like an answer of RAS."""
    if start.lstrip().startswith("{"):
        return '"communicators_count"' in start and '"nccl_version"' in start
    return bool(_ANSWER.search(start)) and bool(_JOB.search(start))


def is_ras_file(path: Path) -> bool:
    return is_ras(text_head(path)[:8192])


def read_ras(path: Path) -> RasReport:
    """The answers in a file.

    Raises:
        InputError: it holds none, or is too large for one.
    """
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB", hint="an answer is not")
    text = b"".join(text_chunks(path)).decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        return RasReport(tuple(_from_json(path, text)), path=str(path))
    starts = [match.start() for match in _ANSWER.finditer(text)]
    if not starts:
        raise InputError(f"{path} holds no answer of NCCL's RAS", hint="ncclras -v prints one")
    pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    answers = [tuple(_from_text(piece)) for piece in pieces]
    same = all(one == answers[0] for one in answers) if len(answers) > 1 else None
    dead = tuple((int(pid), node) for pid, node in _DEAD.findall(pieces[-1]))
    return RasReport(answers[-1], dead, same, str(path))


def _from_text(text: str) -> Iterator[RasCommunicator]:
    name = state = ""
    operation = "collective"
    counts: list[RasCount] = []
    missing: list[RasRank] = []

    def done() -> Iterator[RasCommunicator]:
        if name:
            yield RasCommunicator(name, state, operation, tuple(counts), tuple(missing))

    for raw in text.splitlines():
        line = raw.strip()
        if match := _COMMUNICATOR.match(line):
            yield from done()
            name, state, operation, counts, missing = match[2], match[3], "collective", [], []
        elif not name or not line:
            continue
        elif match := _KIND.match(line):
            if counts:  # another operation of the same communicator
                yield from done()
                counts = []
            operation = match[1]
        elif match := _SEVERAL.match(line):
            counts.append(RasCount(int(match[2] or 0), int(match[1])))
        elif match := _ONE.match(line):
            counts.append(RasCount(int(match[2] or 0), 1, (_rank(match[1], match[3]),)))
        elif match := _LISTED.match(line):
            one = _rank(match[1], match[2])
            if state == "MISMATCH" and counts:
                last = counts[-1]
                counts[-1] = RasCount(last.operations, last.count, (*last.ranks, one))
            else:
                missing.append(one)
    yield from done()


def _rank(number: str, text: str) -> RasRank:
    place = _PLACE.search(text)
    return RasRank(int(number), place[3] if place else "", int(place[2]) if place else 0)


def _from_json(path: Path, text: str) -> Iterator[RasCommunicator]:
    try:
        found = msgspec.json.decode(_MISSING_COMMA.sub(r"\1,\2\3", text))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path} is no answer of NCCL's RAS", hint=str(error)) from error
    listed = found.get("communicators") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise InputError(f"{path} is no answer of NCCL's RAS", hint="it has no communicators")
    for one in listed:
        if isinstance(one, dict):
            yield from _communicator(one)


def _communicator(found: dict[str, Any]) -> Iterator[RasCommunicator]:
    name = str(found.get("hash", ""))[:100]
    missing = tuple(_json_rank(one) for one in _dicts(found.get("missing_ranks")))
    by_operation: dict[str, dict[int, list[RasRank]]] = {}
    ranks = _dicts(found.get("ranks"))
    operations = {str(key)[:40] for one in ranks for key in (_counts(one.get("collective_counts")))}
    for one in ranks:
        counts = _counts(one.get("collective_counts"))
        for operation in operations:
            number = counts.get(operation, 0)
            by_operation.setdefault(operation, {}).setdefault(number, []).append(_json_rank(one))
    if missing:
        yield RasCommunicator(name, "INCOMPLETE", missing=missing)
    for operation, numbers in sorted(by_operation.items()):
        if len(numbers) > 1:
            counted = (RasCount(n, len(those), tuple(those)) for n, those in numbers.items())
            ordered = sorted(counted, key=lambda count: -count.count)
            yield RasCommunicator(name, "MISMATCH", operation, tuple(ordered))


def _dicts(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _counts(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    return {str(key)[:40]: value for key, value in found.items() if type(value) is int}


def _json_rank(found: dict[str, Any]) -> RasRank:
    rank, pid = found.get("rank"), found.get("pid")
    return RasRank(
        rank if type(rank) is int else -1,
        str(found.get("host", ""))[:200],
        pid if type(pid) is int else 0,
    )
