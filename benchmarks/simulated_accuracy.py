"""How often the verdict is right on simulated runs, whose causes and true gains are known.

    python benchmarks/simulated_accuracy.py [--quick | --full] [--write docs/accuracy.md] [--list]

A grid: 8 causes × severity × kind of run × noise, healthy runs, and pairs of causes. What a finding
promises is compared with the same draw, run again with that very cause repaired. Every run is
judged twice: as gpuprof's own recording of it, and as its bare traces. A finding is
wrong when the repaired twin is less than 2 % faster; a run counts as healthy when no repair would
save 5 %, as one with the cause when its repair does.
"""

from __future__ import annotations

import argparse
import platform
import re
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.simulator import CAUSES, KINDS, Run, draw_run, simulate, write_traces
from fixtures.simulator.faults import FITS, VARIANTS, draw_planted, lost_share, plant_share
from fixtures.simulator.lasting import LAPS, last_lap, lasting
from fixtures.simulator.live import WAITING_FRAC, WAITING_RUNS, watched_loader, write_run
from fixtures.simulator.machine import Simulated
from gpuprof.api import analyze
from gpuprof.diagnosis import Diagnosis, Finding

WRONG_BELOW = 0.02
PRESENT_FROM = 0.05
MATTERS_FROM = 0.10
"""Shares of the step; the first two are the analyzers' own bands, the last one the issue's."""

PAIRS = (
    ("host-overhead", "checkpoint"),
    ("memcpy", "checkpoint"),
    ("sync-points", "nccl-wait"),
    ("memcpy", "nccl-wait"),
)
"""One after the other: the second is planted until its own repair would save 20 %."""

WITH_LOADER = ("sync-points", "checkpoint", "nccl-wait", "memcpy")
LOADER = {"loading": "main-thread", "behind": "workers", "hidden": "workers"}
"""Causes beside a slow loader. "loading": it works in the training process, so that both cost.
"behind": worker processes set the pace, planted after the other cause, which their wait hides:
its repair alone saves nothing once the run has lasted.
"hidden": the other cause is planted until it hides the workers' wait, so that a recording shows
nothing of a limit that the repair brings out."""

LASTING = ("behind", "hidden")
"""Runs whose worker processes set the pace, now or after a repair. Six steps after the start show
less or more of it than the workers' mean pace, as they take fewer batches than there are in stock:
what is recorded of such a run, and its true gain, come from one that has lasted for long."""

BOUND_SLACK = 1.0
"""Points of step time: a bound that is exceeded by less was exceeded by the replay's own error."""

NOTHING = Run(0, "", 0.0, ())

BINS = np.linspace(0.0, 1.0, 11)


@dataclass
class Case:
    """One run to judge. base: the run without its causes."""

    label: str
    kind: str
    run: Run
    base: Run
    planted: tuple[str, ...]
    variant: str = ""
    lost: float = 0.0


@dataclass
class Outcome:
    """truth: cause -> true gain, of what was planted or found. found: in gpuprof's own recording;
    bare: in the traces alone."""

    case: Case
    found: list[Finding]
    bare: list[Finding]
    not_judged: set[str]
    truth: dict[str, float]
    error: float | None


@dataclass
class Totals:
    first: list[bool] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)
    healthy: list[bool] = field(default_factory=list)
    pairs: list[bool] = field(default_factory=list)
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def cases(full: bool, shift: int = 0) -> Iterator[Callable[[], Case | None]]:
    """The grid, lazily: drawing a case simulates it some times. shift: added to all seeds."""
    severities = (0.12, 0.2, 0.35, 0.6) if full else (0.15, 0.4)
    noises = (0.05, 0.2, 0.4) if full else (0.2,)
    n_healthy = 30 if full else 10
    for kind in KINDS:
        for seed in range(n_healthy if kind != "pipeline" else n_healthy // 3):
            noise = (0.05, 0.2, 0.4)[seed % 3]
            yield partial(_healthy, kind, 1000 + shift + seed, noise)
    for cause in CAUSES:
        for kind in FITS[cause]:
            for variant in VARIANTS[cause]:
                if (variant == "bubble") != (kind == "pipeline") and variant == "bubble":
                    continue
                if kind == "inference" and variant == "item-in-backward":
                    continue  # it has none
                for severity in severities:
                    for seed, noise in enumerate(noises):
                        drawn = shift + 10 * seed + 1
                        yield partial(_single, cause, kind, variant, severity, drawn, noise)
    for seed in range(4 if full else 1):
        for first, second in PAIRS:
            for kind in FITS[first]:
                if kind in FITS[second] and kind != "inference":
                    yield partial(_pair, first, second, kind, 50 + shift + seed)
        for how, variant in LOADER.items():
            for other in WITH_LOADER:
                for kind in FITS[other]:
                    if kind in FITS["dataloader"]:
                        yield partial(_beside_loader, how, variant, other, kind, 50 + shift + seed)


def _healthy(kind: str, seed: int, noise: float) -> Case | None:
    run = draw_run(kind, seed, noise)
    if not is_healthy(run):
        return None  # such as a pipeline whose few micro-batches leave a bubble
    return Case(f"healthy {kind} seed {seed} noise {noise}", kind, run, run, ())


def _pair(first: str, second: str, kind: str, seed: int) -> Case:
    run, _ = plant_share(draw_run(kind, seed, 0.2), first, 0.2)
    run, lost = plant_share(run, second, 0.2)
    return Case(
        f"pair {first}+{second} {kind} seed {seed}", kind, run, run, (first, second), "", lost
    )


def _beside_loader(how: str, variant: str, other: str, kind: str, seed: int) -> Case:
    planted = (("dataloader", variant), (other, ""))
    run, lost = draw_run(kind, seed, 0.2), 0.0
    for cause, chosen in planted[::-1] if how == "behind" else planted:
        run, lost = plant_share(run, cause, 0.2, chosen)
    label = f"pair {how} dataloader+{other} {kind} seed {seed}"
    return Case(label, kind, run, run, ("dataloader", other), how, lost)


def is_healthy(run: Run) -> bool:
    """Whether no repair would save as much as a cause is named for. The band between `WRONG_BELOW`
    and this is neither."""
    causes = [cause for cause in CAUSES if run.kind in FITS[cause] and cause != "small-batch"]
    return all(lost_share(run, {cause}) < PRESENT_FROM for cause in causes)


def _single(cause: str, kind: str, variant: str, severity: float, seed: int, noise: float) -> Case:
    run, lost = draw_planted(kind, seed, noise, cause, severity, variant)
    graphs = False if kind == "inference" else None
    base = draw_run(kind, seed, noise, graphs=graphs)
    label = f"{cause} {variant} {kind} seed {seed} noise {noise} lost {lost:.2f}"
    return Case(label, kind, run, base, (cause,), variant, lost)


def judge(case: Case) -> Outcome:
    """Analyzes a case and asks the simulator for the truth. The outcome forgets the run."""
    lasts, recorded = case, case.run
    if case.variant in LASTING:
        lasts, recorded = replace(case, run=lasting(case.run)), last_lap(case.run)
    simulated = simulate(recorded)
    diagnosis = _diagnosed(simulated, live=True)
    bare = diagnosis
    if any(watched_loader(simulated, rank) for rank in simulated.ranks):
        bare = _diagnosed(simulated, live=False)
    step_ns = simulated.step_ns if lasts is case else simulate(lasts.run).step_ns
    truth: dict[str, float] = {}
    by_cause = {f.cause: f for f in (*bare.findings, *diagnosis.findings)}
    for cause in {*case.planted, *by_cause} & set(CAUSES):
        truth[cause] = true_gain(lasts, cause, by_cause.get(cause), step_ns)
    judged = replace(case, run=NOTHING, base=NOTHING)
    error = diagnosis.replay.error
    found = list(diagnosis.findings), list(bare.findings)
    return Outcome(judged, *found, _names(diagnosis), truth, error)


def _diagnosed(simulated: Simulated, *, live: bool) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        if live:
            write_run(simulated, Path(folder))
        else:
            write_traces(simulated, Path(folder))
        return analyze(folder)


def _names(diagnosis: Diagnosis) -> set[str]:
    return {n.cause for n in diagnosis.not_judged}


def true_gain(case: Case, cause: str, finding: Finding | None, step_ns: float) -> float:
    """What the repair that the finding speaks of really saves, share of the step."""
    times = 1
    repaired = {cause}
    if cause == "small-batch":
        repaired, times = set(), 2
        told = re.search(r"when (\d+) times", finding.gain.how if finding and finding.gain else "")
        times = int(told[1]) if told else times
    elif cause == "nccl-wait" and finding is not None and finding.late_ranks:
        if finding.gain is not None and "evened out" in finding.gain.how:
            repaired = {"imbalance"}
        elif case.planted == ("imbalance",):
            return 1.0 - simulate(case.base).step_ns / step_ns
        else:
            repaired = {"late-rank"}
    return 1.0 - simulate(case.run, repaired, times).step_ns / times / step_ns


def add_up(outcomes: list[Outcome]) -> Totals:
    """Counts what the issue asks for, and says what failed."""
    totals = Totals()
    for one in outcomes:
        names = [f.cause for f in one.found if f.cause in CAUSES]
        planted = one.case.planted
        said = ", ".join(
            f"{f.cause} share {f.share:.2f} gain "
            f"{'-' if f.gain is None else format(f.gain.reduction, '.2f')}"
            f" true {one.truth.get(f.cause, float('nan')):.2f}"
            for f in one.found
        )
        failed = ""
        if not planted:
            totals.healthy.append(not names)
            failed = "" if not names else "names something"
        elif len(planted) == 2:
            if all(one.truth[c] >= PRESENT_FROM for c in planted):
                totals.pairs.append(set(planted) <= set(names))
                failed = "" if totals.pairs[-1] else "misses one of two"
        elif one.case.lost >= MATTERS_FROM:
            totals.first.append(bool(names) and names[0] == planted[0])
            totals.found.append(planted[0] in names)
            totals.confusion[planted[0], names[0] if names else "nothing"] += 1
            failed = "" if totals.first[-1] else "first finding is another"
        wrong = [c for c in names if one.truth[c] < WRONG_BELOW and c not in planted]
        if wrong and not failed:
            failed = f"accuses {', '.join(wrong)}"
        off = [
            f.cause
            for f in one.found
            if f.gain and f.cause in one.truth and abs(f.gain.reduction - one.truth[f.cause]) > 0.1
        ]
        if off and not failed:
            failed = f"gain of {', '.join(off)} is off"
        if failed:
            totals.failures.append(f"{one.case.label}: {failed} [{said or 'nothing'}]")
    return totals


def gains(
    outcomes: list[Outcome], cause: str | None = None, *, bare: bool = False
) -> list[tuple[float, float, bool]]:
    """Predicted and true gain, points of step time, and whether only a bound was stated; of every
    finding with a gain. bare: of the traces alone."""
    return [
        (100 * f.gain.reduction, 100 * one.truth[f.cause], f.gain.at_most)
        for one in outcomes
        for f in (one.bare if bare else one.found)
        if f.gain is not None and f.cause in one.truth and cause in (None, f.cause)
    ]


def errors_of(pairs: list[tuple[float, float, bool]]) -> np.ndarray:
    """|predicted - true|, points of step time."""
    return np.array([abs(said - true) for said, true, _ in pairs])


def calibration(outcomes: list[Outcome]) -> tuple[float, list[tuple[float, float, int]]]:
    """Expected calibration error (Naeini et al. 2015), and per bin: stated, right, how many."""
    stated, right = [], []
    for one in outcomes:
        for f in one.found:
            if f.cause in one.truth:
                stated.append(f.confidence)
                right.append(one.truth[f.cause] >= WRONG_BELOW)
    if not stated:
        return 0.0, []
    said, is_right = np.array(stated), np.array(right, np.float64)
    which = np.clip(np.digitize(said, BINS) - 1, 0, len(BINS) - 2)
    rows = [
        (
            float(said[which == b].mean()),
            float(is_right[which == b].mean()),
            int((which == b).sum()),
        )
        for b in np.unique(which)
    ]
    return sum(n * abs(s - r) for s, r, n in rows) / len(said), rows


def frac(values: list[bool]) -> str:
    return frac_of(sum(values), len(values))


def frac_of(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def report(outcomes: list[Outcome], totals: Totals, command: str, spent_s: float) -> str:
    """The page."""
    ece, bins = calibration(outcomes)
    replay = np.array([one.error for one in outcomes if one.error is not None])
    lines = [
        "# How often gpuprof is right",
        "",
        f"Made by `{command}` on {platform.machine()}, Python {platform.python_version()}, in"
        f" {spent_s:.0f} s of CPU: {len(outcomes)} simulated runs (`fixtures/simulator`)."
        " True gains come from the same draw with the cause repaired. Pairs whose worker processes"
        f" set the pace, now or after a repair, last {LAPS} times as long, since a few steps take"
        " fewer batches than the workers have in hand: what is recorded of them is the last lap,"
        " and their true gains are those of all.",
        "",
        "Draws without `--shift` and those of `--shift 5000`, `6000`, `9000`, `12000`, `13000`,"
        " `14000` and `15000`"
        " were used to find and mend faults of the rules and of the simulator; others are the fair"
        " test until somebody does the same with them.",
        "",
        "A run hides a loader when its worker processes would be the limit as soon as the other"
        " cause is repaired, and every batch is there when it is asked for until then. A recording"
        " by gpuprof (session, run, attach) counts how long the workers were on a core and how many"
        " batches were missing at each fetch, and caps gains by that. It does not see for how long"
        f" workers wait for storage or network, which they do in {percent(WAITING_RUNS)} of the"
        f" runs, {percent(WAITING_FRAC[0])} to {percent(WAITING_FRAC[1])} of their time. A bare"
        " trace tells nothing of workers, so what it predicts for a run that has them is stated as"
        ' "at most", if the loader keeps up. All gains are counted below, stated as a bound or not,'
        " and no run is left out.",
        "",
        "| what | measured | goal |",
        "| --- | --- | --- |",
        "| one cause, at least 10 % of the step: first finding right"
        f" | {frac(totals.first)} | 99 % |",
        f"| the same: found at all | {frac(totals.found)} | |",
        f"| healthy: nothing named | {frac(totals.healthy)} | 99 % |",
        f"| pairs: both found | {frac(totals.pairs)} | 95 % |",
    ]
    for title, bare in (("recorded by gpuprof", False), ("bare traces", True)):
        lines += _gain_rows(outcomes, title, bare=bare)
    lines += [
        f"| expected calibration error of the confidence | {ece:.3f} | 0.05 |",
        "| unchanged replay off by more than 1 % |"
        f" {int((replay > 0.01).sum())} of {len(replay)} | |",
        "",
        "## By cause",
        "",
        "Precision: findings whose repair saves at least 2 %. Recall: found, where its repair saves"
        " at least 5 %. Not judged: of the latter. Of the findings that precision counts as wrong,"
        f" {_told_so(outcomes)} say themselves that their repair alone saves less than 2 %, since"
        " the loader is the limit.",
        "",
        "| cause | precision | recall | not judged | gain error, median | 95 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cause in CAUSES:
        named = [one for one in outcomes if cause in {f.cause for f in one.found}]
        good = [one.truth[cause] >= WRONG_BELOW for one in named]
        there = [
            one
            for one in outcomes
            if cause in one.case.planted and one.truth[cause] >= PRESENT_FROM
        ]
        hit = [cause in {f.cause for f in one.found} for one in there]
        silent = sum(cause in one.not_judged for one in there)
        own = errors_of(gains(outcomes, cause))
        gain = f"{np.median(own):.1f} | {np.percentile(own, 95):.1f}" if len(own) else "– | –"
        lines.append(f"| {cause} | {frac(good)} | {frac(hit)} | {silent} | {gain} |")
    lines += ["", "## First finding, by planted cause", "", "| planted | first finding | runs |"]
    lines += ["| --- | --- | --- |"]
    lines += [f"| {a} | {b} | {n} |" for (a, b), n in sorted(totals.confusion.items())]
    lines += ["", "## Confidence", "", "| stated | right | findings |", "| --- | --- | --- |"]
    lines += [f"| {s:.2f} | {r:.2f} | {n} |" for s, r, n in bins]
    lines += ["", "## Recorded runs with labels", "", real_cases(), ""]
    return "\n".join(lines)


def _told_so(outcomes: list[Outcome]) -> str:
    """How many of the findings whose repair saves next to nothing state a gain like that."""
    wrong = [
        f.gain is not None and f.gain.reduction < WRONG_BELOW
        for one in outcomes
        for f in one.found
        if f.cause in one.truth and one.truth[f.cause] < WRONG_BELOW
    ]
    return f"{sum(wrong)} of {len(wrong)}"


def _gain_rows(outcomes: list[Outcome], title: str, *, bare: bool) -> list[str]:
    """Rows of the table on predicted gains: all of them, then what makes them up."""
    pairs = gains(outcomes, bare=bare)
    errors = errors_of(pairs)
    if not len(errors):
        return []
    hidden = errors_of(gains([o for o in outcomes if o.case.variant == "hidden"], bare=bare))
    stated = errors_of([pair for pair in pairs if not pair[2]])
    bounds = [(said, true) for said, true, at_most in pairs if at_most]
    over = sum(true > said + BOUND_SLACK for said, true in bounds)

    def row(what: str, values: np.ndarray, part: float, goal: str = "") -> list[str]:
        if not len(values):
            return []
        name = "median" if part == 50 else f"{part}th percentile"
        measured = f"{np.percentile(values, part):.2f} points"
        return [f"| {title}: {what}, {name} | {measured} | {goal} |"]

    return [
        *row("error of the predicted gain", errors, 50, "3"),
        *row("error of the predicted gain", errors, 95, "10"),
        *row("of those in runs that hide a loader", hidden, 50),
        *row("of those in runs that hide a loader", hidden, 95),
        *row(f"of the {len(stated)} that are not stated as a bound", stated, 95),
        f"| {title}: stated as a bound, and the true gain is more than {BOUND_SLACK:.0f} points"
        f" above it | {frac_of(over, len(bounds))} | |",
    ]


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def real_cases() -> str:
    """Totals of `benchmarks/accuracy.py`, where its recordings are at hand."""
    from benchmarks.accuracy import DEFAULT_CASES, faults_of, read_cases

    if not (DEFAULT_CASES / "cases.jsonl").exists():
        return "Not at hand when this page was made."
    all_cases = read_cases(DEFAULT_CASES)
    right = 0
    for case in all_cases:
        diagnosis = analyze(*(DEFAULT_CASES / name for name in case["files"]))
        right += not faults_of(diagnosis, case["expect"])
    return f"{right} of {len(all_cases)} are right (`python benchmarks/accuracy.py`)."


def _drawn_and_judged(draw: Callable[[], Case | None], only: str) -> Outcome | None:
    case = draw()
    return judge(case) if case is not None and only in case.label else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="some 200 runs (default)")
    size.add_argument("--full", action="store_true", help="some 800 runs")
    parser.add_argument("--write", type=Path, help="write the page there")
    parser.add_argument("--list", action="store_true", help="say each failure")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--shift", type=int, default=0, help="added to all seeds: other draws")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args()
    outcomes = []
    with ProcessPoolExecutor(max(options.jobs, 1)) as pool:
        drawn = list(cases(options.full, options.shift))
        for outcome in pool.map(_drawn_and_judged, drawn, repeat(options.only), chunksize=4):
            if outcome is not None:
                outcomes.append(outcome)
                if sys.stderr.isatty():
                    print(f"\r{len(outcomes)} runs", end="", file=sys.stderr)
    totals = add_up(outcomes)
    command = "python benchmarks/simulated_accuracy.py" + (" --full" if options.full else "")
    command += f" --shift {options.shift}" if options.shift else ""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    page = report(outcomes, totals, command, used.ru_utime + used.ru_stime)
    print(page)
    if options.list:
        print("\n".join(totals.failures))
    if options.write:
        options.write.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
