"""What to do about a host that is late, by what the run does already and how its time is spread."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.analyzers.account import RankAccount
from gpuprof.analyzers.causes.small_batch import may_grow
from gpuprof.analyzers.intervals import covered, union
from gpuprof.analyzers.run_view import LEAST_GAIN, RunView
from gpuprof.analyzers.wording import microseconds, percent
from gpuprof.diagnosis import Fix

FUSED_ON_GPU = ("Adam", "AdamW", "SGD")
FUSED_ON_CPU = (*FUSED_ON_GPU, "Adagrad")
"""The optimizers of PyTorch that take `fused=True`; Adagrad's was long for the CPU alone."""

AHEAD_US = 100.0
"""A launch itself takes 5 to 10 µs: a host that is ten of them ahead has a queue to draw on."""

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python …"

MOSTLY = 0.5
"""A fix of its own is for what holds half of the host's late time."""

OPTIMIZER_FROM = 0.10
"""An optimizer step that takes a tenth of the host's step is worth fusing."""

_OPTIMIZER = re.compile(r"Optimizer\.step#")


def host_fixes(run: RunView, rank: RankAccount) -> list[Fix]:
    """Fixes in the order in which to try them.

    Args:
        run: The run.
        rank: The one that its host holds up most.
    """
    facts = run.facts
    fixes: list[Fix] = []
    if run.share("allocator") >= LEAST_GAIN:
        fixes.append(
            Fix(
                title="Stop giving memory back to the driver",
                detail="cudaMalloc and cudaFree stop the host, cudaFree the device as well. Remove"
                " torch.cuda.empty_cache() from the loop"
                + ("." if facts.rocm else "; let segments grow instead."),
                # Not for ROCm: before 7.0 it has none, and since then hangs were reported.
                code="" if facts.rocm else EXPANDABLE,
                cost="none",
            )
        )
    if run.has_device and _in_pauses(rank) >= MOSTLY:
        fixes.append(_collect_at_will())
    if run.has_device and not facts.compiled:
        replays = "" if facts.graphs else "; reduce-overhead replays the launches as a CUDA graph"
        mode = "" if facts.graphs else ', mode="reduce-overhead"'
        fixes.append(
            Fix(
                title="Compile the model",
                detail="torch.compile fuses small operations and takes Python and the dispatcher"
                f" out of the step{replays}.",
                code=f"model = torch.compile(model{mode})",
                cost="minutes of compilation; shapes should not change from step to step",
            )
        )
    elif run.has_device and facts.compiled and not facts.graphs:
        fixes.append(
            Fix(
                title="Let the compiled model replay its launches as a CUDA graph",
                detail="The model is compiled, but its kernels are launched one by one.",
                code='model = torch.compile(model, mode="reduce-overhead")',
                cost="static shapes, and memory for the graph's private pool",
            )
        )
    if run.has_device and not facts.graphs and not facts.compiled:
        fixes.append(
            Fix(
                title="Or capture the step in a CUDA graph by hand",
                detail="One launch then stands for all kernels of the step.",
                code="graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n"
                "    static_output = model(static_input)\n…\n"
                "static_input.copy_(batch)\ngraph.replay()",
                cost="static shapes and addresses, no waiting for the device inside",
            )
        )
    if not run.has_device and not facts.compiled and _between_operators(rank) >= MOSTLY:
        fixes.append(
            Fix(
                title="Compile the model",
                detail="Most of this time lies between operators that follow each other within"
                f" {microseconds(AHEAD_US)}: Python and the dispatcher, as often as there are"
                " operators. torch.compile writes few loops in C++ for many of them.",
                code="model = torch.compile(model)",
                cost="a C++ compiler and minutes of compilation; shapes should not change from step"
                " to step",
            )
        )
    fusable = FUSED_ON_GPU if run.has_device else FUSED_ON_CPU
    if facts.optimizer in fusable and facts.optimizer_fused is not True:
        part = _optimizer_share(rank)
        if part >= OPTIMIZER_FROM:
            fixes.append(
                Fix(
                    title="Fuse the optimizer",
                    detail=f"The optimizer takes {percent(part)} of the host's step.",
                    code=f"torch.optim.{facts.optimizer}(model.parameters(), …, fused=True)",
                    cost="none",
                )
            )
    fixes.append(
        Fix(
            title="Do less Python in each step",
            detail="Replace loops over tensors by one batched operation, torch._foreach_ functions"
            " or a vectorized formula; build constant tensors once, outside the loop; log and check"
            " every N steps.",
            code="",
            cost="rewriting the hot lines above",
        )
    )
    if run.has_device and not facts.graphs and may_grow(run):
        fixes.append(
            Fix(
                title="Give each launch more to do",
                detail="A larger batch spreads the same host work over more samples, as long as"
                " memory allows it.",
                code="",
                cost="memory; the learning rate may have to follow the batch",
            )
        )
    return fixes


def _in_pauses(rank: RankAccount) -> float:
    """The part of the late host's time that passes in pauses far longer than it usually takes from
    one launch to the next (see `gpuprof.analyzers.pauses`)."""
    gaps, long = rank.main.budget.gaps, rank.host.pauses
    late = gaps.parts["host"]
    paused = np.minimum(covered(long, gaps.start_ns, gaps.host_end_ns), late)
    return float(paused.sum()) / max(float(late.sum()), 1.0)


def _between_operators(rank: RankAccount) -> float:
    """The part of a CPU's time outside of operators that is spread over gaps of under `AHEAD_US`:
    no line holds it, the number of operators does."""
    gaps = rank.main.budget.gaps
    late = gaps.parts["host"]
    short = gaps.end_ns - gaps.start_ns < 1e3 * AHEAD_US
    return float(late[short].sum()) / max(float(late.sum()), 1.0)


def _collect_at_will() -> Fix:
    return Fix(
        title="Rule out garbage collection",
        detail="Most of this time passes in a few long pauses. Code that does something now and"
        " then shows so (logging, metrics, a scheduler), and so does Python's garbage collector,"
        " which looks through all objects whenever it likes: let it run between steps.",
        code="gc.collect(); gc.freeze(); gc.disable()   # before the loop\n"
        "if step % 1000 == 0:\n"
        "    gc.collect()                          # on all ranks in the same step",
        cost="memory that cycles of objects hold until then",
    )


def _optimizer_share(rank: RankAccount) -> float:
    """Share of the host's steps inside the optimizer."""
    trace, steps = rank.trace, rank.main.steps
    rows = np.flatnonzero(trace.name_mask(_OPTIMIZER.match) & (trace.lane == rank.host.main_lane))
    spans = union(trace.start_ns[rows], trace.start_ns[rows] + trace.dur_ns[rows])
    length = int((steps.host_end_ns - steps.host_start_ns).sum())
    return int(covered(spans, steps.host_start_ns, steps.host_end_ns).sum()) / max(length, 1)
