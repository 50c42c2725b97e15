"""What can be seen of a process without putting anything into it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuprof import run
from gpuprof.attach import access, assemble
from gpuprof.attach.record import Told, end_sampling, number_ranks, sample, start_folder
from gpuprof.attach.standstill import spy_program
from gpuprof.attach.targets import Target
from gpuprof.collectors.sampler_client import SamplerHandle
from gpuprof.stacks import MAIN

RATE_HZ = 100
"""py-spy at this rate costs a busy loop some 8 % while it runs, all of it in py-spy's own core."""
MAX_STACKS_CHARS = 64 << 20
SAMPLER_S = 30.0
"""A busy machine takes seconds to start the sampler; without samples nothing can be analyzed."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def observe(
    targets: Sequence[Target],
    ways: Sequence[access.Access],
    folder: Path,
    seconds: float,
    told: Told,
) -> list[str]:
    """Samples GPUs, host and the processes, and stacks where py-spy is installed and allowed.

    Returns:
        What was seen, in lines for a person.

    Raises:
        GpuprofError: the run directory can't be written.
    """
    job = f"attach-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    start_folder(folder, job, targets)
    records = [assemble.describe(target, job) for target in targets]
    number_ranks(records)
    sampler = sample(folder, records)
    until_sampled(folder, sampler, told)
    before = [_cpu_s(target.pid) for target in targets]
    spies = [
        _spy(target, one.rank, folder, seconds)
        for target, one in zip(targets, records, strict=True)
    ]
    began = time.monotonic()
    with suppress(KeyboardInterrupt):
        while time.monotonic() - began < seconds and any(target.alive() for target in targets):
            told("observing", int(time.monotonic() - began), int(seconds))
            time.sleep(0.1)
    spent_s = time.monotonic() - began
    lines = []
    for target, way, one, cpu_s, spy in zip(targets, ways, records, before, spies, strict=True):
        assemble.take_cores(one)
        now_s = _cpu_s(target.pid)
        if now_s is not None and cpu_s is not None:
            busy = (now_s - cpu_s) / spent_s
            lines.append(f"process {target.pid} used {busy:.2f} cores over {spent_s:.0f} s")
        else:
            lines.append(f"process {target.pid} ended while it was observed")
        one.notes.append("nothing was put into the process: no steps and no operators are known")
        lines.append(_end_spy(spy, way))
        lines += busiest(folder / spied(one.rank))
        with suppress(OSError):
            assemble.finish(one, folder)
    end_sampling(sampler, records)
    return list(dict.fromkeys(lines))


def until_sampled(folder: Path, sampler: SamplerHandle | None, told: Told) -> None:
    """Waits until the sampler has written something, or has ended: then the seconds begin."""
    until = time.monotonic() + SAMPLER_S
    while sampler is not None and sampler.process.poll() is None and time.monotonic() < until:
        if any(path.stat().st_size for path in (folder / run.SAMPLES).glob("*.jsonl")):
            return
        told("observing", 0, 0)
        time.sleep(0.05)


def _cpu_s(pid: int) -> float | None:
    """CPU time that the process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _spy(target: Target, rank: int, folder: Path, seconds: float) -> subprocess.Popen[bytes] | None:
    program = spy_program()
    if program is None:
        return None
    out = folder / spied(rank)
    command = [program, "record", "--pid", str(target.pid), "--rate", str(RATE_HZ), "--threads"]
    command += ["--nonblocking", "--full-filenames", "--format", "raw", "--output", str(out)]
    command += ["--duration", str(max(1, round(seconds)))]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _end_spy(spy: subprocess.Popen[bytes] | None, way: access.Access) -> str:
    if spy is None:
        return "no stacks were recorded: pip install py-spy for them"
    try:
        _, errors = spy.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        spy.send_signal(signal.SIGINT)
        _, errors = spy.communicate()
    if spy.returncode == 0:
        return "stacks were recorded by py-spy"
    last = errors.decode(errors="replace").strip().splitlines()[-1:]
    return f"no stacks were recorded: {way.why or ''.join(last)}"


def spied(rank: int) -> str:
    """Name of the file with a rank's stacks as py-spy writes them."""
    return f"stacks-rank{rank:05d}.collapsed"


def busiest(path: Path, most: int = 3) -> list[str]:
    """Where the main thread was most, from py-spy's stacks: one line each, outermost frame first,
    `function (file:line)` apart by semicolons, and how often it was seen."""
    counts: dict[str, int] = {}
    total = 0
    try:
        text = path.read_text(errors="replace")[:MAX_STACKS_CHARS]
    except OSError:
        return []
    for line in text.splitlines():
        stack, _, number = line.rpartition(" ")
        frames = stack.split(";")
        if not number.isdecimal() or MAIN not in frames[0]:
            continue
        total += int(number)
        own = [f for f in frames[1:] if "site-packages" not in f and "/lib/python3" not in f]
        place = (own or frames)[-1]
        counts[place] = counts.get(place, 0) + int(number)
    ranked = sorted(counts.items(), key=lambda item: -item[1])[:most]
    return [f"main thread {count / total:.0%} in {place}" for place, count in ranked]
