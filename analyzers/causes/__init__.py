"""The causes of low GPU utilization, one module each.

`CAUSES` lists them in the order of their numbers, those beside the eight after them. A test keeps
the list complete.
"""

from __future__ import annotations

from gpuprof.analyzers.causes import (
    checkpoint,
    dataloader,
    host_overhead,
    imbalance,
    low_precision,
    memcpy,
    nccl_wait,
    small_batch,
    sync_points,
)
from gpuprof.analyzers.causes.base import Cause

CAUSES: tuple[Cause, ...] = (
    dataloader.CAUSE,
    small_batch.CAUSE,
    sync_points.CAUSE,
    nccl_wait.CAUSE,
    host_overhead.CAUSE,
    memcpy.CAUSE,
    imbalance.CAUSE,
    checkpoint.CAUSE,
    low_precision.CAUSE,
)
