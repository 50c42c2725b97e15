"""Time in which the host waits in asyncio's event loop, with nothing to do.

A server between two requests runs no operator and computes nothing: it stands in the loop's call of
`select`. That is no overhead of Python's. It waits for whatever its coroutines await: a request, a
timer, another process. Which of them is on no stack, so no line of the user's can be named, and
whether the wait could be shorter is not known either.

Only recordings of Python calls show it (the window with stacks), and only loops of asyncio's own:
uvloop's runs in C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.intervals import Spans, covered, empty, intersect, subtract, union
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence
from gpuprof.trace import Category

_ROUND = re.compile(r"(^|.*[/\\])asyncio[/\\]base_events\.py\(\d+\): _run_once$")
_CALLBACK = re.compile(r"(^|.*[/\\])asyncio[/\\]events\.py\(\d+\): _run$")
_SELECT = re.compile(r"(^|.*[/\\])selectors\.py\(\d+\): select$")


def waiting_frac(ranks: Sequence[RankAccount]) -> float:
    """Mean share of the accounted time, over ranks, in which the host held the device up by waiting
    in its event loop; 0 where Python calls were not recorded."""
    return sum(_waiting_frac(rank) for rank in ranks) / len(ranks) if ranks else 0.0


def told_waits(waiting: float, named_from: float) -> list[Evidence]:
    """That so much is left out of what the host costs, where it is a share to be named."""
    if waiting < named_from:
        return []
    return [
        Evidence(
            text=f"Another {percent(waiting)} pass in the event loop (asyncio), which waits for"
            " requests or for whatever else the program awaits.",
            value=round(waiting, 4),
            unit="share of step",
        )
    ]


def _waiting_frac(rank: RankAccount) -> float:
    """Of what the account charges to the host, the part that the window with stacks shows so."""
    gaps = rank.lines.main.budget.gaps
    host_ns = gaps.parts["host"]
    waits = _waits(rank.lines)
    if not len(waits) or not host_ns.any():
        return 0.0
    waited_ns = np.minimum(covered(waits, gaps.start_ns, gaps.host_end_ns), host_ns)
    return rank.main.budget.frac()["host"] * float(waited_ns.sum() / host_ns.sum())


def _waits(account: RankAccount) -> Spans:
    """The loop's own calls of `select`. A callback that calls it, too, does so for itself."""
    trace = account.trace
    python = (trace.category == Category.PYTHON) & (trace.lane == account.host.main_lane)
    if not python.any():
        return empty()

    def spans_of(name: re.Pattern[str]) -> Spans:
        rows = np.flatnonzero(python & trace.name_mask(name.match))
        return union(trace.start_ns[rows], trace.end_ns[rows]) if len(rows) else empty()

    rounds = spans_of(_ROUND)
    if not len(rounds):
        return empty()
    return intersect(spans_of(_SELECT), subtract(rounds, spans_of(_CALLBACK)))
