"""Enlarges a real trace by repetition: python benchmarks/enlarge.py IN OUT --events 1_000_000

Each copy lies behind the one before it; its correlation, external and flow ids and its step
numbers go on counting. The text of an event stays as its recorder wrote it, so that what is
measured on the result holds for the original's dialect.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuprof.readers.files import ByteSource
from gpuprof.readers.jsonstream import scan_events

ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
SHIFTED = re.compile(
    rb'("(?:ts|correlation|[Ee]xternal id|id)"\s*:\s*"?)(\d+)|(ProfilerStep#)(\d+)(?=")'
)
GAP_US = 1000
"""Idle time between two copies."""


def split(text: bytes) -> tuple[bytes, list[bytes], bytes]:
    """What stands before the events, the events, and what stands behind them."""
    found = ARRAY.search(text)
    if found is None:
        raise SystemExit("no traceEvents in the input")
    events, position, _ = scan_events(text[found.end() :])
    return text[: found.end()], events, b"]" + text[found.end() + position :]


def repeats(event: dict[str, Any]) -> bool:
    """Whether an event is repeated: all but names of threads and the profiler's own marks."""
    return (event.get("ph") in "Xsf" and event.get("cat") != "Trace") or event.get(
        "name"
    ) == "[memory]"


def copies(text: bytes, wanted: int) -> Iterator[bytes]:
    """Yields the enlarged trace in pieces; it has at least `wanted` events."""
    before, events, after = split(text)
    loaded = [json.loads(event) for event in events]
    again = [(raw, event) for raw, event in zip(events, loaded, strict=True) if repeats(event)]
    starts = [float(event["ts"]) for _, event in again]
    ends = [float(event["ts"]) + float(event.get("dur") or 0) for _, event in again]
    period = math.ceil(max(ends) - min(starts)) + GAP_US
    arguments = [event.get("args") or {} for _, event in again]
    ids = [event["id"] for _, event in again if isinstance(event.get("id"), int)]
    for key in ("correlation", "External id", "external id"):
        ids += [int(values[key]) for values in arguments if key in values]
    id_shift = max([value for value in ids if value < 1 << 48], default=0) + 1
    steps = {
        int(event["name"].split("#")[1])
        for _, event in again
        if re.fullmatch(r"ProfilerStep#\d+", event.get("name", ""))
    }
    step_shift = max(steps) - min(steps) + 1 if steps else 0
    body = b",\n  ".join(raw for raw, _ in again)

    def shift(number: int) -> bytes:
        def one(found: re.Match[bytes]) -> bytes:
            if found[3] is not None:
                return found[3] + b"%d" % (int(found[4]) + number * step_shift)
            by = period if found[1].startswith(b'"ts"') else id_shift
            return found[1] + b"%d" % (int(found[2]) + number * by)

        return SHIFTED.sub(one, body)

    yield before + b"\n  " + b",\n  ".join(events)
    for number in range(1, 1 + max(0, math.ceil((wanted - len(events)) / max(1, len(again))))):
        yield b",\n  " + shift(number)
    yield after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, help="compressed where the name ends in .gz")
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    with ByteSource(options.source, block_bytes=1 << 20) as source:
        text = b"".join(source.blocks())
    opener = gzip.open if options.target.suffix == ".gz" else open
    total = 0
    with opener(options.target, "wb") as target:
        for piece in copies(text, options.events):
            target.write(piece)
            total += len(piece)
    print(f"{options.target}: {total / 1e6:.0f} MB of JSON")


if __name__ == "__main__":
    main()
