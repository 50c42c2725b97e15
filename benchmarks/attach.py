"""What attaching does to a running job: measured on unmodified loops on this machine.

    python benchmarks/attach.py repeat --count 100     attaches in a row: harm, losses, steps, gaps
    python benchmarks/attach.py kill --count 30        the attaching side killed at random moments
    python benchmarks/attach.py versions PYTHON…       injection alone, 50 a Python
    python benchmarks/attach.py ranks                  two gloo ranks by torchrun's pid
    python benchmarks/attach.py workloads              planted faults, found from outside

Losses are compared bit by bit with those of an undisturbed run. Prints one table line a case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
        log.write(json.dumps([loss.item().hex(), time.time()]) + "\\n")
"""
PURE = "import math\nx, n = 0.5, 0\nwhile True:\n    x = math.sin(x) + 0.3; n += 1\n"


class Loop:
    """A training loop in a process of its own."""

    def __init__(self, folder: Path, workers: int, steps: int = 10**9) -> None:
        self.log = folder / f"losses-{time.monotonic_ns()}"
        script = folder / "train.py"
        script.write_text(LOOP)
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, script, str(steps), self.log, str(workers)], stderr=errors
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[tuple[str, float]]:
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

    def goes_on(self) -> None:
        self.wait(len(self.lines()) + 5)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def loop(folder: Path, workers: int) -> Iterator[Loop]:
    running = Loop(folder, workers)
    try:
        running.wait(20)
        yield running
    finally:
        running.end()


def undisturbed(folder: Path, workers: int, steps: int) -> list[str]:
    """Losses of a run that nobody touches."""
    reference = Loop(folder, workers, steps)
    reference.process.wait()
    return [loss for loss, _ in reference.lines()]


def same_losses(disturbed: Loop, folder: Path, workers: int) -> tuple[bool, int]:
    seen = [loss for loss, _ in disturbed.lines()]
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
    """Attaches in a row."""
    from gpuprof.attach import access, targets
    from gpuprof.attach.record import Wanted, record

    for workers in (0, 1):
        with tempfile.TemporaryDirectory() as name, loop(Path(name), workers) as running:
            stops, stalls, seconds, wrong, gaps = [], [], [], 0, []
            before = [t for _, t in running.lines()]
            usual = statistics.median(b - a for a, b in pairwise(before[5:]))
            for number in range(options.count):
                found = targets.find(running.pid)
                out = Path(name) / f"run{number}"
                began, began_unix = time.monotonic(), time.time()
                wanted = Wanted(attribution=not options.plain)
                done = record(found, [access.look(found[0])], out, wanted, lambda *_: None)
                seconds.append(time.monotonic() - began)
                stops += [ns / 1e6 for ns in done.stopped_ns]
                stalls.append(done.records[0].overhead.windows_ms)
                wrong += recorded_steps(out / "trace-rank00000.json.gz") != 10
                ended = time.time()
                times = [t for _, t in running.lines() if began_unix - 1 < t < ended]
                gaps.append(max(b - a for a, b in pairwise(times)))
                for target in found:
                    target.close()
                running.goes_on()
            running.process.send_signal(signal.SIGSTOP)
            same, steps = same_losses(running, Path(name), workers)
            running.process.send_signal(signal.SIGCONT)
            print(
                f"workers {workers}: {options.count} attaches, none harmed; losses identical:"
                f" {same} ({steps} steps); traces without exactly 10 steps: {wrong};"
                f" thread stopped median"
                f" {statistics.median(stops):.2f} max {max(stops):.2f} ms; usual step"
                f" {usual * 1e3:.1f} ms; largest step gap median"
                f" {statistics.median(gaps) * 1e3:.0f} max {max(gaps) * 1e3:.0f} ms; in and out"
                f" median {statistics.median(seconds):.2f} s; stderr of the loop:"
                f" {running.errors.read_text()[:200]!r}",
                flush=True,
            )


def kill(options: argparse.Namespace) -> None:
    """The attaching side, helpers included, is killed; then it must be possible to attach."""
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name, loop(Path(name), 1) as running:
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
    from gpuprof.attach.inject import boot_line, inject
    from gpuprof.attach.trampoline import wipe

    for python in options.pythons:
        with tempfile.TemporaryDirectory() as name:
            script, ran = Path(name) / "agent.py", Path(name) / "ran"
            script.write_text(f"open({str(ran)!r}, 'a').write('x')")
            child = subprocess.Popen([python, "-c", PURE])
            time.sleep(0.5)
            stops = []
            for number in range(options.count):
                done = inject(child.pid, boot_line(str(script), child.pid))
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


def _attach(pid: int, out: Path, *more: str) -> tuple[float, dict[str, object], str]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "attach", "--pid", str(pid), "--out", out, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    found = out / "diagnosis.json"
    return seconds, json.loads(found.read_text()) if found.exists() else {}, done.stderr


def _show(what: str, seconds: float, diagnosis: dict, errors: str, out: Path) -> None:
    if not diagnosis:
        print(f"{what}: no verdict in {seconds:.1f} s: {errors.strip()[-300:]}")
        return
    first = (diagnosis["findings"] or [{}])[0]
    records = [json.loads(p.read_text()) for p in sorted(out.glob("rank-*.json"))]
    window_s = sum(w["step_ms"] * (w["steps"] + 1) for w in records[0]["windows"]) / 1e3
    where = [f"{w['file'].rpartition('/')[2]}:{w['line']}" for w in first.get("where", [])[:2]]
    print(
        f"{what}: {first.get('cause', 'nothing found')}, late ranks {first.get('late_ranks')},"
        f" at {where}; world size {diagnosis['run']['world_size']}; command to verdict"
        f" {seconds:.1f} s, windows {window_s:.1f} s; step {records[0]['overhead']['step_ms']} ms,"
        f" profiler's stalls {records[0]['overhead']['windows_ms']} ms",
        flush=True,
    )


def workload(script: str, ranks: int, *more: str) -> None:
    """One planted fault, attached from outside while it runs."""
    path = Path(__file__).parent.parent / "fixtures" / "workloads" / script
    command: list[str | Path] = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-port", str(random.randint(20000, 40000))]
    with tempfile.TemporaryDirectory() as name:
        child = subprocess.Popen(
            [*command, path, "--steps", "100000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=name,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            time.sleep(12 if ranks == 1 else 20)
            seconds, diagnosis, errors = _attach(child.pid, Path(name) / "run", *more)
            _show(script, seconds, diagnosis, errors, Path(name) / "run")
            print(f"    goes on: {child.poll() is None}")
        finally:
            child.terminate()
            child.wait()


def ranks(options: argparse.Namespace) -> None:
    workload("late_rank.py", 2)


def workloads(options: argparse.Namespace) -> None:
    for script, count, steps in (
        ("slow_loader.py", 1, 10),
        ("python_overhead.py", 1, 5),
        ("blocking_checkpoint.py", 1, 12),
        ("late_rank.py", 2, 10),
        ("imbalance.py", 2, 10),
    ):
        workload(script, count, "--steps", str(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "case", choices=("repeat", "kill", "injector", "versions", "ranks", "workloads")
    )
    parser.add_argument("pythons", nargs="*")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="no window with stacks")
    options = parser.parse_intermixed_args()
    cases = {
        "repeat": repeat,
        "kill": kill,
        "injector": kill_injector,
        "versions": versions,
        "ranks": ranks,
        "workloads": workloads,
    }
    cases[options.case](options)


if __name__ == "__main__":
    main()
