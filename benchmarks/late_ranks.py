"""How often the right rank is named, and how often an innocent one, on simulated jobs.

    python benchmarks/late_ranks.py [--trials 400] [--cost 0.05] [--seed 0]

Jobs have realistic noise with heavy tails and stalls (fixtures/rank_sim.py). "right" is the share
of runs with one late rank in which exactly that rank is accused, "told" that in which it is accused
or said to be one of which it can't be told, "other" that in which another one is. The rest are
shares of balanced runs in which any is accused: with the same noise, with batches that differ by
10 % from step to step, and with a long stall of some rank in every step.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.rank_sim import Job, Noise, draw_work, make_late, summaries
from gpuprof.analyzers.ranks import compare_summaries

MOST_VALUES = 12_000_000
"""Durations drawn for one line of the table; large jobs get fewer trials."""

SHAPES = (
    (2, 4, 40), (2, 10, 40), (4, 5, 40), (8, 1, 40), (8, 3, 40), (8, 5, 4), (8, 8, 10), (8, 10, 40),
    (64, 3, 40), (64, 6, 40), (512, 3, 40),
)  # fmt: skip

UNEVEN = Noise(step=0.1)
"""Batches differ by 10 % from step to step: large waits, and never for long for the same rank."""

STALLED = Noise(stalls=1.0)
"""One stall of nearly a third of a step in every step, of another rank each time."""


def run(
    job: Job, noise: Noise, trials: int, seed: int, late: dict[str, object]
) -> dict[str, float]:
    """Shares of runs in which the right rank alone, another one beside it, or any was accused."""
    right = told = extra = accused = 0
    for trial in range(trials):
        rng = np.random.default_rng((seed, job.n_ranks, job.n_steps, job.n_collectives, trial))
        work = draw_work(job, noise, rng)
        guilty = int(rng.integers(job.n_ranks))
        if late:
            work = make_late(work, job, guilty, **late)  # type: ignore[arg-type]
        compared = compare_summaries(summaries(work, job, noise, rng))
        found = compared.late_ranks
        right += found == (guilty,)
        told += guilty in found or (not found and guilty in [one.rank for one in compared.suspects])
        extra += any(rank != guilty for rank in found)
        accused += bool(found)
    counts = {"right": right, "told": told, "extra": extra, "accused": accused}
    return {name: count / trials for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--cost", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    noise = Noise()
    print(f"{'ranks':>6}{'steps':>6}{'coll.':>6}{'runs':>6}{'right':>8}{'first':>8}{'told':>8}"
          f"{'other':>8}{'even':>8}{'uneven':>8}{'stalls':>8}{'ms/run':>8}")  # fmt: skip
    for n_ranks, n_steps, n_each in SHAPES:
        job = Job(n_ranks, n_steps, n_each)
        trials = min(arguments.trials, max(20, MOST_VALUES // (n_ranks * n_steps * n_each)))
        begin = time.perf_counter()
        spread = run(job, noise, trials, arguments.seed, {"cost": arguments.cost})
        first = run(job, noise, trials, arguments.seed, {"cost": arguments.cost, "only": "first"})
        even, uneven, stalls = (
            run(job, kind, trials, arguments.seed + 1, {}) for kind in (noise, UNEVEN, STALLED)
        )
        took = (time.perf_counter() - begin) / (5 * trials) * 1e3
        print(
            f"{n_ranks:6d}{n_steps:6d}{n_each:6d}{trials:6d}{spread['right']:8.3f}"
            f"{first['right']:8.3f}{min(spread['told'], first['told']):8.3f}"
            f"{max(spread['extra'], first['extra']):8.3f}"
            f"{even['accused']:8.3f}{uneven['accused']:8.3f}{stalls['accused']:8.3f}{took:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
