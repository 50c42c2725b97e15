"""Planted faults, found by `gpuprof attach` in scripts that run already and know nothing of it.

    python benchmarks/attach_workloads.py [--repeats N] [WORKLOAD …]

Every script of fixtures/workloads is started as a user would start it and attached to from outside.
One line a workload: the first finding, whether it is the planted cause, the line that it names and
whether that is the planted one, seconds from the command to the verdict and how many of them the
windows took, and whether the job goes on. Faults that only a GPU can show are right when the cause
is not claimed without one. Load average last: other work on the machine disturbs ranks and stalls.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workload_accuracy import PLANTED, WORKLOADS, Planted, place

from gpuprof.attach import targets
from gpuprof.diagnosis import Diagnosis, Finding, from_json

STEPS = "1000000"
START_S = 120.0
WARM_S = 3.0
"""A job's first steps are not like the rest."""

NEEDS_GPU = {
    "tiny-batch": Planted("tiny_batch.py", "small-batch", "main"),
    "host-copies": Planted("host_copies.py", "memcpy", "main"),
}
MORE_RANKS = {
    "late-rank-4": Planted("late_rank.py", "nccl-wait", "cleaned", ranks=4),
    "imbalance-4": Planted("imbalance.py", "imbalance", "main|model", ranks=4),
}
ALL = {**PLANTED, **NEEDS_GPU, **MORE_RANKS}


def function_at(finding: Finding) -> str:
    """The function that holds the first place: a comprehension is a function of its own in Python
    3.11, inside the one that its author wrote."""
    if not finding.where:
        return ""
    where = finding.where[0]
    path = WORKLOADS / Path(where.file).name
    if not path.is_file() or not where.line:
        return ""
    defs = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    around = [n for n in defs if n.lineno <= where.line <= (n.end_lineno or 0)]
    return max(around, key=lambda n: n.lineno).name if around else ""


@dataclass(frozen=True)
class Attached:
    """What came of one attachment. seconds: from the command to the verdict."""

    diagnosis: Diagnosis | None
    said: str
    seconds: float
    windows_s: float
    goes_on: bool


def start(planted: Planted, folder: Path) -> subprocess.Popen[bytes]:
    """The workload as its user starts it, without end."""
    launcher: list[str] = [sys.executable]
    if planted.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc-per-node={planted.ranks}"]
    return subprocess.Popen(
        [*launcher, os.fspath(WORKLOADS / planted.script), "--steps", STEPS, *planted.arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GPUPROF_SCRATCH": os.fspath(folder / "s")},
    )


def wait_for_ranks(pid: int, ranks: int) -> None:
    """Until all processes that train have loaded torch, and a little longer."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        found = targets.find(pid)
        ready = [t for t in found if targets.uses_torch(t.pid) and (ranks == 1 or t.has_rank())]
        for target in found:
            target.close()
        if len(ready) == ranks:
            break
        time.sleep(0.2)
    time.sleep(WARM_S)


def attached(planted: Planted) -> Attached:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = start(planted, folder)
        try:
            wait_for_ranks(job.pid, planted.ranks)
            out = folder / "run"
            command = [sys.executable, "-m", "gpuprof", "attach", "--pid", str(job.pid)]
            until = time.monotonic() + START_S
            while True:
                began = time.monotonic()
                done = subprocess.run(
                    [*command, "--out", out], capture_output=True, text=True, check=False
                )
                if "importing" not in done.stderr or time.monotonic() > until:
                    break
                shutil.rmtree(out, ignore_errors=True)
                time.sleep(1.0)
            seconds = time.monotonic() - began
            found = out / "diagnosis.json"
            records = [json.loads(p.read_text()) for p in sorted(out.glob("rank-*.json"))]
            windows = [w for record in records[:1] for w in record["windows"]]
            time.sleep(1.0)
            return Attached(
                diagnosis=from_json(found.read_bytes()) if found.exists() else None,
                said=" ".join(done.stderr.split())[-200:],
                seconds=seconds,
                windows_s=sum(w["step_ms"] * (w["steps"] + 1) for w in windows) / 1e3,
                goes_on=job.poll() is None,
            )
        finally:
            job.terminate()
            job.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*ALL, []])
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    chosen = (options.only or list(ALL)) * options.repeats
    right = 0
    print(
        f"{'workload':16} {'first finding':14} {'':6} {'line':6} {'late':6} {'verdict':>8}"
        f" {'windows':>8} {'on':3} {'load':>5}"
    )
    for name in chosen:
        planted = ALL[name]
        done = attached(planted)
        if done.diagnosis is None:
            print(f"{name:16} no verdict: {done.said}", flush=True)
            continue
        findings = done.diagnosis.findings
        first = findings[0].cause if findings else "none"
        if name in NEEDS_GPU:
            good = planted.cause not in {f.cause for f in findings}
            at, placed = "can be seen on a GPU only", "–"
        else:
            good = first == planted.cause
            at = f"{place(findings[0])} in {function_at(findings[0])}" if findings else "–"
            at = at.removeprefix("– in ")
            lined = re.search(planted.line, at) is not None
            has_line = bool(findings and findings[0].where and findings[0].where[0].line)
            placed = "–" if not has_line else "right" if lined else "WRONG"
        right += good and done.goes_on and placed != "WRONG"
        late = ",".join(str(r) for r in findings[0].late_ranks) if findings else ""
        print(
            f"{name:16} {first:14} {'right' if good else 'WRONG':6} {placed:6} {late:6}"
            f" {done.seconds:7.1f}s {done.windows_s:7.1f}s {'yes' if done.goes_on else 'NO':3}"
            f" {os.getloadavg()[0]:5.1f}  {at}",
            flush=True,
        )
    print(f"\n{right} of {len(chosen)} right")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
