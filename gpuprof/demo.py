"""`gpuprof demo`: a real training loop with a planted fault, recorded with torch.profiler.

The loop is one of `gpuprof.workloads`. It runs in a process of its own (`gpuprof.demo_child`), on
the GPU if there is one and else on the CPU, so that neither torch nor a crash reaches this one.
What comes back is a folder of traces; judging them is `gpuprof.api`'s work.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprof.demo_child import DEVICE_LINE, EXIT_NO_GPU, STEP_LINE
from gpuprof.errors import GpuprofError

TIMEOUT_S = 300.0
"""Every fault takes under a minute on two cores; a machine five times slower still gets through."""

ATTRIBUTION_STEPS = 2
OVERHEAD_STEPS = 2
"""One step to spare after each window, and the profiler's warm-up step before each."""

Progress = Callable[[str, int, int], None]
"""Called with what is going on, the steps done and the steps in all; 0 in all: not known yet."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault: the workload that has it and how to record it.

    skip and steps: training steps before and inside the traced window. ranks: processes, started
    by torchrun when there are several. needs_gpu: a CPU cannot show this one, because no queue,
    bus or occupancy stands between the host and itself.
    """

    cause: str
    script: str
    summary: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    needs_gpu: bool = False
    skip: int = 4
    steps: int = 10
    attributed: int = ATTRIBUTION_STEPS


FAULTS: dict[str, Fault] = {
    fault.cause: fault
    for fault in (
        Fault(
            cause="dataloader",
            script="slow_loader.py",
            summary="the training process fetches and decodes every image itself (num_workers=0)",
        ),
        Fault(
            cause="small-batch",
            script="tiny_batch.py",
            summary="24 micro-batches of 2 samples where one of 48 would fit",
            needs_gpu=True,
        ),
        Fault(
            cause="sync-points",
            script="item_sync.py",
            summary="reads a number from the device for every parameter in every step",
            needs_gpu=True,
        ),
        Fault(
            cause="nccl-wait",
            script="late_rank.py",
            summary="one of two ranks cleans its data in Python, the other waits for it",
            ranks=2,
            attributed=1,
        ),
        Fault(
            cause="host-overhead",
            script="python_overhead.py",
            summary="a recurrent cell written as thousands of tiny operators",
            steps=5,  # one step is some 30,000 events
            attributed=1,
        ),
        Fault(
            cause="memcpy",
            script="host_copies.py",
            summary="moves the batch to the device sample by sample from pageable memory",
            needs_gpu=True,
        ),
        Fault(
            cause="imbalance",
            script="imbalance.py",
            summary="one of two ranks gets the long samples, the other the short ones",
            ranks=2,
        ),
        Fault(
            cause="checkpoint",
            script="blocking_checkpoint.py",
            summary="stops every fourth step until a checkpoint lies on the disk",
            steps=12,  # three periods of the fault
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class RecordedDemo:
    """What was recorded. traces: one file a rank, by rank, times only. attribution: the same later
    steps with stacks and shapes, whose times are not to be used. workload: the script that ran.
    median_step_ms, mean_step_ms: what it measured itself over the whole run, windows included.
    """

    fault: Fault
    fixed: bool
    device: str
    traces: list[Path]
    attribution: list[Path]
    workload: Path
    log: Path
    median_step_ms: float
    mean_step_ms: float


def fault_named(name: str) -> Fault:
    """The planted fault of this cause.

    Raises:
        GpuprofError: there is none.
    """
    if name not in FAULTS:
        raise GpuprofError(
            f"no planted fault is called {name!r}", hint=f"choose one of {', '.join(FAULTS)}"
        )
    return FAULTS[name]


def record_demo(
    fault_name: str,
    out_dir: Path,
    progress: Progress | None = None,
    *,
    fixed: bool = False,
    steps: int | None = None,
) -> RecordedDemo:
    """Runs a planted workload under the recorder and returns what was recorded.

    Args:
        fault_name: A key of `FAULTS`.
        out_dir: Folder for the traces and the workload's own output; made if missing. Traces of an
            earlier demo in it are removed, nothing else is.
        progress: Called as the run goes on.
        fixed: Run the repaired workload instead.
        steps: How many steps to trace (default: the fault's own number).

    Raises:
        GpuprofError: an unknown fault, no torch, no GPU for a fault that needs one, a folder that
            cannot be written, or a workload that failed (its output is kept).
    """
    fault = fault_named(fault_name)
    report = progress or (lambda what, done, total: None)
    if importlib.util.find_spec("torch") is None:
        raise GpuprofError(
            "the demo trains a model and needs PyTorch, which is not installed here",
            hint="install it: pip install torch",
        )
    out = out_dir.resolve()
    _empty(out)
    traced = steps or fault.steps
    total = fault.skip + traced + fault.attributed + 2 * OVERHEAD_STEPS
    script = Path(__file__).resolve().parent / "workloads" / fault.script
    command = [
        *_launcher(fault.ranks),
        "gpuprof.demo_child",
        os.fspath(out),
        *(str(n) for n in (fault.skip, traced, fault.attributed)),
        "gpu" if fault.needs_gpu else "any",
        os.fspath(script),
        *("--steps", str(total), *fault.arguments, *(["--fixed"] if fixed else [])),
    ]
    report("starting PyTorch", 0, 0)
    log = out / "workload.log"
    status, device, printed = _run(command, out, log, total, report)
    if status == EXIT_NO_GPU or (fault.needs_gpu and device == "CPU"):
        on_cpu = ", ".join(name for name, other in FAULTS.items() if not other.needs_gpu)
        raise GpuprofError(
            f"the planted fault {fault_name!r} needs a GPU and PyTorch finds none here",
            hint=f"choose one that a CPU can show: {on_cpu}",
        )
    traces = sorted(out.glob("trace-rank*.json.gz"))
    measured = re.search(r"median_step_ms=(\S+) mean_step_ms=(\S+)", printed)
    if status != 0 or len(traces) != fault.ranks or measured is None:
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        raise GpuprofError(
            f"the demo's training process failed ({how})", hint=f"its output is in {log}"
        )
    return RecordedDemo(
        fault=fault,
        fixed=fixed,
        device=device,
        traces=traces,
        attribution=sorted(out.glob("attribution-rank*.json.gz")),
        workload=script,
        log=log,
        median_step_ms=float(measured[1]),
        mean_step_ms=float(measured[2]),
    )


def _launcher(ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable, "-m"]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={ranks}", "-m"),
    ]


def _empty(out: Path) -> None:
    """Makes the folder, and removes what an earlier demo left in it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for pattern in ("trace-rank*.json.gz", "attribution-rank*.json.gz"):
            for path in out.glob(pattern):
                path.unlink()
        (out / "workload.log").write_bytes(b"")
    except OSError as error:
        raise GpuprofError(
            f"cannot write into {out}: {error.strerror or error}",
            hint="name another folder with --out",
        ) from error


def _environment(out: Path) -> dict[str, str]:
    """This process's environment, so that the child finds this very gpuprof and a scratch folder.

    The child runs in `out`: nothing there can stand in for a module that it imports.
    """
    environment = {**os.environ, "GPUPROF_SCRATCH": os.fspath(out / "scratch")}
    package_root = Path(__file__).resolve().parent.parent
    if package_root.name not in ("site-packages", "dist-packages"):  # a checkout
        paths = [os.fspath(package_root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _run(
    command: list[str], out: Path, log: Path, total: int, report: Progress
) -> tuple[int, str, str]:
    """Runs the child and its own children; returns its status, its device and what it printed."""
    device = ""
    kept: list[str] = []
    child = subprocess.Popen(
        command,
        cwd=out,
        env=_environment(out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    watchdog = threading.Timer(TIMEOUT_S, _end, (child,))
    watchdog.daemon = True
    watchdog.start()
    try:
        assert child.stdout is not None
        with log.open("w", encoding="utf-8") as file:
            for line in child.stdout:
                if line.startswith(STEP_LINE):
                    done = line.removeprefix(STEP_LINE).strip()
                    report("training", int(done) if done.isdecimal() else 0, total)
                elif line.startswith(DEVICE_LINE):
                    device = line.removeprefix(DEVICE_LINE).strip()
                else:
                    file.write(line)
                    kept.append(line)
        status = child.wait()
    finally:
        watchdog.cancel()
        _end(child)
        shutil.rmtree(out / "scratch", ignore_errors=True)
    return status, device, "".join(kept)


def _end(child: subprocess.Popen[str]) -> None:
    """Ends the child with everything that it started (loader workers, other ranks)."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
