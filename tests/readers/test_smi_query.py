"""nvidia-smi -q."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.errors import InputError
from gpuprof.readers.smi import is_smi, read_smi

CASES = Path(__file__).resolve().parents[2].parent / "shared/cases/smi"

LOG = """
==============NVSMI LOG==============

Timestamp                                 : Wed Sep 25 10:40:2{second} 2024
Driver Version                            : 535.129.03

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA A10
    GPU UUID                              : GPU-a
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
    FB Memory Usage
        Used                              : 4 MiB
    Utilization
        Gpu                               : {util} %
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 1
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : 99
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 100607
            Type                          : C
            Name                          : python
            Used GPU Memory               : 142 MiB

GPU 00000000:08:00.0
    Utilization
        Gpu                               : N/A
"""


def test_two_queries_of_two_gpus(tmp_path: Path) -> None:
    path = tmp_path / "smi.log"
    path.write_text(LOG.format(second=4, util=50) + LOG.format(second=5, util=60))
    found = read_smi(path)
    util = found.series["util_frac", "gpu:0"]
    assert util.value.tolist() == [0.5, 0.6]
    assert int(util.time_ns[1] - util.time_ns[0]) == 10**9
    assert found.why("util_frac", "gpu:1") is not None
    assert found.series["throttle_reasons", "gpu:0"].value.tolist() == [0x44, 0x44]
    assert found.series["ecc_uncorrected", "gpu:0"].value.tolist() == [3, 3]
    assert found.series["pcie_width", "gpu:0"].value[0] == 8
    assert found.devices[0].facts["pcie_width_max"] == 16
    assert [p.pid for p in found.processes] == [100607, 100607]
    assert found.processes[0].used_bytes == 142 * 2**20


def test_a_log_without_gpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "smi.log"
    path.write_text("==============NVSMI LOG==============\n\nAttached GPUs : 0\n")
    with pytest.raises(InputError, match="no GPU"):
        read_smi(path)


@pytest.mark.skipif(not CASES.is_dir(), reason="the real logs are not here")
def test_real_logs() -> None:
    found = {}
    for path in sorted(CASES.iterdir()):
        assert is_smi(path)
        found[path.name] = read_smi(path)
    names = [samples.devices[0].name for samples in found.values()]
    assert sorted(names) == ["NVIDIA A10", "NVIDIA H100 80GB HBM3", "NVIDIA TITAN V"]
    odd = next(samples for name, samples in found.items() if name.endswith("invalid"))
    assert "invalid" in odd.warnings[0]
    assert odd.series["throttle_reasons", "gpu:0"].value.tolist() == [1]  # idle alone
