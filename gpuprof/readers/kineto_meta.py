"""What a trace says about itself, from its top-level keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.readers.files import ByteSource, shown
from gpuprof.readers.kineto_mend import to_int, to_text
from gpuprof.readers.kineto_times import to_ns
from gpuprof.readers.kineto_values import device_info, flag, loads, process_groups, structured
from gpuprof.trace import TraceMeta

_RECORDED = re.compile(r"(?:trace-\d+|attribution)-rank(\d{5,9})\.")


def rank_in_name(path: str) -> int | None:
    """The rank that the name of a recording of gpuprof's own states (`trace-2-rank00003.json.gz`).

    Kineto writes the rank into a trace only where torch.distributed was set up when it was written.
    Names that others chose are not taken at their word: two folders may both hold a `rank0.json`.
    """
    found = _RECORDED.match(Path(path).name)
    return int(found[1]) if found else None


def header_value(header: dict[str, bytes], key: str) -> Any:
    """A top-level value; None where it is missing or unreadable."""
    raw = header.get(key)
    return loads(raw) if raw else None


def trace_meta(
    source: ByteSource,
    header: dict[str, bytes],
    span_us: tuple[float, float] | None,
    *,
    base_ns: int,
    epoch: bool,
    truncated: bool,
) -> TraceMeta:
    """What the header says, and what is known of the file."""
    info = structured(header.get("distributedInfo", b""))
    info = info if isinstance(info, dict) else {}
    devices = device_info(structured(header.get("deviceProperties", b"")))
    rank, world = to_int(info.get("rank")), to_int(info.get("world_size"))
    span_ns = None
    if span_us is not None:
        first, last = to_ns(np.array(span_us)).tolist()
        span_ns = (first + base_ns, last + base_ns)
    rocm = any(key.startswith(("roctracer", "hip_", "rocprofiler")) for key in header) or any(
        word in device.name for device in devices for word in ("AMD", "Instinct", "Radeon")
    )
    return TraceMeta(
        path=shown(source.path),
        size_bytes=source.size_bytes,
        sha256=source.sha256,
        rank=rank if rank is not None and rank >= 0 else rank_in_name(source.path),
        world_size=world if world is not None and world > 0 else None,
        backend=to_text(info.get("backend"))[:256],
        nccl_version=to_text(info.get("nccl_version"))[:256],
        devices=devices,
        groups=process_groups(info.get("pg_config")),
        record_shapes=flag(header_value(header, "record_shapes")),
        with_stack=flag(header_value(header, "with_stack")),
        profile_memory=flag(header_value(header, "profile_memory")),
        epoch=epoch,
        host_name=to_text(header_value(header, "host_name"))[:256],
        is_rocm=rocm,
        span_ns=span_ns,
        truncated=truncated,
        lists_devices="deviceProperties" in header,
    )
