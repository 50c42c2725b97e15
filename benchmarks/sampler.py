"""The sampler under stress, through the NVML stand-in: rate, skew, hangs, crashes, kills.

    python -m benchmarks.sampler [--seconds 20] [--kills 50] [--call-us 70]

A trainer's main thread is busy in pure Python all the while. Every driver call is slowed by
`--call-us` (the time a real one takes), because the interpreter lock only shows with calls that
release it. Prints one table; needs a C compiler, no GPU.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fixtures.nvml.build import environment
from fixtures.nvml.scenario import Scenario
from gpuprof.collectors.sampler_client import SamplerHandle, start
from gpuprof.readers.samples import read_samples
from gpuprof.samples import Samples

GPUS = 8
TRAINER = "x = 0\nwhile True:\n    for i in range(1000): x += i * i"
Line = tuple[str, str, str, bool]
"""What was measured, the figure, what it must be, and whether it is."""


def saw(t: float, _gpu: int) -> float:
    return 98 if t % 2 < 1.2 else 0


def stand_in(scenario: Scenario, folder: Path) -> None:
    """Programs started from now on see the scenario, whose playback starts now."""
    os.environ.update(environment(scenario.write(folder / "scenario.txt")))


class Run:
    """A busy trainer with a sampler beside it."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        shutil.rmtree(self.out, ignore_errors=True)
        self.trainer = subprocess.Popen([sys.executable, "-c", TRAINER])
        self.sampler: SamplerHandle = start(self.out, ranks=[(self.trainer.pid, 0)])

    def stop(self) -> float:
        """Ends both; how long the sampler took, in seconds."""
        began = time.monotonic()
        self.sampler.stop([self.trainer.pid])
        took = time.monotonic() - began
        self.trainer.kill()
        self.trainer.wait()
        return took

    def samples(self) -> Samples:
        (found,) = read_samples(self.out)
        return found

    def wait_for(self, test: Callable[[Samples], bool], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if list(self.out.glob("*.jsonl")) and test(self.samples()):
                return
            time.sleep(0.1)
        raise TimeoutError("the recording never had what was waited for")


def sampled(samples: Samples) -> bool:
    return len(samples.scopes("gpu")) == GPUS


def rate_and_skew(folder: Path, seconds: float, call_us: float) -> list[Line]:
    """How well 10 Hz is held, and how far apart the GPUs are read within one tick."""
    scenario = Scenario(GPUS).curve(saw, until_s=60)
    stand_in(scenario.fault("nvmlDevice*", ms=call_us / 1e3), folder)
    run = Run(folder)
    run.wait_for(sampled)
    time.sleep(seconds)
    run.stop()
    found = run.samples()
    series = [found.series["util_frac", scope] for scope in found.scopes("gpu")]
    rates = [(len(s) - 1) / (float(s.time_ns[-1] - s.time_ns[0]) / 1e9) for s in series]
    first = max(int(s.time_ns[0]) for s in series)
    ticks = np.arange(first, min(int(s.time_ns[-1]) for s in series), 10**8)
    begins, ends = [], []
    for s in series:
        # The read that belongs to a tick of the common grid is the one nearest to it.
        at = np.clip(np.searchsorted(s.time_ns, ticks - 5 * 10**7), 0, len(s) - 1)
        begins.append(s.time_ns[at])
        ends.append(s.time_ns[at] + s.read_ns[at])
    span_ms = (np.max(ends, axis=0) - np.min(begins, axis=0)) / 1e6
    start_ms = (np.max(begins, axis=0) - np.min(begins, axis=0)) / 1e6
    size = sum(path.stat().st_size for path in run.out.iterdir())
    middle, high = (float(np.percentile(span_ms, q)) for q in (50, 95))
    return [
        ("rate of the slowest GPU", f"{min(rates):.2f} Hz", "10 Hz", min(rates) >= 9.5),
        ("first to last GPU, median", f"{middle:.1f} ms", "< 20 ms", middle < 20),
        ("first to last GPU, 95 %", f"{high:.1f} ms", "< 20 ms", high < 20),
        ("begin of first to last, 95 %", f"{np.percentile(start_ms, 95):.1f} ms", "", True),
        ("size of the recording", f"{size / seconds / 1e3:.0f} kB/s", "", True),
    ]


def hang(folder: Path) -> list[Line]:
    """A call that never returns: the others go on, the exit is not delayed."""
    scenario = Scenario(GPUS).curve(saw, until_s=60)
    stand_in(scenario.fault("nvmlDeviceGetUtilizationRates", gpu=2, hang=1, since=4), folder)
    run = Run(folder)
    run.wait_for(lambda s: any("no answer" in note for note in s.notes))
    took = run.stop()
    found = run.samples()
    others = [found.series["util_frac", f"gpu:{i}"] for i in range(GPUS) if i != 2]
    gap_ms = max(float(np.diff(s.time_ns).max()) / 1e6 for s in others)
    return [
        ("longest gap of the other GPUs", f"{gap_ms:.0f} ms", "they go on", gap_ms < 1000),
        ("exit with a hung call", f"{took:.2f} s", "<= 2 s", took <= 2),
    ]


def crash(folder: Path) -> list[Line]:
    """The library crashes again and again: the trainer never notices."""
    scenario = Scenario(GPUS).curve(saw, until_s=60)
    for k in range(3):
        since = 4 + 4 * k
        fault = {"crash": 1, "since": since, "until": since + 0.2}
        scenario.fault("nvmlDeviceGetUtilizationRates", gpu=1, **fault)
    stand_in(scenario, folder)
    run = Run(folder)
    run.wait_for(lambda s: any("signal 11" in note for note in s.notes))
    time.sleep(9)
    lives = run.trainer.poll() is None and run.sampler.process.poll() is None
    run.stop()
    after = run.samples().series["util_frac", "gpu:1"]
    gap_s = float(np.diff(after.time_ns).max()) / 1e9
    return [
        ("trainer and sampler after crashes", "alive" if lives else "dead", "alive", lives),
        ("longest gap around a crash", f"{gap_s:.1f} s", "", True),
    ]


def kills(folder: Path, times: int) -> list[Line]:
    """SIGKILL at random moments: what the recording holds then."""
    stand_in(Scenario(GPUS).curve(saw, until_s=60), folder)
    lags, unreadable = [], 0
    for _ in range(times):
        run = Run(folder)
        run.wait_for(sampled)
        time.sleep(random.uniform(0, 1.0))
        os.kill(run.sampler.process.pid, signal.SIGKILL)
        killed_ns = time.time_ns()
        run.sampler.process.wait()
        run.trainer.kill()
        run.trainer.wait()
        try:
            found = run.samples()
        except Exception:
            unreadable += 1
            continue
        last = min(found.series["util_frac", s].time_ns[-1] for s in found.scopes("gpu"))
        lags.append((killed_ns - int(last)) / 1e9)
    worst = max(lags)
    return [
        ("kills that left it unreadable", f"{unreadable} of {times}", "0", unreadable == 0),
        ("oldest last sample at a kill", f"{worst:.2f} s", "<= 1 s", worst <= 1),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="The sampler under stress")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--call-us", type=float, default=70)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = rate_and_skew(folder, options.seconds, options.call_us)
        lines += hang(folder) + crash(folder) + kills(folder, options.kills)
    print(f"{'':4} {'measured':36} {'figure':>12}  wanted")
    for what, figure, wanted, good in lines:
        print(f"{'ok' if good else 'NO':4} {what:36} {figure:>12}  {wanted}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    return 0 if all(good for *_, good in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
