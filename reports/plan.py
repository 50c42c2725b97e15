"""What collectives and the calls of a step take (`gpuprof plan`), for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.analyzers.communication_plan import Item, advice
from gpuprof.analyzers.fabric import Estimate, Fabric
from gpuprof.reports import columns, text
from gpuprof.reports.words import Catalog, catalog, speaker

NAME_WIDTH = 38


def to_text(
    collective: str,
    fabric: Fabric,
    rows: Sequence[Estimate],
    items: Sequence[Item],
    *,
    step_ms: float = 0.0,
    lang: str = "en",
    width: int = 0,
) -> str:
    """The table of sizes, and what a step sends, with a final newline.

    Args:
        collective: what the table of sizes is of.
        step_ms: a step without communication, 0 where it was not given.
        width: columns that sentences are wrapped to; 0: not at all.
    """
    words, said = catalog(lang), speaker(lang)
    lines = [columns.fold(_title(collective, fabric, words), width), *_sizes(rows, words)]
    half = rows[0].half_bytes
    if half:
        line = words.say("plan.half", latency=_time(rows[0].latency_ns), size=_size(half))
        lines.append(columns.fold(line, width))
    if items:
        lines += ["", *_calls(items, words)]
    if items and step_ms:
        total_ms = sum(item.total_ns or 0.0 for item in items) / 1e6
        share = text.percent(total_ms / (step_ms + total_ms))
        line = words.say("plan.share", step=f"{step_ms:g}", share=share)
        lines.append(columns.fold(line, width))
    lines += [columns.fold(said(line), width) for line in advice(items)]
    return "\n".join(lines).replace(text.NBSP, " ") + "\n"


def _title(collective: str, fabric: Fabric, words: Catalog) -> str:
    key = "plan.title.one" if fabric.nodes == 1 else "plan.title"
    title = words.say(
        key,
        collective=collective,
        ranks=text.count(fabric.ranks),
        nodes=text.count(fabric.nodes),
        per_node=fabric.per_node,
    )
    if not fabric.source:
        return title
    source = speaker(words.language)(fabric.source)
    return words.clauses((title, words.name("plan.source", source)))


def _sizes(rows: Sequence[Estimate], words: Catalog) -> list[str]:
    size, took, busbw, regime = (
        words.say(f"plan.{key}") for key in ("size", "time", "busbw", "regime")
    )
    right = columns.pad_left
    lines = [f"{right(size, 10)}{right(took, 12)}{right(busbw, 12)}  {regime}"]
    for row in rows:
        bus = f"{row.busbw_bytes_per_s / 1e9:.1f}" if row.busbw_bytes_per_s else "-"
        numbers = f"{_size(row.size_bytes):>10}{_time(row.time_ns):>12}{bus:>12}"
        lines.append(f"{numbers}  {words.name('regime', row.regime)}")
    return lines


def _calls(items: Sequence[Item], words: Catalog) -> list[str]:
    said = speaker(words.language)
    widths = {"calls": 7, "of": 10, "each": 12, "in_all": 12}
    head = "".join(columns.pad_left(words.say(f"plan.{key}"), wide) for key, wide in widths.items())
    lines = [columns.pad(words.say("plan.sends"), NAME_WIDTH) + head]
    for item in items:
        call = item.call
        numbers = f"{item.calls:>7}{_size(call.size_bytes):>10}{_time(call.time_ns):>12}"
        name = columns.pad(said(item.what), NAME_WIDTH)
        lines.append(f"{name}{numbers}{_time(item.total_ns):>12}")
    total = _time(sum(item.total_ns or 0.0 for item in items))
    together = columns.pad(words.say("plan.together"), NAME_WIDTH)
    return [*lines, f"{together}{total:>{sum(widths.values())}}"]


def _size(size: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _time(time_ns: float | None) -> str:
    if time_ns is None:
        return "-"
    if time_ns >= 999_950:  # what rounds to 1000.0 µs is a millisecond
        return f"{time_ns / 1e6:.2f} ms"
    return f"{time_ns / 1e3:.1f} µs"
