"""The order of findings that are two views of one thing."""

from __future__ import annotations

from gpuprof.analyzers.causes.base import finding
from gpuprof.analyzers.sources import Verdicts, join
from gpuprof.diagnosis import Finding, Gain


def saves(
    cause: str,
    reduction: float,
    share: float,
    *,
    ranks: tuple[int, ...] = (0,),
    late: tuple[int, ...] = (),
) -> Finding:
    gain = Gain(step_ms=1.0, reduction=reduction, low=reduction, high=reduction, how="")
    return finding(
        cause,
        "",
        share=share,
        gain=gain,
        confidence=0.9,
        evidence=(),
        fixes=(),
        ranks=ranks,
        late_ranks=late,
    )


def order(*findings: Finding) -> list[str]:
    return [f.cause for f in join(Verdicts(findings, (), ()), ()).findings]


def test_of_a_read_and_slow_python_that_save_the_same_the_larger_share_is_first() -> None:
    sync, host = saves("sync-points", 0.155, 0.06), saves("host-overhead", 0.15, 0.12)
    assert order(sync, host) == ["host-overhead", "sync-points"]
    sync, host = saves("sync-points", 0.155, 0.12), saves("host-overhead", 0.15, 0.06)
    assert order(sync, host) == ["sync-points", "host-overhead"]


def test_a_larger_gain_is_first_whatever_the_shares() -> None:
    sync, host = saves("sync-points", 0.18, 0.06), saves("host-overhead", 0.15, 0.12)
    assert order(sync, host) == ["sync-points", "host-overhead"]


def test_a_finding_between_them_keeps_its_place() -> None:
    sync, host = saves("sync-points", 0.155, 0.06), saves("host-overhead", 0.15, 0.12)
    between = saves("checkpoint", 0.152, 0.15)
    assert order(sync, between, host) == ["host-overhead", "sync-points", "checkpoint"]


def test_a_late_rank_comes_before_what_its_own_host_does() -> None:
    late = saves("nccl-wait", 0.15, 0.15, late=(2,))
    assert order(late, saves("host-overhead", 0.155, 0.15, ranks=(2,)))[0] == "nccl-wait"
    assert order(late, saves("host-overhead", 0.155, 0.15, ranks=(1, 2)))[0] == "host-overhead"
