"""Real jobs of gloo that come to stand: does `gpuprof attach` name the rank and its line, how soon?

    python benchmarks/hangs.py [--ranks 4] [--trials 1] [--faults sleep skip …]

Starts fixtures/hanging.py under torchrun with each fault, waits until its ranks stand, and runs
`gpuprof attach --pid` on the launcher. "said": seconds until the rank and the line are on the
terminal; "done": until the run directory, diagnosis.json and report.html are written, too. "none"
is a job that goes on: there it must be silent, which is looked for by watching alone. The goal is
the right rank and line within 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.hanging import FAULTS
from gpuprof.attach import standstill, targets

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "fixtures" / "hanging.py"
LINES = {
    "sleep": "time.sleep(3600)",
    "skip": "dist.broadcast(total, 0)",
    "die": "",
    "exception": "",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "loop": "total += 1",
    "read": "os.read(os.pipe()[0], 1)",
    "uneven": "dist.barrier()",
}
"""Where the rank is that does not come; "": it is nowhere any more."""
NEAR = {"loop": 1}
"""A loop of two lines is in one or the other."""
SETTLE_S = 3.0


def start(folder: Path, ranks: int, fault: str, who: int) -> subprocess.Popen[bytes]:
    """The launcher of a job all of whose ranks have come to their last step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(PROGRAM), fault, "--who", str(who)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        launcher = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    until = time.monotonic() + 300
    while len(list(folder.glob("at-*"))) < ranks and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(SETTLE_S)
    return launcher


def right_line(fault: str, where: list[dict[str, object]]) -> bool:
    """Whether the first line that the finding names is the one where the rank is."""
    text = LINES[fault]
    if not text:
        return True
    lines = PROGRAM.read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if text in line}
    found = where[0]["line"] if where else 0
    return any(abs(int(str(found)) - number) <= NEAR.get(fault, 0) for number in wanted)


def trial(fault: str, ranks: int, who: int) -> tuple[bool, bool, float, float, str]:
    """Whether rank and line are right, seconds until it was said and until all was written, and
    what was said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = start(folder, ranks, fault, who)
        try:
            began = time.perf_counter()
            if fault == "none":
                found = standstill.watch(targets.find(launcher.pid))
                seconds = time.perf_counter() - began
                return not found, True, seconds, seconds, "goes on"
            command = [sys.executable, "-m", "gpuprof", "attach", "--pid", str(launcher.pid)]
            attach = subprocess.Popen(
                [*command, "--out", str(folder / "out")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert attach.stderr is not None
            first = attach.stderr.readline().strip()
            said_s = time.perf_counter() - began
            attach.communicate()
            seconds = time.perf_counter() - began
            if attach.returncode:
                return False, False, said_s, seconds, first
            diagnosis = json.loads((folder / "out" / "diagnosis.json").read_text())
            hang = next((f for f in diagnosis["findings"] if f["cause"] == "hang"), None)
            if hang is None:
                return False, False, said_s, seconds, "no hang was found"
            is_right = hang["late_ranks"] == [who]
            return is_right, right_line(fault, hang["where"]), said_s, seconds, hang["title"]
        finally:
            launcher.terminate()
            launcher.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=FAULTS)
    arguments = parser.parse_args()
    print(f"{'fault':10} {'rank':5} {'line':5} {'said s':>6} {'done s':>7}  load  answer")
    right = done = 0
    for number in range(arguments.trials):
        for fault in arguments.faults:
            who = 1 + number % (arguments.ranks - 1)
            rank, line, said_s, seconds, said = trial(fault, arguments.ranks, who)
            right, done = right + (rank and line), done + 1
            print(
                f"{fault:10} {'right' if rank else 'WRONG':5} {'right' if line else 'WRONG':5} "
                f"{said_s:6.1f} {seconds:7.1f}  {os.getloadavg()[0]:4.1f}  {said}",
                flush=True,
            )
    print(f"{right} of {done} right")


if __name__ == "__main__":
    main()
