"""FLOPs and bytes of one operator call, from the shapes that the trace recorded.

Only matrix work is counted in FLOPs (products, convolutions, attention; a multiply-add is two), as
MFU counts it and as `torch.utils.flop_counter` does; other operators have 0. Bytes are the least
that must cross device memory: every input read once, every output written once. What a kernel
really moves is more, or less where a cache still holds its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.analyzers import shapes, traffic
from gpuprof.analyzers.convolutions import CONVOLUTIONS, ConvolutionOutputs, work_of
from gpuprof.analyzers.shapes import elements, tensor
from gpuprof.trace import OpArgs

FLASH_BACKWARD = 2.5
"""Backward ÷ forward FLOPs of fused attention: five products instead of two, since it computes the
scores again (Dao et al., FlashAttention; PyTorch's own counter counts the same)."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one call costs at least.

    flops: of matrix work, 0 for operators that have none. bytes: through device memory, NaN where
    the element size was not recorded; then `elements` says how many are read and written.
    dtype: of the inputs, "" where not recorded. matrix: whether matrix units could do the work.
    """

    flops: float
    bytes: float
    dtype: str
    matrix: bool
    elements: float = math.nan


def cost_of(name: str, args: OpArgs, outputs: ConvolutionOutputs | None = None) -> OpCost | None:
    """The cost of a call of an operator, None where the operator or its shapes are not known.

    Args:
        name: The operator, for example "aten::addmm".
        args: Its recorded inputs.
        outputs: Output shapes of convolutions; needed where strides were not recorded.
    """
    try:
        if name in MATRIX:
            return MATRIX[name](args)
        if name in CONVOLUTIONS:
            work = work_of(name, args, outputs or {})
            if work is None:
                return None
            return _matrix_cost(args, work.typed_input, work.flops, work.elements)
        moved = traffic.moved_by(name, args)
        if moved is None:
            return None
        return OpCost(0.0, moved.bytes, moved.dtype, matrix=False, elements=moved.elements)
    except (OverflowError, ZeroDivisionError):  # absurd numbers in a foreign trace
        return None


def is_countable(name: str) -> bool:
    """Whether `cost_of` knows the operator at all."""
    return name in MATRIX or name in CONVOLUTIONS or traffic.is_known(name)


def _product(
    args: OpArgs, rows: float, inner: float, columns: float, *, batch: float = 1, at: int = 0
) -> OpCost:
    """A (batched) product of [rows, inner] and [inner, columns]; `at`: the input with the type."""
    moved = batch * (rows * inner + inner * columns + rows * columns)
    return _matrix_cost(args, at, 2.0 * batch * rows * inner * columns, moved)


def _matrix_cost(args: OpArgs, at: int, flops: float, moved: float) -> OpCost:
    size = shapes.item_bytes(args, at)
    size_or_nan = math.nan if size is None else size
    return OpCost(
        float(flops), float(moved) * size_or_nan, shapes.dtype(args, at), True, float(moved)
    )


def _mm(first: int) -> Callable[[OpArgs], OpCost | None]:
    def cost(args: OpArgs) -> OpCost | None:
        left, right = tensor(args, first, 2), tensor(args, first + 1, 2)
        if left is None or right is None or left[1] != right[0]:
            return None
        return _product(args, left[0], left[1], right[1], at=first)

    return cost


def _bmm(first: int) -> Callable[[OpArgs], OpCost | None]:
    def cost(args: OpArgs) -> OpCost | None:
        left, right = tensor(args, first, 3), tensor(args, first + 1, 3)
        if left is None or right is None or left[0] != right[0] or left[2] != right[1]:
            return None
        return _product(args, left[1], left[2], right[2], batch=left[0], at=first)

    return cost


def _mv(first: int) -> Callable[[OpArgs], OpCost | None]:
    def cost(args: OpArgs) -> OpCost | None:
        left, right = tensor(args, first, 2), tensor(args, first + 1, 1)
        if left is None or right is None or left[1] != right[0]:
            return None
        return _product(args, left[0], left[1], 1, at=first)

    return cost


def _linear(args: OpArgs) -> OpCost | None:
    source, weight = shapes.shape(args, 0), tensor(args, 1, 2)
    if not source or weight is None or source[-1] != weight[1]:
        return None
    return _product(args, elements(source[:-1]), weight[1], weight[0])


def _matmul(args: OpArgs) -> OpCost | None:
    left, right = shapes.shape(args, 0), shapes.shape(args, 1)
    if not left or not right:
        return None
    wide, tall = left, right
    if len(wide) == 1:
        wide = (1, *wide)
    if len(tall) == 1:
        tall = (*tall, 1)
    batch = shapes.broadcast([wide[:-2], tall[:-2]])
    if batch is None or wide[-1] != tall[-2]:
        return None
    many = elements(batch)
    moved = elements(left) + elements(right) + many * wide[-2] * tall[-1]
    return _matrix_cost(args, 0, 2.0 * many * wide[-2] * wide[-1] * tall[-1], moved)


def _grouped_mm(args: OpArgs) -> OpCost | None:
    """Products of an expert each: the rows (or the inner dimension) are split over the experts."""
    left, right = shapes.shape(args, 0), shapes.shape(args, 1)
    if left is None or right is None:
        return None
    ranks = (len(left), len(right))
    if ranks == (2, 3) and left[1] == right[1]:
        rows, inner, columns, results = left[0], left[1], right[2], left[0] * right[2]
    elif ranks == (2, 2) and left[1] == right[0]:
        rows, inner, columns, results = left[0], left[1], right[1], left[0] * right[1]
    else:
        return None
    moved = elements(left) + elements(right) + results
    return _matrix_cost(args, 0, 2.0 * rows * inner * columns, moved)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where an attention operator keeps its inputs.

    query: index of the query; key and value follow. heads_last: [batch, sequence, head, size]
    instead of [batch, head, sequence, size]. causal: index of the flag. backward: a backward call.
    """

    query: int
    causal: int
    heads_last: bool = False
    backward: bool = False

    def __call__(self, args: OpArgs) -> OpCost | None:
        parts = [tensor(args, self.query + offset, 4) for offset in range(3)]
        query, key, value = parts
        if query is None or key is None or value is None or query[3] != key[3]:
            return None
        heads, length = (2, 1) if self.heads_last else (1, 2)
        if key[length] != value[length] or query[0] != key[0]:
            return None
        scores = float(query[0]) * query[heads] * query[length] * key[length]
        if shapes.concrete(args, self.causal) in ("True", "1", "2"):
            # Keys after their query are skipped: half of the square. Queries that are the tail
            # of a longer sequence (decoding) skip none but their own.
            square = min(query[length], key[length]) ** 2 / 2
            scores -= float(query[0]) * query[heads] * square
        flops = 2.0 * scores * (query[3] + value[3])
        output = query[0] * query[heads] * query[length] * value[3]
        moved = elements(query) + elements(key) + elements(value) + output
        if self.backward:  # reads the output and its gradient too, writes three gradients
            flops *= FLASH_BACKWARD
            moved = 2 * moved
        return _matrix_cost(args, self.query, flops, moved)


MATRIX: dict[str, Callable[[OpArgs], OpCost | None]] = {
    "aten::mm": _mm(0),
    "aten::addmm": _mm(1),
    "aten::_addmm_activation": _mm(1),
    "aten::_scaled_mm": _mm(0),
    "aten::_int_mm": _mm(0),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1),
    "aten::baddbmm_": _bmm(1),
    "aten::mv": _mv(0),
    "aten::addmv": _mv(1),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::_grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _grouped_mm,
    "aten::scaled_dot_product_attention": _Attention(0, 5),
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 6),
    "aten::_flash_attention_forward": _Attention(0, 8, heads_last=True),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 11, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 14, backward=True),
    "aten::_flash_attention_backward": _Attention(1, 11, heads_last=True, backward=True),
    "flash_attn::_flash_attn_forward": _Attention(0, 5, heads_last=True),
    "flash_attn::_flash_attn_backward": _Attention(1, 11, heads_last=True, backward=True),
}
"""Products and attention. Composite operators (`linear`, `matmul`) stand beside the ones they call;
`gpuprof.analyzers.roofline` counts the innermost alone."""
