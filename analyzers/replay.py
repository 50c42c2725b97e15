"""Runs the program of a step again with something changed, to see how long it would take.

A share of time is not a gain: what hid behind the cause comes out when the cause goes. So every
gain that gpuprof quotes is the difference between two replays.

The machine model: the host works through its items in order. A launch makes its events ready some
latency after it began; an event starts when it is ready, its stream is free (and has turned to the
next event) and the events of other streams that it was seen to follow are done. A blocking call
returns when its events are done. A batch from worker processes comes when it came, however early
the host asks: the workers were busy with it, and what hurries the host does not hurry them.

Each event also has a lag: what it was late by and none of this explains. The model alone, without
the lags, must reproduce the measured step; how well it does is in every diagnosis and decides
whether gains are quoted. The gains keep the lags: what nobody understands is not saved either.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.program import NO_EVENT, NOT_BLOCKING, Program, Region
from gpuprof.distinct import is_in

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

HAND_OVER_NS = 100_000
"""What a batch that is ready costs the host; 0.05 to 0.12 ms in all recordings seen."""

TRUSTED_ERROR = 0.03
"""A replay that misses the measured step by more than 3 % does not understand the run."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in a replay; the default changes nothing.

    host_scale: factor on plain host work; launch_scale: on the launch calls themselves;
    work_scale: label -> factor on labelled host work (input, checkpoint, …).
    free: kinds of blocking calls (`Blocking`) that no longer wait.
    skip: regions (`Region`) whose calls cost nothing, wait for nothing and copy nothing.
    device_ns: duration of each event, (n_events,), None to keep the measured ones.
    profiled: whether the host still pays for the profiler's records.
    lags: whether delays that the model does not explain are kept.
    """

    host_scale: float = 1.0
    launch_scale: float = 1.0
    work_scale: dict[str, float] = field(default_factory=dict)
    free: tuple[int, ...] = ()
    skip: tuple[int, ...] = ()
    device_ns: I64 | None = None
    profiled: bool = True
    lags: bool = True

    def and_(self, other: Change) -> Change:
        """Both changes at once."""
        device = self.device_ns
        if other.device_ns is not None:
            device = other.device_ns if device is None else np.minimum(device, other.device_ns)
        return Change(
            host_scale=min(self.host_scale, other.host_scale),
            launch_scale=min(self.launch_scale, other.launch_scale),
            work_scale={**self.work_scale, **other.work_scale},
            free=tuple(sorted({*self.free, *other.free})),
            skip=tuple(sorted({*self.skip, *other.skip})),
            device_ns=device,
            profiled=self.profiled and other.profiled,
            lags=self.lags and other.lags,
        )


class Meeting(NamedTuple):
    """A rank has come to a collective: its number, the rank's own event, and when it begins."""

    number: int
    event: int
    begin_ns: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Length of each step of the program as replayed, ns, float64 (n_steps,)."""

    step_ns: F64

    @property
    def total_ns(self) -> float:
        return float(self.step_ns.sum())

    @property
    def mean_ns(self) -> float:
        return float(self.step_ns.mean())


def replay(program: Program, change: Change | None = None) -> Replayed:
    """Replays a program.

    The steps end as they do in `gpuprof.analyzers.steps`: with their last device event, the last
    one not before the host is done; their sum is never less than the host needs.
    """
    loop = run(program, change or Change())
    try:
        next(loop)
    except StopIteration as done:
        result: Replayed = done.value
        return result
    raise AssertionError("a program of one rank meets nobody")


def run(
    program: Program, change: Change, meets: list[int] | None = None
) -> Generator[Meeting, int, Replayed]:
    """A replay that stops wherever it needs other ranks.

    Args:
        program: The program.
        change: What is different.
        meets: For each event, the number of the collective that it is part of, -1 for others.
            At such an event the replay yields a `Meeting` and goes on with the end it is sent.
    """
    skipped = is_in(program.region, change.skip)
    call = program.call_ns * np.where(program.kind == NOT_BLOCKING, change.launch_scale, 1.0)
    call = np.where(skipped, 0.0, call)
    # Waits inside a save or the loader are theirs, and go with them.
    own = program.region == int(Region.STEP)
    freed = ((is_in(program.kind, change.free) & own) | skipped) & ~program.is_queue_wait
    duration = program.dur_ns if change.device_ns is None else change.device_ns
    if change.skip:
        duration = np.where(np.repeat(skipped, program.n_events), 0, duration)
    if change.lags:
        duration = np.maximum(duration + program.lag_ns, 0)
    ended, host_end = yield from _loop(
        program,
        _host_costs(program, change).tolist(),
        _arrivals(program, change),
        np.rint(call).astype(np.int64).tolist(),
        (program.waits & ~freed).tolist(),
        duration.tolist(),
        meets,
    )
    return Replayed(_step_lengths(program, np.array(ended, np.int64), host_end))


def _step_lengths(program: Program, event_end: I64, host_end: int) -> F64:
    ends = np.full(program.n_steps, program.origin_ns, np.int64)
    np.maximum.at(ends, program.event_step, event_end)
    ends = np.maximum.accumulate(ends)
    if program.ends_with_host:
        ends[-1] = max(int(ends[-1]), host_end)
    step: F64 = np.diff(ends, prepend=program.origin_ns).astype(np.float64)
    if program.origin_ns > program.host_start_ns:
        # The device began with a backlog; once that is gone, the host alone sets the pace.
        total = float(step.sum())
        host_total = float(host_end - program.host_start_ns - program.host_lead_ns)
        if total < host_total:
            step = step + (host_total - total) / len(step)
    return step


def _host_costs(program: Program, change: Change) -> I64:
    """Host work before each item, ns, (n_items,)."""
    plain = program.work_ns["host"]
    if not change.profiled:
        plain = plain - program.profiler_ns
    cost = plain * change.host_scale
    waited = program.arrival_ns > 0
    inputs = program.work_ns["input"]
    labelled = {
        **program.work_ns,
        "input": np.where(waited, np.minimum(inputs, HAND_OVER_NS), inputs),
    }
    for label, work in labelled.items():
        if label != "host":
            cost = cost + work * change.work_scale.get(label, 1.0)
    whole: I64 = np.rint(cost).astype(np.int64)
    return whole


def _arrivals(program: Program, change: Change) -> dict[int, tuple[int, int]]:
    """Item -> when its batch comes, and the work after that; none where input takes no time."""
    if change.work_scale.get("input", 1.0) == 0.0:
        return {}
    left = np.rint(program.left_ns * change.host_scale).astype(np.int64)
    return {
        int(i): (int(program.arrival_ns[i]), int(left[i]))
        for i in np.flatnonzero(program.arrival_ns)
    }


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the loop reads and no change touches, as lists (three times as fast as arrays here).

    events: of each item. others: of each event, the events of other streams that it follows.
    """

    events: list[range]
    stream: list[int]
    latency: list[int]
    tail: list[int]
    others: list[tuple[int, ...]] | None


@lru_cache(maxsize=8)
def _tables(program: Program) -> _Tables:
    others = None
    if len(program.stream_ready_ns) > 1:
        others = [
            tuple(event for event in row if event != NO_EVENT) for row in program.after.tolist()
        ]
    first, count = program.first_event.tolist(), program.n_events.tolist()
    return _Tables(
        events=[range(a, a + n) for a, n in zip(first, count, strict=True)],
        stream=program.stream.tolist(),
        latency=program.latency_ns.tolist(),
        tail=program.tail_ns.tolist(),
        others=others,
    )


def _loop(
    program: Program,
    work: list[int],
    arrivals: dict[int, tuple[int, int]],
    call: list[int],
    waits: list[bool],
    occupied: list[int],
    meets: list[int] | None,
) -> Generator[Meeting, int, tuple[list[int], int]]:
    """The loop: when each event is done, and when the host is.

    Comparisons are written out: `max` would double the time of the whole analysis.
    """
    tables = _tables(program)
    stream, latency, others = tables.stream, tables.latency, tables.others
    turn = program.turnaround_ns
    ready = (program.stream_ready_ns + turn).tolist()
    end = [0] * len(occupied)
    wait_events = program.wait_events
    clock = program.host_start_ns
    for item, events in enumerate(tables.events):
        clock += work[item]
        if item in arrivals:
            came, left = arrivals[item]
            clock = max(clock, came + left)
        for event in events:
            s = stream[event]
            begin = clock + latency[event]
            if ready[s] > begin:  # noqa: PLR1730
                begin = ready[s]
            if others is not None:
                for earlier in others[event]:
                    if end[earlier] > begin:  # noqa: PLR1730
                        begin = end[earlier]
            if meets is not None and meets[event] >= 0:
                end[event] = yield Meeting(meets[event], event, begin)
            else:
                end[event] = begin + occupied[event]
            ready[s] = end[event] + turn
        clock += call[item]
        if waits[item]:
            tail = tables.tail[item]
            for event in wait_events[item]:
                if end[event] + tail > clock:  # noqa: PLR1730
                    clock = end[event] + tail
    return end, clock
