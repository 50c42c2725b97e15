"""The order of findings that are two views of one thing."""

from __future__ import annotations

from dataclasses import replace

from fixtures.samples import samples
from gpuprof.analyzers.causes.base import finding
from gpuprof.analyzers.sources import OtherSources, Verdicts, findings_of, join
from gpuprof.diagnosis import Finding, Gain
from gpuprof.readers.xid import parse_xids


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


def test_a_kernels_report_is_of_the_machine_that_it_names() -> None:
    """Both nodes have a GPU at that address; a report that names neither is of neither."""
    nodes = tuple(
        replace(
            samples({("util_frac", "gpu:0"): [0.98] * 9}, facts={"pci_bus_id": "00000000:9b:00.0"}),
            node=name,
        )
        for name in ("n0", "n1.cluster")
    )
    said = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    for prefix, titles in (
        ("Nov 15 12:02:03 n1 kernel: ", ["GPU 0 of n1.cluster: the GPU fell off the bus (Xid 79)"]),
        ("", ["GPU at 0000:9b:00: the GPU fell off the bus (Xid 79)"]),
    ):
        found = findings_of(OtherSources(samples=nodes, xids=(parse_xids([prefix + said]),)))
        assert [one.title for one in found if one.cause == "hardware-fault"] == titles
