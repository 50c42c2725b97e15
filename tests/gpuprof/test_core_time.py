"""Core time of a thread: read from the kernel's counters, and silent where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.core_time import CoreTime


def test_adds_up_the_stretches_only(tmp_path: Path) -> None:
    """What passes between two stretches (gpuprof's own work) is nobody's step."""
    counters = tmp_path / "schedstat"
    core = CoreTime(str(counters))
    for now in ("1000 50 1", "1600 90 2", "5000 500 3", "5100 501 4"):
        counters.write_text(f"{now}\n")
        if now.startswith(("1000", "5000")):
            core.begin()
        else:
            core.end()
    assert (core.known, core.on_core_ns, core.ready_ns) == (True, 700, 41)


@pytest.mark.parametrize("content", [None, "", "garbage here now", "12"])
def test_without_counters_nothing_is_known(tmp_path: Path, content: str | None) -> None:
    """No file, or one of another form: nothing is claimed, and nothing is raised into a loop."""
    counters = tmp_path / "schedstat"
    if content is not None:
        counters.write_text(content)
    core = CoreTime(str(counters))
    core.begin()
    core.end()
    assert not core.known


def test_an_end_without_a_beginning_adds_nothing(tmp_path: Path) -> None:
    """The first recorded step of a window ends a step that was not watched from its start."""
    counters = tmp_path / "schedstat"
    counters.write_text("1000 50 1\n")
    core = CoreTime(str(counters))
    core.end()
    assert (core.on_core_ns, core.ready_ns) == (0, 0)
