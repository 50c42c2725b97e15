"""Reads everything beside the traces that the user gave, each kind with its own reader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpuprof.analyzers.sources import OtherSources
from gpuprof.diagnosis import InputFile
from gpuprof.errors import InputError
from gpuprof.inputs import Inputs
from gpuprof.readers.files import shown

if TYPE_CHECKING:
    from gpuprof.commlog import CommLog
    from gpuprof.readers.flight_recorder import FlightRecords
    from gpuprof.readers.ras import RasReport
    from gpuprof.readers.xid import XidLog
    from gpuprof.samples import Samples
    from gpuprof.stacks import RankStacks
    from gpuprof.topology import Topology

HASH_CHUNK_BYTES = 1 << 20
LEFT_OUT = "; it is left out"

T = TypeVar("T")


def read_others(inputs: Inputs) -> OtherSources:
    """Reads the logs, dumps, topologies and samples among the inputs.

    What can't be read as what it was taken for is left out with a warning: a damaged file, or a
    note that mentions NCCL, must not take the rest of a folder with it.

    Raises:
        InputError: nothing can be read, and there is no trace either.
    """
    reading = _Reading(inputs)
    other = OtherSources(
        comm_log=reading.together(inputs.nccl_logs, "nccl-log", _nccl),
        flight=reading.together(inputs.flight_records, "flight-recorder", _flight, LEFT_OUT),
        topologies=reading.each(inputs.topologies, "topology", _topology),
        samples=(
            *reading.each(inputs.smi_logs, "nvidia-smi", _smi),
            *(one for many in reading.each(inputs.samples, "samples", _samples) for one in many),
        ),
        xids=reading.each(inputs.xid_logs, "kernel-log", _xids),
        stacks=reading.each(inputs.stacks, "stacks", _stacks),
        ras=reading.each(inputs.ras, "nccl-ras", _ras),
        files=tuple(reading.files),
    )
    if reading.refused and not reading.files and not inputs.traces:
        raise reading.refused[0]
    return other


class _Reading:
    """Reads kind after kind. files: what was read; refused: why the others were not."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.files: list[InputFile] = []
        self.refused: list[InputError] = []

    def each(self, paths: Sequence[Path], kind: str, read: Callable[[Path], T]) -> tuple[T, ...]:
        """What a reader of one file makes of each."""
        found: list[T] = []
        refused: list[InputError] = []
        for path in paths:
            try:
                found.append(read(path))
                self.files.append(_file(path, kind))
            except InputError as error:
                refused.append(error)
        self._leave_out(refused)
        return tuple(found)

    def together(
        self,
        paths: Sequence[Path],
        kind: str,
        read: Callable[[Sequence[Path], list[str]], T],
        end: str = "",
    ) -> T | None:
        """What a reader of all files makes of them; `end` ends a line on one that is damaged."""
        damaged: list[str] = []
        try:
            found = read(paths, damaged) if paths else None
        except InputError as error:
            self._leave_out([error])
            return None
        self._warn([f"{text}{end}" for text in damaged])
        self.files += [_file(path, kind) for path in paths]
        return found

    def _leave_out(self, refused: list[InputError]) -> None:
        self.refused += refused
        self._warn([f"{error}{LEFT_OUT}" for error in refused])

    def _warn(self, lines: list[str]) -> None:
        """One warning for all files of a kind in which the same is wrong."""
        if lines:
            more = f" (and {len(lines) - 1} more like it)" if len(lines) > 1 else ""
            self._inputs.warnings.append(lines[0] + more)


def _nccl(paths: Sequence[Path], damaged: list[str]) -> CommLog:
    from gpuprof.readers.nccl_log import read_nccl_log

    return read_nccl_log(paths, damaged)


def _flight(paths: Sequence[Path], damaged: list[str]) -> FlightRecords:
    from gpuprof.readers.flight_recorder import read_flight_recorder

    return read_flight_recorder(paths, damaged)


def _topology(path: Path) -> Topology:
    from gpuprof.readers.topology import read_topology

    return read_topology(path)


def _smi(path: Path) -> Samples:
    from gpuprof.readers.smi import read_smi

    return read_smi(path)


def _samples(path: Path) -> Sequence[Samples]:
    from gpuprof.readers.samples import read_samples

    return read_samples(path)


def _xids(path: Path) -> XidLog:
    from gpuprof.readers.xid import read_xids

    return read_xids(path)


def _stacks(path: Path) -> RankStacks:
    from gpuprof.readers.stacks import read_stacks

    return read_stacks(path)


def _ras(path: Path) -> RasReport:
    from gpuprof.readers.ras import read_ras

    return read_ras(path)


def _file(path: Path, kind: str) -> InputFile:
    digest = hashlib.sha256()
    size = 0
    if path.is_file():
        with path.open("rb") as file:
            while chunk := file.read(HASH_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    return InputFile(
        path=shown(path), kind=kind, size_bytes=size, sha256=digest.hexdigest(), events=0
    )
