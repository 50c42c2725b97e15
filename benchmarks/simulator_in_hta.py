"""Whether the simulator's traces pass through Holistic Trace Analysis without error.

    HTA_PYTHON benchmarks/simulator_in_hta.py FOLDER…

Each FOLDER holds the traces of one run (`python benchmarks/simulator_in_hta.py --write FOLDER`
with gpuprof's own Python makes five of them, one a kind, below FOLDER). Runs HTA's breakdowns of
time, idle time and kernels, and its overlap of communication.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write(folder: Path) -> None:
    """One healthy run of each kind."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from fixtures.simulator import KINDS, draw_run, simulate, write_traces

    for kind in KINDS:
        place = folder / kind
        place.mkdir(parents=True, exist_ok=True)
        write_traces(simulate(draw_run(kind, 1)), place)


def check(folder: Path) -> None:
    """Raises where HTA does."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    analysis = TraceAnalysis(trace_dir=str(folder))
    ranks = list(analysis.t.traces)
    times = analysis.get_temporal_breakdown(visualize=False)
    assert len(times) == len(ranks), "a rank is missing"
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    if len(ranks) > 1:
        analysis.get_comm_comp_overlap(visualize=False)
    busy = (
        1
        - times["idle_time(us)"].sum()
        / times[["idle_time(us)", "compute_time(us)", "non_compute_time(us)"]].sum().sum()
    )
    print(f"{folder.name:12} {len(ranks)} ranks, busy {busy:.1%}: passes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for folder in options.folders:
        (write if options.write else check)(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
