"""Measures how fast traces load: python benchmarks/load.py TRACE… [--repeat 3]

Prints for each trace the best CPU time, the wall time, events a second, and the peak of resident
memory, each run in a process of its own. The baseline row is `json.loads` of the same text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PROBE = """
import json, resource, sys, time
wall, cpu = time.perf_counter(), time.process_time()
if sys.argv[1] == "gpuprof":
    from gpuprof.readers.kineto import read_trace
    imported = time.process_time() - cpu
    rows = len(read_trace(sys.argv[2]))
else:
    import gzip
    data = open(sys.argv[2], "rb").read()
    imported = 0.0
    data = gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data
    rows = len(json.loads(data)["traceEvents"])
print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall,
                  "import": imported, "rows": rows,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def measure(kind: str, trace: Path) -> dict[str, float]:
    """One run in a fresh process: CPU and wall seconds, rows, peak bytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, kind, str(trace)], check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--baseline", action="store_true", help="also measure json.loads")
    options = parser.parse_args()
    print(
        f"{'trace':40} {'reader':8} {'rows':>10} {'CPU s':>7} {'wall s':>7} {'rows/s':>10}"
        f" {'MB':>7}"
    )
    for trace in options.traces:
        for kind in ("gpuprof", "json") if options.baseline else ("gpuprof",):
            runs = [measure(kind, trace) for _ in range(options.repeat)]
            best = min(runs, key=lambda run: run["cpu"])
            print(
                f"{'/'.join(trace.parts[-2:])[-40:]:40} {kind:8} {best['rows']:10,.0f} "
                f"{best['cpu']:7.2f} {best['wall']:7.2f} "
                f"{best['rows'] / best['cpu']:10,.0f} {best['peak'] / 1e6:7.0f}"
            )


if __name__ == "__main__":
    main()
