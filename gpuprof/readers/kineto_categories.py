"""What Kineto's dialects call the kinds of events, and what each kind has."""

from __future__ import annotations

import numpy as np

from gpuprof.trace import Category

CATEGORIES: dict[str, Category] = {
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "hip": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "hip_api": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "cuda_sync": Category.SYNC,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "overhead": Category.OVERHEAD,
}
"""The names of categories in all of Kineto's dialects."""

SPAN_CATEGORY = "Trace"
SPAN_NAME = "PyTorch Profiler"
MAX_CATEGORIES = 1000
"""Names of categories that are remembered; Kineto has some 30."""

SPAN = 255
"""Stands for a `Category` on the profiler's own span, which is no row."""

HOST, JOINED, ON_STREAM, DEVICE = 1, 2, 4, 8
"""Bits of `KINDS`: carries shapes and a stack; has a correlation id; lies on a stream; is work."""

KINDS = np.zeros(256, dtype=np.uint8)
KINDS[[Category.CPU_OP, Category.USER_ANNOTATION]] = HOST
KINDS[Category.RUNTIME] = JOINED
KINDS[Category.SYNC] = JOINED | ON_STREAM
KINDS[Category.GPU_ANNOTATION] = ON_STREAM
KINDS[[Category.KERNEL, Category.MEMCPY, Category.MEMSET]] = JOINED | ON_STREAM | DEVICE


class CategoryCodes(dict[str, int]):
    """The `Category` of each category name met, `SPAN` for the profiler's own span."""

    def __missing__(self, key: str) -> int:
        code = SPAN if key == SPAN_CATEGORY else int(CATEGORIES.get(key, Category.OTHER))
        if len(self) < MAX_CATEGORIES:
            self[key] = code
        return code
