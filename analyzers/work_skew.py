"""How unevenly the ranks of a job compute, and how much of a pipeline's step is its bubble.

All ranks of a job take the same steps, so a rank that computes longer than the mean makes all the
others wait: what is lost is the longest compute time over ranks minus the mean one. A pipeline of P
stages that works on M micro-batches a step is idle for (P − 1) / (M + P − 1) of it while it fills
and drains, however even its stages are (Narayanan et al., Efficient large-scale language model
training on GPU clusters using Megatron-LM, 2021, section 2.2: the bubble is (P − 1) / M of the
ideal time, which is that share of the step).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import DeviceAccount, RankAccount
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.exposed import exposed_collectives
from gpuprof.analyzers.imbalance import Pattern, bubble_frac, judge_skew
from gpuprof.analyzers.intervals import covered, intersect, union
from gpuprof.analyzers.pricing import DevicePricing, Price, price_of, trusted
from gpuprof.analyzers.replay import Change, Replayed, replay
from gpuprof.distinct import is_in
from gpuprof.trace import Category

F64 = NDArray[np.float64]

SAME_WORK_FRAC = 0.25
"""When the number of thread blocks differs by less than a quarter of what the time differs by, the
work is the same and the device is slower."""

_SEND = re.compile(r"(?:nccl|rccl|gloo|xccl)?:?i?send(?!_?recv)", re.IGNORECASE)
_POINT_TO_POINT = re.compile(r"(?:nccl|rccl|gloo|xccl)?:?i?(?:send|recv)(?!.*all)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Skew:
    """Compute time over workers (ranks, or devices of one rank); arrays (n,).

    labels: their numbers. compute_ms: mean of a step. lost_frac: share of the step that is lost
    because the longest is longer than the mean. lasting_frac: the part of it that the mean of all
    steps shows. same_work: whether the longest one runs as many thread blocks as the others, None
    where grids were not recorded. pattern: see `gpuprof.analyzers.imbalance`; "data" moves from
    worker to worker.
    """

    labels: tuple[int, ...]
    compute_ms: F64
    step_ms: float
    lost_frac: float
    lasting_frac: float
    same_work: bool | None
    pattern: Pattern

    @property
    def heaviest(self) -> int:
        """Position of the worker that computes longest."""
        return int(np.argmax(self.compute_ms))

    @property
    def heavy(self) -> tuple[int, ...]:
        """Numbers of those nearer to the longest than to the mean."""
        middle = (float(self.compute_ms.max()) + float(self.compute_ms.mean())) / 2
        return tuple(
            label
            for label, ms in zip(self.labels, self.compute_ms.tolist(), strict=True)
            if ms > middle
        )

    @property
    def spread_frac(self) -> float:
        """Longest over mean compute time, minus 1."""
        return float(self.compute_ms.max() / max(float(self.compute_ms.mean()), 1e-9)) - 1.0


@dataclass(frozen=True, slots=True)
class Bubble:
    """A pipeline. stages: P. micro_batches: M of a step, None where it can't be told.

    idle_frac: mean share of the step in which a stage only waits in sends and receives.
    ideal_frac: (P − 1) / (M + P − 1).
    """

    stages: int
    micro_batches: int | None
    idle_frac: float

    @property
    def ideal_frac(self) -> float | None:
        if self.micro_batches is None:
            return None
        return bubble_frac(self.stages, self.micro_batches)


def rank_skew(accounts: Sequence[RankAccount]) -> Skew:
    """The skew of compute time over ranks, each on its main device."""
    return _skew(tuple(a.rank for a in accounts), [(a, a.main) for a in accounts])


def device_skew(account: RankAccount) -> Skew:
    """The skew of compute time over the devices of one process."""
    return _skew(tuple(d.index for d in account.devices), [(account, d) for d in account.devices])


def _skew(labels: tuple[int, ...], workers: list[tuple[RankAccount, DeviceAccount]]) -> Skew:
    per_step = [_compute_per_step(device) for _, device in workers]
    mean = np.array([float(one.mean()) if len(one) else 0.0 for one in per_step])
    lengths = [float(d.steps.length_ns.mean()) for _, d in workers if len(d.steps.length_ns)]
    step = float(np.mean(lengths)) if lengths else 0.0
    lasting = float(mean.max() - mean.mean()) / step if step else 0.0
    lost = lasting
    pattern: Pattern = "unknown"
    same_work = _same_work(workers, mean)
    if step and len({len(one) for one in per_step}) == 1:
        table = np.stack(per_step)
        lost = float((table.max(axis=0) - table.mean(axis=0)).mean()) / step
        if table.size and len(table) > 1:
            pattern = judge_skew(table, same_kernels=same_work).pattern
    # Workers of one job have steps of one length; of others, more than a step may be lost.
    lost, lasting = min(max(lost, lasting), 1.0), min(lasting, 1.0)
    return Skew(labels, mean / 1e6, step / 1e6, lost, lasting, same_work, pattern)


def _compute_per_step(device: DeviceAccount) -> F64:
    budget = device.budget
    kept: F64 = budget.per_step_ns["compute"][budget.steps.keep].astype(np.float64)
    return kept


def _same_work(workers: list[tuple[RankAccount, DeviceAccount]], mean: F64) -> bool | None:
    blocks = [_blocks(account, device) for account, device in workers]
    if any(count is None for count in blocks) or not mean.mean():
        return None
    counts = np.array(blocks, np.float64)
    longest = int(np.argmax(mean))
    more_time = mean[longest] / mean.mean() - 1.0
    more_work = counts[longest] / max(counts.mean(), 1.0) - 1.0
    return bool(more_work < SAME_WORK_FRAC * more_time)


def _blocks(account: RankAccount, device: DeviceAccount) -> float | None:
    """Thread blocks that the device runs in a step, None where grids were not recorded."""
    trace, steps, events = account.trace, device.steps, device.events
    if not len(events):
        return None
    start = account.launches.start_ns[events]
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    mine = (step >= 0) & steps.keep[np.clip(step, 0, len(steps) - 1)]
    mine &= ~account.is_communication[events] & ~account.is_copy[events]
    blocks = trace.device.blocks[events[mine]]
    if not len(blocks) or (blocks < 0).any():
        return None
    return float(blocks.sum()) / max(int(np.count_nonzero(steps.keep)), 1)


def price_evened_out(accounts: Sequence[RankAccount], skew: Skew) -> Price | None:
    """The step of the job if every rank computed as long as the mean; None where a rank can't be
    replayed.

    In each step the rank that computes longest is replayed with its kernels shortened to the mean
    of that step: all others wait for it already, so what it saves the job saves. Where the steps of
    the ranks can't be laid side by side, the rank with the longest mean stands for all steps.
    """
    heaviest = accounts[skew.heaviest]
    own = float(skew.compute_ms.max())
    if not own:
        return None
    every = [_compute_per_step(account.main) for account in accounts]
    if len({len(one) for one in every}) == 1 and len(every[0]):
        table = np.stack(every)
        mean = table.mean(axis=0)
        kept = [
            _replayed(a, np.minimum(mean / np.maximum(t, 1.0), 1.0))
            for a, t in zip(accounts, table, strict=True)
        ]
        pairs = [pair for pair in kept if pair is not None]
        if len(pairs) == len(accounts) and len({len(before) for before, _ in pairs}) == 1:
            before = np.stack([pair[0] for pair in pairs])
            saved = before - np.stack([pair[1] for pair in pairs])
            n_steps = before.shape[1]
            if n_steps == table.shape[1]:
                longest = np.argmax(table, axis=0)
                length = before.mean(axis=0)
                gone = saved[longest, np.arange(n_steps)]
                return price_of(Replayed(length), Replayed(length - gone))
    n_steps = len(_compute_per_step(heaviest.main))
    pair = _replayed(heaviest, np.full(n_steps, float(skew.compute_ms.mean()) / own))
    return None if pair is None else price_of(Replayed(pair[0]), Replayed(pair[1]))


def _replayed(account: RankAccount, frac: F64) -> tuple[F64, F64] | None:
    """Lengths of a rank's steps as they are, and with its kernels taking a part of their time.

    Args:
        account: The rank.
        frac: That part for each accounted step, (n_kept,).
    """
    main, pricing = account.main, account.main.pricing
    if pricing is None or not trusted(pricing):
        return None
    if isinstance(pricing, DevicePricing):
        program = pricing.program
        first, last = program.steps_used
        by_step = np.ones(len(main.steps))
        by_step[main.steps.keep] = frac
        computes = ~account.is_communication[program.source] & ~account.is_copy[program.source]
        part = np.where(computes, by_step[first : last + 1][program.event_step], 1.0)
        change = Change(device_ns=np.rint(program.dur_ns * part).astype(np.int64))
        return pricing.base.step_ns, replay(program, change).step_ns
    length = main.steps.length_ns.astype(np.float64)
    return length, length - _compute_per_step(main) * (1.0 - frac)


def find_bubble(accounts: Sequence[RankAccount]) -> Bubble | None:
    """The bubble of a pipeline, None where the ranks do not send to each other."""
    stages = 0
    idle = []
    sends = []
    for account in accounts:
        if not _sends(account):
            continue
        table = exposed_collectives(account)
        found = table.collectives
        if not (found.kind[table.mine] == int(CollectiveKind.SEND_RECV)).any():
            continue
        # A receive is under way long before the step that it is waited for in: all of them count,
        # each with its part in the accounted steps.
        mine = found.kind == int(CollectiveKind.SEND_RECV)
        stages += 1
        budget = account.main.budget
        spans = intersect(
            union(found.start_ns[mine], found.end_ns[mine]), budget.work.communication
        )
        held = covered(spans, budget.steps.start_ns, budget.steps.end_ns)[budget.steps.keep]
        idle.append(float(held.sum()) / max(budget.total_ns, 1))
        sends.append(_sends_per_step(account))
    if stages < 2:
        return None
    # The last stage sends nothing forward and the first nothing back: they send M times a step,
    # the stages between them 2 M times.
    known = [count for count in sends if count]
    micro_batches = min(known) if len(known) == stages else None
    return Bubble(stages, micro_batches, float(np.mean(idle)))


def _sends(account: RankAccount) -> bool:
    trace = account.trace
    if any(_POINT_TO_POINT.fullmatch(a.collective) for a in trace.collectives.values()):
        return True
    return bool(trace.name_mask(lambda name: ":" in name and _POINT_TO_POINT.match(name)).any())


def _sends_per_step(account: RankAccount) -> int:
    """Sends that a rank issues in a step, 0 where they can't be counted."""
    trace, steps = account.trace, account.main.steps
    host = is_in(trace.category, (int(Category.CPU_OP), int(Category.USER_ANNOTATION)))
    by_args = [row for row, a in trace.collectives.items() if _SEND.fullmatch(a.collective)]
    rows = np.array([row for row in sorted(by_args) if host[row]], np.int64)
    if not len(rows):
        named = trace.name_mask(lambda name: ":" in name and _SEND.match(name))
        rows = np.flatnonzero(named & host)
    step = np.searchsorted(steps.host_start_ns, trace.start_ns[rows], side="right") - 1
    counts = np.bincount(step[step >= 0], minlength=len(steps))[: len(steps)][steps.keep]
    return round(float(np.median(counts))) if len(counts) else 0
