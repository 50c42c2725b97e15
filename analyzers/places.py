"""Which line of the user's own code a moment of host time belongs to.

Two recordings can tell: Python calls (`with_stack=True` today), which nest on their thread, and
the call stacks that old Kineto attached to operators. A frame is the user's when it lies neither
in the standard library, nor in an installed package, nor in PyTorch. The backward thread runs no
Python; for it the thread that called `backward()` answers.

A function that ran already when the recording began is in it with the line where it stood then,
which is no line of interest: it is named without one.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.host import HostActivity
from gpuprof.analyzers.operators import innermost
from gpuprof.diagnosis import Place
from gpuprof.trace import Category, Trace

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MAX_PLACES = 5
"""More lines than a person would look at."""

MIN_SHARE_OF_WEIGHT = 0.05
"""A line with less than 5 % of what is asked about is noise."""

MOMENTS = 2_000
"""Looks at all stretches together: a line with 5 % of them is seen a hundred times."""

_FRAME = re.compile(r"(?P<file>[^;]+?\.py)\((?P<line>\d+)\): (?P<function>[^;]+)")
_OWN = re.compile(
    r"(^|/)gpuprof/((?P<part>workloads|collectors|attach)/"
    r"|(rank_(recorder|windows|notes)|recording|step_times|core_time|annotations|late_import)\.py$)"
    r"|^gpuprof/"
)
"""gpuprof's own files that run in a loop, installed or in a checkout (there with the whole path). A
user's folder may be called gpuprof as well, so they are named."""
_STEP_MARKS = ("ProfilerStep#", "gpuprof.step#")
_INSTALLED = ("site-packages/", "dist-packages/", "/lib/python", "<frozen", "<built-in", "<string>")
_LIBRARIES = (
    frozenset(
        [
            "torch",
            "torchvision",
            "torchaudio",
            "torchtext",
            "torchdata",
            "functorch",
            "numpy",
            "scipy",
            "pandas",
            "sklearn",
            "PIL",
            "cv2",
            "transformers",
            "accelerate",
            "datasets",
            "deepspeed",
            "apex",
            "megatron",
            "lightning",
            "pytorch_lightning",
            "lightning_fabric",
            "triton",
            "xformers",
            "flash_attn",
            "bitsandbytes",
            "peft",
            "trl",
            "timm",
            "fairscale",
            "composer",
            "ignite",
            "catalyst",
            "fastai",
            "ray",
            "wandb",
            "tensorboard",
            "tqdm",
            "vllm",
            "sglang",
            "nvidia",
            "ipykernel",
            "IPython",
            "debugpy",
            "_pytest",
            "pluggy",
        ]
    )
    | sys.stdlib_module_names
)


def is_user_frame(frame: str) -> bool:
    """Whether "path/to/file.py(12): function" is the user's own code."""
    match = _FRAME.match(frame)
    if match is None:
        return False
    path = match["file"].replace("\\", "/")
    if any(mark in path for mark in _INSTALLED):
        return False
    own = _OWN.search(path)
    if own is not None:
        # The demo's scripts stand for the user's; the rest of gpuprof does not.
        return own["part"] == "workloads"
    first = path.split("/")[0].removesuffix(".py")
    return first not in _LIBRARIES


def records_lines(trace: Trace) -> bool:
    """Whether the recording can name lines at all."""
    return bool(len(trace.stacks)) or bool((trace.category == Category.PYTHON).any())


def lines_of(
    trace: Trace, host: HostActivity, lane: I64, time_ns: I64, weight: F64, whole: float
) -> tuple[Place, ...]:
    """The user's lines that some moments belong to, heaviest first; functions without a line come
    after them where most of the weight is on lines.

    Args:
        trace: The trace.
        host: Its host activity, for the main thread.
        lane: Thread of each moment, (k,).
        time_ns: The moments, (k,).
        weight: What each moment weighs, (k,), ns.
        whole: What a share of 1 would weigh.
    """
    if not len(time_ns) or not records_lines(trace):
        return ()
    frames = _python_frames(trace, host, lane, time_ns)
    if frames is None:
        frames = _stack_frames(trace, host, lane, time_ns)
    totals: dict[str, float] = defaultdict(float)
    for frame, value in zip(frames, weight.tolist(), strict=True):
        if frame:
            totals[frame] += value
    enough = MIN_SHARE_OF_WEIGHT * float(weight.sum())
    heavy = sorted(
        (
            (_place(frame, value / whole if whole else None), value)
            for frame, value in totals.items()
            if value >= enough
        ),
        key=lambda item: -item[1],
    )
    on_lines = sum(value for place, value in heavy if place.line is not None)
    if 2 * on_lines >= sum(value for _, value in heavy):
        heavy.sort(key=lambda item: item[0].line is None)
    return tuple(place for place, _ in heavy[:MAX_PLACES])


def lines_within(
    trace: Trace,
    host: HostActivity,
    lane: I64,
    start_ns: I64,
    end_ns: I64,
    weight: F64,
    whole: float,
) -> tuple[Place, ...]:
    """As `lines_of`, of stretches: what a long one weighs is shared among all that ran in it.

    Args:
        lane, start_ns, end_ns, weight: Of each stretch, (k,).
    """
    length = np.maximum(end_ns - start_ns, 0)
    apart = max(float(length.sum()) / MOMENTS, 1.0)
    parts = np.maximum(np.ceil(length / apart), 1).astype(np.int64)
    of = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    moments = start_ns[of] + (length[of] * (2 * number + 1)) // (2 * parts[of])
    return lines_of(trace, host, lane[of], moments, weight[of] / parts[of], whole)


def _place(frame: str, share: float | None) -> Place:
    match = _FRAME.match(frame)
    assert match is not None
    line = int(match["line"]) or None
    return Place(file=match["file"], line=line, function=match["function"], share=share)


def _python_frames(
    trace: Trace, host: HostActivity, lane: I64, time_ns: I64
) -> Sequence[str] | None:
    """From nested Python calls; None where there are none."""
    users = np.flatnonzero(
        (trace.category == Category.PYTHON) & trace.name_mask(is_user_frame)
    ).astype(np.int64)
    if not len(users):
        return None
    row = innermost(trace, lane, time_ns, users)
    missing = row < 0
    if missing.any() and host.main_lane >= 0:
        main = np.full(int(missing.sum()), host.main_lane, np.int64)
        row[missing] = innermost(trace, main, time_ns[missing], users)
    began = _first_step_ns(trace)
    return [_frame(trace, r, began) if r >= 0 else "" for r in row.tolist()]


def _first_step_ns(trace: Trace) -> int:
    """When the first marked step begins; before everything where none is marked."""
    marks = np.flatnonzero(trace.name_mask(lambda name: name.startswith(_STEP_MARKS)))
    return int(trace.start_ns[marks].min()) if len(marks) else int(np.iinfo(np.int64).min)


def _frame(trace: Trace, row: int, first_step_ns: int) -> str:
    name: str = trace.names[trace.name[row]]
    if trace.start_ns[row] >= first_step_ns:
        return name
    match = _FRAME.match(name)
    return f"{match['file']}(0): {match['function']}" if match is not None else name


def _stack_frames(trace: Trace, host: HostActivity, lane: I64, time_ns: I64) -> Sequence[str]:
    """From the stacks of the operators around the moments."""
    with_stack = np.flatnonzero(trace.stack >= 0).astype(np.int64)
    row = innermost(trace, lane, time_ns, with_stack)
    user_of: dict[int, str] = {}
    frames = []
    for r in row.tolist():
        if r < 0:
            frames.append("")
            continue
        stack = int(trace.stack[r])
        if stack not in user_of:
            parts = trace.stacks[stack].split(";")
            user_of[stack] = next((p for p in parts if is_user_frame(p)), "")
        frames.append(user_of[stack])
    return frames
