"""The user's lines that the host was on while a rank's device idled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.places import lines_within
from gpuprof.diagnosis import Place

I64 = NDArray[np.int64]


def idle_lines(rank: RankAccount, bucket: str, lane: I64 | None = None) -> tuple[Place, ...]:
    """Lines that held the device up in the way that a bucket stands for, heaviest first.

    Args:
        rank: The account; shares of the lines are of its accounted time.
        bucket: Of the idle ones (`gpuprof.analyzers.idle`).
        lane: The thread that each gap waited for, (n_gaps,); None for the main one.
    """
    gaps = rank.main.budget.gaps
    part = gaps.parts[bucket]
    held = np.flatnonzero(part > 0)
    on = np.full(len(held), rank.host.main_lane, np.int64) if lane is None else lane[held]
    return lines_within(
        rank.trace,
        rank.host,
        on,
        gaps.start_ns[held],
        gaps.host_end_ns[held],
        part[held].astype(np.float64),
        float(max(rank.main.budget.total_ns, 1)),
    )
