"""Reads everything beside the traces that the user gave, each kind with its own reader."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.analyzers.sources import OtherSources
from gpuprof.diagnosis import InputFile
from gpuprof.errors import InputError
from gpuprof.inputs import Inputs
from gpuprof.readers.files import shown

if TYPE_CHECKING:
    from gpuprof.readers.topology import Topology

HASH_CHUNK_BYTES = 1 << 20


def read_others(inputs: Inputs) -> OtherSources:
    """Reads the logs, dumps, topologies and samples among the inputs.

    Raises:
        InputError: one of them can't be read as what it was taken for.
    """
    comm_log = flight = xids = None
    files: list[InputFile] = []
    if inputs.nccl_logs:
        from gpuprof.readers.nccl_log import read_nccl_log

        cut_off: list[str] = []
        comm_log = read_nccl_log(inputs.nccl_logs, cut_off)
        inputs.warnings += _first_of(cut_off)
        files += [_file(path, "nccl-log") for path in inputs.nccl_logs]
    if inputs.flight_records:
        from gpuprof.readers.flight_recorder import read_flight_recorder

        damaged: list[str] = []
        flight = read_flight_recorder(inputs.flight_records, damaged)
        inputs.warnings += _first_of(damaged, "; it is left out")
        files += [_file(path, "flight-recorder") for path in inputs.flight_records]
    topologies = _topologies(inputs)
    files += [_file(Path(topology.path), "topology") for topology in topologies]
    samples = []
    for path in inputs.smi_logs:
        from gpuprof.readers.smi import read_smi

        samples.append(read_smi(path))
        files.append(_file(path, "nvidia-smi"))
    for path in inputs.samples:
        from gpuprof.readers.samples import read_samples

        samples += read_samples(path)
        files.append(_file(path, "samples"))
    for path in inputs.xid_logs:
        from gpuprof.readers.xid import read_xids

        xids = read_xids(path)
        files.append(_file(path, "kernel-log"))
    stacks = []
    for path in inputs.stacks:
        from gpuprof.readers.stacks import read_stacks

        stacks.append(read_stacks(path))
        files.append(_file(path, "stacks"))
    reports = []
    for path in inputs.ras:
        from gpuprof.readers.ras import read_ras

        reports.append(read_ras(path))
        files.append(_file(path, "nccl-ras"))
    return OtherSources(
        comm_log=comm_log,
        topologies=tuple(topologies),
        flight=flight,
        samples=tuple(samples),
        xids=xids,
        stacks=tuple(stacks),
        ras=tuple(reports),
        files=tuple(files),
    )


def _first_of(damaged: list[str], end: str = "") -> list[str]:
    """One warning for all files of a kind in which the same is wrong."""
    more = f" (and {len(damaged) - 1} more like it)" if len(damaged) > 1 else ""
    return [f"{damaged[0]}{end}{more}"] if damaged else []


def _topologies(inputs: Inputs) -> list[Topology]:
    """What can be read of the topologies; a damaged one must not take the rest with it.

    Raises:
        InputError: none can be read, and nothing else was given.
    """
    from gpuprof.readers.topology import read_topology

    read: list[Topology] = []
    damaged: list[InputError] = []
    for path in inputs.topologies:
        try:
            read.append(read_topology(path))
        except InputError as error:
            damaged.append(error)
    if damaged and not read and replace(inputs, topologies=[]).is_empty():
        raise damaged[0]
    inputs.warnings += _first_of([str(error) for error in damaged], "; it is left out")
    return read


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
