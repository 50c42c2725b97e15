"""`--all-gpus`: one job, the one that computes here."""

from __future__ import annotations

import sys

import pytest

from fixtures.attached import IDLE
from gpuprof.attach import on_gpus, targets
from gpuprof.errors import GpuprofError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def computing(start, monkeypatch):
    """Programs that the driver sees, and that use torch by the looks of them."""

    def make(count: int, variables: dict[str, str] | None = None) -> list[int]:
        pids = [start(IDLE, variables=variables or {}).pid for _ in range(count)]
        monkeypatch.setattr(on_gpus, "_compute_pids", lambda: [*pids, *pids])
        monkeypatch.setattr(targets, "uses_torch", lambda pid: pid in pids)
        return pids

    return make


def test_the_process_that_computes_is_found(computing) -> None:
    """Once, on however many devices it is."""
    (pid,) = computing(1)
    (found,) = on_gpus.find_on_gpus()
    assert found.pid == pid
    found.close()


def test_ranks_of_one_launcher_are_one_job(computing) -> None:
    pids = computing(2, {"RANK": "0"})
    found = on_gpus.find_on_gpus()
    assert sorted(target.pid for target in found) == sorted(pids)
    for target in found:
        target.close()


def test_several_jobs_are_not_mixed(computing) -> None:
    """Each is named, to choose one."""
    pids = computing(2)
    with pytest.raises(GpuprofError, match="2 jobs") as caught:
        on_gpus.find_on_gpus()
    assert all(f"--pid {pid} (1 process)" in caught.value.hint for pid in pids)


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
