"""FLOPs of convolutions: where each operator keeps its shapes and strides, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuprof.analyzers import shapes
from gpuprof.analyzers.shapes import Shape, elements
from gpuprof.trace import OpArgs

ConvolutionOutputs = Mapping[tuple[Shape, Shape], Shape]
"""(input shape, weight shape) → output shape, see `convolution_outputs`."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Where a convolution keeps its inputs; -1 for what it does not have."""

    source: int
    weight: int
    stride: int
    padding: int
    dilation: int
    transposed: int = -1
    output_padding: int = -1
    gradient: int = -1
    mask: int = -1
    always_transposed: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionWork:
    """FLOPs of a call, elements read and written, and the index of an input with its data type."""

    flops: float
    elements: float
    typed_input: int


def work_of(name: str, args: OpArgs, outputs: ConvolutionOutputs) -> ConvolutionWork | None:
    """2 × weights × positions × batch: positions are the output's, or the input's if transposed."""
    at = CONVOLUTIONS[name]
    source, weight = shapes.shape(args, at.source), shapes.shape(args, at.weight)
    if source is None or weight is None or len(source) != len(weight) or len(source) < 3:
        return None
    turned = at.always_transposed or shapes.concrete(args, at.transposed) == "True"
    output = shapes.shape(args, at.gradient) if at.gradient >= 0 else None
    if output is None:
        output = outputs.get((source, weight)) or _output(args, at, source, weight, turned)
    if output is None or len(output) != len(source):
        return None
    positions = elements(source[2:] if turned else output[2:])
    flops = 2.0 * source[0] * positions * elements(weight)
    moved = float(elements(source) + elements(weight) + elements(output))
    if at.gradient >= 0:
        mask = shapes.truths(args, at.mask) or [True, True]
        gradients = mask[:2].count(True)
        flops *= gradients
        moved *= gradients
    return ConvolutionWork(flops, moved, at.source)


def _output(
    args: OpArgs, at: Convolution, source: Shape, weight: Shape, turned: bool
) -> Shape | None:
    sides = len(source) - 2
    stride, padding, dilation = (
        _per_side(args, index, sides) for index in (at.stride, at.padding, at.dilation)
    )
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    extra = _per_side(args, at.output_padding, sides) or [0] * sides
    kernel = [dilation[side] * (weight[side + 2] - 1) for side in range(sides)]
    spatial = []
    for side in range(sides):
        size, border = source[side + 2], 2 * padding[side]
        if turned:
            reach = (size - 1) * stride[side] - border + kernel[side] + extra[side] + 1
        else:
            reach = (size + border - kernel[side] - 1) // stride[side] + 1
        spatial.append(reach)
    channels = weight[1] if turned else weight[0]
    return None if min(spatial) < 1 else (source[0], channels, *spatial)


def _per_side(args: OpArgs, index: int, sides: int) -> list[int] | None:
    values = shapes.numbers(args, index)
    if values is None or len(values) not in (1, sides) or min(values) < 0:
        return None
    return values * sides if len(values) == 1 else values


def convolution_outputs(calls: Iterable[tuple[str, OpArgs]]) -> dict[tuple[Shape, Shape], Shape]:
    """Output shapes of the convolutions of a trace, learned from their backward calls.

    Traces before PyTorch 2.0 hold no strides, so a forward call does not tell its output; its
    backward call has the output's gradient. A pair of shapes that occurs with two outputs is left
    out: the layers differ in stride.
    """
    found: dict[tuple[Shape, Shape], Shape | None] = {}
    for name, args in calls:
        order = BACKWARD_INPUTS.get(name)
        if order is None:
            continue
        source, weight, gradient = (shapes.shape(args, index) for index in order)
        if source is None or weight is None or gradient is None:
            continue
        key = (source, weight)
        found[key] = gradient if found.get(key, gradient) == gradient else None
    return {key: output for key, output in found.items() if output is not None}


_PLAIN = Convolution(0, 1, stride=3, padding=4, dilation=5)
_FULL = Convolution(0, 1, stride=3, padding=4, dilation=5, transposed=6, output_padding=7)
_TURNED = Convolution(
    0, 1, stride=3, padding=4, dilation=7, output_padding=5, always_transposed=True
)
CONVOLUTIONS: dict[str, Convolution] = {
    "aten::conv1d": _PLAIN,
    "aten::conv2d": _PLAIN,
    "aten::conv3d": _PLAIN,
    "aten::conv_transpose1d": _TURNED,
    "aten::conv_transpose2d": _TURNED,
    "aten::conv_transpose3d": _TURNED,
    "aten::convolution": _FULL,
    "aten::_convolution": _FULL,
    "aten::cudnn_convolution": Convolution(0, 1, stride=3, padding=2, dilation=4),
    "aten::cudnn_convolution_transpose": Convolution(
        0, 1, stride=4, padding=2, dilation=5, output_padding=3, always_transposed=True
    ),
    "aten::miopen_convolution": Convolution(0, 1, stride=4, padding=3, dilation=5),
    "aten::convolution_backward": Convolution(
        1, 2, stride=4, padding=5, dilation=6, transposed=7, gradient=0, mask=10
    ),
    "aten::cudnn_convolution_backward": Convolution(
        0, 2, stride=4, padding=3, dilation=5, gradient=1, mask=10
    ),
}
BACKWARD_INPUTS = {
    "aten::convolution_backward": (1, 2, 0),
    "aten::cudnn_convolution_backward": (0, 2, 1),
}
"""Indices of input, weight and output gradient."""
