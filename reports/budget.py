"""The step budget as rows that add up: what the page, the terminal and Markdown all print."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis import BUCKETS, Diagnosis
from gpuprof.reports import text

BUSY_BUCKETS = ("compute", "communication", "copy")
"""The device does work in these; in every other bucket it idles."""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One non-zero bucket. `share` and `ms` are rounded so that all rows add up to the step.

    `offset` is the exact share of the buckets before it (where its bar starts in a waterfall),
    `exact` its own unrounded share. `ms` is None when the step's length is unknown.
    """

    bucket: str
    share: float
    exact: float
    offset: float
    ms: float | None

    @property
    def idle(self) -> bool:
        return self.bucket not in BUSY_BUCKETS


def rows(budget: dict[str, float], step_ms: float | None) -> list[BudgetRow]:
    """The non-zero buckets in the order of `BUCKETS`.

    Buckets that would print as zero (less than half a thousandth of the step) are left out, and
    the rest is scaled to the whole, so that the printed shares add up to 100.0 %.
    """
    shown = [b for b in BUCKETS if budget.get(b, 0.0) >= 0.0005]
    shares = [budget[b] for b in shown]
    total = sum(shares)
    if total <= 0:
        return []
    exact = [share / total for share in shares]
    rounded = [value / 100 for value in text.apportion(exact, 100.0, 1)]
    digits = 2 if step_ms is not None and step_ms < 10 else 1
    ms = text.apportion(exact, step_ms, digits) if step_ms is not None else [None] * len(shown)
    result = []
    offset = 0.0
    for bucket, share, whole, length in zip(shown, rounded, exact, ms, strict=True):
        result.append(BudgetRow(bucket, share, whole, offset, length))
        offset += whole
    return result


def idle_share(diagnosis: Diagnosis) -> float:
    """The share of the step in which the device does nothing, 0 when there is no budget."""
    return sum(share for bucket, share in diagnosis.budget.items() if bucket not in BUSY_BUCKETS)


def has_account(diagnosis: Diagnosis) -> bool:
    """Whether there is any account of time; without a trace nothing is known of it."""
    return diagnosis.run.steps.count > 0 or diagnosis.budget.get("unknown", 0.0) < 1.0
