"""The process in which a planted workload runs: the script as it is, under the recorder.

    python -m gpuprof.demo_child OUT SKIP STEPS ATTRIBUTED any|gpu SCRIPT [ARGUMENT…]

The script is not changed and not told. Its steps are found from its optimizer. Lines for the
parent process go to standard output between the script's own: `gpuprof-device NAME` once, and
`gpuprof-step N` after each step.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

from gpuprof.collectors import torch_profiler

STEP_LINE = "gpuprof-step "
DEVICE_LINE = "gpuprof-device "
EXIT_NOTHING_RECORDED = 4
EXIT_NO_GPU = 5


def say(line: str) -> None:
    """Writes one line for the parent, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Runs the script to its end; the exit status says whether it was recorded."""
    out, skip, steps, attributed, needs, script, *rest = arguments
    first_rank = os.environ.get("RANK", "0") == "0"

    import torch

    has_gpu = torch.cuda.is_available()
    if first_rank:
        say(DEVICE_LINE + (torch.cuda.get_device_name(0) if has_gpu else "CPU"))
    if needs == "gpu" and not has_gpu:
        return EXIT_NO_GPU

    plan = [torch_profiler.timing_window(skip=int(skip), steps=int(steps))]
    if int(attributed):
        plan.append(torch_profiler.attribution_window(steps=int(attributed)))
    recorder = torch_profiler.TorchRecorder(Path(out), plan)
    taken = 0

    def on_step() -> None:
        nonlocal taken
        recorder.step()
        taken += 1
        if first_rank:
            say(f"{STEP_LINE}{taken}")

    sys.argv = [script, *rest]
    with ExitStack() as stack:
        stack.enter_context(torch_profiler.named_calls())
        stack.enter_context(recorder)
        stack.enter_context(torch_profiler.steps_from_optimizers(on_step))
        runpy.run_path(script, run_name="__main__")
    if not recorder.traces:
        sys.stderr.write(f"gpuprof: nothing recorded: {recorder.failure or 'too few steps'}\n")
        return EXIT_NOTHING_RECORDED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
