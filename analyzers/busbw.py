"""How fast collectives move data, and how fast they could.

`algbw` is the message size over the time; `busbw` multiplies it by the share of the data that must
cross the bus of each rank, so that it can be compared with a link's bandwidth whatever the
operation and the number of ranks. Sizes, factors and names are those of nccl-tests (its
PERFORMANCE.md):

    operation       size S                            factor
    all-reduce      one rank's tensor                 2 (n - 1) / n
    all-gather      all ranks' tensors (the output)   (n - 1) / n
    reduce-scatter  all ranks' tensors (the input)    (n - 1) / n
    all-to-all      all that one rank sends           (n - 1) / n
    broadcast, reduce                                 1
    gather, scatter all ranks' tensors                (n - 1) / n
    send and receive                                  1

The expected time is latency + (S + fill) · factor / bandwidth (Hockney 1994, the α–β model): each
rank of a ring passes S · factor bytes through its link, one after the other, and the pipeline of
chunks must fill before all links are busy.

Only the transfer is judged, never the wait: the shortest duration over ranks where several were
given. From a single rank the two can't be told apart, and a slow collective may be a late rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.ranks import Transfers
from gpuprof.peaks import Peaks

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Verdict = Literal["latency", "at bandwidth", "degraded", "slow", "waiting", "unknown"]

AT_BANDWIDTH_FROM = 0.75
DEGRADED_FROM = 0.5
"""Shares of what is expected of a message of this size. Well-tuned systems reach 0.75 to 0.95 on
large messages; exactly half is one of two network cards, one bonded port or missing GPUDirect."""

BANDWIDTH_COUNTS_FROM = 4.0
"""Bandwidth is judged from messages that take four times the latency to pass: below, mistakes in
the latency would be read as a slow link."""

WAITING_FRAC = 0.3
WAITING_NS = 50_000.0
"""A mean wait of more than 50 µs and 30 % of the duration is what the collective is about."""

FEWEST_CALLS = 3
"""Calls of one size that it takes to call a link slow."""

RING_EFFICIENCY = 0.78
"""Bus bandwidth over one direction's NVLink bandwidth that rings reach on large messages: 235 of
300 GB/s on eight A100s and 360 of 450 on eight H100s, as published for nccl-tests."""

FILL_BYTES = 12 << 20
FILL_FROM_BYTES_PER_S = 50e9
"""What passes before all links of a ring are busy: each of some 24 channels passes chunks of 512
KiB (NCCL's buffer of 4 MiB in eight steps); a smaller message goes in smaller chunks. It brings the
expectation within 20 % of nccl-tests' table of all-reduces from 8 MiB on in a labelled log of two
A100s. Slower links have few channels, and hardly any fill."""

LAUNCH_LATENCY_NS = 6_600.0
HOP_LATENCY_NS = 1_200.0
NODE_LATENCY_NS = 10_000.0
"""Latency of a small collective: NCCL's own estimates (its tuning tables, versions 2.19 to 2.30)
come to some 6.6 µs + 1.2 µs for each further rank of a node (15 µs on eight), and to some 10 µs for
each doubling of nodes (25 µs on two, 35 µs on four)."""

MOST_ON_A_NODE = 8
"""Larger groups span nodes, except on rack-scale NVLink, which host names tell."""


@dataclass(frozen=True, slots=True)
class Link:
    """What connects the ranks of a communicator.

    latency_ns: of a small collective. busbw_bytes_per_s: what a large one reaches, 0 where it is
    not known. source: where that figure comes from, for the reader. fill_bytes: see `FILL_BYTES`.
    """

    latency_ns: float
    busbw_bytes_per_s: float = 0.0
    source: str = ""
    fill_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """All calls of one kind and size.

    size_bytes: as nccl-tests counts it. count: calls. transfer_ns: median. wait_ns: mean over calls
    and ranks. expected_ns: for the transfer, None where the link is not known. share: of the
    expected bus bandwidth, None likewise.
    """

    kind: CollectiveKind
    n_ranks: int
    size_bytes: int
    count: int
    transfer_ns: float
    wait_ns: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    expected_ns: float | None
    share: float | None
    verdict: Verdict

    @property
    def total_ns(self) -> float:
        """Transfer and waiting of all calls on one rank."""
        return self.count * (self.transfer_ns + self.wait_ns)


def bus_factor(kind: int, n_ranks: int) -> float | None:
    """Bytes through each rank's link a byte of message; None for an operation without a size."""
    if n_ranks < 2:
        return None
    part = (n_ranks - 1) / n_ranks
    return {
        CollectiveKind.ALL_REDUCE: 2 * part,
        CollectiveKind.ALL_GATHER: part,
        CollectiveKind.REDUCE_SCATTER: part,
        CollectiveKind.ALL_TO_ALL: part,
        CollectiveKind.GATHER: part,
        CollectiveKind.SCATTER: part,
        CollectiveKind.BROADCAST: 1.0,
        CollectiveKind.REDUCE: 1.0,
        CollectiveKind.SEND_RECV: 1.0,
    }.get(CollectiveKind(kind))


def message_bytes(kind: int, in_bytes: int, out_bytes: int, n_ranks: int) -> int:
    """The size that nccl-tests would state, -1 where it is not known.

    Args:
        kind: A `CollectiveKind`.
        in_bytes, out_bytes: What one rank puts in and gets out, -1 where not known.
        n_ranks: Ranks of the communicator.
    """
    if kind == CollectiveKind.ALL_GATHER:
        if in_bytes >= 0:
            return in_bytes * n_ranks
        return out_bytes
    if kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
        return max(in_bytes, out_bytes)
    if kind == CollectiveKind.REDUCE_SCATTER and in_bytes < 0 <= out_bytes:
        return out_bytes * n_ranks
    return in_bytes if in_bytes >= 0 else out_bytes


def algorithm_bandwidth(size_bytes: float, duration_ns: float) -> float:
    """Message bytes a second; 0 for no time."""
    return size_bytes / duration_ns * 1e9 if duration_ns > 0 else 0.0


def bus_bandwidth(kind: int, n_ranks: int, size_bytes: float, duration_ns: float) -> float | None:
    """Bytes a second through each rank's link, None for an operation without a size."""
    factor = bus_factor(kind, n_ranks)
    if factor is None or size_bytes < 0:
        return None
    return factor * algorithm_bandwidth(size_bytes, duration_ns)


def expected_ns(kind: int, n_ranks: int, size_bytes: float, link: Link) -> float | None:
    """The α–β model's time; None where the operation has no size or the link no bandwidth."""
    factor = bus_factor(kind, n_ranks)
    if factor is None or size_bytes < 0 or link.busbw_bytes_per_s <= 0:
        return None
    passing = size_bytes + min(size_bytes, link.fill_bytes)
    return link.latency_ns + factor * passing / link.busbw_bytes_per_s * 1e9


def latency_ns(n_ranks: int, n_nodes: int = 1, hop_ns: float = 0.0) -> float:
    """Latency of a small collective over NVLink, and a network between nodes; good to a factor
    of two (see `LAUNCH_LATENCY_NS`). hop_ns: of one message between nodes, where it is known: a
    tree has two for each doubling of nodes, one up and one down."""
    if n_nodes > 1:
        return 15_000.0 + (2 * hop_ns or NODE_LATENCY_NS) * math.log2(n_nodes)
    return LAUNCH_LATENCY_NS + HOP_LATENCY_NS * max(min(n_ranks, MOST_ON_A_NODE) - 1, 0)


def link_of(
    peaks: Peaks | None, n_ranks: int, same_host: bool, busbw_bytes_per_s: float = 0.0
) -> Link:
    """What connects the ranks of a communicator.

    Args:
        peaks: Of the device, None where unknown.
        n_ranks: Ranks of the communicator.
        same_host: Whether they are known to be on one host. If not, the network decides, and that
            is in no trace.
        busbw_bytes_per_s: Measured (nccl-tests, an NCCL log), used before anything else; 0 for
            none.
    """
    nodes = 1 if same_host else max(1, math.ceil(n_ranks / MOST_ON_A_NODE))
    latency = latency_ns(n_ranks, nodes)
    if busbw_bytes_per_s > 0:
        return Link(latency, busbw_bytes_per_s, "measured", fill_of(busbw_bytes_per_s))
    if peaks is None or not peaks.links_all(n_ranks) or not same_host:
        return Link(latency)
    one_way = peaks.link_bytes_per_s / 2
    busbw = RING_EFFICIENCY * one_way
    return Link(latency, busbw, f"links of {peaks.name}", fill_of(busbw))


def fill_of(busbw_bytes_per_s: float) -> float:
    """Bytes that fill the pipeline of a link of this bandwidth inside a node."""
    return float(FILL_BYTES) if busbw_bytes_per_s >= FILL_FROM_BYTES_PER_S else 0.0


def judge_transfer(
    kind: int, n_ranks: int, size_bytes: float, transfer_ns: float, wait_ns: float, count: int,
    link: Link,
) -> tuple[Verdict, float | None]:  # fmt: skip
    """The verdict on calls of one kind and size, and their share of the expected bus bandwidth.

    Args:
        transfer_ns: Median transfer. wait_ns: mean wait; NaN where only one rank was given, and
            then nothing slow is called slow: it may be waiting.
        count: Calls.
        link: What connects the ranks.
    """
    single = math.isnan(wait_ns)
    waiting = not single and wait_ns > WAITING_NS
    waiting = waiting and wait_ns > WAITING_FRAC * (wait_ns + transfer_ns)
    busbw = bus_bandwidth(kind, n_ranks, size_bytes, transfer_ns)
    if busbw is None or link.busbw_bytes_per_s <= 0:
        return ("waiting" if waiting else "unknown"), None
    share = busbw / link.busbw_bytes_per_s
    if waiting:
        return "waiting", share
    passing = (bus_factor(kind, n_ranks) or 0.0) * size_bytes / link.busbw_bytes_per_s * 1e9
    if passing < link.latency_ns and transfer_ns < BANDWIDTH_COUNTS_FROM * link.latency_ns:
        return "latency", share
    expected = expected_ns(kind, n_ranks, size_bytes, link) or 0.0
    reached = max(share, expected / transfer_ns if transfer_ns > 0 else 0.0)
    if reached >= AT_BANDWIDTH_FROM:
        return "at bandwidth", share
    if passing < BANDWIDTH_COUNTS_FROM * link.latency_ns or single or count < FEWEST_CALLS:
        return "unknown", share
    return ("degraded" if reached >= DEGRADED_FROM else "slow"), share


def bandwidths(
    transfers: Sequence[Transfers], peaks: Peaks | None, busbw_bytes_per_s: float = 0.0
) -> list[Bandwidth]:
    """One line for each kind, size and communicator size, the most time first.

    Args:
        transfers: As `RankComparison.transfers` has them; those without a size are left out.
        peaks: Of the devices.
        busbw_bytes_per_s: See `link_of`.
    """
    lines: dict[tuple[int, int, int, bool], list[tuple[F64, F64]]] = {}
    for one in transfers:
        n_ranks = max(one.size, one.n_ranks)
        columns = np.stack([one.kind, one.in_bytes, one.out_bytes])
        distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)
        for i, (kind, in_bytes, out_bytes) in enumerate(distinct.T.tolist()):
            size = message_bytes(kind, in_bytes, out_bytes, n_ranks)
            if size < 0 or bus_factor(kind, n_ranks) is None:
                continue
            at = inverse == i
            wait = one.wait_ns[at] if one.n_ranks > 1 else np.full(int(at.sum()), np.nan)
            key = (kind, n_ranks, size, one.same_host)
            lines.setdefault(key, []).append((one.transfer_ns[at], wait))
    result = []
    for (kind, n_ranks, size, same_host), parts in lines.items():
        transfer = float(np.median(np.concatenate([part[0] for part in parts])))
        wait = float(np.concatenate([part[1] for part in parts]).mean())
        count = sum(len(part[0]) for part in parts)
        link = link_of(peaks, n_ranks, same_host, busbw_bytes_per_s)
        verdict, share = judge_transfer(kind, n_ranks, size, transfer, wait, count, link)
        result.append(
            Bandwidth(
                kind=CollectiveKind(kind),
                n_ranks=n_ranks,
                size_bytes=size,
                count=count,
                transfer_ns=transfer,
                wait_ns=wait,
                algbw_bytes_per_s=algorithm_bandwidth(size, transfer),
                busbw_bytes_per_s=bus_bandwidth(kind, n_ranks, size, transfer) or 0.0,
                expected_ns=expected_ns(kind, n_ranks, size, link),
                share=share,
                verdict=verdict,
            )
        )
    return sorted(result, key=lambda line: -np.nan_to_num(line.total_ns))
