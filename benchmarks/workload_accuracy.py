"""Planted faults, recorded by `gpuprof run`: found, placed, priced, and gone in the repaired form.

    python benchmarks/workload_accuracy.py [--repeats N] [--steps N] [WORKLOAD …]

For each workload that a CPU can show: the first finding of the planted form, whether the planted
cause is it, the line it names, whether the repaired form has it, the step time that is predicted
for the repair, and the one that the repaired form measures on its own (without gpuprof; medians of
its mean step over the repeats). Right is within 15 %.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuprof.diagnosis import Diagnosis, Finding, from_json

WORKLOADS = Path(__file__).resolve().parents[1] / "fixtures" / "workloads"
WITHIN = 0.15
RESULT = re.compile(r"median_step_ms=(\S+) mean_step_ms=(\S+)")


@dataclass(frozen=True)
class Planted:
    """A workload. line: what the named line has to be in (a function, or part of the line)."""

    script: str
    cause: str
    line: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1


PLANTED = {
    "in-process": Planted("slow_loader.py", "dataloader", "decode|__getitem__|in enumerate"),
    "too-few-workers": Planted(
        "slow_loader.py", "dataloader", "in enumerate|main", ("--variant", "too-few-workers")
    ),
    "slow-worker": Planted(
        "slow_loader.py", "dataloader", "in enumerate|main", ("--variant", "slow-worker")
    ),
    "collate": Planted(
        "slow_loader.py", "dataloader", "collate|__getitem__|in enumerate", ("--variant", "collate")
    ),
    "disk": Planted(
        "slow_loader.py", "dataloader", "__getitem__|in enumerate", ("--variant", "disk")
    ),
    "item": Planted("item_sync.py", "host-overhead", "count_pairs|for .* in"),
    "python": Planted("python_overhead.py", "host-overhead", "by_the_piece|step|gates"),
    "checkpoint": Planted("blocking_checkpoint.py", "checkpoint", "write|save|fsync"),
    "late-rank": Planted("late_rank.py", "nccl-wait", "cleaned", ranks=2),
    "imbalance": Planted("imbalance.py", "imbalance", "main|model", ranks=2),
}


def command(planted: Planted, steps: int, *, fixed: bool) -> list[str]:
    launcher = [sys.executable]
    if planted.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc-per-node={planted.ranks}"]
    switch = ["--fixed"] if fixed else []
    script = os.fspath(WORKLOADS / planted.script)
    return [*launcher, script, "--steps", str(steps), *planted.arguments, *switch]


def measured_ms(planted: Planted, steps: int, *, fixed: bool) -> float:
    """The mean step that a workload measures itself, without gpuprof."""
    done = subprocess.run(
        command(planted, steps, fixed=fixed), capture_output=True, text=True, check=True
    )
    found = RESULT.search(done.stdout)
    assert found is not None, done.stdout
    return float(found[2])


def diagnosed(planted: Planted, steps: int, *, fixed: bool) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        recorded = [sys.executable, "-m", "gpuprof", "run", "--quiet", "--out", folder, "--"]
        done = subprocess.run(
            [*recorded, *command(planted, steps, fixed=fixed)],
            capture_output=True,
            text=True,
            check=False,
        )
        path = Path(folder) / "diagnosis.json"
        assert path.is_file(), done.stderr
        return from_json(path.read_bytes())


def place(finding: Finding) -> str:
    """File, line and function of the first place, with the line itself."""
    if not finding.where:
        return "–"
    where = finding.where[0]
    path = WORKLOADS / Path(where.file).name
    lines = path.read_text().splitlines() if path.is_file() else []
    text = lines[where.line - 1].strip() if where.line and where.line <= len(lines) else ""
    return f"{Path(where.file).name}:{where.line} {where.function} | {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*PLANTED, []])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    right = 0
    chosen = options.only or list(PLANTED)
    columns = ("step", "predicted", "fixed")
    print(
        f"{'workload':16} {'first':14} {'fixed has it':12}" + "".join(f"{c:>10}" for c in columns)
    )
    for name in chosen:
        planted = PLANTED[name]
        found, repaired = (diagnosed(planted, options.steps, fixed=f) for f in (False, True))
        target = [f for f in found.findings if f.cause == planted.cause]
        first = found.findings[0].cause if found.findings else "none"
        still = planted.cause in {f.cause for f in repaired.findings}
        fixed_ms = statistics.median(
            measured_ms(planted, options.steps, fixed=True) for _ in range(options.repeats)
        )
        gain = target[0].gain if target else None
        at = place(target[0]) if target else "–"
        is_near = gain is not None and abs(gain.step_ms / fixed_ms - 1) <= WITHIN
        placed = re.search(planted.line, at) is not None
        good = first == planted.cause and not still and is_near and placed
        right += good
        predicted = f"{gain.step_ms:10.1f}" if gain is not None else f"{'–':>10}"
        step = found.replay.measured_ms or 0.0
        print(
            f"{name:16} {first:14} {'YES' if still else 'no':12} {step:10.1f}{predicted}"
            f"{fixed_ms:10.1f}  {'right' if good else 'WRONG'}  {at}",
            flush=True,
        )
    print(f"\n{right} of {len(chosen)} right")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
