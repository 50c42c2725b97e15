"""FLOPs and bytes of operators: by hand, against PyTorch's own counter, and on foreign input."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.analyzers.convolutions import CONVOLUTIONS, convolution_outputs
from gpuprof.analyzers.flops import (
    MATRIX,
    OpCost,
    cost_of,
    is_countable,
)
from gpuprof.readers.kineto import read_trace
from gpuprof.trace import Category, OpArgs

HALF = "c10::Half"


def args(*dims: object, types: tuple[str, ...] = (), concrete: tuple[str, ...] = ()) -> OpArgs:
    return OpArgs(dims=dims, types=types or ("float",) * len(dims), concrete=concrete)


def cost(name: str, inputs: OpArgs) -> OpCost:
    found = cost_of(name, inputs)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "elements"),
    [
        ("aten::mm", args((3, 4), (4, 5)), 2 * 3 * 4 * 5, 12 + 20 + 15),
        ("aten::addmm", args((5,), (3, 4), (4, 5), (), ()), 2 * 3 * 4 * 5, 12 + 20 + 15),
        ("aten::bmm", args((2, 3, 4), (2, 4, 5)), 2 * 2 * 3 * 4 * 5, 2 * (12 + 20 + 15)),
        ("aten::baddbmm", args((1,), (2, 3, 4), (2, 4, 5)), 2 * 2 * 3 * 4 * 5, 2 * 47),
        ("aten::mv", args((3, 4), (4,)), 2 * 12, 12 + 4 + 3),
        ("aten::linear", args((2, 3, 4), (5, 4), (5,)), 2 * 6 * 4 * 5, 24 + 20 + 30),
        ("aten::matmul", args((7, 1, 3, 4), (2, 4, 5)), 2 * 14 * 3 * 4 * 5, 84 + 40 + 210),
        ("aten::matmul", args((4,), (4, 5)), 2 * 4 * 5, 4 + 20 + 5),
        ("aten::_grouped_mm", args((9, 4), (3, 4, 5), (3,)), 2 * 9 * 4 * 5, 36 + 60 + 45),
    ],
)
def test_products(name: str, inputs: OpArgs, flops: float, elements: float) -> None:
    found = cost(name, inputs)
    assert (found.flops, found.bytes, found.dtype) == (flops, 4.0 * elements, "fp32")
    assert found.matrix


def test_convolution_with_recorded_strides() -> None:
    inputs = args(
        (2, 8, 10, 10),
        (16, 4, 3, 3),
        (16,),
        *[()] * 6,
        concrete=("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"),
    )
    found = cost("aten::convolution", inputs)
    assert found.flops == 2 * 2 * 16 * 5 * 5 * 4 * 9
    assert found.bytes == 4 * (2 * 8 * 100 + 16 * 4 * 9 + 2 * 16 * 25)


def test_transposed_convolution_counts_positions_of_its_input() -> None:
    inputs = args(
        (1, 8, 4, 4),
        (8, 6, 2, 2),
        (),
        *[()] * 6,
        concrete=("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"),
    )
    assert cost("aten::convolution", inputs).flops == 2 * 16 * 8 * 6 * 4


def test_the_output_of_an_old_convolution_is_learned_from_its_backward() -> None:
    forward = args((32, 3, 224, 224), (64, 3, 7, 7), (), *[()] * 6)
    backward = args((32, 3, 224, 224), (32, 64, 112, 112), (64, 3, 7, 7), *[()] * 8)
    outputs = convolution_outputs([("aten::cudnn_convolution_backward", backward)])
    assert cost_of("aten::cudnn_convolution", forward) is None
    found = cost_of("aten::cudnn_convolution", forward, outputs)
    assert found is not None
    assert found.flops == 2 * 32 * 64 * 112 * 112 * 3 * 49


def test_two_layers_that_differ_in_stride_alone_are_not_guessed() -> None:
    calls = [
        (
            "aten::cudnn_convolution_backward",
            args((1, 8, 8, 8), (1, 8, side, side), (8, 8, 3, 3), *[()] * 8),
        )
        for side in (8, 4)
    ]
    assert convolution_outputs(calls) == {}


def test_the_output_mask_says_which_gradients_are_computed() -> None:
    shapes = ((1, 8, 8, 8), (1, 8, 8, 8), (8, 8, 3, 3), *[()] * 8)
    one = args(*shapes, concrete=("",) * 10 + ("[False, True, False]",))
    both = args(*shapes, concrete=("",) * 10 + ("[True, True, True]",))
    name = "aten::convolution_backward"
    assert cost(name, both).flops == 2 * cost(name, one).flops == 2 * 2 * 64 * 8 * 8 * 9


def test_causal_attention_does_half_of_the_square() -> None:
    shapes = ((2, 4, 64, 16), (2, 4, 64, 16), (2, 4, 64, 16))
    types = (HALF,) * 3 + ("Scalar",) * 2
    name = "aten::_scaled_dot_product_flash_attention"
    full = cost(name, args(*shapes, (), (), types=types, concrete=("", "", "", "0.", "False")))
    half = cost(name, args(*shapes, (), (), types=types, concrete=("", "", "", "0.", "True")))
    assert full.flops == 2 * 2 * 4 * 64 * 64 * 32
    assert half.flops == full.flops / 2
    assert full.bytes == 2 * 4 * (2 * 4 * 64 * 16)
    assert full.dtype == "fp16"


@pytest.mark.parametrize(
    ("name", "inputs", "moved"),
    [
        (
            "aten::add",
            args((8, 4), (4,), (), types=("float", "float", "Scalar")),
            4 * (32 + 4 + 32),
        ),
        ("aten::clamp_min", args((8,), (), (8,), types=("float", "Scalar", "float")), 4 * 16),
        ("aten::exp", args((8,), (8,)), 4 * 16),
        ("aten::lt", args((8,), (), types=("float", "Scalar")), 4 * 8 + 8),
        ("aten::copy_", args((8,), (8,), (), types=(HALF, "float", "Scalar")), 8 * 2 + 8 * 4),
        ("aten::fill_", args((8,), ()), 32),
        ("aten::sum", args((8, 4), ()), 128),
        ("aten::native_layer_norm", args((8, 4), (), (4,), (4,), ()), 2 * 128),
        ("aten::_softmax_backward_data", args((8, 4), (8, 4), (), ()), 3 * 128),
        (
            "aten::embedding",
            args((100, 16), (4, 8), types=(HALF, "long int")),
            32 * 8 + 2 * 32 * 16 * 2,
        ),
    ],
)
def test_bytes_of_memory_bound_operators(name: str, inputs: OpArgs, moved: float) -> None:
    found = cost(name, inputs)
    assert (found.flops, found.bytes, found.matrix) == (0.0, moved, False)


def test_lists_say_elements_and_leave_the_type_to_the_kernel() -> None:
    inputs = args(((8, 4), (2,)), (), types=("TensorList", "Scalar"))
    found = cost("aten::cat", inputs)
    assert math.isnan(found.bytes)
    assert found.elements == 2 * 34
    many = tuple([((10,), (20,))] * 4)
    fused = cost("aten::_fused_adamw_", args(*many, types=("TensorList",) * 4))
    assert fused.elements == 7 * 30


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("aten::mm", args((3, 4), (5, 6))),
        ("aten::mm", args((3, 4))),
        ("aten::mm", args()),
        ("aten::mm", args((3, -1), (-1, 5))),
        ("aten::mm", args((1 << 40, 1 << 40), (1 << 40, 4))),
        ("aten::add", args((3,), (4,))),
        ("aten::cat", args((), (), types=("TensorList", "Scalar"))),
        (
            "aten::convolution",
            args((1, 2, 8), (4, 2, 9), concrete=("", "", "", "[0]", "[0]", "[1]")),
        ),
        ("my::op", args((3, 4), (4, 5))),
    ],
)
def test_shapes_that_do_not_fit_are_unknown(name: str, inputs: OpArgs) -> None:
    assert cost_of(name, inputs) is None


ENTRY = st.recursive(
    st.integers(-2, 9) | st.just(10**30) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@given(
    st.sampled_from([*MATRIX, *CONVOLUTIONS, "aten::add", "aten::cat", "aten::_fused_adam_"]),
    st.lists(ENTRY, max_size=12),
    st.lists(st.sampled_from(["float", HALF, "Scalar", "TensorList", ""]), max_size=12),
    st.lists(st.sampled_from(["[2, 2]", "[-1]", "[x]", "[", "True", "[True]", ""]), max_size=12),
)
def test_foreign_inputs_never_raise(
    name: str, dims: list[object], types: list[str], concrete: list[str]
) -> None:
    found = cost_of(name, OpArgs(tuple(dims), tuple(types), tuple(concrete)))
    assert is_countable(name)
    assert found is None or found.flops >= 0


def test_counts_agree_with_pytorchs_own_counter(tmp_path: Path) -> None:
    """A real profile of a small model: the sum over leaf operators is what PyTorch counts.

    Without groups: PyTorch's counter ignores them in the weight gradient (checked with 2.13).
    """
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 6, 2, stride=2),
        torch.nn.Flatten(2),
        torch.nn.Linear(256, 32),
    )
    batch = torch.randn(3, 4, 16, 16)

    def step() -> None:
        hidden = model(batch)
        (hidden @ hidden.transpose(1, 2)).sum().backward()

    step()
    with FlopCounterMode(display=False) as counter:
        step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        step()
    path = tmp_path / "trace.json"
    profile.export_chrome_trace(str(path))
    trace = read_trace(path)
    leaves = {"mm", "addmm", "bmm", "convolution", "convolution_backward"}
    total = 0.0
    for row in trace.rows_of(Category.CPU_OP).tolist():
        name = trace.names[trace.name[row]]
        if name.removeprefix("aten::") in leaves and trace.op_args[row] >= 0:
            found = cost_of(name, trace.arg_sets[trace.op_args[row]])
            assert found is not None, name
            total += found.flops
    assert total == counter.get_total_flops()
