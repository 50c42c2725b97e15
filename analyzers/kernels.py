"""What a device event is, by its name: its kind, whether it uses matrix units, its data type.

A trace says nothing about a kernel but its name, and every library names its own way: cuBLAS and
CUTLASS write the instruction into it (`s16816gemm`, `tensorop`, `simt`), Tensile the data types
(`Cijk_Ailk_Bljk_BBS_…_MI16x16x16x1`), Inductor the fused operators, PyTorch the C++ template. The
rules are ordered, the first match wins, and each order that matters says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

NAME_LIMIT = 2048
"""Characters of a name that are looked at. Templates repeat themselves long before that."""


class Kind(IntEnum):
    """The families of device events."""

    OTHER = 0
    COMMUNICATION = 1
    GEMM = 2
    CONVOLUTION = 3
    ATTENTION = 4
    ELEMENTWISE = 5
    """Pointwise work and small stencils (pooling, interpolation)."""
    REDUCTION = 6
    """Sums, maxima, losses, and prefix scans."""
    NORMALIZATION = 7
    SOFTMAX = 8
    EMBEDDING = 9
    """Embedding, index, gather, scatter: reads at computed places."""
    OPTIMIZER = 10
    TRITON = 11
    """A pointwise or reduction kernel that torch.compile generated."""
    COPY = 12
    """Copies, casts, layout changes, memset."""
    SORT = 13
    RANDOM = 14

    @property
    def label(self) -> str:
        """The word that tables show."""
        return self.name.lower()


MATRIX_KINDS = frozenset({Kind.GEMM, Kind.CONVOLUTION, Kind.ATTENTION})
"""Kinds whose arithmetic matrix units (tensor cores) can do."""

BANDWIDTH_KINDS = frozenset(
    {
        Kind.ELEMENTWISE,
        Kind.REDUCTION,
        Kind.NORMALIZATION,
        Kind.SOFTMAX,
        Kind.EMBEDDING,
        Kind.OPTIMIZER,
        Kind.TRITON,
        Kind.SORT,
        Kind.RANDOM,
        Kind.COPY,
    }
)
"""Kinds that do a few operations a byte, far below the ridge point of every device of the table
(about 10 FLOP a byte for fp32 without matrix units and more for everything else)."""


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What a name tells.

    matrix_units: True or False where the name tells, None where it does not.
    dtype: "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", or "" where not told.
    generated: written by torch.compile.
    reduced: the algorithm does fewer operations than the textbook's count (Winograd, FFT), so
        that count over the time can exceed the device's peak.
    streaming: a matrix kernel that uses each weight or cached key once (matrix × vector, decoding),
        so that memory bandwidth limits it whatever its size.
    """

    kind: Kind
    matrix_units: bool | None
    dtype: str
    generated: bool
    reduced: bool
    streaming: bool


# Inductor joins the names of fused operators, collectives among them, so its names are judged by
# their prefix before any other word is looked for. Templates (`tem`) are matrix kernels.
_GENERATED = re.compile(r"^triton_(?:poi|red|per|for|mix|unk|tem|mm|bmm|flex|_?\d|$)")
_TEMPLATE = re.compile(r"^triton_(?:tem|mm|bmm|flex)")

# Matched against the lower-cased name.
_RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        Kind.COPY,  # the runtime's own copies; `hipMemcpy` is no collective
        re.compile(
            r"^(?:hip|cuda)?mem(?:cpy|set)|^copy(?:host|device)|^fill(?:buffer|device)"
            r"|__amd_rocclr_(?:copy|fill)"
        ),
    ),
    (
        Kind.COMMUNICATION,
        re.compile(
            r"nccl(?:dev)?kernel|^nccl|rccl|mscclpp|msccl|nvshmem|rocshmem|oneccl|\bccl::|hccl|^hcom"
            r"|cross_device_reduce|(?:one|two)_?shot|multimem_|all_?reduce|reduce_?scatter"
            r"|all_?gather|all_?to_?all|quick_?reduce|deep_ep::|userbuffers|symmetric_memory|lamport"
        ),
    ),
    (
        Kind.EMBEDDING,  # before attention and the optimizer: KV-cache writes, fused row updates
        re.compile(
            r"reshape_and_cache|store_kv|kv_?cache_?(?:copy|store|write)|kv_indices|page_indices"
            r"|(?<!rotary_)embedding|permute_pooled_embs|(?:^|[^a-z])gather|(?:^|[^a-z])scatter|indexselect"
            r"|index_(?:select|elementwise|put|add|copy|fill|kernel)|gpu_index_kernel"
            r"|indexing_backward|index_fill|linearize_index|bounds_check_indices"
            r"|permute_(?:2d|indices|1d)|take_kernel"
        ),
    ),
    (
        Kind.NORMALIZATION,
        re.compile(
            r"layer_?norm|rms_?norm|batch_?norm|group_?norm|instance_?norm|\bbn_(?:fw|bw)|::bn_"
            r"|rowwisemoments|gammabeta|normforward|normbackward"
        ),
    ),
    (
        Kind.ATTENTION,  # before GEMM: built on CUTLASS; flashinfer is more than attention
        re.compile(
            r"flash(?!infer)|fmha|attention|attn|sdpa|mha_(?:fwd|bwd)|(?:prefill|decode)with"
            r"|batchmla|flash_?mla|mla_(?:decode|fwd)|^_(?:fwd|bwd)_kernel"
        ),
    ),
    (Kind.SOFTMAX, re.compile(r"soft_?max")),
    (
        Kind.SORT,
        re.compile(r"radix|sort(?!ed)|top_?k|bitonic|gathertopk|nms_kernel|unique"),
    ),
    (
        Kind.REDUCTION,  # what finishes a GEMM or sums up a split one is no GEMM
        re.compile(r"split_?k_?reduce|reducesplitk|reduce_wgrad|postgsu|reduce_1block"),
    ),
    (
        Kind.COPY,  # before convolution (`convertTensor`) and elementwise (their template)
        re.compile(
            r"converttensor|nchwto|nhwcto|tonhwc|tonchw|nchw2|nhwc2|transpose|direct_copy"
            r"|copy_kernel|catarray|copybuffer|fillbuffer|copyfunctor|foldednhwc|copy_async"
            r"|to_copy_kernel|tensor_transform|concat_and_cast"
        ),
    ),
    (Kind.ELEMENTWISE, re.compile(r"epilogue::impl|scalepackedtensor")),
    (
        Kind.CONVOLUTION,  # before GEMM: implicit GEMM, and MIOpen's `igemm`, are convolutions
        re.compile(
            r"conv(?!ert)|wgrad|dgrad|fprop|implicit_gemm|scudnn|winograd|im2col|col2im|im2d2col"
            r"|igemm_(?:fwd|bwd|wrw)|fft[12]d_|flip_filter|pointwise_mult_and_sum_complex"
            r"|computeb?offsetskernel|kern_precompute_indices|gcgemm|miopensp3"
        ),
    ),
    (
        Kind.OPTIMIZER,
        re.compile(
            r"multi_tensor_apply|fusedoptimizer|fused_?(?:adam|sgd|adagrad|lamb)|\badamw?_|lamb_stage"
            r"|adam_?(?:functor|kernel)"
        ),
    ),
    (
        Kind.RANDOM,
        re.compile(
            r"distribution_(?:elementwise|nullary)|philox|curand|randperm|bernoulli_?(?:tensor|scalar)"
            r"|multinomial|generate_seed|random_kernel|sampling"
        ),
    ),
    (
        Kind.GEMM,
        re.compile(
            r"(?<!fb)gemm|gemv|cublas|^cijk_|rocblas|hipblas|^nvjet|cutlass\w*_(?:tensorop|simt)|matmul"
            r"|(?:^|_)b?mm_|magma_|dot_kernel|marlin|wmma|cutlass::(?:kernel|device_kernel)|gemmk1"
        ),
    ),
    (
        Kind.REDUCTION,
        re.compile(
            r"reduce|reduction|_scan_|devicescan|scan_kernel|trampoline_kernel.*scan|cumsum|nll_?loss"
            r"|classnll|cross_entropy|devicecompact|deviceselect|segments|_sum_|find_long"
        ),
    ),
    (
        Kind.ELEMENTWISE,
        re.compile(
            r"elementwise|pointwise|subtensorop|functor|act_and_mul|gelu|silu|swiglu|relu|sigmoid|tanh|rotary"
            r"|rope|dropout|fill|arange|upsample|pool|mask|quant|tril|triu|threshold|where_|clamp"
            r"|fused__autocast|add_kernel|mul_kernel|_kernel_impl"
        ),
    ),
)

_REDUCED = re.compile(r"winograd|fft[12]d_|gcgemm|_sum_complex", re.IGNORECASE)

_STREAMING = re.compile(
    r"gemv|gemmk1|dot_kernel|paged_attention|DecodeWith|mla_decode|fwd_splitkv", re.IGNORECASE
)

# The output tile of a block, as Tensile, nvjet, CUTLASS, XMMA and Triton write it.
_TILE = re.compile(
    r"(?:_MT|tilesize|nvjet_[a-z]+_|_t|fp4_|16_|gemm_(?:(?:relu|gelu|bias)_)?(?:[bf]+p?16_)?)"
    r"(\d{1,4})x(\d{1,4})"
)
NARROW_TILE = 32
"""A library picks an output tile this narrow when the product has that few rows or columns, as in
decoding. One tile then spans the short side, and each 16-bit weight that is read serves at most 32
multiply-adds: 32 FLOP a byte, below the ridge point of every device with matrix units of the table
(37 and more)."""

# 16x8x16 and 8x8x4 are shapes of the matrix instruction; `s`, `h`, `i`, `d` is what it adds up in.
_MATRIX = re.compile(
    r"tensorop|wmma|[shid]884|[shi]1688|[shi]16816|i8816|i16832|tensor\d+x\d+x\d+|hmma|imma|gmma"
    r"|mfma|xdl|_MI\d+x\d+x\d+|^nvjet|gtcx|warpgroup|tcgen05|sm100|device_kernel|flash_(?:fwd|bwd)"
    r"|mma16|fmha\w*Sm\d+|marlin",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"simt|sgemm|dgemm|cgemm|scudnn|gemv|gemmk1|gemmSN|dot_kernel|magma_|convolve|_engine<"
    r"|fft[12]d_|winograd|^Cijk_|dgrad2d_alg|naive_conv|conv_depthwise",
    re.IGNORECASE,
)

# In this order for matrix kernels: a narrower input sets the instruction, fp32 is the accumulator;
# mixed with fp4 weights, the wider operand does.
_DTYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|float8|_F8|qqtst|qqhsh", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16|_BBS|_BSS|DF16b|^nvjet_t|^nvjet_sm\d+_t", re.IGNORECASE)),
    (
        "fp16",
        re.compile(
            r"fp16|f16|[^a-z]half|::Half|_HHS|_HSS|_HB_|DF16_|_Float16|[sh]884|h1688|h16816|hgemm|^nvjet_h"
        ),
    ),
    ("fp4", re.compile(r"fp4|e2m1|^nvjet_o", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|xf32|tensorop_s1688|[^a-z]s1688|^nvjet_s", re.IGNORECASE)),
    ("fp64", re.compile(r"d884|dgemm|double|f64|_DB_", re.IGNORECASE)),
    ("int8", re.compile(r"i8816|i16832|imma|int8_?t?gemm|_I8I", re.IGNORECASE)),
    ("fp32", re.compile(r"sgemm|scudnn|float|f32|fp32|_SB_")),
)


@lru_cache(maxsize=16384)
def classify(name: str) -> KernelClass:
    """What the name of a kernel, copy or memset tells about it."""
    text = _without_parameters(name)
    generated = _GENERATED.search(text) is not None
    kind = _generated_kind(text) if generated else _kind(text.lower())
    matrix = kind in MATRIX_KINDS
    return KernelClass(
        kind=kind,
        matrix_units=_matrix_units(text) if matrix else _never(kind),
        dtype=_dtype(text) if matrix else _first_dtype(text),
        generated=generated,
        reduced=matrix and _REDUCED.search(text) is not None,
        streaming=matrix and _is_streaming(kind, text),
    )


def kind_of(name: str) -> Kind:
    """The family of a kernel, copy or memset by its name."""
    return classify(name).kind


def is_communication(name: str) -> bool:
    """Whether a device event moves data between ranks."""
    return classify(name).kind == Kind.COMMUNICATION


def _without_parameters(name: str) -> str:
    """The name without the C++ parameter list, which only repeats the template's types."""
    text = name[:NAME_LIMIT].replace("(anonymous namespace)::", "").replace("at::native::", "")
    end = text.rfind(">(")
    return text[: end + 1] if end > 0 else text


def _kind(lowered: str) -> Kind:
    for kind, pattern in _RULES:
        if pattern.search(lowered):
            return kind
    return Kind.OTHER


def _generated_kind(name: str) -> Kind:
    if not _TEMPLATE.search(name):
        return Kind.TRITON
    if "attention" in name:
        return Kind.ATTENTION
    return Kind.CONVOLUTION if "convolution" in name else Kind.GEMM


def _matrix_units(name: str) -> bool | None:
    if _MATRIX.search(name):
        return True
    return False if _PLAIN.search(name) else None


def _is_streaming(kind: Kind, name: str) -> bool:
    if _STREAMING.search(name):
        return True
    if kind != Kind.GEMM or _dtype(name) not in ("bf16", "fp16", "fp8", "fp4", "int8"):
        return False
    tile = _TILE.search(name)
    return tile is not None and min(int(tile[1]), int(tile[2])) <= NARROW_TILE


def _never(kind: Kind) -> bool | None:
    """Kinds that have no matrix work answer False; what is not understood answers None."""
    return None if kind in (Kind.OTHER, Kind.COMMUNICATION) else False


def _dtype(name: str) -> str:
    for dtype, pattern in _DTYPES:
        if pattern.search(name):
            return dtype
    return ""


def _first_dtype(name: str) -> str:
    """The type that is named first: a template lists what it works on before its parameters."""
    found = [(match.start(), dtype) for dtype, rule in _DTYPES if (match := rule.search(name))]
    return min(found)[1] if found else ""
