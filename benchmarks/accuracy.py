"""How often the verdict is right on recordings with labels: one row a case, then the totals.

    python benchmarks/accuracy.py [CASES] [CASE …]

CASES is a folder with `cases.jsonl` and the recordings it names (default: ../shared/cases/traces).
A case says what it expects: `bound` (any of), `must` and `must_not` (causes), `gain` (cause ->
range of the predicted reduction), `late_ranks`. A case is right when all of it holds, and when
every number that the diagnosis says twice is the same number.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from gpuprof.analyzers.wording import milliseconds
from gpuprof.api import analyze
from gpuprof.diagnosis import CAUSES, Diagnosis

DEFAULT_CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "traces"


def faults_of(diagnosis: Diagnosis, expect: dict[str, Any]) -> list[str]:
    """What a diagnosis gets wrong of what a case expects; empty when it is right."""
    found = {finding.cause: finding for finding in diagnosis.findings}
    faults = []
    if "bound" in expect and diagnosis.bound.class_ not in expect["bound"]:
        faults.append(f"bound {diagnosis.bound.class_}, not {'/'.join(expect['bound'])}")
    faults += [f"misses {cause}" for cause in expect.get("must", []) if cause not in found]
    faults += [f"accuses {cause}" for cause in expect.get("must_not", []) if cause in found]
    for cause, (low, high) in expect.get("gain", {}).items():
        gain = found[cause].gain if cause in found else None
        if gain is None:
            faults.append(f"no gain for {cause}")
        elif not low <= gain.reduction <= high:
            faults.append(f"gain of {cause} {gain.reduction:.3f}, not {low} to {high}")
    if "late_ranks" in expect:
        late = sorted({rank for finding in diagnosis.findings for rank in finding.late_ranks})
        if late != expect["late_ranks"]:
            faults.append(f"late ranks {late}, not {expect['late_ranks']}")
    if "steps" in expect and diagnosis.run.steps.source not in expect["steps"].split(" or "):
        faults.append(f"steps {diagnosis.run.steps.source}")
    faults += number_faults(diagnosis)
    named = [
        *found,
        *(r.cause for r in diagnosis.ruled_out),
        *(n.cause for n in diagnosis.not_judged),
    ]
    for cause in CAUSES:
        if named.count(cause) != 1:
            faults.append(f"{cause} appears {named.count(cause)} times")
    return faults


def number_faults(diagnosis: Diagnosis) -> list[str]:
    """Where one number has two values: a gain as share and as step, in the first sentence and in
    the joint saving; or a finding that stands above a graver one or one that saves more."""
    faults = []
    length = diagnosis.run.steps.length_ms or 0.0
    best = diagnosis.together
    gains = {f.cause: f.gain for f in diagnosis.findings if f.gain is not None}
    for name, gain in (*gains.items(), *([("together", best)] if best is not None else [])):
        if abs(gain.step_ms - length * (1 - gain.reduction)) > 1e-3 * length:
            faults.append(f"{name}: step of {gain.step_ms:.4g} ms is no {gain.reduction:.1%} less")
    if best is not None:
        said = milliseconds(length - best.step_ms)
        if f"up to {said}" not in diagnosis.headline:
            faults.append(f"the headline does not say that {said} could be saved")
        if any(gain.reduction > best.reduction + 1e-4 for gain in gains.values()):
            faults.append("one change saves more than all together")
    order = [("critical", "warning", "info").index(f.severity) for f in diagnosis.findings]
    if order != sorted(order):
        faults.append("a finding stands above a graver one")
    return faults


def read_cases(folder: Path) -> list[dict[str, Any]]:
    """The cases of a folder, in order."""
    text = (folder / "cases.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="?", type=Path, default=DEFAULT_CASES)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    cases = [c for c in read_cases(options.cases) if not options.only or c["id"] in options.only]
    right = replayed = trainings = 0
    print(f"{'case':27} {'bound':13} {'error':>7} {'CPU s':>6}  findings / what is wrong")
    for case in cases:
        begun = time.process_time()
        diagnosis = analyze(*(options.cases / name for name in case["files"]))
        spent = time.process_time() - begun
        faults = faults_of(diagnosis, case["expect"])
        right += not faults
        error = diagnosis.replay.error
        if len(case["files"]) == 1 and diagnosis.run.steps.source != "none":
            trainings += 1
            replayed += diagnosis.replay.trusted
        found = ", ".join(
            f"{f.cause} {f.gain.reduction:.2f}" if f.gain else f"{f.cause} –"
            for f in diagnosis.findings
        )
        print(
            f"{case['id']:27} {diagnosis.bound.class_:13}"
            f" {'–' if error is None else f'{error:.2%}':>7} {spent:6.2f}"
            f"  {'right' if not faults else 'WRONG: ' + '; '.join(faults)}  [{found}]"
        )
    print(f"\n{right} of {len(cases)} cases right")
    print(f"replay within 3 % on {replayed} of {trainings} single-rank cases with steps")
    return 0 if right == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
