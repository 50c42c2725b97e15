"""Bandwidths as nccl-tests defines them, and the verdict on them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuprof.analyzers.busbw import (
    FILL_BYTES,
    Link,
    bandwidths,
    bus_bandwidth,
    bus_factor,
    expected_ns,
    judge_transfer,
    latency_ns,
    link_of,
    message_bytes,
)
from gpuprof.analyzers.collective_kinds import CollectiveKind as Kind
from gpuprof.analyzers.ranks import Transfers
from gpuprof.peaks import lookup

NVLINK = Link(15_000, 234e9, "test")


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        (Kind.ALL_REDUCE, 1.75),
        (Kind.ALL_GATHER, 0.875),
        (Kind.REDUCE_SCATTER, 0.875),
        (Kind.ALL_TO_ALL, 0.875),
        (Kind.BROADCAST, 1.0),
        (Kind.REDUCE, 1.0),
        (Kind.SEND_RECV, 1.0),
        (Kind.BARRIER, None),
        (Kind.UNKNOWN, None),
    ],
)
def test_factors_of_nccl_tests(kind: Kind, factor: float | None) -> None:
    assert bus_factor(kind, 8) == factor
    assert bus_factor(kind, 1) is None


def test_a_printed_line_of_nccl_tests() -> None:
    """all_reduce_perf on eight ranks: 1 GiB in 7885.4 µs is 136.17 GB/s, busbw 238.30."""
    assert bus_bandwidth(Kind.ALL_REDUCE, 8, 2**30, 7_885_400) == pytest.approx(238.30e9, rel=1e-4)


def test_sizes_count_all_ranks_where_nccl_tests_does() -> None:
    assert message_bytes(Kind.ALL_REDUCE, 100, 100, 8) == 100
    assert message_bytes(Kind.ALL_GATHER, 100, 800, 8) == 800
    assert message_bytes(Kind.ALL_GATHER, -1, 800, 8) == 800
    assert message_bytes(Kind.REDUCE_SCATTER, 800, 100, 8) == 800
    assert message_bytes(Kind.REDUCE_SCATTER, -1, 100, 8) == 800
    assert message_bytes(Kind.ALL_REDUCE, -1, -1, 8) == -1


def test_the_model_of_time() -> None:
    """15 µs + 1.75 x 234 MB / 234 GB/s = 1.765 ms."""
    assert expected_ns(Kind.ALL_REDUCE, 8, 234e6, NVLINK) == pytest.approx(1.765e6)
    assert expected_ns(Kind.ALL_REDUCE, 8, 234e6, Link(15_000)) is None
    assert expected_ns(Kind.BARRIER, 8, 1, NVLINK) is None


def test_latencies_are_those_of_nccls_tables() -> None:
    assert latency_ns(8) == pytest.approx(15_000, rel=0.02)
    assert latency_ns(16, 2) == pytest.approx(25_000, rel=0.02)
    assert latency_ns(32, 4) == pytest.approx(35_000, rel=0.02)


def test_links_are_known_only_inside_a_host() -> None:
    a100 = lookup("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert link_of(a100, 8, same_host=True).busbw_bytes_per_s == pytest.approx(234e9)
    assert link_of(a100, 16, same_host=False).busbw_bytes_per_s == 0
    assert link_of(None, 8, same_host=True).busbw_bytes_per_s == 0
    assert link_of(None, 8, True, 50e9) == Link(latency_ns(8), 50e9, "measured", FILL_BYTES)
    assert link_of(None, 8, True, 10e9) == Link(latency_ns(8), 10e9, "measured")


def test_a_pipeline_that_fills_is_no_slow_link() -> None:
    """A message of 8 MiB reaches half of the bandwidth on links that are as they should be."""
    link = Link(15_000.0, 234e9, "links", FILL_BYTES)
    size = 32 << 20
    usual = expected_ns(Kind.ALL_REDUCE, 8, size, link)
    assert usual is not None
    verdict, share = judge_transfer(Kind.ALL_REDUCE, 8, size, usual, 0.0, 20, link)
    assert verdict == "at bandwidth"
    assert share is not None and share < 0.75


@pytest.mark.parametrize(
    ("size", "transfer", "wait", "count", "verdict"),
    [
        (64e6, 600e3, 10e3, 20, "at bandwidth"),
        (64e6, 750e3, 10e3, 20, "degraded"),
        (64e6, 2500e3, 10e3, 20, "slow"),
        (64e6, 2500e3, 10e3, 2, "unknown"),  # too few calls to blame a link
        (64e6, 2500e3, math.nan, 20, "unknown"),  # one rank alone: it may be waiting
        (64e6, 600e3, math.nan, 20, "at bandwidth"),  # even with the wait in it
        (64e6, 600e3, 900e3, 20, "waiting"),
        (4096, 18e3, 5e3, 20, "latency"),
        (4096, 500e3, 5e3, 20, "unknown"),
    ],
)
def test_verdicts(size: float, transfer: float, wait: float, count: int, verdict: str) -> None:
    assert judge_transfer(Kind.ALL_REDUCE, 8, size, transfer, wait, count, NVLINK)[0] == verdict


def test_without_a_link_only_waiting_is_called() -> None:
    assert judge_transfer(Kind.ALL_REDUCE, 8, 64e6, 1e6, 1e3, 9, Link(15e3)) == ("unknown", None)
    assert judge_transfer(Kind.ALL_REDUCE, 8, 64e6, 1e6, 9e6, 9, Link(15e3)) == ("waiting", None)


def test_one_line_a_kind_and_size() -> None:
    sizes = np.array([64 << 20] * 3 + [1024, -1])
    transfers = Transfers(
        kind=np.array([Kind.ALL_REDUCE] * 5, np.int64),
        in_bytes=sizes,
        out_bytes=sizes,
        transfer_ns=np.array([600e3, 610e3, 700e3, 16e3, 5e3]),
        wait_ns=np.array([1e3, 2e3, 3e3, 1e3, 1e3]),
        n_ranks=8,
        size=8,
        same_host=True,
    )
    lines = bandwidths([transfers], lookup("NVIDIA A100-SXM4-80GB"))
    assert [(line.size_bytes, line.count, line.verdict) for line in lines] == [
        (64 << 20, 3, "at bandwidth"),
        (1024, 1, "latency"),
    ]
    assert lines[0].transfer_ns == 610e3
    assert lines[0].wait_ns == 2e3
    assert lines[0].busbw_bytes_per_s == pytest.approx(1.75 * (64 << 20) / 610e3 * 1e9)
