"""The values inside Kineto's events and header: shapes, stacks, collectives, devices, groups."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from gpuprof.readers.kineto_events import WideArgs
from gpuprof.readers.kineto_mend import to_int, to_text
from gpuprof.trace import CollectiveArgs, DeviceInfo, OpArgs, ProcessGroup

MAX_TEXT_CHARS = 1 << 16
"""Longest recorded value (a concrete input, a stack) that is kept; the rest is cut off."""

MAX_LITERAL_BYTES = 1 << 20
"""Largest Python literal that is parsed; ast needs some 100 times its size."""

MAX_RANKS = 1 << 20
"""Largest group whose ranks are written out."""

INTEGER = re.compile(r"-?\d{1,18}")


def loads(raw: bytes) -> Any:
    """A JSON value; a Python literal where it is none (str(dict) was written once); else None."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return literal(text)


def literal(text: str) -> Any:
    """A JSON or Python literal in a string; None for anything else."""
    if len(text) > MAX_LITERAL_BYTES:
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    return None


def structured(raw: bytes) -> Any:
    """A header value that may be written as a string that holds JSON or a Python literal."""
    value = loads(raw) if raw else None
    return literal(value) if isinstance(value, str) else value


def product(raw: bytes) -> int:
    """The product of a grid or block such as [64, 1, 1]; -1 where it is not one."""
    value = loads(raw) if 0 < len(raw) <= 1024 else None
    if not isinstance(value, list) or not value:
        return -1
    result = 1
    for side in value:
        number = to_int(side)
        if number is None or number < 0:
            return -1
        result *= number
    return result if result < 1 << 62 else -1


def op_args(dims: bytes, types: bytes, concrete: bytes) -> OpArgs:
    """An operator's inputs from the JSON of its three lists."""
    shapes = _shape(loads(dims))
    return OpArgs(
        dims=shapes if isinstance(shapes, tuple) else (),
        types=_texts(loads(types) if types else None),
        concrete=_texts(loads(concrete) if concrete else None),
    )


def _shape(value: Any, depth: int = 0) -> Any:
    if isinstance(value, list) and depth < 16:
        return tuple(_shape(item, depth + 1) for item in value)
    number = to_int(value)
    return -1 if number is None else number


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        to_text(item if isinstance(item, (str, type(None))) else json.dumps(item))[:MAX_TEXT_CHARS]
        for item in value
    )


def collective_args(args: WideArgs) -> CollectiveArgs:
    """The arguments that an event of a collective carries."""
    size = _integer(args.group_size)
    return CollectiveArgs(
        collective=_string(args.collective),
        dtype=_string(args.dtype),
        in_elements=_integer(args.in_elements),
        out_elements=_integer(args.out_elements),
        group=_string(args.group),
        group_size=size,
        group_ranks=_group_ranks(
            _string(args.group_ranks), _integer(args.rank_start), _integer(args.rank_stride), size
        ),
        seq=_integer(args.seq),
        src_rank=_integer(args.src_rank),
        dst_rank=_integer(args.dst_rank),
    )


def _string(raw: Any) -> str:
    data = bytes(raw)
    value = loads(data) if data else ""
    return to_text(value if isinstance(value, str) else json.dumps(value))[:MAX_TEXT_CHARS]


def _integer(raw: Any) -> int:
    data = bytes(raw)
    number = to_int(loads(data)) if 0 < len(data) <= 64 else None
    return -1 if number is None else number


def _group_ranks(text: str, start: int, stride: int, size: int) -> tuple[int, ...]:
    """Ranks from "[0, 1, 2]"; where PyTorch cut the list with "...", from start and stride."""
    if "..." not in text:
        return tuple(int(rank) for rank in INTEGER.findall(text)[:MAX_RANKS])
    if start >= 0 and stride > 0 and 0 < size <= MAX_RANKS:
        return tuple(range(start, start + stride * size, stride))
    return ()


def device_info(value: Any) -> tuple[DeviceInfo, ...]:
    """`deviceProperties`, a list of dicts."""
    result = []
    for position, entry in enumerate(value[:1024] if isinstance(value, list) else []):
        if not isinstance(entry, dict):
            continue

        def number(*keys: str, entry: dict[str, Any] = entry, default: int = 0) -> int:
            for key in keys:
                found = to_int(entry.get(key))
                if found is not None and 0 <= found < 1 << 62:
                    return found
            return default

        result.append(
            DeviceInfo(
                index=number("id", default=position),
                name=to_text(entry.get("name"))[:256],
                memory_bytes=number("totalGlobalMem"),
                sm_count=number("numSms"),
                compute_major=number("computeMajor"),
                compute_minor=number("computeMinor"),
                warp_size=number("warpSize", default=32),
                threads_per_sm=number("maxThreadsPerMultiprocessor", "maxThreadsPerMultiProcessor"),
            )
        )
    return tuple(result)


def process_groups(value: Any) -> tuple[ProcessGroup, ...]:
    """`distributedInfo.pg_config`: a list of dicts, or that list in a string."""
    if isinstance(value, str):
        value = literal(value)
    if isinstance(value, dict):
        value = list(value.values())
    result = []
    for entry in value if isinstance(value, list) else []:
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks", [])
        if isinstance(ranks, str):
            ranks = INTEGER.findall(ranks) if "..." not in ranks else []
        numbers = [to_int(rank) for rank in (ranks if isinstance(ranks, list) else [])]
        result.append(
            ProcessGroup(
                name=to_text(entry.get("pg_name"))[:256],
                description=to_text(entry.get("pg_desc"))[:256],
                ranks=tuple(rank for rank in numbers if rank is not None),
                backend=to_text(entry.get("backend_config") or entry.get("backend"))[:256],
            )
        )
    return tuple(result)


def flag(value: Any) -> bool | None:
    """A header's switch: 1, true, "1", "true"; None where it does not say."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip().lower() in {"1", "true", "yes"}
    return bool(value) if isinstance(value, (bool, int, float)) else None
