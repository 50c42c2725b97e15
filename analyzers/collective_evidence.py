"""The collectives with most time, and what they reach of the links, in sentences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.busbw import (
    MOST_ON_A_NODE,
    bandwidths,
    bus_bandwidth,
    link_of,
    message_bytes,
)
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.communication_fixes import SMALL_BYTES
from gpuprof.analyzers.device_columns import peaks_of
from gpuprof.analyzers.exposed import ExposedCollectives
from gpuprof.analyzers.ranks import RankComparison
from gpuprof.analyzers.wording import in_bytes, milliseconds, percent, significant
from gpuprof.diagnosis import Evidence

MOST_KINDS = 3
"""Lines of the table of collectives that a reader looks at."""

_NAMES = {
    int(kind): "collective of unknown kind"
    if kind == CollectiveKind.UNKNOWN
    else "send and receive"
    if kind == CollectiveKind.SEND_RECV
    else kind.name.lower().replace("_", "-")
    for kind in CollectiveKind
}


def largest_kinds(rank: RankAccount, table: ExposedCollectives) -> list[Evidence]:
    """The kinds and sizes of collectives with most exposed time."""
    steps = max(int(np.count_nonzero(rank.main.steps.keep)), 1)
    found, size = table.collectives, table.bytes
    key = np.stack((found.kind[table.mine].astype(np.int64), size))
    kinds, which = np.unique(key, axis=1, return_inverse=True)
    which = which.reshape(-1)
    exposed = np.bincount(which, weights=table.exposed_ns, minlength=kinds.shape[1])
    lines = []
    for i in np.argsort(-exposed)[:MOST_KINDS].tolist():
        mine = which == i
        if exposed[i] < 0.1 * max(table.exposed_total_ns, 1):
            continue
        duration = found.duration_ns[table.mine][mine]
        each = f" of {in_bytes(int(kinds[1, i]))}" if kinds[1, i] > 0 else ""
        text = (
            f"{_count(mine.sum() / steps)} × {_NAMES[int(kinds[0, i])]}{each} a step:"
            f" {milliseconds(exposed[i] / steps / 1e6)} alone of"
            f" {milliseconds(duration.sum() / steps / 1e6)}"
        )
        text += _bandwidth(rank, table, mine)
        lines.append(
            Evidence(
                text=text + ".", value=round(float(exposed[i]) / steps / 1e6, 3), unit="ms per step"
            )
        )
    return lines


def _bandwidth(rank: RankAccount, table: ExposedCollectives, mine: NDArray[np.bool_]) -> str:
    """The bus bandwidth of the fastest of some equal collectives, the one that waited least; for
    groups that fit on a node also its share of what the links give."""
    found = table.collectives
    chosen = table.mine[mine]
    best = int(chosen[np.argmin(found.duration_ns[chosen])])
    kind, n_ranks = int(found.kind[best]), int(found.group_size[best])
    size = message_bytes(kind, int(found.in_bytes[best]), int(found.out_bytes[best]), n_ranks)
    reached = bus_bandwidth(kind, n_ranks, size, float(found.duration_ns[best]))
    if size < SMALL_BYTES or reached is None:
        return ""
    text = f"; the fastest reaches {significant(reached / 1e9)} GB/s of bus bandwidth"
    peaks = peaks_of(rank.main.info) if rank.main.info is not None else None
    link = link_of(peaks, n_ranks, same_host=n_ranks <= MOST_ON_A_NODE).busbw_bytes_per_s
    if not link:
        return text
    return f"{text}, {percent(min(reached / link, 1.0))} of what its links give inside a node"


def link_shares(first: RankAccount, comparison: RankComparison) -> list[Evidence]:
    """What the transfers reach of the links, for the collectives with most time."""
    info = first.main.info
    lines = bandwidths(comparison.transfers, peaks_of(info) if info is not None else None)
    evidence = []
    for line in lines[:MOST_KINDS]:
        if line.share is None or line.size_bytes < SMALL_BYTES or line.verdict == "latency":
            continue
        said = {
            "slow": ": the link, or the way that the data takes, is slow",
            "degraded": ": less than it should be",
        }.get(line.verdict, "")
        evidence.append(
            Evidence(
                text=f"Without the waiting, {_NAMES[int(line.kind)]} of {in_bytes(line.size_bytes)}"
                f" over {line.n_ranks} ranks passes at"
                f" {significant(line.busbw_bytes_per_s / 1e9)} GB/s of bus bandwidth,"
                f" {percent(line.share)} of what the device's links give{said}.",
                value=round(float(line.share), 4),
                unit="share of expected bandwidth",
            )
        )
    return evidence


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"
