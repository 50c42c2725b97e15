"""The collective operations, whatever a library, a PyTorch version or a kernel calls them.

Names come from three places: `Collective name` of a `record_param_comms` row ("allreduce",
"_allgather_base"), the annotation around the call ("nccl:all_reduce", "gloo:all_to_all") and the
kernel itself ("ncclDevKernel_AllReduce_Sum_f16_RING_LL"). One generic kernel (RCCL, and NCCL for
rare combinations) does not say what it does.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

NAME_LIMIT = 512
"""A name says what it is in its first words; templates may go on for kilobytes."""


class CollectiveKind(IntEnum):
    """What an operation does."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BARRIER = 5
    BROADCAST = 6
    REDUCE = 7
    GATHER = 8
    SCATTER = 9
    SEND_RECV = 10


SYMMETRIC = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BARRIER,
    }
)
"""No rank can finish before every rank has arrived: only then is the shortest duration the transfer
and the rest waiting. The root of a broadcast pushes its data and leaves; the root of a reduce waits
and the leaves do not; a send waits for one peer."""

# Matched in this order against the name in lower case without anything but letters.
_RULES: tuple[tuple[str, CollectiveKind], ...] = (
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("crossdevicereduce", CollectiveKind.ALL_REDUCE),
    ("quickreduce", CollectiveKind.ALL_REDUCE),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("barrier", CollectiveKind.BARRIER),
    ("broadcast", CollectiveKind.BROADCAST),
    ("sendrecv", CollectiveKind.SEND_RECV),
    ("gather", CollectiveKind.GATHER),
    ("scatter", CollectiveKind.SCATTER),
    ("reduce", CollectiveKind.REDUCE),
    ("isend", CollectiveKind.SEND_RECV),
    ("irecv", CollectiveKind.SEND_RECV),
    ("send", CollectiveKind.SEND_RECV),
    ("recv", CollectiveKind.SEND_RECV),
)
_NOT_LETTERS = re.compile(r"[^a-z]+")
_GENERIC = re.compile(r"devkernel_?generic", re.IGNORECASE)


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> CollectiveKind:
    """What the operation of this name does; UNKNOWN for a name that does not say."""
    text = name[:NAME_LIMIT].split("(", 1)[0]
    if _GENERIC.search(text):
        return CollectiveKind.UNKNOWN
    letters = _NOT_LETTERS.sub("", text.lower())
    return next((kind for word, kind in _RULES if word in letters), CollectiveKind.UNKNOWN)


_ITEM_BYTES = {
    "bool": 1, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1,
    "short": 2, "short int": 2, "int16": 2, "uint16": 2, "half": 2, "float16": 2, "bfloat16": 2,
    "int": 4, "int32": 4, "uint32": 4, "float": 4, "float32": 4, "long int": 8, "long": 8,
    "int64": 8, "uint64": 8, "double": 8, "float64": 8, "complexhalf": 4, "complexfloat": 8,
    "complexdouble": 16,
}  # fmt: skip


@lru_cache(maxsize=256)
def item_bytes(dtype: str) -> int:
    """Bytes of one element of a type as PyTorch writes it ("BFloat16", "c10::Half", "long int");
    0 for a type that is not known."""
    text = dtype.strip().lower().removeprefix("c10::").removeprefix("at::")
    if text.startswith(("float8", "float4", "quint8", "qint8")):
        return 1
    if text.startswith("complex<"):
        return 2 * item_bytes(text[8:].rstrip(">"))
    return _ITEM_BYTES.get(text, 0)
