"""A run as causes look at it: everything that is computed of it, in one place.

The bands are those that the field agrees on (XProf 5 and 20 % for input, TensorBoard's plugin 5 %
for the loader, TraceML 10 and 20 %): under 5 % of the step a cause is not named, and a finding
whose gain is from 20 % of it is critical, from 5 % a warning, and below a note.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuprof.analyzers.account import RankAccount, mean_step_ms
from gpuprof.analyzers.facts import RunFacts
from gpuprof.analyzers.group_skew import GroupSkew
from gpuprof.analyzers.loader_limit import loader_limit
from gpuprof.analyzers.pricing import Price, gain_of, mean_price, trusted
from gpuprof.analyzers.recorded_window import READY_FROM, RecordedWindow
from gpuprof.analyzers.roofline import RooflineSummary
from gpuprof.analyzers.why_late import RankParts
from gpuprof.analyzers.wording import milliseconds, percent
from gpuprof.diagnosis import Bound, Gain, NotJudged, Window

if TYPE_CHECKING:
    from gpuprof.analyzers.joint import JointPricing
    from gpuprof.analyzers.late_hosts import LateHosts
    from gpuprof.analyzers.ranks import RankComparison

NAMED_FROM = 0.05
CRITICAL_FROM = 0.20
"""Shares of the step; see the module's docstring."""

NAMED_WITHOUT_STEPS = 0.10
"""A recording without steps is one stretch with one-off work in it; what holds 5 % of that need
not come back in every step, so it takes twice as much to name a cause."""

LEAST_GAIN = 0.02
"""A cause whose removal alone makes the step less than 2 % shorter is not worth a reader's time."""

MOST_WINDOWS = 3
"""Places in the timeline that one piece of evidence points at."""

ALONE = "record on a machine that nothing else uses"
"""What to do where other processes hide what the run itself does."""

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, accounted. ranks: at least one. comparison: None with a single rank. joint: the
    pricing of all ranks together, None with a single rank or where they can't be replayed so.
    parts: rank -> what it does in an average step, empty with a single rank. skews: uneven groups.
    late_hosts: ranks that the others wait for because of their hosts, None where there are none.
    missing: why the busy time of the device isn't in the recording, "" where it is; then nothing
    is judged. told: rank -> what gpuprof's own recorder says of the window, where it recorded;
    step_us: rank -> lengths of all steps of the run, likewise."""

    ranks: tuple[RankAccount, ...]
    roofline: RooflineSummary
    facts: RunFacts
    bound: Bound
    comparison: RankComparison | None = None
    joint: JointPricing | None = None
    missing: str = ""
    parts: Mapping[int, RankParts] = field(default_factory=dict)
    told: Mapping[int, RecordedWindow] = field(default_factory=dict)
    skews: tuple[GroupSkew, ...] = ()
    late_hosts: LateHosts | None = None
    step_us: Mapping[int, I64] = field(default_factory=dict)

    @property
    def first(self) -> RankAccount:
        return self.ranks[0]

    @property
    def has_device(self) -> bool:
        """Whether any rank ran on a device other than the CPU."""
        return any(len(device.events) for rank in self.ranks for device in rank.devices)

    @property
    def is_replayed_together(self) -> bool:
        """Whether prices come from all ranks at once: then nobody's wait is taken for his own."""
        return self.joint is not None and trusted(self.joint)

    @property
    def late_ranks(self) -> tuple[int, ...]:
        """Ranks that the others wait for, ascending: by the order in which they come to
        collectives, or by what their own hosts cost."""
        by_order = self.comparison.late_ranks if self.comparison is not None else ()
        by_host = self.late_hosts.ranks if self.late_hosts is not None else ()
        return tuple(sorted({*by_order, *by_host}))

    @property
    def has_steps(self) -> bool:
        return self.first.main.steps.source != "none"

    @property
    def each_step(self) -> str:
        """What shares are shares of, in a sentence: without steps there is only the recording."""
        return "each step" if self.has_steps else "the recording"

    def time_of(self, share: float) -> str:
        """A share as time: "58.7 ms of each 177.6 ms step"."""
        whole_ms = self.step_ms()
        whole = f"each {milliseconds(whole_ms)} step"
        if not self.has_steps:
            whole = f"the recorded {milliseconds(whole_ms)}"
        return f"{milliseconds(share * whole_ms)} of {whole}"

    @property
    def ready_frac(self) -> float:
        """Share of the recorded time that a thread of the loop stood ready while other processes
        had its core: that of the rank that had it worst, 0 where it was not recorded."""
        return max((window.ready_frac for window in self.told.values()), default=0.0)

    def may_be_others(self, cause: str, share: float) -> NotJudged | None:
        """Where time in which ranks wait for each other, not always for the same one, can't be told
        from other processes' doing: then nothing is said of the cause.

        Where the CPU is the device, a rank that is put off its core lets the others wait. It may
        have cost as much of the step as the rank stood ready for a core.
        """
        ready = self.ready_frac
        if self.has_device or ready < READY_FROM or share - ready >= self.named_from:
            return None
        return NotJudged(
            cause=cause,
            missing=f"{percent(share)} of the step passes in waiting, for no rank in particular,"
            f" and other processes had the cores {percent(ready)} of the time",
            command=ALONE,
        )

    @property
    def named_from(self) -> float:
        """The share of the step from which a cause is named."""
        return NAMED_FROM if self.has_steps else NAMED_WITHOUT_STEPS

    def share(self, *buckets: str) -> float:
        """Mean share of the step in some buckets, over ranks."""
        shares = [rank.main.budget.frac() for rank in self.ranks]
        return sum(share[bucket] for share in shares for bucket in buckets) / len(shares)

    def share_behind_communication(self, share: float, *removed: str) -> float:
        """A share of the step, with the time added in which a collective hides the cause.

        A rank that waits in a collective for late hosts is busy, so their lateness shows as exposed
        communication. Where free communication would save nothing and the removal of the cause
        more than its share, that part of the communication is the cause's.

        Args:
            share: What the budget charges to the cause.
            removed: Its parts of the step (see `gpuprof.analyzers.pricing`).
        """
        exposed = self.share("communication")
        if self.comparison is None or share + exposed < self.named_from:
            return share
        communication, own = self.price("communication"), self.price(*removed)
        if communication is None or own is None or communication.reduction >= LEAST_GAIN:
            return share
        return min(max(own.reduction, share), share + exposed)

    def share_behind_waits(self, share: float, *removed: str) -> float:
        """A share of the step, with the time of other waits that the cause keeps from being hidden.

        Loading in the training process costs nothing while the device still has work queued. What
        empties the queue, or keeps it from being filled, brings that wait out: the budget charges
        it to the loader, though either of both would end it.

        Args:
            share: What the budget charges to the cause.
            removed: Its parts of the step (see `gpuprof.analyzers.pricing`).
        """
        exposed = self.share("input", "checkpoint")
        if share >= self.named_from or share + exposed < self.named_from:
            return share
        own = self.price(*removed)
        if own is None or own.reduction < self.named_from:
            return share
        return min(own.reduction, share + exposed)

    def share_after_calls(self, share: float) -> float:
        """The host's share of the step, with the time added that the device idles after blocking
        calls because the host is slow to get ahead again.

        The budget charges such a stretch to the call that drained the queue. Most of it is the
        call's where calls that do not wait would save as much; where a host that takes no time
        would save more than that, its length is the host's doing.

        Args:
            share: What the budget charges to the host.
        """
        after = self.share("sync")
        if after < LEAST_GAIN or share + after < self.named_from:
            return share
        host, calls = self.price("host", "allocator"), self.price("sync")
        if host is None or calls is None or host.reduction < calls.reduction + LEAST_GAIN:
            return share
        return min(max(host.reduction, share), share + after)

    def share_of(self, rank: RankAccount, *buckets: str) -> float:
        share = rank.main.budget.frac()
        return sum(share[bucket] for bucket in buckets)

    def step_ms(self) -> float:
        """Mean length of the accounted steps, over ranks."""
        return mean_step_ms(self.ranks)

    def ranks_with(self, *buckets: str) -> tuple[int, ...]:
        """The ranks that are held by these buckets for at least the lower band."""
        return tuple(r.rank for r in self.ranks if self.share_of(r, *buckets) >= self.named_from)

    def price(self, *removed: str, profiled: bool = True) -> Gain | None:
        """What removing parts of the step saves (see `gpuprof.analyzers.pricing`): all ranks
        replayed together, or else the mean over ranks. None when a rank can't be replayed, or not
        well enough."""
        price = self.priced(*removed, profiled=profiled)
        return None if price is None else gain_of(price, self.step_ms())

    def priced(self, *removed: str, profiled: bool = True) -> Price | None:
        """As `price`, step by step."""
        if self.joint is not None and self.is_replayed_together:
            return self.joint.without(*removed, profiled=profiled)
        prices = self.prices(*removed, profiled=profiled)
        return None if prices is None else mean_price(prices)

    def price_without_waiting_for(self, late_ranks: Collection[int]) -> Gain | None:
        """What the other ranks save when they need not wait for some late ones. None where the
        ranks were not replayed together."""
        if self.joint is None or not trusted(self.joint):
            return None
        late = [i for i, rank in enumerate(self.ranks) if rank.rank in late_ranks]
        return gain_of(self.joint.without_waiting_for(late), self.step_ms())

    def limited(self, gain: Gain) -> Gain:
        """A gain of a repair that leaves the loader as it is: no larger than the loader allows (see
        `gpuprof.analyzers.loader_limit`)."""
        limit = loader_limit(self.told, self.facts.loader_workers, self.step_ms())
        return gain if limit is None else limit.apply(gain, self.step_ms())

    def prices(self, *removed: str, profiled: bool = True) -> list[Price] | None:
        """As `price`, for every rank on its own."""
        pricings = [rank.main.pricing for rank in self.ranks]
        if any(p is None or not trusted(p) for p in pricings):
            return None
        return [p.without(*removed, profiled=profiled) for p in pricings if p is not None]

    def window(self, rank: RankAccount, start_ns: int, end_ns: int) -> Window:
        return Window(start_ns=int(start_ns), end_ns=int(end_ns), rank=rank.rank)

    def longest_gaps(self, rank: RankAccount, bucket: str) -> tuple[Window, ...]:
        """The gaps of the main device that are charged most to a bucket, longest first."""
        gaps = rank.main.budget.gaps
        part = gaps.parts[bucket]
        longest = [int(i) for i in part.argsort()[::-1][:MOST_WINDOWS] if part[i] > 0]
        return tuple(self.window(rank, int(gaps.start_ns[i]), int(gaps.end_ns[i])) for i in longest)
