"""Kineto's events as typed records: a fast decoder, and a patient one for what it refuses.

The fast one decodes a batch of events in one call; fields that nobody needs are skipped in C, and
seldom needed ones stay raw bytes. It refuses a batch for a single odd event (a number written as a
string, NaN, an unknown phase). The patient one takes events one by one, mends what can be mended
without guessing, and counts the rest by reason.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from decimal import Decimal
from typing import Any, Union

import msgspec

from gpuprof.readers.jsonstream import resync, scan_events

NAN = math.nan
EMPTY = msgspec.Raw(b"")

MAX_SEARCHED_BYTES = 64 << 20
"""How much text of unreadable events is searched for events inside them: nesting is quadratic."""

LARGEST = 1e30
"""Numbers with a fraction beyond this are no ids; NaN compares false."""

REFUSALS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What the fast decoder raises for a text that it does not take."""

INT64_MAX = (1 << 63) - 1

OTHER_PHASES = "sftbneBECPNODSTpFvVRIc("
"""Phases of the Chrome format that Kineto rows do not come from: flows (s, t, f) and others."""


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "corr": "correlation",
        "warps": "warps per SM",
        "occupancy": "est. achieved occupancy %",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "old_dims": "Input dims",
        "call_stack": "Call stack",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group": "Process Group Name",
        "group_ranks": "Process Group Ranks",
        "group_size": "Group size",
        "rank_start": "Global rank start",
        "rank_stride": "Global rank stride",
        "seq": "Seq",
        "src_rank": "Src Rank",
        "dst_rank": "Dst Rank",
    },
):
    """`args` of a complete event; the field's name in the file is on the right above."""

    corr: int = 0
    stream: int | str | None = None
    device: int | str | None = None
    grid: msgspec.Raw = EMPTY
    block: msgspec.Raw = EMPTY
    warps: float = NAN
    occupancy: float = NAN
    bytes: int | str | None = None
    dims: msgspec.Raw = EMPTY
    types: msgspec.Raw = EMPTY
    concrete: msgspec.Raw = EMPTY
    old_dims: msgspec.Raw = EMPTY
    call_stack: str = ""
    collective: msgspec.Raw = EMPTY
    in_elements: msgspec.Raw = EMPTY
    out_elements: msgspec.Raw = EMPTY
    dtype: msgspec.Raw = EMPTY
    group: msgspec.Raw = EMPTY
    group_ranks: msgspec.Raw = EMPTY
    group_size: msgspec.Raw = EMPTY
    rank_start: msgspec.Raw = EMPTY
    rank_stride: msgspec.Raw = EMPTY
    seq: msgspec.Raw = EMPTY
    src_rank: msgspec.Raw = EMPTY
    dst_rank: msgspec.Raw = EMPTY
    cuda_correlation: int = 0
    hip_correlation: int = 0


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """A complete event; times in the file's µs."""

    ts: float
    name: str
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""
    dur: float = NAN
    args: Args | None = None


class InstantArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "size": "Bytes",
        "device_id": "Device Id",
        "device_type": "Device Type",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
    },
):
    """`args` of an allocator event."""

    size: int | None = None
    device_id: int = -1
    device_type: int = 0
    allocated: int = -1
    reserved: int = -1


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An instant; Kineto writes allocator events as instants named [memory]."""

    ts: float
    name: str = ""
    args: InstantArgs | None = None


class MetaArgs(msgspec.Struct, gc=False):
    """`args` of a metadata event."""

    name: str = ""
    labels: str = ""


class Metadata(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """A metadata event: names of processes and threads."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetaArgs | None = None


class FlowPoint(msgspec.Struct, tag_field="ph", tag="s", gc=False):
    """One end of an arrow from a launch to its device event; `id` is the correlation id."""

    ts: float
    id: int | str = 0
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""


class FlowEnd(msgspec.Struct, tag_field="ph", tag="f", gc=False):
    """The other end of such an arrow."""

    ts: float
    id: int | str = 0
    pid: int | str = ""
    tid: int | str = ""
    cat: str = ""


class ExactComplete(Complete, tag_field="ph", tag="X", gc=False):
    """A complete event whose start keeps every digit that the file has."""

    ts: Decimal  # type: ignore[assignment]


def _empty(tag: str) -> Any:
    return msgspec.defstruct(f"Phase{ord(tag)}", [], tag_field="ph", tag=tag, gc=False)


_SKIPPED = {phase: _empty(phase) for phase in OTHER_PHASES + "iM"}

Event = Any
"""Complete, Instant, Metadata, FlowPoint, FlowEnd, or an empty record for any other phase."""


def _decoders(*kept: Any) -> list[Any]:
    """Decoders of a batch, the strict one first, then one that takes numbers in strings."""
    tags = {struct.__struct_config__.tag for struct in kept}
    others = [record for phase, record in _SKIPPED.items() if phase not in tags]
    union: Any = Union[(*kept, *others)]
    return [msgspec.json.Decoder(list[union], strict=strict) for strict in (True, False)]


def _decoders_of_one(*kept: Any) -> list[Any]:
    """The same for an event that stands alone."""
    union: Any = Union[kept]  # noqa: UP007 (built from a tuple)
    return [msgspec.json.Decoder(union, strict=strict) for strict in (True, False)]


_PLAIN = (Complete, Instant, Metadata)
_EXACT = (ExactComplete, Instant, Metadata)
_FLOWS = (FlowPoint, FlowEnd)


class EventDecoder:
    """Decodes batches for `EventStream`, and counts what it leaves out.

    Args:
        flows: Whether to keep the flow events too.
    """

    def __init__(self, *, flows: bool = False) -> None:
        kept = _FLOWS if flows else _PLAIN
        self._batch, self._one = _decoders(*kept), _decoders_of_one(*kept)
        self.exact = False
        self._searched = 0
        self.dropped: Counter[str] = Counter()

    def be_exact(self) -> None:
        """From now on complete events are `ExactComplete`, and 2 µs an event slower."""
        self.exact = True
        self._batch, self._one = _decoders(*_EXACT), _decoders_of_one(*_EXACT)

    def batch(self, text: bytes) -> list[Event] | None:
        """Events of a JSON array; None where it is not valid or an event needs the patient way."""
        events: list[Event] | None = _first(self._batch, text)
        return events

    def one_by_one(self, texts: list[bytes]) -> list[Event]:
        """Events of texts that hold one object each; what cannot be read is counted, not raised."""
        events: list[Event] = []
        waiting = list(reversed(texts))
        while waiting:
            text = waiting.pop()
            event = _first(self._one, text)
            if event is not None:
                events.append(event)
                continue
            try:
                loose = json.loads(
                    text.decode("utf-8", "replace"),
                    strict=False,
                    parse_float=Decimal if self.exact else None,
                )
            except (ValueError, RecursionError):
                self.dropped["unreadable"] += 1
                inner = text[resync(text) :]
                self._searched += len(inner)
                if inner and self._searched <= MAX_SEARCHED_BYTES:
                    waiting.extend(reversed(scan_events(inner)[0]))
                continue
            event = self._mend(loose)
            if event is not None:
                events.append(event)
        return events

    def _mend(self, loose: Any) -> Event | None:
        if not isinstance(loose, dict):
            return None
        phase = loose.get("ph")
        args = loose.get("args")
        args = args if isinstance(args, dict) else {}
        if phase == "X":
            make: Any = ExactComplete if self.exact else Complete
            return make(
                ts=(to_decimal if self.exact else to_float)(loose.get("ts")),
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
        if not isinstance(phase, str) or phase not in _SKIPPED:
            self.dropped["without a known phase"] += 1
        return None


def _first(decoders: list[Any], text: bytes) -> Any:
    """What the first decoder that takes the text makes of it; None where none does."""
    for decoder in decoders:
        try:
            return decoder.decode(text)
        except msgspec.ValidationError:
            continue
        except REFUSALS:
            return None
    return None


def _mend_args(args: dict[str, Any]) -> Args:
    """The same fields from loose values."""

    def raw(*keys: str) -> msgspec.Raw:
        for key in keys:
            if key in args:
                return msgspec.Raw(json.dumps(args[key], default=float).encode())
        return EMPTY

    def identity(key: str) -> int | str | None:
        value = args.get(key)
        return None if value is None else to_id(value)

    return Args(
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
