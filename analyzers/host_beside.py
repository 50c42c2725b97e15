"""Lays what was sampled beside a trace into its findings, over the same stretch of time.

A trace says that the device waited for data or for its host; the samples say what these waited for:
a CPU quota, the disk, workers that compute all the time, a hypervisor. Both count from the Unix
epoch, so the samples of the recorded steps are known. Where one of the two does not, nothing is
joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.host_evidence import Stretch, host_evidence, input_evidence
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Evidence, Finding
from gpuprof.samples import Samples

EVIDENCE: dict[str, Callable[[Samples, int, Stretch | None], tuple[Evidence, ...]]] = {
    "dataloader": input_evidence,
    "host-overhead": host_evidence,
}
"""What asks the samples, by cause."""

SHOWN: dict[str, Callable[[float], str]] = {
    "util_frac": lambda value: f"{percent(value)} utilization",
    "power_w": lambda value: f"{value:.0f} W",
    "sm_clock_mhz": lambda value: f"{value:.0f} MHz",
}
"""Of a GPU in the recorded steps."""

MOST_RANKS = 2
"""Ranks of a finding whose samples are told: more would say the same again."""


def with_samples(
    findings: Sequence[Finding], ranks: Sequence[RankAccount], samples: Sequence[Samples]
) -> tuple[Finding, ...]:
    """Findings of traces with the evidence of samples of the same steps.

    Args:
        findings: Of traces.
        ranks: Their accounts.
        samples: One a node.
    """
    accounts = {account.rank: account for account in ranks}
    return tuple(_with(finding, accounts, samples) for finding in findings)


def _with(
    finding: Finding, accounts: dict[int, RankAccount], samples: Sequence[Samples]
) -> Finding:
    ask = EVIDENCE.get(finding.cause)
    if ask is None:
        return finding
    told: dict[str, Evidence] = {}
    for rank in (finding.late_ranks or finding.ranks or tuple(accounts))[:MOST_RANKS]:
        part = _stretch(accounts.get(rank))
        node = node_of(rank, samples)
        if part is None or node is None:
            continue
        told |= {fact.text: fact for fact in ask(node, rank, part)}
    if not told:
        return finding
    return msgspec.structs.replace(finding, evidence=(*finding.evidence, *told.values()))


def node_of(rank: int, samples: Sequence[Samples]) -> Samples | None:
    """The samples of the node that a rank ran on, where their times are comparable to a trace's."""
    for node in samples:
        if node.epoch and node.timed and any(known.rank == rank for known in node.ranks):
            return node
    return None


def _stretch(account: RankAccount | None) -> Stretch | None:
    """The accounted steps of a rank; None where its trace does not count from the epoch."""
    if account is None or not account.trace.meta.epoch or not account.main.steps.keep.any():
        return None
    steps = account.main.steps
    return Stretch(int(steps.start_ns[steps.keep][0]), int(steps.end_ns[steps.keep][-1]))


def gpu_while_recorded(ranks: Sequence[RankAccount], samples: Sequence[Samples]) -> dict[str, str]:
    """What the first rank's GPU showed in the recorded steps, as a fact for people."""
    if not ranks:
        return {}
    rank = ranks[0].rank
    node, part = node_of(rank, samples), _stretch(ranks[0])
    scope = node.gpu_of_rank(rank) if node is not None else None
    if node is None or part is None or scope is None:
        return {}
    parts = []
    for metric, shown in SHOWN.items():
        value = _mean(node, metric, scope, part)
        if value is not None:
            parts.append(shown(value))
    return {"GPU in the recorded steps": ", ".join(parts)} if parts else {}


def _mean(node: Samples, metric: str, scope: str, part: Stretch) -> float | None:
    """Mean of the good reads in a stretch; the nearest one where none lies in it."""
    series = node.get(metric, scope)
    if series is None or not series.ok.any():
        return None
    time_ns, value = series.good()
    inside = (time_ns >= part.start_ns) & (time_ns <= part.end_ns)
    if inside.any():
        return float(value[inside].mean())
    near = int(np.argmin(np.abs(time_ns - part.end_ns)))
    apart = abs(int(time_ns[near]) - part.end_ns)
    return float(value[near]) if apart <= max(part.end_ns - part.start_ns, 1) else None
