"""Lanes: host threads and device streams, from the ids that events carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuprof.readers.kineto_events import INT64_MAX, MAX_DEVICES
from gpuprof.trace import Lane

if TYPE_CHECKING:
    from gpuprof.readers.kineto_columns import ColumnBuilder


def lane_table(
    codes: NDArray[np.int32], builder: ColumnBuilder
) -> tuple[list[Lane], NDArray[np.int32]]:
    """The lanes that rows use, and each row's index into them.

    Args:
        codes: int32 (n,), as the blocks hold them: threads from 0 up, streams from -1 down.
    """
    shift = len(builder.streams)
    used = np.zeros(shift + len(builder.threads), dtype=np.bool_)
    used[codes + shift] = True
    thread_keys, stream_keys = list(builder.threads), list(builder.streams)
    names = {
        (ordinal(pid), ordinal(tid)): name for (pid, tid), name in builder.thread_names.items()
    }
    lanes: dict[Lane, int] = {}
    table = np.zeros(len(used), dtype=np.int32)
    for place in np.flatnonzero(used).tolist():
        code = place - shift
        lane = (
            _thread(names, *thread_keys[code])
            if code >= 0
            else _stream(names, *stream_keys[-1 - code])
        )
        table[place] = lanes.setdefault(lane, len(lanes))
        if code >= 0 and "" in thread_keys[code]:
            builder.clamped["missing process or thread ids"] += int((codes == code).sum())
    return list(lanes), table.take(codes + shift)


def _thread(names: dict[tuple[int, int], str], pid: int | str, tid: int | str) -> Lane:
    number, thread = ordinal(pid), ordinal(tid)
    odd = " ".join(str(value)[:64] for value in (pid, tid) if ordinal(value) == -1)
    return Lane(number, thread, None, None, names.get((number, thread)) or odd.strip())


def _stream(
    names: dict[tuple[int, int], str],
    pid: int | str,
    tid: int | str,
    device: int | str | None,
    stream: int | str | None,
) -> Lane:
    process, thread = ordinal(pid), ordinal(tid)
    index = process if device is None else ordinal(device)
    if not 0 <= index < MAX_DEVICES:
        index = process if 0 <= process < MAX_DEVICES else 0
    number = thread if stream is None else ordinal(stream)
    return Lane(process, thread, index, number, names.get((process, thread), "").strip())


def ordinal(value: int | str) -> int:
    """The number in an id such as 7, "7" or "stream 7"; -1 where there is none."""
    if isinstance(value, int):
        return value if abs(value) <= INT64_MAX else -1
    digits = value.rsplit(" ", 1)[-1]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else -1
