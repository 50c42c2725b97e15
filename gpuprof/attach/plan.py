"""What attaching would do, said beforehand (`--dry-run`)."""

from __future__ import annotations

from gpuprof.attach.access import NONE, Access
from gpuprof.attach.kineto_door import why_closed
from gpuprof.attach.standstill import spy_program
from gpuprof.attach.targets import Target, inner_pid


def plan(target: Target, access: Access, *, inject: bool) -> list[str]:
    """Lines for a person, on one process."""
    python = f", Python {access.python[0]}.{access.python[1]}" if access.python else ""
    inner = inner_pid(target.pid)
    inside = f" (pid {inner} in its own namespace)" if inner != target.pid else ""
    lines = [f"process {target.pid}{inside}: {target.process.name}{python}"]
    if inject and access.way != NONE:
        lines += [
            f"  enter by {access.way}; the agent runs on the main thread and removes itself",
            "  record steps with torch.profiler between two steps of the loop, stacks at 50 Hz",
        ]
    elif inject:
        lines.append(f"  can't be entered: {access.why}" + _hint(access.remedy))
    if not inject or access.way == NONE:
        closed = why_closed(target)
        if closed:
            lines.append(f"  no trace by Kineto's own door: {closed}")
            stacks = "stacks by py-spy" if spy_program() else "no stacks (py-spy is not installed)"
            lines.append(f"  from outside: no trace, {stacks}, CPU and memory from /proc")
        else:
            lines.append("  ask its Kineto for a trace, as a daemon would: nothing is put in")
    lines.append("  beside it: GPU and host samples by a process of gpuprof's own")
    return lines


def _hint(text: str) -> str:
    return f"; {text}" if text else ""
