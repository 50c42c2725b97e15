"""The leader of a run: told to be gone only where that is certain."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fixtures.attached import wait_until
from gpuprof import leader

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def other() -> subprocess.Popen[str]:
    """Another process that says who it is, and waits."""
    program = "from gpuprof import leader; print(leader.identity(), flush=True); input()"
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_leader_runs_until_it_has_ended() -> None:
    """Also one whose parent has not asked for its status yet."""
    child = other()
    assert child.stdout is not None
    who = child.stdout.readline().strip()
    assert who
    assert not leader.is_gone(who)
    child.kill()
    assert child.stdout.read() == ""
    wait_until(lambda: leader.is_gone(who), "it is a zombie")
    child.wait()
    assert leader.is_gone(who)


def test_a_process_that_came_to_its_number_later_is_another_one() -> None:
    number, born, place = leader.identity().split(" ", 2)
    assert not leader.is_gone(f"{number} {born} {place}")
    assert leader.is_gone(f"{number} {int(born) + 1} {place}")


@pytest.mark.parametrize(
    "who",
    [
        "",
        "x",
        "1",
        "999999999 5 another-boot pid:[4026531836] time:[4026531834]",  # on another node
        "99999999999999999999999 5 another-boot",
    ],
)
def test_what_can_not_be_seen_from_here_is_taken_to_run(who: str) -> None:
    assert not leader.is_gone(who)
