"""Who is late, what holds each late rank up, where in the user's code, and what to do: in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.analyzers import late_hosts
from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.idle import IDLE_BUCKETS
from gpuprof.analyzers.idle_lines import idle_lines
from gpuprof.analyzers.late_hosts import LateHosts
from gpuprof.analyzers.late_ranks import held_up_by
from gpuprof.analyzers.late_reasons import Parts, evidence_of, fixes_of, own_host_fix
from gpuprof.analyzers.lateness import LateRank
from gpuprof.analyzers.ranks import RankComparison
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.diagnosis import Evidence, Fix, Place

MOST_SUSPECTS = 2
"""Ranks of which it is told that nothing can be told."""

_DOING = {
    "compute": "computing",
    "copy": "copying",
    "input": "waiting for data",
    "sync": "idle after blocking calls",
    "checkpoint": "writing a checkpoint",
    "host": "waiting for its host (Python, launches)",
    "allocator": "in the memory allocator",
    "launch": "waiting for its own streams",
    "unknown": "idle for reasons that were not recorded",
}
"""What a rank does in a bucket of its step."""


def who_is_late(
    ranks: Sequence[RankAccount],
    comparison: RankComparison,
    parts: Parts,
    late: tuple[int, ...],
    hosts: LateHosts | None,
) -> list[Evidence]:
    """Which ranks are late and how that is known, or that none is.

    Args:
        ranks: The accounts.
        comparison: Of these ranks.
        parts: What each does in an average step.
        late: The ranks that are named, ascending; () for none.
        hosts: Those of them that are late for their own hosts, None for none.
    """
    if not late and comparison.suspects:
        return [_may_be_late(one) for one in comparison.suspects[:MOST_SUSPECTS]]
    if not late:
        return [
            Evidence(
                text="No rank is late: none comes last more often than chance lets it, at a cost"
                " that is worth naming.",
                unit="",
            )
        ]
    by_order = {one.rank: one for one in comparison.late}
    evidence = late_hosts.evidence_of(hosts) if hosts is not None else []
    for rank in _costliest_first(comparison, late, hosts):
        if rank in by_order:
            evidence.append(_came_late(by_order[rank]))
        evidence += evidence_of(parts, rank, late)
        evidence += _held_up(ranks, late, rank)
    return evidence


def where_late(
    ranks: Sequence[RankAccount],
    comparison: RankComparison,
    late: tuple[int, ...],
    hosts: LateHosts | None,
) -> tuple[Place, ...]:
    """Lines of the user's code that hold the costliest late rank up, where its host does."""
    if not late:
        return ()
    worst = _costliest_first(comparison, late, hosts)[0]
    held = held_up_by(ranks, late, worst)
    bucket = held[0] if held is not None else ""
    if hosts is not None and worst in hosts.ranks:
        bucket = "host"
    account = next(rank for rank in ranks if rank.rank == worst)
    return idle_lines(account.lines, bucket) if bucket in IDLE_BUCKETS else ()


def fixes_of_late(
    comparison: RankComparison, parts: Parts, late: tuple[int, ...], hosts: LateHosts | None
) -> list[Fix]:
    """What to do about what makes the costliest late rank late."""
    if hosts is not None:
        return [own_host_fix(hosts.ranks[0])]
    return fixes_of(parts, [one.rank for one in comparison.late if one.rank in late])


def _costliest_first(
    comparison: RankComparison, late: tuple[int, ...], hosts: LateHosts | None
) -> list[int]:
    by_host = hosts.ranks if hosts is not None else ()
    known = [*by_host, *(one.rank for one in comparison.late)]
    return [rank for rank in dict.fromkeys(known) if rank in late]


def _came_late(one: LateRank) -> Evidence:
    text = (
        f"Rank {one.rank} was late in {one.times} of {one.of} {one.samples} and costs the middle"
        f" rank {percent(one.share)} of the step"
    )
    if not one.lasting:
        text += "; too few steps were recorded to say that it is late in others too"
    return Evidence(text=text + ".", value=round(one.share, 4), unit="share of step")


def _held_up(ranks: Sequence[RankAccount], late: tuple[int, ...], rank: int) -> list[Evidence]:
    held = held_up_by(ranks, late, rank)
    if held is None:
        return []
    bucket, own_ms, others_ms = held
    has_device = any(len(device.events) for one in ranks for device in one.devices)
    doing = _DOING[bucket]
    if bucket == "host" and not has_device:
        doing = "outside of operators"
    return [
        Evidence(
            text=f"Rank {rank} spends {milliseconds(own_ms)} of each step {doing}, the others"
            f" {milliseconds(others_ms)}.",
            value=round(own_ms - others_ms, 3),
            unit="ms per step",
        )
    ]


def _may_be_late(one: LateRank) -> Evidence:
    text = (
        f"Whether rank {one.rank} is late can't be told: it was late in {one.times} of {one.of}"
        f" {one.samples} and costs the middle rank {percent(one.share)} of the step, but that may"
        " be chance: record more steps."
    )
    return Evidence(text=text, value=round(one.share, 4), unit="share of step")
