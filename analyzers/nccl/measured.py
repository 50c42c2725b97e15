"""What a table of nccl-tests measured: its rows name neither their operation nor their ranks.

nccl-tests prints one table for all its programs, and only releases since 2025 say which one ran.
The operation is in the columns (`common.cu` and the file of each program there):

    reduction  root  elements a row counts     program
    sum, …     -1    the whole message         all_reduce
    sum, …     -1    one rank's part           reduce_scatter
    sum, …     0 …   the whole message         reduce
    none       -1    the whole message         sendrecv
    none       -1    one rank's part           all_gather or alltoall
    none       0 …   the whole message         broadcast
    none       0 …   one rank's part           scatter or gather

Scatter and gather move the same bytes over the same links, one out of the root and one into it, so
both count as scatter. All-gather and all-to-all don't: such a table is not judged unless it names
its program.
"""

from __future__ import annotations

from gpuprof.analyzers.busbw import bus_factor
from gpuprof.analyzers.collective_kinds import CollectiveKind, item_bytes
from gpuprof.commlog import Bandwidth, CommLog

_PROGRAMS = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "scatter": CollectiveKind.SCATTER,
    "gather": CollectiveKind.SCATTER,
    "sendrecv": CollectiveKind.SEND_RECV,
}

RING_KINDS = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
    }
)
"""Operations that NCCL runs as a ring: their bus bandwidth is that of the ring's slowest link, and
comparable between them. The others use links that a ring does not, or only one rank's."""

SAME_FACTOR = 0.02
JUDGED_FROM_GBPS = 1.0
"""Bus over algorithm bandwidth of a row is the operation's factor; two digits after the point give
it to 2 % from 1 GB/s on. A row with another factor is of other ranks, or another operation."""


def operation(row: Bandwidth, n_ranks: int) -> CollectiveKind:
    """What a row measured; UNKNOWN where its columns don't decide it.

    Args:
        n_ranks: Of the communicator, 0 where not known: then a row may be of any number.
    """
    item = item_bytes(row.dtype)
    if not item or not row.count or not row.size_bytes:
        return CollectiveKind.UNKNOWN
    parts, rest = divmod(row.size_bytes, row.count * item)
    if rest or (parts > 1 and n_ranks and parts != n_ranks):
        return CollectiveKind.UNKNOWN
    named = _PROGRAMS.get(row.test, CollectiveKind.UNKNOWN)
    kind = named if row.test else _of_columns(row, whole=parts == 1)
    n_ranks = n_ranks or (parts if parts > 1 else 0)
    factor = bus_factor(kind, n_ranks or 2)
    if factor is None:
        return CollectiveKind.UNKNOWN
    if n_ranks and row.algorithm_gbps >= JUDGED_FROM_GBPS:
        ratio = row.bus_gbps / row.algorithm_gbps
        if abs(ratio - factor) > SAME_FACTOR * max(factor, 1.0):
            return CollectiveKind.UNKNOWN
    return kind


def _of_columns(row: Bandwidth, whole: bool) -> CollectiveKind:
    reduces = row.reduction not in ("", "none")
    rooted = row.root is not None and row.root >= 0
    if reduces and rooted:
        return CollectiveKind.REDUCE if whole else CollectiveKind.UNKNOWN
    if reduces:
        return CollectiveKind.ALL_REDUCE if whole else CollectiveKind.REDUCE_SCATTER
    if rooted:
        return CollectiveKind.BROADCAST if whole else CollectiveKind.SCATTER
    return CollectiveKind.SEND_RECV if whole else CollectiveKind.UNKNOWN


def rows_of(log: CommLog, kinds: frozenset[CollectiveKind], from_bytes: int) -> list[Bandwidth]:
    """Rows of these operations from a size on."""
    n_ranks = log.world_size
    return [
        row
        for row in log.bandwidths
        if row.size_bytes >= from_bytes and operation(row, n_ranks) in kinds
    ]
