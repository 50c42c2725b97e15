"""What recording costs: step-time ratios of interleaved stretches of one and the same loop.

    python benchmarks/overhead.py [--steps N] [--rounds N] [--step-ms MS]

Outside the windows: stretches of steps under a session that has no window open, against stretches
without a session, in turn; the median over the rounds of the ratio of their lower quartiles (limit
1.005) with its 95 % interval, the same of nothing against nothing, and what gpuprof does at a step,
timed alone. Inside: steps of a timing window against steps under torch.profiler with the same
options (limit 1.05). CPU time of the loop's thread stands beside wall time, because on a shared
machine wall time is noise. Losses of both are compared bit by bit.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gpuprof
from gpuprof.collectors.torch_profiler import Window

SAMPLER_STARTS_S = 2.0
"""A run's first window comes after the sampler, a process of its own, has started."""

TURNS_A_MS = 60_000
"""Turns of an empty loop in about a millisecond."""


class Loop:
    """A transformer layer whose step takes some milliseconds in some hundred operators."""

    def __init__(self, step_ms: float) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.optimizer = torch.optim.AdamW(self.layer.parameters())
        self.data = torch.randn(4, 16, 64)
        self.turns = int(step_ms * TURNS_A_MS)
        self.losses: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.layer(self.data).square().mean()
        loss.backward()
        for _ in range(self.turns):
            pass
        self.optimizer.step()
        self.losses.append(loss.item())


def stretch(
    loop: Loop, steps: int, after: Callable[[], Any] = lambda: None
) -> list[tuple[int, int]]:
    """Times of some steps; `after` runs inside the timed part of the next."""
    times = []
    for _ in range(steps):
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        loop.step()
        after()
        times.append((time.perf_counter_ns() - wall, time.thread_time_ns() - cpu))
    return times


Times = list[tuple[int, int]]


def ratio(ours: Times, plain: Times, which: int) -> float:
    """Ratio of the lower quartiles of wall (0) or CPU (1) time: other jobs only ever add."""
    low, base = (statistics.quantiles([t[which] for t in times])[0] for times in (ours, plain))
    return low / base


Quad = tuple[Times, Times, Times, Times]


def paired(quads: list[Quad], which: int) -> tuple[float, float, float]:
    """Median over quads (plain, ours, ours, plain) of the ratio of their steps, with its 95 %
    interval (bootstrap over the quads): what drifts with the machine meets both alike."""
    ratios = [
        ratio([*ours, *ours_again], [*plain, *plain_again], which)
        for plain, ours, ours_again, plain_again in quads
    ]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[-51]


def outside(options: argparse.Namespace, folder: Path) -> tuple[list[Quad], list[Quad]]:
    """A session whose only window never comes, against none, in turn; and none against none, which
    says how near to 1 this machine lets such a ratio come. Without the sampler, which is a process
    of its own: to start it a hundred times would measure that."""
    loop = Loop(options.step_ms)
    stretch(loop, 20)
    never = (Window(kind="trace", skip=10**9, steps=1),)

    def plain() -> Times:
        return stretch(loop, options.steps + 3)[3:]

    def recorded() -> Times:
        with gpuprof.session(folder / "out", windows=never, samples=False, report=False):
            return plain()

    quads, control = [], []
    for _ in range(options.rounds):
        quads.append((plain(), recorded(), recorded(), plain()))
        control.append((plain(), plain(), plain(), plain()))
    return quads, control


def shown(name: str, quads: list[Quad]) -> str:
    cells = (
        f"{m:.4f} ({low:.4f} to {high:.4f})"
        for m, low, high in (paired(quads, 0), paired(quads, 1))
    )
    return f"{name:28} " + "  ".join(cells)


def beat_us(folder: Path) -> float:
    """CPU time of gpuprof's own work at a step outside the windows, µs: the least of ten times."""
    never = (Window(kind="trace", skip=10**9, steps=1),)
    loop = Loop(0)
    with gpuprof.session(folder / "beat", windows=never, samples=False, report=False) as session:
        stretch(loop, 5)
        best = float("inf")
        for _ in range(10):
            begun = time.thread_time_ns()
            for _ in range(500):
                session.step()
            best = min(best, (time.thread_time_ns() - begun) / 500)
    return best / 1e3


def inside(options: argparse.Namespace, folder: Path) -> list[Quad]:
    """Steps of a timing window, and the sampler beside them, against steps under torch.profiler."""
    loop = Loop(options.step_ms)
    stretch(loop, 20)
    steps = options.steps
    window = (Window(kind="trace", skip=2, steps=steps),)

    def plain() -> Times:
        schedule = torch.profiler.schedule(wait=2, warmup=1, active=steps, repeat=1)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, schedule=schedule) as profile:
            return stretch(loop, steps + 2, profile.step)[3:]

    def recorded(name: str) -> Times:
        with gpuprof.session(folder / name, windows=window, report=False):
            time.sleep(SAMPLER_STARTS_S)
            return stretch(loop, steps + 2)[3:]

    return [
        (plain(), recorded(f"in{number}a"), recorded(f"in{number}b"), plain())
        for number in range(max(2, options.rounds // 6))
    ]


def losses(folder: Path) -> bool:
    """Whether a loop under a session with all kinds of windows trains the same model to the bit."""
    plain, recorded = Loop(0), Loop(0)
    stretch(plain, 90)
    with gpuprof.session(folder / "losses", report=False):
        stretch(recorded, 90)
    return plain.losses == recorded.losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=5.0, help="pure Python in each step")
    options = parser.parse_args()
    print(f"{'':28} {'wall, 95 % interval':26}  {'CPU, 95 % interval':26}  limit")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quads, control = outside(options, folder)
        print(f"{shown('outside the window', quads)}  1.005")
        print(shown("none against none", control))
        print(f"{'a step outside, alone':28} {beat_us(folder):8.2f} µs of CPU time")
        print(f"{shown('inside the window', inside(options, folder))}  1.05")
        same = losses(folder)
    print(f"losses bit-equal             {'yes' if same else 'NO'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
