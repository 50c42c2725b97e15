"""Jobs that ask a daemon for work: gpuprof answers, and puts nothing into them."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuprof
from fixtures.attached import IDLE, PATIENCE_S, TRAINING, Loop
from gpuprof.attach import kineto_door, targets
from gpuprof.attach.kineto_door import Daemon, DoorError, Question

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sockets of Linux")
HEAD = struct.Struct("<Q32s")


class Asking:
    """What Kineto does in a process."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "dynoconfigclient"))
        self.socket.settimeout(PATIENCE_S)
        self.daemon = str(folder / kineto_door.NAME)

    def send(self, kind: bytes, body: bytes) -> None:
        self.socket.sendto(HEAD.pack(len(body), kind) + body, self.daemon)

    def ask(self, wanted: int = 3) -> None:
        self.send(b"req", struct.pack("<iiqi", wanted, 1, 0, 1))

    def hears(self) -> tuple[bytes, bytes]:
        data = self.socket.recv(65536)
        size, kind = HEAD.unpack_from(data)
        return kind.rstrip(b"\0"), data[HEAD.size : HEAD.size + size]


def test_a_question_is_answered_to_the_process_that_asked(tmp_path: Path) -> None:
    """Whose it is says the kernel; the number in the question may be of another namespace."""
    daemon, asking = Daemon(str(tmp_path)), Asking(tmp_path)
    asking.send(b"ctxt", struct.pack("<iiq", 0, 1, 0))
    asking.ask()
    (question,) = daemon.questions()
    assert (question.pid, question.free) == (os.getpid(), True)
    assert asking.hears() == (b"ctxt", struct.pack("<i", 1))
    assert daemon.answer(question, "ACTIVITIES_ITERATIONS=10\n")
    assert asking.hears() == (b"req", b"ACTIVITIES_ITERATIONS=10\n")
    asking.ask(wanted=1)
    assert [q.free for q in daemon.questions()] == [False]
    daemon.close()


@pytest.mark.parametrize(
    "data", [b"", b"req", HEAD.pack(0, b"req"), HEAD.pack(2**63, b"req") + b"x", b"\xff" * 300]
)
def test_what_is_no_question_is_not_answered(tmp_path: Path, data: bytes) -> None:
    """Any process of the user may send anything."""
    daemon, asking = Daemon(str(tmp_path)), Asking(tmp_path)
    asking.socket.sendto(data, asking.daemon)
    asking.ask()
    assert len(list(daemon.questions())) == 1
    daemon.close()


def test_a_process_that_has_gone_is_no_error(tmp_path: Path) -> None:
    daemon = Daemon(str(tmp_path))
    assert not daemon.answer(Question(1, True, str(tmp_path / "gone")), "")
    daemon.close()


def test_another_daemon_is_not_pushed_aside(tmp_path: Path) -> None:
    """But a socket on which nobody listens any more is."""
    first = Daemon(str(tmp_path))
    with pytest.raises(DoorError, match="another daemon"):
        Daemon(str(tmp_path))
    first._socket.close()
    Daemon(str(tmp_path)).close()
    assert not (tmp_path / kineto_door.NAME).exists()


def test_what_is_asked_for() -> None:
    """Steps are counted by torch itself; several ranks begin at one time."""
    plain = {"steps": 10, "seconds": 0.0, "stacks": False, "shapes": False}
    text = kineto_door.configuration("/tmp/t.json", plain)
    assert "ACTIVITIES_ITERATIONS=10\n" in text
    assert "STACK" not in text
    text = kineto_door.configuration("/tmp/t.json", plain, start_ms=1234, seconds=2.5)
    assert "PROFILE_START_TIME=1234\nACTIVITIES_DURATION_MSECS=2500\n" in text
    text = kineto_door.configuration("/tmp/t.json", {**plain, "stacks": True, "shapes": True})
    assert "PROFILE_WITH_STACK=true\nPROFILE_REPORT_INPUT_SHAPES=true\n" in text
    assert kineto_door.written("trace-1.json", 7) == "trace-1_7.json"


def test_a_process_without_the_variable_has_no_such_door(start) -> None:
    target = targets.hold(start(IDLE).pid)
    assert "without KINETO_USE_DAEMON" in kineto_door.why_closed(target)
    target.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket has room for 107 characters, and Kineto adds 53 to its folder's."""
    with tempfile.TemporaryDirectory(prefix="door-", dir="/tmp") as name:
        yield Path(name)


def test_a_job_that_asks_is_recorded_with_nothing_put_in(
    tmp_path: Path, short_folder: Path, start
) -> None:
    """Exactly the steps, the lines from a second window, and losses that go on."""
    pytest.importorskip("torch")
    (tmp_path / "base.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    variables = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(short_folder),
        "KINETO_CONFIG": str(tmp_path / "base.conf"),
        "KINETO_LOG_LEVEL": "6",
    }
    child = start(TRAINING, wait_for="losses", variables=variables)
    command = [sys.executable, "-m", "gpuprof", "attach", "--pid", str(child.pid), "--no-inject"]
    done = subprocess.run(
        [*command, "--out", os.fspath(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    run = gpuprof.load(tmp_path / "run")
    assert [(w.kind, w.steps) for w in run.ranks[0].windows] == [("timing", 10), ("attribution", 2)]
    assert "Where one step goes" in done.stdout
    assert not (short_folder / kineto_door.NAME).exists()
    Loop(child, tmp_path).goes_on()
