"""How short a step the loader's worker processes allow, whatever else is repaired.

W workers make batches one after the other, each a W-th of them. If each is at work for a share u of
the measured step, they need u of it to make what one step uses up, so no repair of anything else
makes the step shorter than that: then the loader is the limit.

What a recording of gpuprof's own knows of u, from the ends of the window and the fetches in it:

- at least the share of time that the workers' main threads were on a core, or ready for one. Waits
  for storage or network are not in it.
- at least N / W and at most (N + 1) / W, with N the batches that were asked for and not there yet
  when the next one was asked for. Each fetch asks for one more, so a batch that takes m to make is
  still missing at the fetches within m: m lies between N and N + 1 steps. Whatever the workers wait
  for is in it.

A host that runs ahead of its device asks for batches faster than steps pass. So both are taken by
the step that the host saw, and then as a share of the step that is priced.

While the stock of batches still grows, as it does early in an epoch, workers are busier than the
steps ask for: of what they made, only what was fetched counts.

A trace alone knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gpuprof.analyzers.recorded_window import RecordedWindow
from gpuprof.analyzers.wording import percent
from gpuprof.diagnosis import Gain
from gpuprof.run import LoaderWork

GROWS_FROM = 2.0
"""Batches that the stock grew by in a window; fewer are the chance of when a fetch comes."""

NOT_RECORDED = (
    "this is what it saves if the loader keeps up: how fast its worker processes could be is not"
    " in a trace, and a recording by gpuprof (session, run or attach) tells it"
)


@dataclass(frozen=True, slots=True)
class LoaderLimit:
    """The share of the measured step that the workers need for what it uses up: at least, and at
    most where that is known. workers: 0 where nothing was recorded of them."""

    workers: int = 0
    least_frac: float = 0.0
    most_frac: float = 1.0

    def apply(self, gain: Gain, step_ms: float) -> Gain:
        """The gain, no larger than the workers allow, and what it depends on.

        Args:
            gain: Of a repair that leaves the loader as it is.
            step_ms: The measured step.
        """
        most = 1.0 - self.least_frac
        if self.workers and gain.reduction > most:
            return msgspec.structs.replace(
                gain,
                step_ms=step_ms * (1.0 - most),
                reduction=most,
                low=min(gain.low, 1.0 - self.most_frac),
                high=min(gain.high, most),
                at_most=True,
                limit=f"then the loader is the limit: {self._told()}, so what one step uses up"
                f" takes them {percent(self.least_frac)} of the step as it is now",
            )
        if self.workers and gain.reduction <= 1.0 - self.most_frac:
            return gain
        limit = NOT_RECORDED
        if self.workers:
            more = "what they wait for, such as storage, may come on top"
            if self.most_frac < 1.0:
                more = f"at most {percent(self.most_frac)}"
            limit = f"this is what it saves if the loader keeps up: {self._told()}, and {more}"
            least = min(gain.low, 1.0 - self.most_frac)
            return msgspec.structs.replace(gain, low=least, at_most=True, limit=limit)
        return msgspec.structs.replace(gain, at_most=True, limit=limit)

    def _told(self) -> str:
        share = percent(self.least_frac)
        if self.workers == 1:
            return f"its worker process is at work at least {share} of the time"
        return f"its {self.workers} workers are at work at least {share} of the time"


def loader_limit(
    told: Mapping[int, RecordedWindow], loader_workers: int | None, step_ms: float
) -> LoaderLimit | None:
    """What the workers allow: of the rank whose workers have most to do, as all take the same
    steps. None where no worker processes load.

    Args:
        told: rank -> what gpuprof's own recorder says of the window.
        loader_workers: Of the run's facts: 0 for a loader in the training process, None without.
        step_ms: The measured step.
    """
    limits = [
        limit_of(window.loader, window.loader.span_ms / (window.steps * step_ms))
        for window in told.values()
        if window.loader is not None and window.steps * step_ms > 0
    ]
    if limits:
        return max(limits, key=lambda limit: limit.least_frac)
    return LoaderLimit() if loader_workers else None


def limit_of(work: LoaderWork, pace: float = 1.0) -> LoaderLimit:
    """The limit of one rank's loader.

    Args:
        work: What its workers did.
        pace: The step that the host saw, in measured steps.
    """
    least, most = work.busy_frac, 1.0
    if work.in_making is not None and work.workers > 0:
        least = max(least, work.in_making / work.workers)
        most = (work.in_making + 1.0) / work.workers
    used = work.fetches / (work.fetches + work.filled) if work.filled >= GROWS_FROM else 1.0
    least = min(max(least * used * pace, 0.0), 1.0)
    return LoaderLimit(work.workers, least, min(max(most * used * pace, least), 1.0))
