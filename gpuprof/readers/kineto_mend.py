"""The patient way to read an event: one that holds numbers as text, nulls, or odd types.

What can be mended without guessing is mended; other values become "not recorded".
"""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec

from gpuprof.readers.kineto_events import (
    EMPTY,
    NAN,
    PHASES,
    Complete,
    ExactComplete,
    Instant,
    InstantArgs,
    MetaArgs,
    Metadata,
    WideArgs,
)

LARGEST = 1e30
"""Numbers with a fraction beyond this are no ids; NaN compares false."""


def mend(loose: Any, dropped: Counter[str], *, record: type[Complete]) -> Any:
    """An event from loose JSON; None, and counted in `dropped`, where it has no known phase.

    Complete events become records of the given type.
    """
    if not isinstance(loose, dict):
        return None
    phase = loose.get("ph")
    args = loose.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "X":
        ts: Any = (to_decimal if record is ExactComplete else to_float)(loose.get("ts"))
        return record(
            ts=ts,
            name=to_text(loose.get("name", "")),
            pid=to_id(loose.get("pid")),
            tid=to_id(loose.get("tid")),
            cat=to_text(loose.get("cat", "")),
            dur=to_float(loose.get("dur")),
            args=_mend_args(args),
        )
    if phase == "i":
        return Instant(
            ts=to_float(loose.get("ts")),
            name=to_text(loose.get("name", "")),
            args=InstantArgs(
                size=to_int(args.get("Bytes")),
                device_id=_or(to_int(args.get("Device Id")), -1),
                device_type=_or(to_int(args.get("Device Type")), 0),
                allocated=_or(to_int(args.get("Total Allocated")), -1),
                reserved=_or(to_int(args.get("Total Reserved")), -1),
            ),
        )
    if phase == "M":
        return Metadata(
            name=to_text(loose.get("name", "")),
            pid=to_id(loose.get("pid")),
            tid=to_id(loose.get("tid")),
            args=MetaArgs(
                name=to_text(args.get("name", "")), labels=to_text(args.get("labels", ""))
            ),
        )
    if not isinstance(phase, str) or phase not in PHASES:
        dropped["without a known phase"] += 1
    return None


def _mend_args(args: dict[str, Any]) -> WideArgs:
    """The same fields from loose values."""

    def raw(*keys: str) -> msgspec.Raw:
        for key in keys:
            if key in args:
                return msgspec.Raw(json.dumps(args[key], default=float).encode())
        return EMPTY

    def identity(key: str) -> int | str | None:
        value = args.get(key)
        return None if value is None else to_id(value)

    return WideArgs(
        corr=to_int(args.get("correlation")) or 0,
        cuda_correlation=to_int(args.get("cuda_correlation")) or 0,
        hip_correlation=to_int(args.get("hip_correlation")) or 0,
        stream=identity("stream"),
        device=identity("device"),
        grid=raw("grid"),
        block=raw("block"),
        warps=to_float(args.get("warps per SM")),
        occupancy=to_float(args.get("est. achieved occupancy %")),
        bytes=to_int(args.get("bytes")),
        dims=raw("Input Dims"),
        types=raw("Input type"),
        concrete=raw("Concrete Inputs"),
        old_dims=raw("Input dims"),
        call_stack=to_stack(args.get("Call stack")),
        collective=raw("Collective name"),
        in_elements=raw("In msg nelems"),
        out_elements=raw("Out msg nelems"),
        dtype=raw("dtype"),
        group=raw("Process Group Name"),
        group_ranks=raw("Process Group Ranks"),
        group_size=raw("Group size"),
        rank_start=raw("Global rank start"),
        rank_stride=raw("Global rank stride"),
        seq=raw("Seq"),
        src_rank=raw("Src Rank"),
        dst_rank=raw("Dst Rank"),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def to_float(value: Any) -> float:
    """A number, or a string that holds one; NaN for anything else."""
    if isinstance(value, bool):
        return NAN
    if isinstance(value, (int, float, str, Decimal)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return NAN
    return NAN


def to_decimal(value: Any) -> Decimal:
    """A number, or a string that holds one; NaN for anything else."""
    if isinstance(value, (int, float, str, Decimal)) and not isinstance(value, bool):
        try:
            return Decimal(value)
        except ArithmeticError:
            return Decimal("NaN")
    return Decimal("NaN")


def to_int(value: Any) -> int | None:
    """An integer, or a number or string that holds one; None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, (float, Decimal)):
        return int(value) if -LARGEST < value < LARGEST else None
    if isinstance(value, str) and len(value) <= 32:
        try:
            return int(value, 0) if value.lower().startswith("0x") else int(value)
        except ValueError:
            return None
    return None


def to_text(value: Any) -> str:
    """Text that can be written as UTF-8 again."""
    text = value if isinstance(value, str) else "" if value is None else str(value)[:64]
    return text.encode("utf-8", "replace").decode("utf-8", "replace")


def to_stack(value: Any) -> str:
    """A call stack: frames joined by ";", or in a list."""
    if isinstance(value, list):
        return ";".join(to_text(item) for item in value)
    return to_text(value) if isinstance(value, str) else ""


def to_id(value: Any) -> int | str:
    """A process, thread, device or stream id as the file names it; "" for anything odd."""
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return value
    if isinstance(value, (float, Decimal)):
        return int(value) if -LARGEST < value < LARGEST else ""
    return to_text(value) if isinstance(value, str) else ""
