"""What a user points at, sorted by kind: files, folders of files, run directories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.errors import InputError
from gpuprof.readers.files import SNIFF_BYTES, UTF16_MARKS, encoding_of, head, shown, sniff
from gpuprof.readers.text import tail, text_of, utf8_of
from gpuprof.run import RankRecord, is_run, load

MAX_FILES = 20_000
"""More files than this under one folder are no folder of traces: a home directory, a data set."""

MAX_SHOWN = 200
"""Characters of a path that a message shows where the path itself is the fault."""

_TRACE_NAME = re.compile(r".*\.json(\.gz)?$", re.IGNORECASE)
_OTHER_NAME = re.compile(
    r".*\.(log|txt|csv|out|jsonl|xml|err)([.-]\w+){0,2}$"  # rotated and packed ones as well
    r"|.*(dump|trace|nccl|smi|dmon|topo|dmesg|xid)[^/]*$",
    re.IGNORECASE,
)
MOST_UNNAMED = 200
"""Files of a folder that are looked into although nothing in their names speaks for them, where the
others hold nothing."""

_ATTRIBUTION = re.compile(r"attribution-rank\d+\.json(\.gz)?$")
_NAMES_LIBRARY = re.compile(r"\bNCCL\b|\bncclSystemError|ProcessGroupNCCL|\bRCCL\b")
_LIBRARY_SAYS = (
    *(b"NCCL INFO ", b"NCCL WARN ", b"NCCL version ", b"RCCL version"),
    *(b"Watchdog caught collective", b"store based barrier on rank"),
    *(b"seconds waiting for clients", b"seconds waiting for workers"),
    *(b"RendezvousTimeoutError", b"RendezvousConnectionError"),
    *(b"client socket has timed out", b"server socket has failed to listen on any local"),
)
"""What NCCL says, and what PyTorch says where ranks do not meet, which NCCL need not precede."""

_JSON = re.compile(r'\s*[\[{][\s\[{]*"')
"""How a file of JSON begins; a trainer that prints its dictionaries writes `{'loss': …`."""

TALK_HEAD_BYTES = 4 << 20
TALK_TAIL_BYTES = 1 << 20
"""How much of a text that is nothing else is searched for such lines, from its beginning and before
its end: jobs write for long before they begin to talk, and what ends them stands at the end."""

_OWN_OUTPUT = frozenset({"diagnosis.json", "manifest.json"})

HINT = (
    "give Kineto traces (.json, .json.gz), logs of NCCL or nvidia-smi, a folder of them, or a run"
    " directory"
)


@dataclass(slots=True)
class Inputs:
    """Paths by kind, each in the order given (folders sorted by name).

    traces: Kineto traces whose times count. attribution: traces of windows with stacks, whose
    times do not. left_out: files in folders that nothing here reads, with the reason. empty: files
    in folders that are named like traces. other_text: such in an encoding that is not read.
    irregular: pipes, sockets and devices in folders. cores: CPU cores that each process of the run
    may use, as a run directory says. records: what it says of each rank; step_logs: the lengths
    of each rank's steps. warnings: what a run directory says
    of itself, and files left out.
    """

    traces: list[Path] = field(default_factory=list)
    attribution: list[Path] = field(default_factory=list)
    nccl_logs: list[Path] = field(default_factory=list)
    smi_logs: list[Path] = field(default_factory=list)
    flight_records: list[Path] = field(default_factory=list)
    topologies: list[Path] = field(default_factory=list)
    samples: list[Path] = field(default_factory=list)
    xid_logs: list[Path] = field(default_factory=list)
    stacks: list[Path] = field(default_factory=list)
    ras: list[Path] = field(default_factory=list)
    left_out: dict[Path, str] = field(default_factory=dict)
    empty: list[Path] = field(default_factory=list)
    other_text: list[Path] = field(default_factory=list)
    irregular: list[Path] = field(default_factory=list)
    cores: int | None = None
    records: dict[int, RankRecord] = field(default_factory=dict)
    step_logs: dict[int, list[Path]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not any(
            (
                self.traces,
                self.nccl_logs,
                self.smi_logs,
                self.flight_records,
                self.topologies,
                self.samples,
                self.xid_logs,
                self.stacks,
                self.ras,
            )
        )


def gather(paths: Sequence[str | os.PathLike[str]]) -> Inputs:
    """Sorts what the user gave by kind.

    A file that is named must be something; in a folder, what is nothing is left out and noted.

    Raises:
        InputError: a path is missing, is of no known kind, or a folder holds nothing to read.
    """
    inputs = Inputs()
    for given in paths:
        if not os.fspath(given):  # an unset variable: it would stand for the present folder
            raise InputError("an empty path", hint="check the variable that it came from")
        path = Path(given)
        if _is_folder(path):
            before = inputs.is_empty() and not inputs.attribution
            if is_run(path):
                _take_run(path, inputs)
            else:
                _take_folder(path, inputs)
            if before and inputs.is_empty() and not inputs.attribution:
                raise InputError(f"{path} holds nothing that can be analyzed", hint=_found(path))
        else:
            _take(path, inputs, named=True)
    inputs.traces, inputs.attribution = _once(inputs.traces), _once(inputs.attribution)
    _warn_of_left_out(inputs)
    if inputs.is_empty() and inputs.attribution:
        # Only windows with stacks: their times are distorted, but better than none.
        inputs.traces, inputs.attribution = inputs.attribution, []
    return inputs


def _once(paths: Sequence[Path]) -> list[Path]:
    """A folder and a file in it name that file twice."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def _warn_of_left_out(inputs: Inputs) -> None:
    """A rank whose file is damaged must not vanish without a word."""
    unread = [
        path
        for path in inputs.left_out
        if _TRACE_NAME.match(path.name) and path not in inputs.other_text
    ]
    for paths, why in (
        (unread, "is no trace or is damaged"),
        (inputs.empty, "is empty"),
        (inputs.other_text, "is text in UTF-16 or UTF-32, not in UTF-8,"),
        (inputs.irregular, "is a pipe, a socket or a device, no file,"),
    ):
        if paths:
            more = f" (and {len(paths) - 1} more like it)" if len(paths) > 1 else ""
            inputs.warnings.append(f"{shown(paths[0])} {why} and is left out{more}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, a NUL
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        name = str(path)
        shown = name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…"
        raise InputError(f"cannot read {shown}", hint=reason) from error


def _found(folder: Path) -> str:
    """What to give instead of a folder, with the names of what is in it."""
    names = [path.name for path in _files_under(folder)]
    if not names:
        return f"it has no files; {HINT}"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    listed = ", ".join(shown(Path(name)) for name in names[:3])
    return f"none of {listed}{more} is of a kind that is read; {HINT}"


def _take_folder(folder: Path, inputs: Inputs) -> None:
    unnamed = []
    before = inputs.is_empty() and not inputs.attribution
    for path in _files_under(folder, inputs.irregular):
        if path.name in _OWN_OUTPUT:
            continue
        if path.stat().st_size == 0:
            if _TRACE_NAME.match(path.name):
                inputs.empty.append(path)
            continue
        if _TRACE_NAME.match(path.name) or _OTHER_NAME.match(path.name):
            _take(path, inputs, named=False)
        else:
            unnamed.append(path)
    if before and inputs.is_empty() and not inputs.attribution:
        # Whoever gives a folder means what is in it, whatever its files are called.
        for path in unnamed[:MOST_UNNAMED]:
            _take(path, inputs, named=False)


def _take_run(folder: Path, inputs: Inputs) -> None:
    """A run directory says itself what is in it; of several timing windows one is analyzed."""
    from gpuprof.readers.samples import is_samples

    run = load(folder)
    inputs.traces += run.best_traces()
    inputs.attribution += [paths[0] for paths in run.attribution.values()]
    inputs.nccl_logs += [path for path in run.nccl_logs if kind_of(path) == "nccl-log"]
    inputs.flight_records += run.flight_records
    inputs.stacks += run.stacks.values()
    if run.ras is not None:
        inputs.ras.append(run.ras)
    if run.samples is not None and is_samples(run.samples):
        inputs.samples.append(run.samples)
    inputs.cores = run.cores
    inputs.records.update(run.ranks)
    inputs.step_logs.update(run.steps)
    inputs.warnings += run.warnings


def _files_under(folder: Path, irregular: list[Path] | None = None) -> Iterator[Path]:
    """Regular files below a folder, sorted, hidden ones and links to folders left out.

    Args:
        irregular: Takes what is named like something to read, but is no file to read to its end.
    """
    seen = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            seen += 1
            if seen > MAX_FILES:
                raise InputError(
                    f"{folder} holds more than {MAX_FILES:,} files", hint="name a smaller folder"
                )
            path = Path(root) / name
            if name.startswith("."):
                continue
            if path.is_file():
                yield path
            elif irregular is not None and path.exists():
                irregular.append(path)


def kind_of(path: Path) -> str:
    """What a file is: by its own signs first, then by what the readers of text files make of it.

    Returns:
        "kineto", "nccl-log", "smi", "flight-recorder", "samples", "topology", "xid",
        "stacks", "ras" or "unknown".
    """
    kind = sniff(path)
    if kind == "smi-csv":
        return "smi"
    if kind == "nccl-log":  # what RAS says begins with NCCL's version, too
        from gpuprof.readers.ras import is_ras_file

        return "ras" if is_ras_file(path) else kind
    if kind != "unknown":
        return kind
    return _kind_of_text(path)


def _kind_of_text(path: Path) -> str:
    from gpuprof.readers.ras import is_ras_file
    from gpuprof.readers.samples import is_samples
    from gpuprof.readers.stacks import is_stacks

    if is_samples(path):
        return "samples"
    if is_stacks(path):
        return "stacks"
    if is_ras_file(path):
        return "ras"
    start = head(path, TALK_HEAD_BYTES)
    text = text_of(start[:SNIFF_BYTES])
    if not text.strip() or ("\0" in text[:1024].replace("\ufeff", "") and not _is_utf16(path)):
        return "unknown"
    from gpuprof.readers.smi import is_smi

    if is_smi(path):
        return "smi"
    from gpuprof.readers.topology import parse_topology

    if "<system" in text[:4096] or ("GPU0" in text and parse_topology(text) is not None):
        return "topology"
    from gpuprof.readers.xid import is_xid_log

    if not _is_utf16(path) and is_xid_log(text.splitlines()):
        return "xid"
    if _NAMES_LIBRARY.search(text) or _talks(utf8_of(start[:SNIFF_BYTES])):
        return "nccl-log"
    if _JSON.match(text) is not None:  # further down, data quote what a library says
        return "unknown"
    if _talks(utf8_of(start)):
        return "nccl-log"
    later = len(start) == TALK_HEAD_BYTES and _talks(utf8_of(tail(path, TALK_TAIL_BYTES)))
    return "nccl-log" if later else "unknown"


def _talks(data: bytes) -> bool:
    """Whether NCCL or PyTorch's process group say something in it."""
    return any(words in data for words in _LIBRARY_SAYS)


def _is_utf16(path: Path) -> bool:
    return head(path, 2) in UTF16_MARKS


def _take(path: Path, inputs: Inputs, *, named: bool) -> None:
    kind = kind_of(path)
    places = {
        "nccl-log": inputs.nccl_logs,
        "smi": inputs.smi_logs,
        "flight-recorder": inputs.flight_records,
        "topology": inputs.topologies,
        "samples": inputs.samples,
        "xid": inputs.xid_logs,
        "stacks": inputs.stacks,
        "ras": inputs.ras,
    }
    if kind == "kineto":
        is_attribution = _ATTRIBUTION.match(path.name) is not None
        (inputs.attribution if is_attribution else inputs.traces).append(path)
    elif kind in places:
        places[kind].append(path)
    elif named and not _TRACE_NAME.match(path.name) and path.stat().st_size == 0:
        raise InputError(
            f"{shown(path)} is empty", hint="the program wrote nothing there, or its output is lost"
        )
    elif named:
        # The reader knows best what it is instead, and says so.
        inputs.traces.append(path)
    else:
        inputs.left_out[path] = kind
        if encoding_of(head(path, 64)):
            inputs.other_text.append(path)
