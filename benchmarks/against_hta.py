"""Load and full analysis against HolisticTraceAnalysis, on the same files in one run.

    python benchmarks/against_hta.py TRACE … [--hta PYTHON] [--repeat 3]

`--hta` is the interpreter of an environment that has `traceinsight` (HTA's present name) or
`HolisticTraceAnalysis`; give it twice to measure both. Each tool runs in a process of its own:
gpuprof reads, diagnoses and writes the HTML report and diagnosis.json; HTA loads and computes its
temporal, idle-time, communication-overlap and kernel breakdowns. CPU seconds (user and system, with
children) and peak memory of the largest process; the best of the repeats, ratios in the same run.
All run on cached bytecode: pip wrote HTA's, a run that is not measured writes ours.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HTA = """
import shutil, sys, tempfile, os
from hta.trace_analysis import TraceAnalysis
folder = tempfile.mkdtemp()
path = os.path.join(folder, os.path.basename(sys.argv[1]))
os.symlink(os.path.abspath(sys.argv[1]), path)
rank = int(sys.argv[2])
analysis = TraceAnalysis(trace_files={rank: path}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=[rank], visualize=False, show_idle_interval_stats=True)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
shutil.rmtree(folder)
"""

MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.stderr.buffer.write(status.stderr[-2000:])
print(status.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


@dataclass(frozen=True)
class Cost:
    """What one run of a tool took: CPU and wall seconds, peak memory of its largest process."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost | str:
    """Runs a command in a process of its own; says why when it fails."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=False
    )
    status, cpu, peak_kb = done.stdout.split()[-3:]
    if status != "0":
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"failed: {last[:80]}"
    return Cost(float(cpu), time.perf_counter() - begun, float(peak_kb) / 1024)


def best(command: list[str], repeat: int) -> Cost | str:
    """The cheapest of several runs: the machine's noise only adds."""
    runs = [measure(command) for _ in range(repeat)]
    good = [run for run in runs if isinstance(run, Cost)]
    return min(good, key=lambda run: run.cpu_s) if good else runs[0]


def row(name: str, cost: Cost | str, base: Cost | None) -> str:
    if isinstance(cost, str):
        return f"  {name:28} {cost}"
    ratio = (
        f"{cost.cpu_s / base.cpu_s:6.1f}x CPU {cost.peak_mb / base.peak_mb:5.1f}x memory"
        if base
        else ""
    )
    return (
        f"  {name:28} {cost.cpu_s:7.2f} s CPU {cost.wall_s:7.2f} s wall {cost.peak_mb:7.0f} MB"
        f"  {ratio}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--hta", action="append", default=[], help="interpreter with HTA installed")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    from gpuprof.readers.kineto import read_trace

    for trace in options.traces:
        read = read_trace(trace)
        print(f"{trace.name}: {len(read):,} complete events, {trace.stat().st_size / 1e6:.1f} MB")
        rank = str(read.meta.rank or 0)
        del read
        with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as bytecode:
            command = [sys.executable, "-X", f"pycache_prefix={bytecode}", "-m", "gpuprof"]
            command += ["analyze", os.fspath(trace), "--out", out]
            measure(command)
            ours = best(command, options.repeat)
            print(row("gpuprof analyze (with HTML)", ours, None))
            for page in Path(out).glob("report.html"):
                print(f"  report.html {page.stat().st_size / 1e6:.2f} MB")
        for python in options.hta:
            version = subprocess.run(
                [python, "-m", "pip", "list"], capture_output=True, text=True, check=False
            ).stdout
            name = next(
                (
                    " ".join(line.split())
                    for line in version.splitlines()
                    if line.lower().startswith(("traceinsight", "holistictraceanalysis"))
                ),
                "HTA",
            )
            theirs = best([python, "-c", HTA, os.fspath(trace), rank], max(1, options.repeat - 2))
            base = ours if isinstance(ours, Cost) else None
            print(row(name, theirs, base))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
