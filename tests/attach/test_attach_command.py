"""`gpuprof attach`: the verdict, and every way in which it can fail, on jobs that go on."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gpuprof
from gpuprof.attach import targets

pytest.importorskip("torch")

OWN_PROFILER = """
import time, torch
from torch.profiler import ProfilerAction, profile
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
action = ProfilerAction.{action}
with profile(schedule=lambda step: action) as prof:
    log = open("losses", "w", buffering=1)
    while True:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        log.write("step" * 10 + "\\n")
        time.sleep(0.005)
"""
STARTS_ONE = """
import os, time, torch
from torch.profiler import profile
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = open("losses", "w", buffering=1)
def step():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    log.write("step" * 10 + "\\n")
    time.sleep(0.005)
while not os.path.exists("now"): step()
with profile() as prof:
    for _ in range(5): step()
open("theirs", "w").write(str(sum(e.name.startswith("aten::") for e in prof.events())))
while True: step()
"""
NATIVE = """
import torch, time
open("losses", "w").write("x" * 300)
import ctypes
ctypes.PyDLL(None).sleep(60)  # holds the GIL
"""


ATTACH = (sys.executable, "-m", "gpuprof", "attach", "--pid")


def attach(tmp_path: Path, pid: int, *more: str) -> subprocess.CompletedProcess[str]:
    out = [] if "--out" in more else ["--out", os.fspath(tmp_path / "run")]
    return subprocess.run(
        [*ATTACH, str(pid), *out, *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure that the user can mend."""
    assert done.returncode == 2, done.stderr
    lines = [x for x in done.stderr.splitlines() if x.startswith("gpuprof:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def goes_on(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    before = (tmp_path / "losses").stat().st_size
    until = time.monotonic() + 20
    while (tmp_path / "losses").stat().st_size <= before + 100:
        assert child.poll() is None, (tmp_path / "stderr").read_text()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_running_loop_gets_its_verdict_and_the_same_losses(tmp_path, training) -> None:
    """Exactly the steps asked for, a line of the script, and a loop that never knew."""
    done = attach(tmp_path, training.pid, "--steps", "7")
    assert done.returncode == 0, done.stderr
    goes_on(tmp_path, training)
    assert (tmp_path / "stderr").read_text() == ""
    training.kill()
    run = gpuprof.load(tmp_path / "run")
    assert run.manifest.launched_by == "attach"
    assert [(w.kind, w.steps) for w in run.ranks[0].windows] == [("timing", 7), ("attribution", 2)]
    trace = json.loads(gzip.decompress((tmp_path / "run/trace-rank00000.json.gz").read_bytes()))
    names = [e.get("name", "") for e in trace["traceEvents"] if e.get("ph") == "X"]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 7
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert not list(Path("/tmp").glob(f"gpuprof-attach-{training.pid}-*"))
    losses = (tmp_path / "losses").read_text().splitlines()[:-1]
    alone = tmp_path / "alone"
    alone.mkdir()
    script = tmp_path / "program0.py"
    subprocess.run([sys.executable, script, str(len(losses))], cwd=alone, check=True)
    assert (alone / "losses").read_text().splitlines() == losses


def test_a_dry_run_touches_nothing(tmp_path, training) -> None:
    """It says what would be done."""
    done = attach(tmp_path, training.pid, "--dry-run")
    assert done.returncode == 0
    assert "pending call" in done.stdout or "remote_exec" in done.stdout
    assert not (tmp_path / "run").exists()


def test_seconds_instead_of_steps(tmp_path, training) -> None:
    """Whole steps for so long."""
    done = attach(tmp_path, training.pid, "--duration", "0.5", "--no-attribution")
    assert done.returncode == 0, done.stderr
    window = gpuprof.load(tmp_path / "run").ranks[0].windows[0]
    assert window.steps > 10
    goes_on(tmp_path, training)


def test_windows_apart(tmp_path, training) -> None:
    """Two of the same, so that one can be compared with the other."""
    done = attach(tmp_path, training.pid, "--repeat", "2", "--no-attribution")
    assert done.returncode == 0, done.stderr
    assert [w.steps for w in gpuprof.load(tmp_path / "run").ranks[0].windows] == [10, 10]


def test_a_second_attach_is_refused(tmp_path, training) -> None:
    """And the first one is not disturbed."""
    first = subprocess.Popen(
        [*ATTACH, str(training.pid), "--duration", "6", "--out", tmp_path / "first"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2.5)
    assert "attached to process" in refused(attach(tmp_path, training.pid))
    assert first.wait(60) == 0
    goes_on(tmp_path, training)


def test_a_killed_attacher_leaves_a_loop_that_can_be_attached_to(tmp_path, training) -> None:
    """The agent goes by itself when nobody renews its lease."""
    first = subprocess.Popen(
        [*ATTACH, str(training.pid), "--duration", "20", "--out", tmp_path / "first"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2.5)
    first.kill()
    first.wait()
    until = time.monotonic() + 40
    while attach(tmp_path, training.pid, "--out", tmp_path / f"{time.time()}").returncode != 0:
        assert time.monotonic() < until
        time.sleep(1)
    goes_on(tmp_path, training)


def test_ctrl_c_ends_the_window_and_still_reports(tmp_path, training) -> None:
    """What was recorded until then is analyzed."""
    child = subprocess.Popen(
        [*ATTACH, str(training.pid), "--duration", "30", "--out", tmp_path / "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert b"Where one step goes" in out
    goes_on(tmp_path, training)


def test_a_target_that_ends_inside_the_window(tmp_path, start_training) -> None:
    """It ends as it would have ended, with status 0, and what was recorded is kept."""
    child = start_training("1500")
    said = refused(attach(tmp_path, child.pid, "--duration", "60"))
    assert "ended inside the window" in said
    assert child.wait(10) == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_a_target_that_is_killed_inside_the_window(tmp_path, training) -> None:
    """The line says so, and comes at once."""
    threading.Timer(3.0, training.kill).start()
    assert "ended inside the window" in refused(attach(tmp_path, training.pid, "--duration", "60"))


@pytest.mark.parametrize("action", ["RECORD", "WARMUP"])
def test_a_profiler_of_the_users_own_is_left_alone(
    tmp_path, start, needs_ptrace, action: str
) -> None:
    """Also in its warm-up, when torch itself does not say that it is on."""
    child = start(OWN_PROFILER.format(action=action), wait_for="losses")
    assert "profiler of the program's own" in refused(attach(tmp_path, child.pid))
    goes_on(tmp_path, child)


def test_a_profiler_that_starts_inside_the_window_gets_room(tmp_path, start, needs_ptrace) -> None:
    """Ours ends first, theirs records as if alone."""
    child = start(STARTS_ONE, wait_for="losses")
    threading.Timer(3.0, (tmp_path / "now").touch).start()
    said = refused(attach(tmp_path, child.pid, "--duration", "20"))
    assert "started a profiler of its own" in said
    goes_on(tmp_path, child)
    assert int((tmp_path / "theirs").read_text()) > 20


def test_a_loop_without_steps_is_recorded_by_time(tmp_path, start, needs_ptrace) -> None:
    """No optimizer and no DataLoader: between two bytecodes."""
    text = "import torch\nopen('losses', 'w').write('x' * 300)\nx = torch.ones(64, 64)\n"
    child = start(text + "while True: x = (x @ x).clamp(0, 1)", wait_for="losses")
    done = attach(tmp_path, child.pid, "--duration", "0.2", "--no-attribution")
    assert done.returncode == 0, done.stderr
    assert child.poll() is None


def test_stuck_in_native_code_is_said_within_seconds(tmp_path, start, needs_ptrace) -> None:
    """The call that never ran is taken back: it finds nothing when it does run."""
    child = start(NATIVE, wait_for="losses")
    assert "stuck in native code" in refused(attach(tmp_path, child.pid))
    assert child.poll() is None


def test_traced_already(tmp_path, training) -> None:
    """By a debugger, or by another tool: who it is, is said."""
    program = (
        "import sys, time; from gpuprof.attach import ptrace; ptrace.seize(int(sys.argv[1]));"
        " print(flush=True); time.sleep(60)"
    )
    tracer = subprocess.Popen(
        [sys.executable, "-c", program, str(training.pid)], stdout=subprocess.PIPE
    )
    assert tracer.stdout is not None
    tracer.stdout.readline()
    try:
        assert "is traced already by" in refused(attach(tmp_path, training.pid))
    finally:
        tracer.kill()
        tracer.wait()
    goes_on(tmp_path, training)


def test_from_outside_only(tmp_path, training) -> None:
    """Samples, and no agent."""
    done = attach(tmp_path, training.pid, "--no-inject", "--duration", "2")
    assert done.returncode == 0, done.stderr
    assert "cores" in done.stdout
    assert not list((tmp_path / "run").glob("trace*"))


def test_a_job_in_namespaces_of_its_own(tmp_path, start_training) -> None:
    """As in a container: pid 1 in its own eyes, with a /tmp that nobody else sees."""
    shell = 'mount -t tmpfs none /var/tmp && exec "$@"'
    wrap = ("unshare", "-p", "-n", "-m", "-f", "sh", "-c", shell, "sh")
    probe = subprocess.run(
        ["unshare", "-p", "-n", "-m", "-f", "true"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("namespaces can't be made here")
    outer = start_training(wrap=wrap)
    inner = next(p.pid for p in targets.process_table().values() if p.parent == outer.pid)
    try:
        done = attach(tmp_path, inner, "--no-attribution")
        assert done.returncode == 0, done.stderr
        goes_on(tmp_path, outer)
    finally:
        os.kill(inner, signal.SIGKILL)


def test_a_folder_that_is_not_empty_is_not_touched(tmp_path, training) -> None:
    """Another recording may be in it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    assert "is not empty" in refused(attach(tmp_path, training.pid))
    goes_on(tmp_path, training)
