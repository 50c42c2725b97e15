# ruff: noqa: E501 (rows are quoted whole)
"""The table of nccl-tests, whole and torn apart by NCCL's lines."""

from __future__ import annotations

import pytest

from fixtures.nccl_cases import CASES
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.nccl_tests_output import TableReader

WHOLE = b"""#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     8388608       2097152     float     sum      -1    83.33  100.66  100.66      0    80.98  103.59  103.59      0
"""
TORN = b"""     8388608       2097152     float     sum      -1n0:1:1 [1] NCCL INFO AllReduce: opCount 0
    83.33  100.66  100.66      0n0:1:1 [1] NCCL INFO AllReduce: opCount 0
    80.98  103.59  103.59      0
"""


@pytest.mark.parametrize("data", [WHOLE, TORN], ids=["whole", "torn"])
def test_rows(data: bytes) -> None:
    first, second = TableReader().read(data, 1)
    assert (first.size_bytes, first.dtype, first.time_us, first.bus_gbps, first.in_place) == (
        8388608,
        "float",
        83.33,
        100.66,
        False,
    )
    assert (second.time_us, second.in_place) == (80.98, True)
    assert (second.count, second.reduction, second.root, second.test) == (2097152, "sum", -1, "")


BEFORE_2022 = b"""#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
  1073741824     268435456   float     sum    35215   30.49   57.17  4e-07    35198   30.51   57.20  4e-07
"""
ROOTED = b"""#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw  error
  1073741824     268435456   float       2    12646   84.91   84.91  0e+00    12640   84.95   84.95    N/A
"""


EMPTY = b"""#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
        1024            32   float            28.52    0.04    0.03  0e+00    27.43    0.04    0.03  1e+00
"""


def test_a_column_without_a_value() -> None:
    """alltoall_perf before 2022."""
    first, second = TableReader().read(EMPTY, 1)
    assert (first.time_us, first.reduction, first.root, second.time_us) == (28.52, "", None, 27.43)


def test_older_tables_have_fewer_columns() -> None:
    """A time without a decimal point is not taken for the root that such a table does not state."""
    for data, reduction, root, time_us in (
        (BEFORE_2022, "sum", None, 35215),
        (ROOTED, "", 2, 12646),
    ):
        first, second = TableReader().read(data, 1)
        assert (first.time_us, first.reduction, first.root) == (time_us, reduction, root)
        assert second.in_place and second.line == 2


def test_the_program_is_named_where_it_says_its_name() -> None:
    """Also when the table comes in a later chunk, and when a second program follows."""
    reader = TableReader()
    assert list(reader.read(b"# Collective test starting: all_gather_perf\n", 1)) == []
    assert {row.test for row in reader.read(WHOLE, 2)} == {"all_gather"}
    again = b"# Collective test starting: alltoall_perf\n" + WHOLE
    assert {row.test for row in reader.read(again, 4)} == {"alltoall"}


def test_other_numbers_are_no_rows() -> None:
    assert list(TableReader().read(b"  12 34 56\n   1.0 2.0 3.0 4\n", 1)) == []


@pytest.mark.skipif(not CASES.is_dir(), reason="the labelled cases are not beside the repository")
def test_bandwidths_of_labelled_logs() -> None:
    """The labels say 216 and 28.6 GB/s."""
    for name, best in (("a100-nvlink-healthy", 216.61), ("a100-nvlink-one-brick", 28.61)):
        log = read_nccl_log(CASES / "nccl" / f"{name}.log.gz")
        assert len(log.bandwidths) == 22
        assert max(row.bus_gbps for row in log.bandwidths) == best
