"""What recording costs: step-time ratios of interleaved stretches of one and the same loop.

    python benchmarks/overhead.py [--steps N] [--rounds N] [--step-ms MS]

Outside the windows: stretches of steps under a session that has no window open, against stretches
without a session, in turn; the ratio of the lower quartiles (limit 1.005). Inside: steps
of a timing window against steps under torch.profiler with the same options (limit 1.05). CPU time
of the process is compared beside wall time, because on a shared machine wall time is noise.
Losses of both are compared bit by bit.
"""

from __future__ import annotations

import argparse
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


def ratio(ours: list[tuple[int, int]], plain: list[tuple[int, int]], which: int) -> float:
    """Ratio of the lower quartiles of wall (0) or CPU (1) time: other jobs only ever add."""
    low, base = (statistics.quantiles([t[which] for t in times])[0] for times in (ours, plain))
    return low / base


def outside(options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """A session whose only window never comes, against none, in turn."""
    loop = Loop(options.step_ms)
    stretch(loop, 20)
    never = (Window(kind="trace", skip=10**9, steps=1),)
    ours: list[tuple[int, int]] = []
    plain: list[tuple[int, int]] = []
    for number in range(options.rounds):
        plain += stretch(loop, options.steps)
        with gpuprof.session(folder / f"out{number}", windows=never, report=False):
            stretch(loop, 3)
            ours += stretch(loop, options.steps)
    return ratio(ours, plain, 0), ratio(ours, plain, 1)


def inside(options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Steps of a timing window against steps under torch.profiler."""
    loop = Loop(options.step_ms)
    stretch(loop, 20)
    steps = options.steps
    window = (Window(kind="trace", skip=2, steps=steps),)
    ours: list[tuple[int, int]] = []
    plain: list[tuple[int, int]] = []
    for number in range(options.rounds):
        schedule = torch.profiler.schedule(wait=2, warmup=1, active=steps, repeat=1)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, schedule=schedule) as profile:
            times = stretch(loop, steps + 2, profile.step)
        plain += times[3:]
        with gpuprof.session(folder / f"in{number}", windows=window, report=False):
            times = stretch(loop, steps + 2)
        ours += times[3:]
    return ratio(ours, plain, 0), ratio(ours, plain, 1)


def losses(folder: Path) -> bool:
    """Whether a loop under a session with all kinds of windows trains the same model to the bit."""
    plain, recorded = Loop(0), Loop(0)
    stretch(plain, 90)
    with gpuprof.session(folder / "losses", report=False):
        stretch(recorded, 90)
    return plain.losses == recorded.losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--step-ms", type=float, default=5.0, help="pure Python in each step")
    options = parser.parse_args()
    print(f"{'':28} {'wall':>8} {'CPU':>8}  limit")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, measure, limit in (("outside", outside, 1.005), ("inside", inside, 1.05)):
            wall, cpu = measure(options, folder)
            print(f"{what + ' the window':28} {wall:8.4f} {cpu:8.4f}  {limit}")
        same = losses(folder)
    print(f"losses bit-equal             {'yes' if same else 'NO'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
