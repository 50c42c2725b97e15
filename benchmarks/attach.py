"""What attaching does to a running job: measured on unmodified loops on this machine.

    python benchmarks/attach.py repeat --count 100     attaches in a row: harm, losses, steps, gaps
    python benchmarks/attach.py kill --count 30        the attaching side killed at random moments
    python benchmarks/attach.py versions PYTHON…       injection alone, 50 a Python

Planted faults and jobs of several ranks: benchmarks/attach_workloads.py.
Losses are compared bit by bit with those of an undisturbed run. Prints one table line a case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

LOOP = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Random(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i): return torch.full((64,), (i % 97) / 97.0), i % 10

if __name__ == "__main__":
    steps, log, workers = int(sys.argv[1]), open(sys.argv[2], "w", buffering=1), int(sys.argv[3])
    pause_s = float(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 64)), nn.TransformerEncoder(layer, 2), nn.Flatten(),
                          nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Random(), batch_size=16, num_workers=workers, shuffle=True,
                        generator=torch.Generator().manual_seed(0))
    for step, (x, y) in enumerate(loader):
        if step >= steps: break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.write(json.dumps([loss.item().hex(), time.time(), time.thread_time()]) + "\\n")
        time.sleep(pause_s)
"""
PURE = "import math\nx, n = 0.5, 0\nwhile True:\n    x = math.sin(x) + 0.3; n += 1\n"


class Loop:
    """A training loop in a process of its own."""

    def __init__(
        self, folder: Path, workers: int, steps: int = 10**9, pause_s: float = 0.0
    ) -> None:
        self.log = folder / f"losses-{time.monotonic_ns()}"
        script = folder / "train.py"
        script.write_text(LOOP)
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, script, str(steps), self.log, str(workers), str(pause_s)],
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[tuple[str, float, float]]:
        """Of each step its loss, when it ended, and the CPU time of the main thread by then."""
        if not self.log.exists():
            return []
        whole = self.log.read_text().rpartition("\n")[0].splitlines()
        return [tuple(json.loads(line)) for line in whole]

    def wait(self, steps: int) -> None:
        until = time.monotonic() + 120
        while len(self.lines()) < steps:
            if self.process.poll() is not None:
                raise RuntimeError(f"the loop died: {self.errors.read_text()[-500:]}")
            if time.monotonic() > until:
                raise RuntimeError("the loop is stuck")
            time.sleep(0.05)

    def is_far_ahead_of(self, other: Loop) -> bool:
        """So that it may rest."""
        return self.log.stat().st_size > 3 * other.log.stat().st_size + (1 << 20)

    def goes_on(self) -> None:
        self.wait(len(self.lines()) + 5)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()


@contextmanager
def loop(folder: Path, workers: int, pause_s: float = 0.0) -> Iterator[Loop]:
    running = Loop(folder, workers, pause_s=pause_s)
    try:
        running.wait(20)
        yield running
    finally:
        running.end()


def undisturbed(folder: Path, workers: int, steps: int) -> list[str]:
    """Losses of a run that nobody touches."""
    reference = Loop(folder, workers, steps)
    reference.process.wait()
    return [loss for loss, *_ in reference.lines()]


def same_losses(disturbed: Loop, folder: Path, workers: int) -> tuple[bool, int]:
    seen = [loss for loss, *_ in disturbed.lines()]
    return undisturbed(folder, workers, len(seen)) == seen, len(seen)


def recorded_steps(trace: Path) -> int:
    """Steps in a trace."""
    import gzip

    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(
        str(e.get("name", "")).startswith("ProfilerStep#")
        and e.get("ph") == "X"
        and e.get("cat") == "user_annotation"
        for e in events
    )


def repeat(options: argparse.Namespace) -> None:
    """Attaches in a row, to one loop after the other."""
    for workers in options.workers:
        with (
            tempfile.TemporaryDirectory() as name,
            tempfile.TemporaryDirectory() as beside,
            loop(Path(name), workers, options.pause) as running,
            loop(Path(beside), workers) as reference,  # as fast as it can: it is there first
        ):
            _repeat(options, running, Path(name), reference, workers)


def _repeat(
    options: argparse.Namespace, running: Loop, folder: Path, reference: Loop, workers: int
) -> None:
    from gpuprof.attach import access, targets
    from gpuprof.attach.record import Wanted, record

    stops, stalls, seconds, wrong, gaps, held, loads = [], [], [], 0, [], [], []
    before = running.lines()[5:]
    usual_s = statistics.median(b[1] - a[1] for a, b in pairwise(before))
    usual_cpu_s = statistics.median(b[2] - a[2] for a, b in pairwise(before))
    until = time.monotonic() + 60 * options.minutes
    reached = 0
    while reached < options.count and time.monotonic() < until:
        found = targets.find(running.pid)
        out = folder / f"run{reached}"
        began, began_unix = time.monotonic(), time.time()
        wanted = Wanted(attribution=not options.plain)
        done = record(found, [access.look(found[0])], out, wanted, lambda *_: None)
        seconds.append(time.monotonic() - began)
        reached += 1
        stops += [ns / 1e6 for ns in done.stopped_ns]
        stalls.append(done.records[0].overhead.windows_ms)
        wrong += recorded_steps(out / "trace-rank00000.json.gz") != 10
        shutil.rmtree(out)
        near = [line for line in running.lines()[-2000:] if began_unix - 1 < line[1]]
        gaps.append(max(b[1] - a[1] for a, b in pairwise(near)))
        held.append(max(b[2] - a[2] for a, b in pairwise(near)))
        loads.append(os.getloadavg()[0])
        for target in found:
            target.close()
        running.goes_on()
        if reference.is_far_ahead_of(running):
            reference.process.send_signal(signal.SIGSTOP)
    reference.process.send_signal(signal.SIGCONT)
    seen = [loss for loss, *_ in running.lines()]
    reference.wait(len(seen))
    same = [loss for loss, *_ in reference.lines()][: len(seen)] == seen
    stops.sort()
    print(
        f"workers {workers}: {reached} attaches, none harmed; losses identical: {same}"
        f" ({len(seen)} steps); traces without exactly 10 steps: {wrong}; thread stopped median"
        f" {statistics.median(stops):.2f} 95 % {stops[int(0.95 * len(stops))]:.2f} max"
        f" {stops[-1]:.2f} ms; usual step {usual_s * 1e3:.1f} ms ({usual_cpu_s * 1e3:.1f} ms of"
        f" CPU); longest step median {statistics.median(gaps) * 1e3:.0f} max"
        f" {max(gaps) * 1e3:.0f} ms (CPU {statistics.median(held) * 1e3:.0f} and"
        f" {max(held) * 1e3:.0f} ms); start and stop of the profiler median"
        f" {statistics.median(stalls):.0f} ms; in and out median"
        f" {statistics.median(seconds):.2f} s; load {min(loads):.1f} to {max(loads):.1f};"
        f" stderr of the loop: {running.errors.read_text()[:200]!r}",
        flush=True,
    )


def kill(options: argparse.Namespace) -> None:
    """The attaching side, helpers included, is killed; then it must be possible to attach."""
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name, loop(Path(name), 1, options.pause) as running:
        refused = again = 0
        for number in range(options.count):
            out = Path(name) / f"run{number}"
            command = [sys.executable, "-m", "gpuprof", "attach", "--pid", str(running.pid)]
            child = subprocess.Popen(
                [*command, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(0.15 + generator.random() * 1.6)
            child.kill()
            child.wait()
            running.goes_on()
            if number % 5 == 4:
                until = time.monotonic() + 20
                while time.monotonic() < until:
                    done = subprocess.run(
                        [
                            *command,
                            "--no-attribution",
                            "--out",
                            Path(name) / f"again{number}-{time.monotonic_ns()}",
                        ],
                        capture_output=True,
                        check=False,
                    )
                    if done.returncode == 0:
                        again += 1
                        break
                    refused += 1
                    time.sleep(1)
        time.sleep(8)  # the last agent misses its lease, and leaves
        left = list(Path("/tmp").glob("gpuprof-attach-*"))
        running.process.send_signal(signal.SIGSTOP)
        same, steps = same_losses(running, Path(name), 1)
        running.process.send_signal(signal.SIGCONT)
        print(
            f"killed {options.count} times: the loop goes on; losses identical: {same} ({steps}"
            f" steps); attached again {again} of {options.count // 5} (refused as busy {refused}"
            f" times before the lease ran out); mailboxes left: {len(left)}"
        )


def kill_injector(options: argparse.Namespace) -> None:
    """The injector itself, killed within its few milliseconds, in a tight loop."""
    generator = random.Random(options.seed)
    program = (
        "import sys\nfrom gpuprof.attach.inject import inject, boot_line\n"
        "from gpuprof.attach.trampoline import wipe\n"
        "pid = int(sys.argv[1])\nprint(flush=True)\nfor _ in range(1000):\n"
        "    done = inject(pid, boot_line('/nowhere', pid))\n    while not wipe(pid, done): pass"
    )
    with tempfile.TemporaryDirectory() as name, loop(Path(name), 0) as running:
        for _ in range(options.count):
            child = subprocess.Popen(
                [sys.executable, "-c", program, str(running.pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(generator.random() * 0.05)
            child.kill()
            child.wait()
            running.goes_on()
        running.process.send_signal(signal.SIGSTOP)
        same, steps = same_losses(running, Path(name), 0)
        running.process.send_signal(signal.SIGCONT)
        print(
            f"injector killed {options.count} times in a tight loop: the loop goes on; losses"
            f" identical: {same} ({steps} steps)"
        )


def versions(options: argparse.Namespace) -> None:
    """Injection alone, where torch is missing."""
    from gpuprof.attach.enter import _inject
    from gpuprof.attach.inject import boot_line
    from gpuprof.attach.trampoline import wipe

    for python in options.pythons:
        with tempfile.TemporaryDirectory() as name:
            script, ran = Path(name) / "agent.py", Path(name) / "ran"
            script.write_text(f"open({str(ran)!r}, 'a').write('x')")
            child = subprocess.Popen([python, "-c", PURE])
            time.sleep(0.5)
            stops = []
            for number in range(options.count):
                done = _inject(child.pid, boot_line(str(script), child.pid))
                stops.append(done.stopped_ns / 1e6)
                until = time.monotonic() + 5
                while not ran.exists() or ran.stat().st_size <= number:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.001)
                wipe(child.pid, done, has_run=True)
            count = ran.stat().st_size if ran.exists() else 0
            alive = child.poll() is None
            child.kill()
            child.wait()
            print(
                f"{python}: {count} of {options.count} ran; alive: {alive}; thread stopped median"
                f" {statistics.median(stops):.2f} max {max(stops):.2f} ms",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("repeat", "kill", "injector", "versions"))
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="stop repeating after so long")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1], help="of the loader")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of sleep in each step")
    parser.add_argument("--plain", action="store_true", help="no window with stacks")
    options = parser.parse_intermixed_args()
    cases = {
        "repeat": repeat,
        "kill": kill,
        "injector": kill_injector,
        "versions": versions,
    }
    cases[options.case](options)


if __name__ == "__main__":
    main()
