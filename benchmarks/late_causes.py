"""Does a late rank's own budget name what makes it late? On simulated jobs, through their traces.

    python benchmarks/late_causes.py [--seeds 10] [--cost 0.15]

One rank of a data-parallel job gets a slower loader, more Python, more kernels, larger inputs (what
grows with the batch has more blocks and takes longer, the optimizer does not) or a slower device
(everything takes longer), so that the step is longer by a good share. "named" is how often the
largest reason is the planted one; the rank itself is known here, and `benchmarks/late_ranks.py`
measures how often it is found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.simulator.kineto import write_traces
from fixtures.simulator.machine import simulate
from fixtures.simulator.plan import Fetch, Launch, Loader, Op, Python, Run, Step
from fixtures.simulator.workloads import draw_run
from gpuprof.analyzers.diagnose import Recorded, view_of
from gpuprof.analyzers.late_reasons import reasons_of
from gpuprof.readers.kineto import read_trace

CAUSES = ("loader", "host", "more work", "larger inputs", "slow device")


def longer(op: Op, factor: float, *, all_kernels: bool) -> Op:
    if not isinstance(op, Launch):
        return op
    kernels = tuple(
        replace(
            k,
            dur_ns=int(k.dur_ns * factor),
            blocks=k.blocks if all_kernels else int(k.blocks * factor),
        )
        if k.grows or all_kernels
        else k
        for k in op.kernels
    )
    return replace(op, kernels=kernels)


def changed(ops: Step, cause: str, cost: float, step_ns: float) -> Step:
    """One step of the rank that is made late."""
    if cause == "loader":
        make = int((1 + 4 * cost) * step_ns)
        return tuple(replace(op, make_ns=make) if isinstance(op, Fetch) else op for op in ops)
    if cause == "host":
        places = [i for i, op in enumerate(ops) if isinstance(op, Launch)]
        at = {places[len(places) // 3], places[2 * len(places) // 3]}
        pause = int((0.5 + 3 * cost) * step_ns)
        out: list[Op] = []
        for i, op in enumerate(ops):
            out += [Python(pause, "late"), op] if i in at else [op]
        return tuple(out)
    if cause == "more work":
        out = []
        for i, op in enumerate(ops):
            again = isinstance(op, Launch) and op.kernels[0].grows and i % 3 == 0
            out += [op, op] if again else [op]
        return tuple(out)
    factor = 1 + 2 * cost
    return tuple(longer(op, factor, all_kernels=cause == "slow device") for op in ops)


def late_job(seed: int, cause: str, cost: float) -> tuple[Run, int] | None:
    run = draw_run("ddp", seed, 0.1)
    if run.n_ranks < 3:
        return None
    step_ns = simulate(run).step_ns
    late = seed % run.n_ranks
    steps = tuple(
        tuple(changed(ops, cause, cost, step_ns) if rank == late else ops for ops in of_rank)
        for rank, of_rank in enumerate(run.steps)
    )
    run = replace(run, steps=steps)
    if cause == "loader":
        run = replace(run, loader=Loader(1, run.loader.prefetch))
    return run, late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cost", type=float, default=0.15)
    arguments = parser.parse_args()
    right = total = 0
    for cause in CAUSES:
        answers: Counter[str] = Counter()
        seed = 0
        while sum(answers.values()) < arguments.seeds:
            seed += 1
            made = late_job(seed, cause, arguments.cost)
            if made is None:
                continue
            run, late = made
            with tempfile.TemporaryDirectory() as folder:
                paths = write_traces(simulate(run), Path(folder))
                view, _ = view_of(Recorded(tuple(read_trace(path) for path in paths)))
            reasons = reasons_of(view.parts, late, [late])
            answers[reasons[0].cause if reasons else "nothing"] += 1
        right, total = right + answers[cause], total + sum(answers.values())
        print(f"{cause:14} named {answers[cause]:3} of {sum(answers.values())}  {dict(answers)}",
              flush=True)  # fmt: skip
    print(f"{right} of {total} named")


if __name__ == "__main__":
    main()
