"""Reads whatever nvidia-smi wrote: a --query-gpu log, dmon or pmon, or -q."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gpuprof.errors import InputError
from gpuprof.readers.files import head as head_bytes
from gpuprof.readers.smi_csv import is_smi_csv, read_smi_csv
from gpuprof.readers.smi_monitor import is_smi_monitor, read_smi_monitor
from gpuprof.readers.smi_query import is_smi_query, read_smi_query
from gpuprof.readers.text import text_head, text_lines
from gpuprof.readers.wrapping import labels_of
from gpuprof.samples import Samples

HEAD_LINES = 20
_FORMATS = (
    (is_smi_query, read_smi_query),
    (is_smi_monitor, read_smi_monitor),
    (is_smi_csv, read_smi_csv),
)


def is_smi(path: Path) -> bool:
    """Whether the beginning of the file looks like one of nvidia-smi's outputs."""
    try:
        head = text_head(path).splitlines()[:HEAD_LINES]
    except InputError:
        return False
    return any(sniff(head) for sniff, _ in _FORMATS)


def read_smi(path: Path) -> Samples:
    """The log as samples.

    Raises:
        InputError: it is none of nvidia-smi's outputs, mixes those of several nodes, or holds no
            sample.
    """
    labels = labels_of(head_bytes(path))
    if len(labels) > 1:  # GPU 0 of each would be one GPU
        raise InputError(
            f"{path} holds the lines of several sources ({', '.join(labels[:3])})",
            hint="write those of each node to a file of its own",
        )
    head = list(islice(text_lines(path), HEAD_LINES))
    for sniff, read in _FORMATS:
        if sniff(head):
            return read(path)
    raise InputError(
        f"{path}: no nvidia-smi output that can be told",
        hint="log with nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,"
        "power.draw,clocks.sm --format=csv -l 1",
    )
