# ruff: noqa: E501 (rows are quoted whole)
"""The table of nccl-tests, whole and torn apart by NCCL's lines."""

from __future__ import annotations

import pytest

from fixtures.nccl_cases import CASES
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.nccl_tests_output import bandwidths

WHOLE = b"""#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     8388608       2097152     float     sum      -1    83.33  100.66  100.66      0    80.98  103.59  103.59      0
"""
TORN = b"""     8388608       2097152     float     sum      -1n0:1:1 [1] NCCL INFO AllReduce: opCount 0
    83.33  100.66  100.66      0n0:1:1 [1] NCCL INFO AllReduce: opCount 0
    80.98  103.59  103.59      0
"""


@pytest.mark.parametrize("data", [WHOLE, TORN], ids=["whole", "torn"])
def test_rows(data: bytes) -> None:
    first, second = bandwidths(data, 1)
    assert (first.size_bytes, first.dtype, first.time_us, first.bus_gbps, first.in_place) == (
        8388608,
        "float",
        83.33,
        100.66,
        False,
    )
    assert (second.time_us, second.in_place) == (80.98, True)


def test_other_numbers_are_no_rows() -> None:
    assert list(bandwidths(b"  12 34 56\n   1.0 2.0 3.0 4\n", 1)) == []


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled cases are not beside the repository")
def test_bandwidths_of_labelled_logs() -> None:
    """The labels say 216 and 28.6 GB/s."""
    for name, best in (("a100-nvlink-healthy", 216.61), ("a100-nvlink-one-brick", 28.61)):
        log = read_nccl_log(CASES / "nccl" / f"{name}.log.gz")
        assert len(log.bandwidths) == 22
        assert max(row.bus_gbps for row in log.bandwidths) == best
