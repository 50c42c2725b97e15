"""`gpuprof attach`: the verdict, and every way in which it can fail, on jobs that go on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import gpuprof
from fixtures.attached import PATIENCE_S, Loop, is_recording, mailbox_word, wait_until
from gpuprof.attach import access, enter, standstill, targets
from gpuprof.errors import GpuprofError

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
open("counted", "w").write(str(sum(e.name.startswith("aten::") for e in prof.events())))
os.rename("counted", "theirs")
while True: step()
"""
STARTS_LATE = """
import os, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = open("losses", "w", buffering=1)
log.write("waits\\n")
while not os.path.exists("now"): time.sleep(0.01)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    log.write("step" * 10 + "\\n")
    time.sleep(0.005)
"""
REPLACES_ITSELF = """
import os, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
log = open("losses", "w", buffering=1)
while not os.path.exists("now"):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    log.write("step" * 10 + "\\n")
    time.sleep(0.005)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(10000)"])
"""
NATIVE = """
import torch, time
import ctypes
open("losses", "w").write("x" * 300)
ctypes.PyDLL(None).sleep(10000)  # holds the GIL
"""


ATTACH = (sys.executable, "-m", "gpuprof", "attach", "--pid")


def attach(tmp_path: Path, pid: int, *more: str) -> subprocess.CompletedProcess[str]:
    out = [] if "--out" in more else ["--out", os.fspath(tmp_path / "run")]
    return subprocess.run(
        [*ATTACH, str(pid), *out, *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_S,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure that the user can mend."""
    assert done.returncode == 2, done.stderr
    lines = [x for x in done.stderr.splitlines() if x.startswith("gpuprof:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def goes_on(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    Loop(child, tmp_path).goes_on()


def recording(tmp_path: Path, pid: int, *more: str) -> subprocess.Popen[str]:
    """An attachment whose window is open; it ends with the test that ends it."""
    child = subprocess.Popen(
        [*ATTACH, str(pid), "--duration", "60", "--out", os.fspath(tmp_path / "first"), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: is_recording(pid), "a step was recorded")
    return child


def when_recording(pid: int, act: object) -> threading.Thread:
    """Does something once a step has been recorded."""
    assert callable(act)

    def wait() -> None:
        wait_until(lambda: is_recording(pid), "a step was recorded")
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


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
    (reads,) = (one for one in run.ranks[0].sync_lines if one.call == ".item()")
    assert (Path(reads.file).name, reads.count) == ("program0.py", 2)  # one in each of two steps
    assert run.ranks[0].windows[0].core_ms is not None
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


def test_a_dry_run_touches_nothing(tmp_path, loop) -> None:
    """It says what would be done."""
    done = attach(tmp_path, loop.pid, "--dry-run")
    assert done.returncode == 0
    assert "pending call" in done.stdout or "remote_exec" in done.stdout
    assert not (tmp_path / "run").exists()


def test_seconds_instead_of_steps(tmp_path, loop) -> None:
    """Whole steps for so long."""
    done = attach(tmp_path, loop.pid, "--duration", "0.5", "--no-attribution")
    assert done.returncode == 0, done.stderr
    window = gpuprof.load(tmp_path / "run").ranks[0].windows[0]
    assert window.steps * window.step_ms >= 500
    loop.goes_on()


def test_windows_apart(tmp_path, loop) -> None:
    """Two of the same, so that one can be compared with the other."""
    done = attach(tmp_path, loop.pid, "--repeat", "2", "--no-attribution")
    assert done.returncode == 0, done.stderr
    assert [w.steps for w in gpuprof.load(tmp_path / "run").ranks[0].windows] == [10, 10]
    loop.goes_on()


def test_a_second_attach_is_refused_and_ctrl_c_still_reports(tmp_path, loop) -> None:
    """The first one is not disturbed, and what it recorded until Ctrl-C is analyzed."""
    first = recording(tmp_path, loop.pid)
    assert "attached to process" in refused(attach(tmp_path, loop.pid))
    first.send_signal(signal.SIGINT)
    out, errors = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, errors
    assert "Where one step goes" in out
    loop.goes_on()


def test_on_a_terminal_the_ranks_are_shown_while_they_are_recorded(tmp_path, loop) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [*ATTACH, str(loop.pid), "--duration", "60", "--out", tmp_path / "run"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as attached:
        os.close(theirs)
        seen = b""
        while b"Median" not in seen or b"recording (timing)" not in seen:
            seen += os.read(ours, 1 << 16)
        attached.send_signal(signal.SIGINT)
        with suppress(OSError):  # the other end is closed when it is done
            while os.read(ours, 1 << 16):
                pass
    os.close(ours)
    assert not (tmp_path / "run" / "progress.json").exists()
    loop.goes_on()


def test_a_killed_attacher_leaves_a_loop_that_can_be_attached_to(tmp_path, loop) -> None:
    """The agent goes by itself when nobody renews its lease, and takes its folder along."""
    first = recording(tmp_path, loop.pid)
    first.kill()
    first.communicate()
    wait_until(lambda: not list(Path("/tmp").glob(f"gpuprof-attach-{loop.pid}-*")), "it has left")
    assert attach(tmp_path, loop.pid, "--no-attribution").returncode == 0
    loop.goes_on()


def test_a_folder_that_is_removed_inside_the_window(tmp_path, loop) -> None:
    """The agent leaves as if gpuprof had been killed, and can come again."""

    def remove() -> None:
        for path in Path("/tmp").glob(f"gpuprof-attach-{loop.pid}-*"):
            shutil.rmtree(path)

    removes = when_recording(loop.pid, remove)
    assert "has been removed" in refused(attach(tmp_path, loop.pid, "--duration", "60"))
    removes.join()
    loop.goes_on()
    assert (loop.folder / "stderr").read_text() == ""
    again = ("--no-attribution", "--steps", "2")

    def has_left() -> bool:
        out = tmp_path / f"again{time.monotonic_ns()}"
        return attach(tmp_path, loop.pid, *again, "--out", str(out)).returncode == 0

    wait_until(has_left, "the agent has left")


def test_without_the_right_to_trace(tmp_path, loop) -> None:
    """As in a container without SYS_PTRACE: what would give it, and what is seen all the same."""
    drop = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("needs root, to give a right up")
    done = subprocess.run(
        [*drop, *ATTACH, str(loop.pid), "--duration", "1", "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CAP_SYS_PTRACE" in done.stderr
    assert "docker run --cap-add SYS_PTRACE" in done.stderr
    assert "cores" in done.stdout
    loop.goes_on()


def test_a_target_that_ends_inside_the_window(tmp_path, training) -> None:
    """It ends as it would have ended, with status 0, and what was recorded is kept."""
    ends = when_recording(training.pid, (tmp_path / "enough").touch)
    said = refused(attach(tmp_path, training.pid, "--duration", "60"))
    ends.join()
    assert "ended inside the window" in said
    assert training.wait(PATIENCE_S) == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_a_target_that_is_killed_inside_the_window(tmp_path, training) -> None:
    """The line says so, and comes at once."""
    ends = when_recording(training.pid, training.kill)
    assert "ended inside the window" in refused(attach(tmp_path, training.pid, "--duration", "60"))
    ends.join()


def test_a_target_that_replaces_itself_inside_the_window(tmp_path, start, needs_ptrace) -> None:
    """Pid, pidfd and start time stay the same: it is not to pass for a loop that makes no step."""
    child = start(REPLACES_ITSELF, wait_for="losses")
    replaces = when_recording(child.pid, (tmp_path / "now").touch)
    said = refused(attach(tmp_path, child.pid, "--duration", "60"))
    replaces.join()
    assert f"process {child.pid} replaced itself by another program" in said
    assert child.poll() is None
    assert not list(Path("/tmp").glob(f"gpuprof-attach-{child.pid}-*"))


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
    starts = when_recording(child.pid, (tmp_path / "now").touch)
    said = refused(attach(tmp_path, child.pid, "--duration", "60"))
    starts.join()
    assert "started a profiler of its own" in said
    wait_until((tmp_path / "theirs").exists, "their profiler has ended")
    goes_on(tmp_path, child)
    assert int((tmp_path / "theirs").read_text()) > 20


def test_a_loop_without_steps_is_recorded_by_time(tmp_path, start, needs_ptrace) -> None:
    """No optimizer and no DataLoader: between two bytecodes."""
    text = "import torch\nopen('losses', 'w').write('x' * 300)\nx = torch.ones(64, 64)\n"
    child = start(text + "while True: x = (x @ x).clamp(0, 1)", wait_for="losses")
    done = attach(tmp_path, child.pid, "--duration", "0.2", "--no-attribution")
    assert done.returncode == 0, done.stderr
    assert child.poll() is None
    (window,) = gpuprof.load(tmp_path / "run").ranks[0].windows
    assert window.steps == 0
    assert window.step_ms >= 200
    # Else a machine that others keep busy would pass for a slow program.
    assert window.core_ms is not None
    assert window.ready_ms is not None


def test_a_program_that_was_only_starting_is_recorded_by_steps(
    tmp_path, start, needs_ptrace
) -> None:
    """What was begun by time, for want of steps, ends with the first of them and begins anew."""
    child = start(STARTS_LATE, wait_for="losses")
    first = subprocess.Popen(
        [*ATTACH, str(child.pid), "--duration", "60", "--out", os.fspath(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: mailbox_word(child.pid, "progress").get("open") == "timing", "it records")
    (tmp_path / "now").touch()
    wait_until(lambda: is_recording(child.pid), "a step was recorded")
    first.send_signal(signal.SIGINT)
    out, errors = first.communicate(timeout=3 * PATIENCE_S)
    assert first.returncode == 0, errors
    assert "marked by the profiler" in " ".join(out.split())
    assert gpuprof.load(tmp_path / "run").ranks[0].windows[0].steps >= 1
    goes_on(tmp_path, child)


def test_stuck_in_native_code_is_said(tmp_path, start, needs_ptrace, monkeypatch) -> None:
    """The call that never ran is taken back: it finds nothing when it does run."""
    monkeypatch.setattr(enter, "ANSWER_S", 1.0)
    child = start(NATIVE, wait_for="losses")
    (target,) = targets.find(child.pid)
    with pytest.raises(GpuprofError, match="stuck in native code"):
        enter.enter(target, access.look(target).way, {"windows": []})
    target.close()
    assert not list(Path("/tmp").glob(f"gpuprof-attach-{child.pid}-*"))
    assert child.poll() is None


def test_a_stopped_process_is_not_called_stuck(start) -> None:
    """Whoever has stopped it knows how to let it go on."""
    child = start("open('ready', 'w').write('x' * 300)\nwhile True: pass", wait_for="ready")
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: targets.read_process(child.pid).state == "T", "it has stopped")
    target = targets.hold(child.pid)
    with pytest.raises(GpuprofError, match="is stopped") as refusal:
        enter.enter(target, access.PENDING_CALL, {"windows": []})
    assert f"kill -CONT {child.pid}" in refusal.value.hint
    target.close()
    assert targets.read_process(child.pid).state == "T"


def test_a_loop_on_another_thread_is_told_from_one_that_is_stuck(
    tmp_path, start, needs_ptrace, monkeypatch
) -> None:
    """It goes on: nobody is to look for what holds it up."""
    monkeypatch.setattr(enter, "ANSWER_S", 1.0)
    child = start(
        "import threading, torch\nopen('losses', 'w').write('x' * 300)\n"
        "def train():\n    x = torch.ones(64, 64)\n"
        "    while True: x = (x @ x).clamp(0, 1)\n"
        "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\n",
        wait_for="losses",
    )
    used = iter([(3, 0), (3, enter.FEWEST_TICKS)])  # a busy machine may give it none meanwhile
    monkeypatch.setattr(targets, "processor_ticks", lambda pid: next(used))
    (target,) = targets.find(child.pid)
    with pytest.raises(GpuprofError, match="other threads of it compute"):
        enter.enter(target, access.look(target).way, {"windows": []})
    target.close()
    assert child.poll() is None


def test_traced_already_is_looked_on_from_outside(tmp_path, loop) -> None:
    """By a debugger, or by another tool: who it is, what is lost by it, and what would help."""
    program = (
        "import sys, time; from gpuprof.attach import ptrace; ptrace.seize(int(sys.argv[1]));"
        " print(flush=True); time.sleep(60)"
    )
    tracer = subprocess.Popen(
        [sys.executable, "-c", program, str(loop.pid)], stdout=subprocess.PIPE
    )
    assert tracer.stdout is not None
    tracer.stdout.readline()
    try:
        done = attach(tmp_path, loop.pid, "--duration", "1")
        assert done.returncode == 0, done.stderr
        assert "is traced already by" in done.stderr
        assert "for more: end that first" in done.stderr
        assert "No trace either" in done.stderr
        assert "cores" in done.stdout
    finally:
        tracer.kill()
        tracer.wait()
    loop.goes_on()


def test_from_outside_only(tmp_path, loop) -> None:
    """Samples, and no agent."""
    done = attach(tmp_path, loop.pid, "--no-inject", "--duration", "2")
    assert done.returncode == 0, done.stderr
    assert "cores" in done.stdout
    assert "main thread" in done.stdout or standstill.spy_program() is None
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


def test_a_folder_that_is_not_empty_is_not_touched(tmp_path, loop) -> None:
    """Another recording may be in it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    assert "is not empty" in refused(attach(tmp_path, loop.pid))
    loop.goes_on()
