"""What a recording leaves out that no account of it can show: the GPU itself, or another job.

A trace that was recorded with CPU activities only, or cut off before its first kernel, looks like
one of a run without a GPU. Its operators only launch, so every share and gain would be of the
wrong thing. Traces of different jobs given together look like ranks of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuprof.trace import Category, Trace

_LAUNCH = re.compile(
    r"(cuda|cu|hip)(Launch|GraphLaunch|ModuleLaunch|ExtLaunch|Memcpy|ExtModuleLaunch)"
)
_GPU_OPERATOR = re.compile(r"aten::(_?cudnn_|miopen_|_cuda_|_flash_attention_forward$)|nccl:")
_GPU_BACKENDS = ("nccl", "rccl")

SAME_JOB_WITHIN_S = 600
"""Ranks of a job record the same steps. Clocks of nodes differ by seconds at most, and a folder
may hold a window that one rank recorded a little later."""

RECORD_GPU = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"

GIVE_WHOLE_FILE = "give the whole file (was it copied while it was still being written?)"

_CUT = "the file is cut off"
TOO_FEW_STEPS = f"{_CUT}, and fewer than three of its steps are whole"


def missing_work(traces: Sequence[Trace]) -> str:
    """Why the busy time of a run's device isn't in its traces; "" where it is."""
    if any(len(trace.device.rows) for trace in traces):
        return ""
    for trace in traces:
        sign = _sign_of_gpu(trace)
        if sign:
            return (
                f"the work of the GPU was not recorded: there is no kernel in the trace, but {sign}"
            )
    if not any(len(trace.rows_of(Category.CPU_OP, Category.PYTHON)) for trace in traces):
        return "neither operators nor work of a GPU were recorded"
    return ""


def _sign_of_gpu(trace: Trace) -> str:
    meta = trace.meta
    named = meta.devices[0].name if meta.devices else ""
    if len(trace.rows_of(Category.RUNTIME)) and trace.name_mask(_LAUNCH.match).any():
        return "there are launches"
    if meta.backend.lower() in _GPU_BACKENDS:
        return f"the ranks talk over {meta.backend}"
    if trace.name_mask(_GPU_OPERATOR.match).any():
        return "there are operators that only run on a GPU"
    if meta.truncated and meta.devices:
        return f"it names {named or 'a GPU'}, and {_CUT}"
    if meta.truncated and not meta.lists_devices:
        return f"{_CUT} where kernels would come, and does not say whether there was a GPU"
    return ""


def remedy(missing: str) -> str:
    """What to do about what `missing_work` says, or about `TOO_FEW_STEPS`."""
    return GIVE_WHOLE_FILE if _CUT in missing else RECORD_GPU


def recording_warnings(traces: Sequence[Trace]) -> list[str]:
    """What makes it doubtful that these traces show all of one job."""
    found = []
    sizes = sorted({t.meta.world_size for t in traces if t.meta.world_size})
    if len(sizes) > 1:
        named = " and ".join(str(size) for size in sizes)
        found.append(f"the traces are of different jobs: they speak of {named} ranks; give one job")
    apart = _apart_s(traces)
    if apart > SAME_JOB_WITHIN_S:
        found.append(
            f"the traces were recorded {apart / 60:,.0f} minutes apart, so they are hardly of one"
            " job; give the ranks of one job, recorded at the same steps"
        )
    for trace in traces:
        if trace.meta.devices and not len(trace.device.rows) and not missing_work(traces):
            name = trace.meta.devices[0].name
            found.append(
                f"{trace.meta.path} names a GPU ({name}) and holds no work of it; it"
                f" is taken for training on the CPU. If it is not, {RECORD_GPU}"
            )
    return found


def _apart_s(traces: Sequence[Trace]) -> float:
    """Time between the end of the first recording and the start of the last, 0 where they overlap
    or where one does not count from the epoch."""
    if len(traces) < 2 or not all(t.meta.epoch and len(t) for t in traces):
        return 0.0
    first_end = min(int((t.start_ns + t.dur_ns).max()) for t in traces)
    last_start = max(int(t.start_ns.min()) for t in traces)
    return max(0, last_start - first_end) / 1e9
