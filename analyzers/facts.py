"""What the run already does, so that advice never asks for it again.

Everything here is read from the recording. A fact that the recording cannot show is None, and
advice that depends on it says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.device_columns import DTYPES
from gpuprof.analyzers.roofline import RooflineSummary
from gpuprof.trace import Category, Trace

_SINGLE = re.compile(r".*_SingleProcessDataLoaderIter")
_MULTI = re.compile(r".*_MultiProcessingDataLoaderIter")
_FUSED_OPTIMIZER = re.compile(r"aten::_fused_(adam|adamw|sgd|adagrad)")
_FOREACH = re.compile(r"aten::_foreach_")
_OPTIMIZER = re.compile(r"Optimizer\.step#(\w+)\.step")
_FSDP = re.compile(r"FSDP::|FullyShardedDataParallel|aten::_chunk_cat|fsdp::")
_FULLY_SHARD = re.compile(r"FSDP::")
_DDP = re.compile(r"DistributedDataParallel\.forward")
_SCALER = re.compile(r"aten::_amp_(foreach_non_finite_check_and_unscale|update_scale)_")
_RECOMPUTE = re.compile(r"CheckpointFunction|.*torch[/\\]utils[/\\]checkpoint\.py\(")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of one rank (the first one stands for all).

    cores: of the machine, where the recording says. loader_workers: 0 for a loader in the main
    process, 1 for "some", None where no loader was seen. pinned_input: whether copies to the
    device come from pinned memory, None without such copies. dtype: the type that most matrix work
    uses. fsdp: parameters are sharded; fully_shard: by the function of that name (FSDP2), which has
    other knobs than the wrapper. scaled: GradScaler is in use. peak_bytes, device_bytes: of device
    memory, None where not recorded.
    """

    cores: int | None
    loader_workers: int | None
    pinned_input: bool | None
    compiled: bool
    graph_frac: float
    dtype: str
    matrix_units_frac: float | None
    optimizer: str
    optimizer_fused: bool | None
    ddp: bool
    fsdp: bool
    fully_shard: bool
    scaled: bool
    recomputes: bool
    backward: bool
    peak_bytes: int | None
    device_bytes: int | None
    rocm: bool

    @property
    def graphs(self) -> bool:
        """Whether most device events already come from CUDA graphs."""
        return self.graph_frac > 0.5


def find_facts(account: RankAccount, roofline: RooflineSummary, cores: int | None) -> RunFacts:
    """Reads the facts of a rank from its account.

    Args:
        account: The rank's account.
        roofline: The roofline summary of its main device.
        cores: CPU cores that the process may use, where a recording says so.
    """
    trace = account.trace
    names = trace.names
    info = account.main.info
    memory = trace.memory
    on_device = memory.device >= 0
    allocated = memory.allocated_bytes[on_device & (memory.allocated_bytes >= 0)]
    optimizer = next((m[1] for m in map(_OPTIMIZER.match, names) if m), "")
    return RunFacts(
        cores=cores,
        loader_workers=_loader_workers(names),
        pinned_input=_pinned(trace),
        compiled=roofline.compiled,
        graph_frac=roofline.graph_launched_frac,
        dtype=_main_dtype(account),
        matrix_units_frac=roofline.matrix_units_frac,
        optimizer=optimizer,
        optimizer_fused=_optimizer_fused(names) if optimizer else None,
        ddp=any(map(_DDP.match, names)),
        fsdp=any(map(_FSDP.match, names)),
        fully_shard=any(map(_FULLY_SHARD.match, names)),
        scaled=any(map(_SCALER.match, names)),
        recomputes=any(map(_RECOMPUTE.match, names)),
        backward=any(name.startswith("autograd::engine::") for name in names),
        peak_bytes=int(allocated.max()) if len(allocated) else None,
        device_bytes=info.memory_bytes or None if info is not None else None,
        rocm=trace.meta.is_rocm,
    )


def _loader_workers(names: list[str]) -> int | None:
    if any(map(_MULTI.match, names)):
        return 1
    if any(map(_SINGLE.match, names)):
        return 0
    return None


def _pinned(trace: Trace) -> bool | None:
    rows = trace.rows_of(Category.MEMCPY)
    to_device = [n for n in {trace.names[i] for i in trace.name[rows]} if "HtoD" in n]
    if not any("Pinned" in n or "Pageable" in n for n in to_device):
        return None
    return not any("Pageable" in n for n in to_device)


def _optimizer_fused(names: list[str]) -> bool | None:
    if any(map(_FUSED_OPTIMIZER.match, names)):
        return True
    return False if any(map(_FOREACH.match, names)) else None


def _main_dtype(account: RankAccount) -> str:
    """The type that most time of matrix work is spent in, "" where names and shapes don't tell."""
    limits = account.limits
    duration = account.launches.end_ns - account.launches.start_ns
    matrix = limits.flops > 0
    if not matrix.any():
        matrix = limits.matrix_units >= 0
    time = np.bincount(limits.dtype[matrix], weights=duration[matrix], minlength=len(DTYPES))
    time[0] = 0
    return DTYPES[int(np.argmax(time))] if time.sum() else ""
