"""Samples of a GPU while it works: clocks, links and power say nothing about an idle one."""

from __future__ import annotations

import numpy as np

from gpuprof.samples import F64, Samples

LOAD_FRAC = 0.5
"""Utilization from which a GPU counts as loaded."""


def under_load(samples: Samples, metric: str, scope: str) -> F64:
    """The good values of a metric taken while the GPU was loaded; () where that is not known."""
    series, util = samples.get(metric, scope), samples.get("util_frac", scope)
    if series is None or util is None:
        return np.empty(0)
    time_ns, value = series.good()
    util_ns, util_frac = util.good()
    if not len(time_ns) or not len(util_ns):
        return np.empty(0)
    at = np.clip(np.searchsorted(util_ns, time_ns, side="right") - 1, 0, len(util_ns) - 1)
    loaded: F64 = value[util_frac[at] >= LOAD_FRAC]
    return loaded


def gpu_name(samples: Samples, scope: str) -> str:
    """How a GPU is called in a sentence: "GPU 3" or "GPU 3 (rank 11)"."""
    ranks = gpu_ranks(samples, scope)
    index = scope.partition(":")[2]
    node = f" of {samples.node}" if samples.node else ""
    whose = f" (rank {', '.join(str(rank) for rank in ranks)})" if ranks else ""
    return f"GPU {index}{node}{whose}"


def gpu_ranks(samples: Samples, scope: str) -> tuple[int, ...]:
    """The ranks whose own GPU this is."""
    return tuple(
        rank.rank
        for rank in samples.ranks
        if rank.rank >= 0 and samples.gpu_of_rank(rank.rank) == scope
    )
