"""The account of a run without a device: the CPU is the device.

Time inside operators and the backward pass is `compute`, collectives of the CPU back ends (gloo,
mpi, ucc) are `communication` where nothing is computed meanwhile. What is computed while the
loader fetches or a checkpoint is written belongs to those.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.budget import Work
from gpuprof.analyzers.host import HostActivity
from gpuprof.analyzers.intervals import Spans, empty, merge, subtract, union
from gpuprof.distinct import distinct
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]

_COLLECTIVE = re.compile(r"(gloo|mpi|ucc):|record_param_comms$|c10d::")
_NO_COMPUTE = re.compile(
    r"(gloo|mpi|ucc|nccl):|record_param_comms$|c10d::|enumerate\(Data|Optimizer\.|ProfilerStep#"
    r"|DistributedDataParallel\.|DataParallel\.|PythonFunction|Torch-Compiled Region"
)
_BACKWARD = "autograd::engine::"


def cpu_work(trace: Trace, host: HostActivity) -> Work:
    """Busy time of the CPU as a device, over the threads that compute.

    These are the thread that marks the steps and those that run the backward pass: a worker that
    prepares data beside them does not make the step shorter or longer.
    """
    is_op = trace.category == Category.CPU_OP
    computes = is_op & ~trace.name_mask(_NO_COMPUTE.match)
    backward = is_op & trace.name_mask(lambda name: name.startswith(_BACKWARD))
    lanes = {host.main_lane, *distinct(trace.lane[backward]).tolist()}
    compute = empty()
    for lane in lanes:
        spans = _spans(trace, np.flatnonzero(computes & (trace.lane == lane)))
        for label in ("input", "checkpoint"):
            reason = host.spans[label].get(lane)
            if reason is not None:
                spans = subtract(spans, reason)
        compute = merge(compute, spans)
    named = trace.name_mask(_COLLECTIVE.match)
    host_rows = is_op | (trace.category == Category.USER_ANNOTATION)
    collectives = _spans(trace, np.flatnonzero(named & host_rows))
    waiting = [s for label in ("input", "checkpoint") for s in host.spans[label].values()]
    exposed = subtract(collectives, merge(compute, *waiting) if waiting else compute)
    return Work(compute, exposed, empty())


def _spans(trace: Trace, rows: I64) -> Spans:
    return union(trace.start_ns[rows], trace.start_ns[rows] + trace.dur_ns[rows])
