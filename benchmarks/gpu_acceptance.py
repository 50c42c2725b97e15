"""The planted faults on a real GPU: found, placed, priced, and gone in the repaired form.

    python benchmarks/gpu_acceptance.py [--out FOLDER] [--limit-s N] [WORKLOAD …]
    python benchmarks/gpu_acceptance.py --device cpu          # the whole path, as a smoke test

Each workload is recorded by `gpuprof run` in its planted form, run in its repaired one without
gpuprof, and recorded in that. The table at the end says whether the planted cause came first, on
the right line, whether the repair has it, and the predicted step beside the measured one. Small
recordings of both forms stay in FOLDER, each with its diagnosis, for fixtures. It takes no longer
than `--limit-s`: what did not fit is said.

On a CPU the same steps run, but only the faults that a CPU can show are judged there; that is no
acceptance.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from workload_accuracy import PLANTED as ON_CPU
from workload_accuracy import How, Outcome, Planted, loader, markdown, repeat, row

from gpuprof.run import ATTRIBUTION_NAME, MANIFEST, TRACE_NAME

LIMIT_S = 420.0
"""Under eight minutes, also when the last workload takes longer than those before it."""
MAX_BYTES = 3 << 20
"""A recording that is kept has no larger file."""
STEPS, WINDOW = 16, 6

WORKLOADS = {
    "in-process": ON_CPU["in-process"],
    "collate": loader("collate", "collate|__getitem__|in enumerate"),
    "sync": Planted("item_sync.py", "sync-points", r"\.item\(|tolist|count_pairs"),
    "tiny-batch": Planted("tiny_batch.py", "small-batch", ""),
    "copies": Planted("host_copies.py", "memcpy", r"\.to\(|\.cpu\(|normalized_on_host"),
    "python": ON_CPU["python"],
    "small-operators": ON_CPU["small-operators"],
    "checkpoint": ON_CPU["checkpoint"],
    "too-few-workers": ON_CPU["too-few-workers"],
    "late-rank": ON_CPU["late-rank"],
    "imbalance": ON_CPU["imbalance"],
}
NEEDS_GPU = ("sync", "tiny-batch", "copies")


def missing(device: str) -> str:
    """Why the faults can't be planted on this device; "" where they can."""
    import torch

    if device == "cpu" or torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    return (
        f"no CUDA GPU is usable here (torch {torch.__version__}, {built}); it takes one with a"
        " driver and a torch for it; --device cpu runs the whole path as a smoke test"
    )


def why_not(planted: Planted, device: str) -> str:
    """Why one workload can't run on this device; "" where it can."""
    import torch

    if device == "cuda" and planted.ranks > torch.cuda.device_count():
        return f"needs {planted.ranks} GPUs, there are {torch.cuda.device_count()}"
    return ""


def keep(recorded: Path, kept: Path) -> list[str]:
    """Copies what a fixture needs of a run directory, and returns what was too large."""
    kept.mkdir(parents=True, exist_ok=True)
    left = []
    for file in sorted(p for p in recorded.rglob("*") if p.is_file()):
        is_trace = TRACE_NAME.fullmatch(file.name) or ATTRIBUTION_NAME.fullmatch(file.name)
        if not (is_trace or file.suffix in (".json", ".jsonl") or file.name == MANIFEST):
            continue
        if file.stat().st_size > MAX_BYTES:
            left.append(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)")
            continue
        target = kept / file.relative_to(recorded)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return left


def accept(name: str, how: How, out: Path) -> Outcome:
    """One workload: recorded, compared, its recordings kept."""
    outcome = Outcome(WORKLOADS[name])
    with tempfile.TemporaryDirectory() as scratch:
        repeat(outcome, how, Path(scratch))
        for form in ("planted", "repaired"):
            for large in keep(Path(scratch) / form, out / name / form):
                print(f"{name}, {form}: {large} is too large to keep", flush=True)
    return outcome


def shown(name: str, outcome: Outcome, device: str) -> tuple[str, ...]:
    cells = row(name, outcome)
    if device == "cpu" and name in NEEDS_GPU:
        return (*cells[:-1], "runs; needs a GPU")
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*WORKLOADS, []])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"))
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    options = parser.parse_args()
    lack = missing(options.device)
    if lack:
        print(f"gpu_acceptance: {lack}", file=sys.stderr)
        return 2
    how = dataclasses.replace(How(), steps=STEPS, window=WINDOW, device=options.device)
    began, longest = time.monotonic(), 0.0
    rows: list[tuple[str, ...]] = []
    judged = right = 0
    loads, notes = [os.getloadavg()[0]], []
    for name in options.only or WORKLOADS:
        reason = why_not(WORKLOADS[name], options.device)
        left_s = options.limit_s - (time.monotonic() - began)
        if not reason and left_s < longest:
            reason = f"{left_s:.0f} s were left of {options.limit_s:.0f}"
        if reason:
            notes.append(f"{name} was not run: {reason}")
            continue
        started = time.monotonic()
        try:
            outcome = accept(name, how, options.out)
        except Exception as error:  # the others are still worth their minute
            notes.append(f"{name} failed: {type(error).__name__}: {str(error).strip()[-300:]}")
            judged += 1
            continue
        longest = max(longest, time.monotonic() - started)
        loads.append(os.getloadavg()[0])
        rows.append(shown(name, outcome, options.device))
        print(*rows[-1], outcome.at, sep="  ", flush=True)
        if options.device == "cuda" or name not in NEEDS_GPU:
            judged += 1
            right += outcome.right
    took = f"{time.monotonic() - began:.0f} s; recordings in {options.out}"
    text = markdown(rows, loads, 1) + "".join(f"\n{note}" for note in notes)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\n{right} of {judged} right on {_device(options.device)}; {took}")
    return 0 if judged and right == judged and len(rows) >= judged else 1


def _device(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else "the CPU (no acceptance)"


if __name__ == "__main__":
    sys.exit(main())
