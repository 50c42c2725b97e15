"""What `compare` answers: two runs side by side, as data (docs/compare.md describes each field).

Like `gpuprof.diagnosis`: nothing here computes, nothing here knows how it is shown.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Verdict = Literal["faster", "slower", "no difference", "identical", "unknown"]
State = Literal["gone", "smaller", "same", "larger", "new", "unclear", "unknown"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. step_ms: mean over its accounted steps and its ranks; of the whole
    recording where `source` is "none"."""

    inputs: tuple[str, ...]
    devices: tuple[str, ...]
    world_size: int
    steps: int
    source: str
    step_ms: float | None
    bound: str


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the mean step: after minus before in ms, and as a share of before. `low_ms`
    and `high_ms` are its interval at `level`, None where the noise is unknown. `waited_ms` is how
    much longer a step of after waited for a core that others had, 0 where that is not recorded."""

    change_ms: float
    change: float
    low_ms: float | None
    high_ms: float | None
    level: float
    method: str
    waited_ms: float = 0.0


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the step budget in ms of a step. `beyond_noise` is None where it is unknown."""

    bucket: str
    before_ms: float
    after_ms: float
    change_ms: float
    low_ms: float | None
    high_ms: float | None
    beyond_noise: bool | None


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that was found on either side: what it cost a step, and what removing it was priced
    at. A cost is None where that side could not judge the cause. The state is "unclear" where the
    noise is unknown and the difference could be noise."""

    cause: str
    state: State
    before_ms: float | None
    after_ms: float | None
    before_gain_ms: float | None
    after_gain_ms: float | None


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, copy or memset: ms and calls of a step of the first rank. None: not among the
    kernels that this side's table holds."""

    name: str
    kind: str
    before_ms: float | None
    after_ms: float | None
    change_ms: float
    before_calls: float | None
    after_calls: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `parts` holds all buckets, `kernels` those that changed most. `shrank` and
    `surfaced` name the buckets whose change is real, most first. `different` holds what the
    recordings say of the runs, where they differ: name -> (before, after)."""

    schema: int = SCHEMA_VERSION
    gpuprof: str
    verdict: Verdict
    before: Side
    after: Side
    step: StepChange | None
    parts: tuple[PartChange, ...]
    shrank: tuple[str, ...]
    surfaced: tuple[str, ...]
    causes: tuple[CauseChange, ...]
    kernels: tuple[KernelChange, ...]
    different: dict[str, tuple[str, str]]
    warnings: tuple[str, ...]


def to_json(comparison: Comparison) -> bytes:
    """The comparison as indented JSON, UTF-8, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"
