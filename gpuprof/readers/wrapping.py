"""Takes off what log collectors and launchers write around each line of a program.

A line that a job printed may come through Docker's file, a pod's log, the journal, Ray and srun,
each of which stores it in JSON or puts a time and a label before it. Which of them did is told by
the first lines of a file; most must agree, for a program may write such a line on its own. Readers
then see what the program wrote, one line for each line of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, NamedTuple

import msgspec

LOOKED_AT = 64
"""Lines at the head of a file that tell how it is wrapped: past what a shell says before."""

MIN_WRAPPED_FRAC = 0.5
"""Share of those lines that must have one prefix: of a program that writes times of its own,
tracebacks and tables have none; what a collector stored has it on nearly every line."""

MAX_LAYERS = 6
"""Pod, time, Ray, srun and one to spare: each is looked for under the last."""

MAX_NAME_CHARACTERS = 253
"""Of a pod, as Kubernetes allows it; hosts, containers and tasks have shorter ones."""

ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\(B)")
"""What terminals take for colours: of launchers, of `grep --color`, and of the job itself."""

Keep = Literal["nothing", "ranks", "times"]
"""What of the wrapping a reader wants to see. "ranks": the labels of launchers, of a log of many
ranks. "times": all but the JSON. "nothing": the file is the output of one process; a label is taken
off only where no second one is in use, or the lines of several nodes would become those of one."""

_STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_NAME = rb"[\w.\-]{1,%d}" % MAX_NAME_CHARACTERS


class Form(NamedTuple):
    """One kind of prefix: what stands before the label, and the label, which names where the line
    is from (empty where nothing does). `rank`: whether it is a launcher's, which readers of many
    ranks want to see."""

    name: str
    before: bytes
    label: bytes
    rank: bool = False


FORMS: tuple[Form, ...] = (
    Form("CRI (containerd, CRI-O)", _STAMP + rb" (?:stdout|stderr) [FP] ", b""),
    Form("kubectl logs --prefix", b"", rb"\[pod/" + _NAME + rb"/" + _NAME + rb"\] "),
    Form(
        "journalctl",
        rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|" + _STAMP + rb") ",
        _NAME + rb" [\w.\-@:/()]{1,100}\[\d{1,10}\]: ",
    ),
    Form("kubectl logs --timestamps, docker logs --timestamps", _STAMP + b" ", b""),
    Form("docker compose logs", b"", _NAME + rb"[-_]\d{1,4} +\| "),
    Form("Ray", b"", rb"\((?:[^\n]{1,100}? )?pid=\d{1,10}(?:, ip=[\w.:\-]{1,64})?\) "),
    Form("Open MPI 5", b"", rb"\[[^\]\s]{1,100}@\d+,\d+\]<std(?:out|err)>: ", rank=True),
    Form("Open MPI", b"", rb"\[\d+,[^\]\s]{1,100}\]<std(?:out|err)>:", rank=True),
    Form("torchrun", b"", rb"\[(?:rank|default)\d{1,6}\]:", rank=True),
    Form("srun --label", rb" {0,6}", rb"\d{1,6}: ", rank=True),
)
"""What stands before a line, with whoever writes it. The journal's form needs a process's number,
so that lines of the kernel keep the time by which its reports are dated."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """How the lines of a file are wrapped. `stored`: in JSON; `prefix`: what else is taken off."""

    stored: bool
    prefix: re.Pattern[bytes] | None

    def off(self, data: bytes) -> bytes:
        """Whole lines as the program wrote them, without colours."""
        if self.stored:
            data = unstored(data)
        if b"\x1b" in data:
            data = ESCAPES.sub(b"", data)
        return data if self.prefix is None else self.prefix.sub(b"", data)


def wrapping_of(start: bytes, keep: Keep = "nothing") -> Wrapping:
    """How a file is wrapped, by its first lines, and what of it a reader wants to see."""
    lines = _head_lines(start)
    stored = any(_message(line) is not None for line in lines)
    if stored:
        lines = [unstored(line) for line in lines]
    lines = [ESCAPES.sub(b"", line) for line in lines]
    layers: list[bytes] = []
    while keep != "times" and len(layers) < MAX_LAYERS:
        layer = _layer(lines, keep)
        if layer is None:
            break
        layers.append(layer)
        outermost = re.compile(layer)
        lines = [outermost.sub(b"", line, count=1) for line in lines if outermost.match(line)]
        lines = [line for line in lines if line.strip()]
    if not layers:
        return Wrapping(stored, None)
    inner = b""  # a line that another program wrote in between may have the outer ones only
    for layer in reversed(layers[1:]):
        inner = b"(?:" + layer + inner + b")?"
    return Wrapping(stored, re.compile(b"^" + layers[0] + inner, re.MULTILINE))


def unwrapped(data: bytes) -> bytes:
    """The first bytes of a file as the one process that it is from wrote them."""
    return wrapping_of(data).off(data)


def labels_of(data: bytes) -> tuple[str, ...]:
    """The labels that keep the lines of a file apart: those of several pods, tasks or nodes where
    the lines of more than one are in it, else nothing."""
    wrapping = wrapping_of(data)
    found = next(_prefixes(_head_lines(wrapping.off(data)), FORMS), None)
    if found is None:
        return ()
    return tuple(sorted(label.decode("utf-8", "replace").strip() for label in found[1]))


def _head_lines(start: bytes) -> list[bytes]:
    return [line for line in start.split(b"\n") if line.strip()][:LOOKED_AT]


def _layer(lines: Sequence[bytes], keep: Keep) -> bytes | None:
    """The pattern of what stands before most of these lines, if anything does."""
    forms = [form for form in FORMS if not (form.rank and keep == "ranks")]
    for form, labels in _prefixes(lines, forms):
        if keep == "ranks":
            return form.before + form.label
        if len(labels) == 1:
            return form.before + re.escape(next(iter(labels)))
    return None


def _prefixes(
    lines: Sequence[bytes], forms: Sequence[Form]
) -> Iterator[tuple[Form, frozenset[bytes]]]:
    """The forms that most of these lines have, with the labels in use."""
    for form in forms:
        pattern = re.compile(form.before + b"(" + form.label + b")")
        found = [match[1] for line in lines if (match := pattern.match(line)) is not None]
        if found and len(found) >= MIN_WRAPPED_FRAC * len(lines):
            yield form, frozenset(found)


class _Docker(msgspec.Struct):
    """A line as Docker's json-file driver stores it."""

    log: str
    time: str = ""


class _Journal(msgspec.Struct):
    """A line of `journalctl -o json`; the time is in microseconds since the Unix epoch."""

    MESSAGE: str
    stamp: str = msgspec.field(default="", name="__REALTIME_TIMESTAMP")


_DOCKER = msgspec.json.Decoder(_Docker)
_JOURNAL = msgspec.json.Decoder(_Journal)
_IS_STAMP = re.compile(_STAMP)


def unstored(data: bytes) -> bytes:
    """Whole lines out of the JSON in which Docker or the journal stores them.

    The stored time is put before the line, as `docker logs --timestamps` does. What is no such
    line, or is cut off, stays as it is.
    """
    return b"".join(
        line if (said := _message(line)) is None else said + b"\n"
        for line in data.splitlines(keepends=True)
    )


def _message(line: bytes) -> bytes | None:
    """`TIME text` of a line that is stored in JSON, None for any other line."""
    if not line.startswith(b"{"):
        return None
    try:
        if b'"log"' in line:
            docker = _DOCKER.decode(line)
            text, stamp = docker.log, docker.time
        elif b'"MESSAGE"' in line:
            journal = _JOURNAL.decode(line)
            text, stamp = journal.MESSAGE, _iso(journal.stamp)
        else:
            return None
    except msgspec.MsgspecError:  # cut off, not UTF-8, or another object
        return None
    one_line = text.rstrip("\n").replace("\n", " ").encode("utf-8", "replace")
    stamped = stamp.encode("utf-8", "replace")
    return stamped + b" " + one_line if _IS_STAMP.fullmatch(stamped) else one_line


def _iso(micros: str) -> str:
    if not micros.isascii() or not micros.isdigit() or len(micros) >= 20:
        return ""
    seconds, rest = divmod(int(micros), 10**6)
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:06}Z"
