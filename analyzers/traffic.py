"""Bytes that the operators without matrix work move through device memory at least.

Pointwise operators, copies, reductions, normalizations, softmax, embeddings and optimizers do a few
operations a byte, so bytes are all that their roofline needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.analyzers import shapes
from gpuprof.analyzers.shapes import elements
from gpuprof.trace import OpArgs


@dataclass(frozen=True, slots=True)
class Moved:
    """What a call reads and writes. `bytes` is NaN where the element size was not recorded;
    `elements` then still says how many elements that is. `dtype` is the first input's."""

    bytes: float
    elements: float
    dtype: str


def moved_by(name: str, args: OpArgs) -> Moved | None:
    """Bytes and elements that a call moves, None where it is not known."""
    rule = _RULES.get(name)
    return None if rule is None else rule(args)


def is_known(name: str) -> bool:
    """Whether `moved_by` knows the operator."""
    return name in _RULES


def _pointwise(operands: int, result_bytes: int | None = None) -> Callable[[OpArgs], Moved | None]:
    """Reads the tensors among the first inputs, writes one of the broadcast shape.

    What follows the operands is an `out` argument, which is not read. `result_bytes`: an element.
    """

    def rule(args: OpArgs) -> Moved | None:
        inputs = [index for index in range(operands) if shapes.is_tensor(args, index)]
        dims = [found for index in inputs if (found := shapes.shape(args, index)) is not None]
        result = shapes.broadcast(dims) if dims else None
        if result is None:
            return None
        sizes = [shapes.item_bytes(args, index) or 0 for index in inputs]
        # A 0-dimensional operand does not widen the result (PyTorch's type promotion).
        wide = max(size for size, shape in zip(sizes, dims, strict=True) if shape or not result)
        read = sum(elements(shape) * size for shape, size in zip(dims, sizes, strict=True))
        written = elements(result) * (wide if result_bytes is None else result_bytes)
        count = sum(elements(shape) for shape in dims) + elements(result)
        return Moved(float(read + written), float(count), shapes.dtype(args, inputs[0]))

    return rule


def _passes(
    reads: int, writes: int, *, at: int = 0, extra_bytes: int = 0
) -> Callable[[OpArgs], Moved | None]:
    """Goes over a tensor the size of input `at` this many times, plus `extra_bytes` an element."""

    def rule(args: OpArgs) -> Moved | None:
        dims = shapes.shape(args, at)
        size = shapes.item_bytes(args, at)
        if not dims:
            return None
        count = float(elements(dims))
        width = math.nan if size is None else (reads + writes) * size + extra_bytes
        return Moved(count * width, count * (reads + writes), shapes.dtype(args, at))

    return rule


def _copy(args: OpArgs) -> Moved | None:
    target, source = shapes.shape(args, 0), shapes.shape(args, 1)
    wide, narrow = shapes.item_bytes(args, 0), shapes.item_bytes(args, 1)
    if target is None or source is None or wide is None or narrow is None:
        return None
    written, read = elements(target), elements(source)
    return Moved(
        float(written * wide + read * narrow), float(written + read), shapes.dtype(args, 0)
    )


def _embedding(args: OpArgs) -> Moved | None:
    table, ids, size = shapes.tensor(args, 0, 2), shapes.shape(args, 1), shapes.item_bytes(args, 0)
    if table is None or ids is None:
        return None
    rows, id_bytes = elements(ids), shapes.item_bytes(args, 1) or 8
    copied = 2.0 * rows * table[1]
    width = math.nan if size is None else size
    return Moved(copied * width + rows * id_bytes, copied, shapes.dtype(args, 0))


def _gather(args: OpArgs) -> Moved | None:
    ids, size = shapes.shape(args, 2), shapes.item_bytes(args, 0)
    if not ids or size is None:
        return None
    count = float(elements(ids))
    return Moved(count * (2 * size + 8), 2 * count, shapes.dtype(args, 0))


def _lists(
    read_only: tuple[int, ...], updated: tuple[int, ...]
) -> Callable[[OpArgs], Moved | None]:
    """Lists of tensors: read once, or read and written. Their types are not recorded."""

    def rule(args: OpArgs) -> Moved | None:
        count = 0
        for index in (*read_only, *updated):
            parts = shapes.shapes_of_list(args, index)
            if parts is None:
                if index == min(updated or read_only):
                    return None  # the main list was not recorded
                continue  # an optional list: a scalar operand, no momentum
            times = 2 if index in updated else 1
            count += times * sum(elements(part) for part in parts)
        return Moved(math.nan, float(count), "")

    return rule


_RULES: dict[str, Callable[[OpArgs], Moved | None]] = {
    "aten::copy_": _copy,
    "aten::fill_": _passes(0, 1),
    "aten::zero_": _passes(0, 1),
    "aten::cat": _lists((), (0,)),
    "aten::_cat": _lists((), (0,)),
    "aten::stack": _lists((), (0,)),
    "aten::embedding": _embedding,
    "aten::gather": _gather,
    "aten::native_dropout": _passes(1, 1, extra_bytes=1),
    "aten::native_dropout_backward": _pointwise(2),
    "aten::native_layer_norm": _passes(1, 1),
    "aten::native_layer_norm_backward": _passes(2, 1),
    "aten::_fused_rms_norm": _passes(1, 1),
    "aten::native_group_norm": _passes(1, 1),
    "aten::native_group_norm_backward": _passes(2, 1),
    "aten::native_batch_norm": _passes(1, 1),
    "aten::native_batch_norm_backward": _passes(2, 1),
    "aten::cudnn_batch_norm": _passes(1, 1),
    "aten::cudnn_batch_norm_backward": _passes(2, 1),
    "aten::miopen_batch_norm": _passes(1, 1),
    "aten::miopen_batch_norm_backward": _passes(2, 1),
    "aten::_softmax": _passes(1, 1),
    "aten::_log_softmax": _passes(1, 1),
    "aten::_softmax_backward_data": _passes(2, 1),
    "aten::_log_softmax_backward_data": _passes(2, 1),
    "aten::cumsum": _passes(1, 1),
    "_C::rms_norm": _passes(1, 1),
    "_C::fused_add_rms_norm": _passes(2, 2),
    "aten::_foreach_norm": _lists((0,), ()),
    "aten::_foreach_copy_": _lists((1,), (0,)),
    "aten::_fused_adam_": _lists((1,), (0, 2, 3)),
    "aten::_fused_adamw_": _lists((1,), (0, 2, 3)),
    "aten::_fused_sgd_": _lists((1,), (0, 2)),
    "aten::_fused_adagrad_": _lists((1,), (0, 2)),
}
_UNARY = (
    "neg abs exp log log2 sqrt rsqrt square sin cos tanh sigmoid relu gelu silu hardtanh elu"
    " leaky_relu reciprocal erf floor round threshold nan_to_num"
)
_BINARY = "add sub mul div rsub pow clamp_min clamp_max minimum maximum atan2 remainder"
_TERNARY = "clamp where masked_fill addcmul addcdiv lerp"
_BACKWARD = "threshold gelu silu tanh sigmoid leaky_relu elu hardtanh"
_COMPARISONS = "eq ne lt le gt ge logical_and logical_or logical_not isnan isfinite isinf"
_REDUCTIONS = (
    "sum mean max min amax amin argmax argmin prod any all norm linalg_vector_norm var std"
)
_FOREACH = "add sub mul div addcmul addcdiv lerp sqrt neg"

for _operands, _names in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)):
    for _name in _names.split():
        _RULES[f"aten::{_name}"] = _RULES[f"aten::{_name}_"] = _pointwise(_operands)
for _name in _BACKWARD.split():
    _RULES[f"aten::{_name}_backward"] = _pointwise(2)
for _name in _COMPARISONS.split():
    _RULES[f"aten::{_name}"] = _pointwise(2, result_bytes=1)
for _name in _REDUCTIONS.split():
    _RULES[f"aten::{_name}"] = _passes(1, 0)
for _name in _FOREACH.split():
    _RULES[f"aten::_foreach_{_name}"] = _RULES[f"aten::_foreach_{_name}_"] = _lists((1, 2), (0,))
