"""Which operation a row of nccl-tests measured, and what is not decided."""

from __future__ import annotations

import pytest

from gpuprof.analyzers.collective_kinds import CollectiveKind as Kind
from gpuprof.analyzers.nccl.measured import operation
from gpuprof.commlog import Bandwidth

SIZE = 1 << 20


def row(
    reduction: str,
    root: int | None,
    parts: int,
    factor: float,
    test: str = "",
    dtype: str = "float",
) -> Bandwidth:
    """One MiB of float at 10 GB/s."""
    count = SIZE // 4 // parts
    return Bandwidth(
        1, SIZE, dtype, 100.0, 10.0, 10.0 * factor, False, count, reduction, root, test
    )


@pytest.mark.parametrize(
    ("reduction", "root", "parts", "factor", "kind"),
    [
        ("sum", -1, 1, 1.75, Kind.ALL_REDUCE),
        ("sum", None, 1, 1.75, Kind.ALL_REDUCE),  # before 2022 without a column for the root
        ("sum", -1, 8, 0.875, Kind.REDUCE_SCATTER),
        ("max", 0, 1, 1.0, Kind.REDUCE),
        ("none", 3, 1, 1.0, Kind.BROADCAST),
        ("", 3, 1, 1.0, Kind.BROADCAST),
        ("none", 0, 8, 0.875, Kind.SCATTER),
        ("none", -1, 1, 1.0, Kind.SEND_RECV),
        ("none", -1, 8, 0.875, Kind.UNKNOWN),  # all-gather or all-to-all
        ("sum", 0, 8, 0.875, Kind.UNKNOWN),  # no program prints this
    ],
)
def test_the_columns_tell_the_operation(
    reduction: str, root: int | None, parts: int, factor: float, kind: Kind
) -> None:
    found = row(reduction, root, parts, factor)
    assert operation(found, 8) == kind
    assert operation(found, 0) == kind  # of a log without communicators


def test_a_program_that_names_itself() -> None:
    """All-gather and all-to-all are told apart by it, and one that is not known is not guessed."""
    for test, kind in (("all_gather", Kind.ALL_GATHER), ("alltoall", Kind.ALL_TO_ALL)):
        assert operation(row("none", -1, 8, 0.875, test), 8) == kind
    assert operation(row("none", -1, 8, 0.875, "hypercube"), 8) == Kind.UNKNOWN


def test_what_does_not_agree_is_not_judged() -> None:
    """Rows of another communicator, of another factor, of an unknown type."""
    assert operation(row("sum", -1, 8, 0.875), 16) == Kind.UNKNOWN
    assert operation(row("sum", -1, 1, 1.0), 8) == Kind.UNKNOWN
    assert operation(row("sum", -1, 1, 1.75, dtype="fp6"), 8) == Kind.UNKNOWN
