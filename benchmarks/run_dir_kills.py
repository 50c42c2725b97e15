"""SIGKILL at random moments: is the run directory readable, and what does it lack?

    python benchmarks/run_dir_kills.py [--times N]

A loop under a session with windows all the time is killed between 0 and 4 s after its session has
begun. A directory is good when `gpuprof.load` reads it, every trace in it is whole, and the step
log ends less than a second before the kill.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpuprof
from gpuprof.errors import GpuprofError

SCRIPT = """
import gpuprof, torch
from gpuprof.collectors.torch_profiler import Window
kinds = ("trace", "attribution") * 500
plan = [Window(kind=k, skip=3, steps=3, stacks=k != "trace") for k in kinds]
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("begins", flush=True)
with gpuprof.session("run", windows=plan, report=False):
    while True:
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
"""
BEFORE_FIRST_STEP_S = 0.3
"""A directory of which nothing can be read yet is no fault so early."""


def judge(folder: Path, killed_ns: int, lived_s: float) -> tuple[str, float | None]:
    """What is wrong with a directory ("" for nothing), and by how many seconds it is behind."""
    try:
        run = gpuprof.load(folder)
    except GpuprofError as error:
        return ("" if lived_s < BEFORE_FIRST_STEP_S else str(error)), None
    for paths in (*run.traces.values(), *run.attribution.values()):
        for path in paths:
            with gzip.open(path) as file:
                json.loads(file.read())
    damaged = [w for w in run.warnings if "damaged" in w]
    if damaged:
        return damaged[0], None
    lines = [json.loads(t) for p in run.steps.get(0, []) for t in p.read_bytes().splitlines()]
    rows = [line for line in lines if "us" in line]
    if not rows:
        return ("" if lived_s < 1 else "no step in the log"), None
    behind_s = (killed_ns - rows[-1]["t"]) / 1e9 - sum(rows[-1]["us"]) / 1e6
    return ("" if behind_s < 1 else f"the log ends {behind_s:.2f} s before the kill"), behind_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    good, behind = 0, []
    for number in range(options.times):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            child = subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert child.stdout is not None
            child.stdout.readline()
            lived_s = random.uniform(0, 4)
            time.sleep(lived_s)
            killed_ns = time.time_ns()
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            fault, late_s = judge(folder / "run", killed_ns, lived_s)
            good += not fault
            behind += [late_s] if late_s is not None else []
            if fault:
                print(f"{number}: killed after {lived_s:.2f} s: {fault}")
    print(f"{good} of {options.times} directories good")
    if behind:
        print(f"the step log ends at most {max(behind):.2f} s before the kill")
    return 0 if good == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
