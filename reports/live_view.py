"""The live view of a run on a terminal: ranks with their latest steps, GPUs, host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gpuprof.reports import text
from gpuprof.reports.words import Catalog

if TYPE_CHECKING:
    from rich.console import Group

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_ROWS = 16
"""Ranks and GPUs that have a row; the slowest ranks come first beyond that."""

NARROW = 64
"""Columns below which the small curves, the windows and the devices' models are left out: a number
in pieces tells nothing."""

SLOW = 1.2
"""A rank whose median step is this many times that of all is marked."""


class Rank(Protocol):
    """What is shown of a rank (`gpuprof.live.LiveRank`)."""

    @property
    def rank(self) -> int: ...
    @property
    def now(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def step_ms(self) -> Sequence[float]: ...
    @property
    def windows(self) -> int: ...
    @property
    def median_ms(self) -> float | None: ...


class Gpu(Protocol):
    """What is shown of a GPU (`gpuprof.live.LiveGpu`)."""

    @property
    def label(self) -> str: ...
    @property
    def util(self) -> Sequence[float]: ...
    @property
    def power_w(self) -> float: ...
    @property
    def clock_mhz(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def memory_total_bytes(self) -> float: ...


def spark(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The latest values as a line of blocks, from 0 to the largest (or `top`)."""
    shown = values[-width:] if width else ()
    most = max(top or 0.0, max(shown, default=0.0)) or 1.0
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, max(0, int(value / most * len(BLOCKS))))] for value in shown
    )


def render(
    title: str, ranks: Sequence[Rank], gpus: Sequence[Gpu], host_busy: Sequence[float],
    words: Catalog, width: int = 80,
) -> Group:  # fmt: skip
    """Tables for a console.

    Args:
        title: One line about the run.
        host_busy: Busy cores of the host, oldest first.
        width: Columns of the console.
    """
    from rich.console import Group
    from rich.text import Text

    room = max(8, min(40, width - 52)) if width >= NARROW else 0
    parts: list[object] = [Text(text.clean(title, width), "bold", overflow="ellipsis")]
    if ranks:
        parts.append(_ranks(ranks, words, room))
    else:
        parts.append(Text(words.say("live.no_rank"), "dim"))
    if gpus:
        parts.append(_gpus(gpus, words, room))
    if host_busy:
        cores = words.say("live.host", cores=text.number(host_busy[-1], 1))
        parts.append(Text(f"{cores}  {spark(host_busy, room)}"))
    return Group(*parts)  # type: ignore[arg-type]


def _ranks(ranks: Sequence[Rank], words: Catalog, room: int) -> object:
    from rich.table import Table

    known = sorted(rank.median_ms for rank in ranks if rank.median_ms is not None)
    usual = known[len(known) // 2] if known else 0.0
    ordered = list(ranks)
    if len(ordered) > MOST_ROWS:
        ordered.sort(key=lambda rank: -(rank.median_ms or 0.0))
    table = Table(box=None, pad_edge=False, header_style="dim")
    keys = ["rank.column", "live.steps", "live.last", "rank.median", "live.windows", "live.now"]
    for key in keys if room else keys[:4]:
        table.add_column(words.say(key), justify="right" if key != "live.now" else "left")
    table.add_column("")
    for rank in ordered[:MOST_ROWS]:
        median = rank.median_ms
        slow = len(ranks) > 1 and median is not None and usual and median > SLOW * usual
        cells = [
            str(rank.rank),
            text.count(rank.steps),
            text.milliseconds(rank.step_ms[-1]) if rank.step_ms else "",
            text.milliseconds(median) if median is not None else "",
        ]
        if room:
            cells += [str(rank.windows), words.name("live.state", text.clean(rank.now, 20))]
        table.add_row(*cells, spark(rank.step_ms, room), style="red" if slow else "")
    return table


def _gpus(gpus: Sequence[Gpu], words: Catalog, room: int) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    keys = ["live.gpu", "curve.util", "curve.power", "curve.clock", "curve.memory"]
    for key in keys if room else [*keys[:3], keys[4]]:
        table.add_column(words.say(key), justify="left" if key == "live.gpu" else "right")
    table.add_column("")
    for gpu in gpus[:MOST_ROWS]:
        memory = _amount(gpu.memory_bytes / 1e9, "GB")
        if room and memory and not math.isnan(gpu.memory_total_bytes):
            memory = f"{memory} / {_amount(gpu.memory_total_bytes / 1e9, 'GB')}"
        label = text.clean(gpu.label, 32)
        cells = [
            label if room else label.partition(" · ")[0],
            text.percent(gpu.util[-1]) if gpu.util else "",
            _amount(gpu.power_w, "W"),
        ]
        cells += [_amount(gpu.clock_mhz, "MHz")] if room else []
        table.add_row(*cells, memory, spark(gpu.util, room, 1.0))
    return table


def _amount(value: float, unit: str) -> str:
    """Nothing where it was not read (NaN)."""
    return f"{text.number(value, 0)}{text.NBSP}{unit}" if not math.isnan(value) else ""
