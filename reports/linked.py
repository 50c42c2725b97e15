"""What the timeline takes from the accounts: who held a gap, and which collectives are the same.

A trace alone shows neither: gaps are charged by `gpuprof.analyzers.idle`, and collectives of
different ranks are laid side by side by `gpuprof.analyzers.matching`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.collectives import find_collectives
from gpuprof.analyzers.idle import IDLE_BUCKETS
from gpuprof.analyzers.matching import match
from gpuprof.analyzers.rank_summary import summarize

I64 = NDArray[np.int64]

HELD = ("unknown", *(bucket for bucket in IDLE_BUCKETS if bucket != "unknown"))
"""What can hold a gap, by code; 0 stands for gaps that nobody accounted for."""

MAX_LINKS = 400_000
"""Marks of collectives in one page: a link takes two bytes there, and a place in two tables."""


def holders(account: RankAccount | None, device: int, start_ns: I64, end_ns: I64) -> I64:
    """The bucket that held each gap of a device longest, as a code into `HELD`, (n,).

    Args:
        start_ns, end_ns: the gaps on the trace's clock.
    """
    codes = np.zeros(len(start_ns), np.int64)
    mine = [d for d in account.devices if d.index == device] if account is not None else []
    if not mine or not len(start_ns):
        return codes
    gaps = mine[0].budget.gaps
    if not len(gaps.start_ns):
        return codes
    # Device times of the account have a clock error of microseconds taken out: the middle of a
    # gap lies in the same gap on both.
    middle = (start_ns + end_ns) // 2
    at = np.searchsorted(gaps.start_ns, middle, side="right") - 1
    known = (at >= 0) & (middle < gaps.end_ns[np.maximum(at, 0)])
    parts = np.stack([gaps.parts.get(b, np.zeros_like(gaps.start_ns)) for b in HELD])
    codes[known] = np.argmax(parts, axis=0)[at[known]]
    return codes


def linked_rows(accounts: Sequence[RankAccount]) -> list[tuple[I64, I64]]:
    """For each rank the rows of its matched collectives, and the number of each, from 1.

    The same number on several ranks is one collective.
    """
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    if len(accounts) < 2:
        return [nothing for _ in accounts]
    summaries = [summarize(account) for account in accounts]
    rows: list[list[I64]] = [[] for _ in accounts]
    numbers: list[list[I64]] = [[] for _ in accounts]
    on_host: dict[int, I64] = {}
    first, total = 1, 0
    for block in sorted(match(summaries), key=lambda b: -b.place.shape[1]):
        count = block.place.shape[1]
        total += block.place.size
        if total > MAX_LINKS:
            break
        number = np.arange(first, first + count, dtype=np.int64)
        first += count
        for member, place in zip(block.members.tolist(), block.place, strict=True):
            account, event = accounts[member], summaries[member].event[place]
            if (event >= 0).all():
                row = account.trace.device.rows[event]
            else:
                if member not in on_host:
                    on_host[member] = find_collectives(account).row
                row = on_host[member][place]
            rows[member].append(row.astype(np.int64))
            numbers[member].append(number)
    return [
        (np.concatenate(r), np.concatenate(n)) if r else nothing
        for r, n in zip(rows, numbers, strict=True)
    ]
