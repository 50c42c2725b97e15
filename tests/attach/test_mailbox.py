"""The folder through which gpuprof and its agent talk: the other side is a stranger."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.attach import mailbox
from gpuprof.attach.mailbox import Mailbox
from gpuprof.errors import GpuprofError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def box() -> Iterator[Mailbox]:
    made = mailbox.make(os.getpid(), "")
    yield made
    made.remove()


def test_words_go_both_ways_and_nothing_stays(box: Mailbox) -> None:
    """A folder of mode 0700 in the target's own temporary folder."""
    box.put("config", {"steps": 10})
    assert box.get("config") == {"steps": 10}
    assert Path(box.there).stat().st_mode & 0o777 == 0o700
    box.remove()
    assert not Path(box.there).exists()


def test_a_link_that_the_target_put_there_is_not_followed(box: Mailbox, tmp_path: Path) -> None:
    """Written as root, it could be any file."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (box.here / "boot.py").symlink_to(victim)
    (box.here / "observed").symlink_to(victim)
    (box.here / "stop").symlink_to(victim)
    with pytest.raises(FileExistsError):
        box.write("boot.py", b"theirs")
    box.put("stop", {})  # renamed over the link
    assert box.get("observed") is None
    (box.here / "lease").unlink()
    (box.here / "lease").symlink_to(tmp_path / "new")
    box.renew()
    assert victim.read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_said_before_anything_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "FREE_BYTES", 1 << 62)
    with pytest.raises(GpuprofError, match="MiB free") as caught:
        mailbox.make(os.getpid(), "")
    assert "free space there" in caught.value.hint


def test_a_folder_that_is_removed_ends_the_waiting(box: Mailbox) -> None:
    """Nobody will ever answer there."""
    assert not box.is_removed()
    shutil.rmtree(box.there)
    assert box.is_removed()
    assert box.wait("status", 1000.0, lambda: True) is None


@pytest.mark.parametrize("word", [b"", b"{", b"\xff\xfe", b"nothing"])
def test_what_is_no_word_is_none(box: Mailbox, word: bytes) -> None:
    """Cut off, or no JSON at all."""
    box.write("progress", word)
    assert box.get("progress") is None
