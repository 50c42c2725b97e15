"""What a loader's worker processes did in a window, as the run directory keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from gpuprof.attach.agent_loader import MOST_FETCHES
from gpuprof.run import LoaderWork


def loader_work(work: Mapping[str, object] | None) -> LoaderWork | None:
    """The record of what `LoaderWatch` counted; None where it counted nothing that can be true.

    Args:
        work: `LoaderWatch.work`, or what an agent reported as such.
    """
    if not isinstance(work, Mapping):
        return None
    workers, span_ns, busy_ns = (_count(work.get(k)) for k in ("workers", "span_ns", "busy_ns"))
    if not workers or not span_ns or busy_ns is None:
        return None
    listed = work.get("missing")
    counted = [_count(n) for n in listed[:MOST_FETCHES]] if isinstance(listed, list) else []
    missing = [n for n in counted if n is not None]
    return LoaderWork(
        workers=workers,
        span_ms=round(span_ns / 1e6, 4),
        busy_frac=round(min(busy_ns / span_ns / workers, 1.0), 4),
        fetches=len(missing),
        in_making=round(fmean(min(n, workers) for n in missing), 3) if missing else None,
        filled=round(_fallen(missing), 3),
        read_bytes=_count(work.get("read_bytes")),
    )


def _fallen(missing: list[int]) -> float:
    """By how many the batches that were missing became fewer: as the first and the last fetch have
    it, or the two halves, whichever is less. One alone can be chance."""
    half = len(missing) // 2
    if not half:
        return 0.0
    halves = 2 * (fmean(missing[:half]) - fmean(missing[-half:]))
    return max(min(float(missing[0] - missing[-1]), halves), 0.0)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
