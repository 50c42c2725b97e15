"""What doctor says of machines that lack something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fixtures.nvml.scenario import A100, Scenario
from fixtures.nvml.testing import for_programs, needs_stand_in
from gpuprof.collectors.nvml_probe import GpuProbe, Probe
from gpuprof.doctor import checks_of, probe_host, probe_nvml

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_driver_that_crashes_hangs_or_babbles_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (crashed,) = probe_nvml(python("import os; os.kill(os.getpid(), 11)"))
    assert (crashed.state, crashed.why) == ("missing", "signal 11")
    monkeypatch.setattr("gpuprof.doctor.NVML_TIMEOUT_S", 0.2)
    (hung,) = probe_nvml(python("import time; time.sleep(60)"))
    assert "does not answer" in hung.what
    monkeypatch.undo()
    (failed,) = probe_nvml(python("raise SystemExit('no such thing')"))
    assert failed.why == "no such thing"


def test_a_machine_without_a_driver_has_a_reason_and_a_remedy() -> None:
    answer = Probe(error="NVML Shared Library Not Found", error_kind="NVMLError_LibraryNotFound")
    (check,) = checks_of(answer)
    assert check.state == "missing"
    assert "install the driver" in check.remedy


def test_a_container_without_its_gpus() -> None:
    (check,) = checks_of(Probe(driver="570"))
    assert "--gpus" in check.remedy


def test_what_a_gpu_may_not_be_asked() -> None:
    refused = {"sm_active_frac": ("no_permission", "Insufficient Permissions")}
    gpu = GpuProbe(0, "X", metrics={"fast": ["util_frac"]}, missing=refused)
    names = {check.name: check for check in checks_of(Probe(driver="570", gpus=[gpu]))}
    assert names["gpu:0 GPM"].remedy
    assert names["gpu:0 permissions"].state == "limited"
    assert names["gpu:0 events"].state == "limited"


@needs_stand_in
def test_the_prober_asks_a_real_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(2, A100).fault("nvmlDevice*", gpu=1, ret=15)
    for_programs(monkeypatch, scenario, tmp_path)
    names = {check.name: check for check in probe_nvml()}
    assert "2 GPUs" in names["nvml"].what
    assert "A100" in names["gpu:0"].what
    assert names["gpu:0 GPM"].why == "GPM needs Hopper or newer"
    assert names["gpu:1"].state == "missing"


def test_an_old_container_on_the_host_side(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    names = {check.name: check for check in probe_host(tmp_path)}
    assert names["host"].state == "limited"
    assert "psi=1" in names["pressure"].remedy
    assert names["cpu quota"].what.startswith("0.5 of")
    assert names["shared memory"].state == "missing"
