"""The recorded inputs of an operator as shapes, types and values.

A trace comes from anyone: a shape may be missing, negative, nested or absurd. Everything here
answers None for what is not a plausible tensor.
"""

from __future__ import annotations

from gpuprof.trace import OpArgs

Shape = tuple[int, ...]

MAX_RANK = 16
"""More dimensions than any operator of interest has; bounds the work on foreign input."""

MAX_ELEMENTS = 1 << 48
"""2^48 elements are some hundred times the largest device memory: no tensor, a damaged record."""

# What `Input type` calls a type, and what the rest of gpuprof calls it.
DTYPES: dict[str, tuple[str, int]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "short": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}

ITEM_BYTES: dict[str, int] = dict(DTYPES.values()) | {"tf32": 4}


def shape(args: OpArgs, index: int) -> Shape | None:
    """The shape of a tensor input, () for a scalar; None where there is no plausible shape."""
    return _plain(args.dims[index]) if 0 <= index < len(args.dims) else None


def tensor(args: OpArgs, index: int, rank: int) -> Shape | None:
    """The shape of an input if it is a tensor of this rank, else None."""
    dims = shape(args, index)
    return dims if dims is not None and len(dims) == rank else None


def shapes_of_list(args: OpArgs, index: int) -> list[Shape] | None:
    """The shapes of a list of tensors; None where they were not recorded or it is no list."""
    if not 0 <= index < len(args.dims):
        return None
    entry = args.dims[index]
    if not isinstance(entry, tuple) or not entry:
        return None
    parts = [_plain(part) for part in entry]
    return None if None in parts else [part for part in parts if part is not None]


def dtype(args: OpArgs, index: int) -> str:
    """The data type of a tensor input ("fp32", "bf16", "int64", …), "" where not recorded."""
    return DTYPES.get(_type(args, index), ("", 0))[0]


def item_bytes(args: OpArgs, index: int) -> int | None:
    """Bytes of one element of a tensor input, None where its type was not recorded."""
    return DTYPES.get(_type(args, index), ("", None))[1]


def is_tensor(args: OpArgs, index: int) -> bool:
    """Whether an input is one tensor of a known type (a Python scalar or a list is not)."""
    return _type(args, index) in DTYPES and shape(args, index) is not None


def numbers(args: OpArgs, index: int) -> list[int] | None:
    """A concrete list of whole numbers such as a stride "[2, 2]", None where not recorded."""
    text = concrete(args, index)
    if not (text.startswith("[") and text.endswith("]")) or len(text) > 256:
        return None
    try:
        return [int(part) for part in text[1:-1].split(",") if part.strip()]
    except ValueError:
        return None


def truths(args: OpArgs, index: int) -> list[bool] | None:
    """A concrete list of truth values such as an output mask, None where not recorded."""
    text = concrete(args, index)
    if not (text.startswith("[") and text.endswith("]")) or len(text) > 256:
        return None
    words = [part.strip() for part in text[1:-1].split(",")]
    return [word == "True" for word in words] if set(words) <= {"True", "False"} else None


def concrete(args: OpArgs, index: int) -> str:
    """The recorded value of an input, "" where there is none."""
    return args.concrete[index].strip() if 0 <= index < len(args.concrete) else ""


def elements(dims: Shape) -> int:
    """How many elements a tensor of this shape has; 1 for a scalar."""
    count = 1
    for size in dims:
        count *= size
    return count


def broadcast(shapes: list[Shape]) -> Shape | None:
    """The shape that operands of these shapes broadcast to, None where they do not."""
    rank = max((len(dims) for dims in shapes), default=0)
    result = []
    for axis in range(1, rank + 1):
        sizes = {dims[-axis] for dims in shapes if len(dims) >= axis} - {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else 1)
    return tuple(reversed(result))


def _type(args: OpArgs, index: int) -> str:
    return args.types[index] if 0 <= index < len(args.types) else ""


def _plain(entry: object) -> Shape | None:
    if not isinstance(entry, tuple) or len(entry) > MAX_RANK:
        return None
    count = 1
    for size in entry:
        if not isinstance(size, int) or size < 0:
            return None
        count *= size
        if count > MAX_ELEMENTS:
            return None
    return entry
