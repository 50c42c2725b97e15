"""One sampler a node, and who it watches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof.collectors.sampler_lock import Member, NodeLock, Roster, alive, born_ticks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_only_one_has_the_lock_of_a_directory(tmp_path: Path) -> None:
    first, second, other = (NodeLock(tmp_path / name) for name in ("a", "a", "b"))
    assert first.take()
    assert not second.take()
    assert other.take()
    first.release()
    assert second.take()


def test_the_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / f"gpuprof-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="somebody else"):
        NodeLock(tmp_path)


def test_members_are_read_once_and_half_lines_later(tmp_path: Path) -> None:
    writer, reader = Roster(tmp_path), Roster(tmp_path)
    writer.append(Member(pid=5, rank=1))
    assert [m.pid for m in reader.news()] == [5]
    assert reader.news() == []
    with writer._path.open("ab") as file:
        file.write(b'{"pid":6}\nnonsense\n{"pid"')
    assert [m.pid for m in reader.news()] == [6]
    with writer._path.open("ab") as file:
        file.write(b":7}\n")
    assert [m.pid for m in reader.news()] == [7]


def test_a_zombie_and_a_recycled_pid_are_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    while born_ticks(child.pid) is not None:  # until it has ended; nobody has reaped it yet
        pass
    assert not alive(Member(pid=child.pid))
    child.wait()
    own = born_ticks(os.getpid())
    assert own is not None
    assert alive(Member(pid=os.getpid(), born=own))
    assert not alive(Member(pid=os.getpid(), born=own + 1))
