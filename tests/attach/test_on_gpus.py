"""`--all-gpus`: one job, the one that computes here."""

from __future__ import annotations

import pytest

from fixtures.attached import IDLE
from gpuprof.attach import on_gpus
from gpuprof.errors import GpuprofError


def test_the_process_that_computes_is_found(loop, monkeypatch) -> None:
    """However many devices it is on."""
    monkeypatch.setattr(on_gpus, "_compute_pids", lambda: [loop.pid, loop.pid])
    (found,) = on_gpus.find_on_gpus()
    assert found.pid == loop.pid
    found.close()


def test_several_jobs_are_not_mixed(loop, training, monkeypatch) -> None:
    """Each is named, to choose one."""
    monkeypatch.setattr(on_gpus, "_compute_pids", lambda: [loop.pid, training.pid])
    with pytest.raises(GpuprofError, match="2 jobs") as caught:
        on_gpus.find_on_gpus()
    assert f"--pid {loop.pid} (1 process)" in caught.value.hint
    assert f"--pid {training.pid} (1 process)" in caught.value.hint


def test_nobody_who_uses_torch(start, monkeypatch) -> None:
    """A process that is not to be seen, and one without torch."""
    child = start(IDLE)
    monkeypatch.setattr(on_gpus, "_compute_pids", lambda: [child.pid, 2**22 - 3])
    with pytest.raises(GpuprofError, match="none that uses torch"):
        on_gpus.find_on_gpus()


def test_no_driver_is_one_line(monkeypatch) -> None:
    """Without NVML nobody knows."""
    from types import SimpleNamespace

    from gpuprof.collectors import nvml

    def broken() -> None:
        raise OSError("NVML Shared Library Not Found")

    monkeypatch.setattr(nvml, "load_pynvml", lambda: SimpleNamespace(nvmlInit=broken))
    with pytest.raises(GpuprofError, match="no NVIDIA driver"):
        on_gpus.find_on_gpus()
