"""Decodes Kineto's events: batches in one call, and one by one what that refuses.

The fast way refuses a whole batch for a single odd event (NaN, a null, an unknown phase). Then the
events are taken one by one, odd ones are mended, and what cannot be read is counted.
"""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any, Union

import msgspec

from gpuprof.readers.jsonstream import resync, scan_events
from gpuprof.readers.kineto_events import (
    PHASES,
    Complete,
    ExactComplete,
    FlowEnd,
    FlowPoint,
    Instant,
    Metadata,
)
from gpuprof.readers.kineto_mend import mend

REFUSALS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What the fast decoder raises for a text that it does not take."""

MAX_SEARCHED_BYTES = 64 << 20
"""How much text of unreadable events is searched for events inside them: nesting is quadratic."""


def _empty(tag: str) -> Any:
    return msgspec.defstruct(f"Phase{ord(tag)}", [], tag_field="ph", tag=tag, gc=False)


_SKIPPED = {phase: _empty(phase) for phase in PHASES}

Event = Any
"""Complete, Instant, Metadata, FlowPoint, FlowEnd, or an empty record for any other phase."""


def _decoders(*kept: Any, alone: bool = False) -> list[Any]:
    """Decoders of a batch, or of an event alone, of any phase.

    The strict one first, then one that takes numbers in strings.
    """
    tags = {struct.__struct_config__.tag for struct in kept}
    others = [record for phase, record in _SKIPPED.items() if phase not in tags]
    union: Any = Union[(*kept, *others)]
    kind: Any = union if alone else list[union]
    return [msgspec.json.Decoder(kind, strict=strict) for strict in (True, False)]


def _decoders_of_one(*kept: Any) -> list[Any]:
    """The same for an event that stands alone."""
    union: Any = Union[kept]  # noqa: UP007 (built from a tuple)
    return [msgspec.json.Decoder(union, strict=strict) for strict in (True, False)]


_FLOWS = (FlowPoint, FlowEnd)


class EventDecoder:
    """Decodes batches for `EventStream`, and counts what it leaves out.

    Args:
        flows: Whether to keep the flow events too.
    """

    def __init__(self, *, flows: bool = False) -> None:
        self.dropped: Counter[str] = Counter()
        self.lost_bytes = 0
        self._searched = 0
        self.decode_as(Complete)
        if flows:
            self._batch, self._one = _decoders(*_FLOWS), _decoders_of_one(*_FLOWS)

    def decode_as(self, record: type[Complete]) -> None:
        """From now on complete events are of this type; exact ones take 2 µs longer each."""
        kept = (record, Instant, Metadata)
        self._batch, self._one = _decoders(*kept), _decoders_of_one(*kept)
        self._alone: list[Any] = []
        self._record = record

    def batch(self, text: bytes) -> list[Event] | None:
        """Events of a JSON array; None where it is not valid or an event needs the patient way."""
        events: list[Event] | None = _first(self._batch, text)
        return events

    def alone(self, text: bytes) -> Event | None:
        """The event in a text that holds one object; None where `batch` would refuse it."""
        if not self._alone:
            self._alone = _decoders(self._record, Instant, Metadata, alone=True)
        return _first(self._alone, text)

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
                    parse_float=Decimal if self._record is ExactComplete else None,
                )
            except (ValueError, RecursionError):
                self.dropped["unreadable"] += 1
                inner = text[resync(text) :]
                self._searched += len(inner)
                inside: list[bytes] = []
                if inner and self._searched <= MAX_SEARCHED_BYTES:
                    inside = scan_events(inner)[0]
                waiting.extend(reversed(inside))
                self.lost_bytes += len(text) - sum(map(len, inside))
                continue
            event = mend(loose, self.dropped, record=self._record)
            if event is not None:
                events.append(event)
        return events


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
