"""The answer: one `Diagnosis`, whatever door the question came in by.

Findings are data. Nothing here knows about HTML, colours or terminals, and nothing here computes:
`gpuprof.analyzers` fills these structures, `gpuprof.reports` shows them, and `to_json` writes the
schema that other programs rely on (docs/diagnosis.md). A change of a field is a change of
`SCHEMA_VERSION` and a line in CHANGELOG.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from gpuprof.samples import Samples

SCHEMA_VERSION = 1

BoundClass = Literal["compute", "bandwidth", "input", "communication", "host", "mixed", "unknown"]
Severity = Literal["critical", "warning", "info"]

CAUSES: dict[str, int] = {
    "dataloader": 1,
    "small-batch": 2,
    "sync-points": 3,
    "nccl-wait": 4,
    "host-overhead": 5,
    "memcpy": 6,
    "imbalance": 7,
    "checkpoint": 8,
}
"""The eight known causes of low GPU utilization, and the number each goes by."""

BUCKETS: tuple[str, ...] = (
    "compute",
    "communication",
    "copy",
    "input",
    "sync",
    "checkpoint",
    "host",
    "communication_host",
    "allocator",
    "launch",
    "unknown",
)
"""Where a nanosecond of a step can go; every nanosecond goes to exactly one."""


Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.000001)]
"""A part of a whole, 0 to 1 but for rounding. The range is checked where a diagnosis is read: one
that was written by hand must not pass a gate with a share below nothing."""

Sum = Annotated[float, msgspec.Meta(ge=0.0)]
"""A share that older versions wrote as a sum of parts that may overlap: it could pass the whole."""

Milliseconds = Annotated[float, msgspec.Meta(ge=0.0)]
"""A length of time, checked where a diagnosis is read."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the user's code. `share` is the part of the step that this line is charged with."""

    file: str
    line: int | None = None
    function: str = ""
    code: str = ""
    share: float | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the run that a reader can be taken to, in ns since the epoch."""

    start_ns: int
    end_ns: int
    rank: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured fact. `text` is a whole sentence that already holds the number.

    `unit` says what `value` is a number of, for example "share of step", "ms", "calls per step".
    `source` is the recording it was read from: trace, nvml, host, nccl-log, stacks.
    """

    text: str
    value: float | None = None
    unit: str = ""
    source: str = "trace"
    windows: tuple[Window, ...] = ()


class Gain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What removing the cause saves, from the replay.

    `step_ms` is the predicted step. `reduction` is the share of the step that goes, `low` and
    `high` its range over the steps of the window. `how` says what was changed in the replay.
    `at_most` is whether a limit that the replay does not know may make it smaller, and `limit` says
    which.
    """

    step_ms: Milliseconds
    reduction: Share
    low: Share
    high: Share
    how: str = ""
    at_most: bool = False
    limit: str = ""


class Fix(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to change, the first one first. `code` can be pasted; `cost` says what it takes."""

    title: str
    detail: str
    code: str = ""
    cost: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that was found: what it costs, why we think so, where it is and what to do."""

    cause: str
    number: int | None
    title: str
    severity: Severity
    confidence: Share
    share: Share
    gain: Gain | None
    where: tuple[Place, ...] = ()
    ranks: tuple[int, ...] = ()
    late_ranks: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()


class RuledOut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cause that was looked for and is not there, with the number that says so.

    `share` is what the rule measured: the same share of the step that a finding of the cause would
    quote. None where it measured none.
    """

    cause: str
    why: str
    share: Share | None = None


class NotJudged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cause that the recording cannot show. `missing` names the input. `command` says how to
    record it: prose, with what is to be typed between backticks."""

    cause: str
    missing: str
    command: str = ""


class ExcludedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was left out of the account, and why."""

    step: str
    rank: int | None
    why: str


class StepsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that the account covers. Shares of the budget and gains are shares of the mean.

    `parts_ms` is what each step spent in each bucket, mean over ranks: bucket -> one value a step;
    buckets that no step has are left out. It is what a later comparison knows the noise from.
    """

    count: int
    source: Literal["ProfilerStep", "session", "inferred", "none"]
    median_ms: Milliseconds | None
    mean_ms: Milliseconds | None = None
    excluded: tuple[ExcludedStep, ...] = ()
    parts_ms: dict[str, tuple[Milliseconds, ...]] = msgspec.field(default_factory=dict)

    @property
    def length_ms(self) -> float | None:
        """What a share of 1 stands for: the mean step, else the median one."""
        return self.median_ms if self.mean_ms is None else self.mean_ms


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What ran."""

    world_size: int
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    steps: StepsSummary


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The resource whose infinite speed would shorten the step most. `also` names near ties.

    `reductions` is the share of the step that an infinitely fast resource would save, by resource.
    """

    class_: BoundClass = msgspec.field(name="class")
    also: tuple[str, ...] = ()
    confidence: Share = 0.0
    why: str = ""
    reductions: dict[str, Share] = msgspec.field(default_factory=dict)


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How well the replay reproduces the measured step; below 3 % error its gains are quoted."""

    measured_ms: Milliseconds | None
    replayed_ms: Milliseconds | None
    error: float | None
    trusted: bool


class Estimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all findings together could save: one replay with all of them removed, never a sum.

    `limit` says what else may make it smaller, as that of a `Gain`.
    """

    step_ms: Milliseconds
    reduction: Share
    limit: str = ""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on one device: its own budget and steps.

    `device` is the device's name, `device_index` its ordinal in the process (-1: the CPU is the
    device). `step_ms` has one value a step. `wait_frac` is time spent in nothing but waiting for
    another rank, None when there are no other ranks to compare with. `trace` is the input's index.
    """

    rank: int
    device: str
    device_index: int
    trace: int
    step_ms: tuple[Milliseconds, ...]
    budget: dict[str, Share]
    busy_frac: Share
    wait_frac: Sum | None = None
    late: bool = False
    roofline: dict[str, float] = msgspec.field(default_factory=dict)


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table of the heaviest device events (times over the accounted steps)."""

    name: str
    kind: str
    count: int
    total_ms: float
    mean_us: float
    share: float
    limit: str = ""
    achieved_frac: float | None = None


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read: enough to find it again and to know that it is the same one."""

    path: str
    kind: str
    size_bytes: int
    sha256: str
    events: int
    notes: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The whole answer. Each of the eight causes is in exactly one of `findings`, `ruled_out` and
    `not_judged`; `findings` is ranked, most gain first.

    In a notebook it shows itself, and `figures` draws it. What was sampled is no part of the answer
    and of its JSON, but rides along for the figures where `with_samples` has put it.
    """

    schema: int = SCHEMA_VERSION
    gpuprof: str
    inputs: tuple[str, ...]
    run: RunSummary
    bound: Bound
    budget: dict[str, Share]
    replay: ReplaySummary
    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    not_judged: tuple[NotJudged, ...]
    warnings: tuple[str, ...]
    headline: str = ""
    together: Estimate | None = None
    ranks: tuple[RankSummary, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    files: tuple[InputFile, ...] = ()
    facts: dict[str, str] = msgspec.field(default_factory=dict)

    def with_samples(self, samples: tuple[Samples, ...]) -> Diagnosis:
        """The same, with what was sampled over the run for `figures`."""
        other = msgspec.structs.replace(self)
        other.__dict__["samples"] = samples
        return other

    def figures(self, *, lang: str = "en") -> dict[str, Figure]:
        """Interactive plotly figures by name: see `gpuprof.reports.figures`."""
        made: dict[str, Figure] = _reports("figures").figures(
            self, self.__dict__.get("samples", ()), lang=lang
        )
        return made

    def _repr_html_(self) -> str:
        """The diagnosis as HTML, for notebooks: no script, no style but its own attributes."""
        shown: str = _reports("notebook").to_html(self)
        return shown


def _reports(module: str) -> Any:
    """A module of the reports, by name: the arrows of the code lead from there to here, and only
    the two methods for notebooks look back."""
    return import_module(f"gpuprof.reports.{module}")


def to_json(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as indented JSON, UTF-8, with a final newline (schema: docs/diagnosis.md)."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2) + b"\n"


def from_json(data: bytes) -> Diagnosis:
    """Reads what `to_json` wrote.

    Raises:
        msgspec.ValidationError: the data does not follow the schema, or holds a share outside of
            0 to 1 or a time below 0.
    """
    return msgspec.json.decode(data, type=Diagnosis)
