"""How often `gpuprof compare` calls two starts of the same loop different.

    python benchmarks/compare_starts.py FOLDER [--workload small] [--starts 15]

Starts a small loop, or a planted workload by its name, again and again under `gpuprof run`, and
compares every pair of starts: 15 starts make 105 pairs. Every verdict but "no difference" is a
false alarm. Pairs share starts, so they are no 105 independent tries; the number of starts is told
beside them. Recordings that FOLDER holds already are used again. The machine's load is told, since
it is what makes starts differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

from gpuprof.analyzers.compare import compare_runs
from gpuprof.compare_runs import load_run

SMALL = """import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(256, 512)
for step in range({steps}):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
"""
"""The workload `small`: some ten ms a step, so that starting it is what takes the time."""


def record(folder: Path, workload: str, steps: int) -> None:
    """One start of the workload, recorded without stacks and samples."""
    loop = ["-m", f"gpuprof.workloads.{workload}", "--steps", str(2 * steps + 10)]
    if workload == "small":
        script = folder.parent / "small.py"
        script.write_text(SMALL.format(steps=2 * steps + 10), encoding="utf-8")
        loop = [str(script)]
    command = [
        sys.executable, "-m", "gpuprof", "run", "--out", str(folder), "--steps", str(steps),
        "--no-attribution", "--no-samples", "--no-report", "--",
        sys.executable, *loop,
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", default="small")
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    loads = []
    for start in range(options.starts):
        place = options.folder / f"{options.workload}-{start:03d}"
        if not (place / "manifest.json").exists():
            loads.append(os.getloadavg()[0])
            record(place, options.workload, options.steps)
    runs = [
        load_run(str(options.folder / f"{options.workload}-{start:03d}"))
        for start in range(options.starts)
    ]
    steps_ms = [run.diagnosis.run.steps.length_ms or 0.0 for run in runs]
    verdicts: Counter[str] = Counter()
    worst = 0.0
    widths = []
    for first, second in combinations(runs, 2):
        comparison = compare_runs(first.diagnosis, second.diagnosis, first.samples, second.samples)
        verdicts[comparison.verdict] += 1
        step = comparison.step
        if step is not None and step.low_ms is not None and step.high_ms is not None:
            widths.append((step.high_ms - step.low_ms) / 2 / (comparison.before.step_ms or 1.0))
            if comparison.verdict != "no difference":
                worst = max(worst, abs(step.change))
    pairs = sum(verdicts.values())
    same = verdicts["no difference"]
    print(f"{options.workload}: {options.starts} starts, {pairs} pairs; steps of"
          f" {min(steps_ms):.1f} to {max(steps_ms):.1f} ms")  # fmt: skip
    if loads:
        print(f"load while recording: {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} cores")
    print(f"no difference in {same} of {pairs} ({100 * same / pairs:.1f} %); {dict(verdicts)}")
    if widths:
        print(f"half of the interval: {100 * statistics.median(widths):.1f} % of the step (median)")
    if worst:
        print(f"the largest change that was called real: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
