"""nvidia-smi dmon and pmon."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.errors import InputError
from gpuprof.readers.smi import read_smi

DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  rxpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz   MB/s
 20260425   16:06:06      0    300     60      -     98     40      0      0   2619   1980    120
 20260425   16:06:06      1     90     40      -      0      0      0      0   2619    345      0
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  rxpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz   MB/s
 20260425   16:06:07      0    310     61      -     97     40      0      0   2619   1980    130
 20260425   16:06:07      1
"""
PMON = """\
# gpu        pid  type    sm   mem   enc   dec   command
# Idx          #   C/G     %     %     %     %   name
    0      12345     C    98    40     -     -   python3 train.py
    1          -     -     -     -     -     -   -
"""


def test_dmon_has_series_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "dmon.txt"
    path.write_text(DMON)
    found = read_smi(path)
    assert found.series["util_frac", "gpu:0"].value.tolist() == [0.98, 0.97]
    assert found.series["pcie_rx_bytes_per_s", "gpu:0"].value.tolist() == [120e6, 130e6]
    assert found.series["sm_clock_mhz", "gpu:1"].value.tolist() == [345]
    assert found.why("mem_temp_c", "gpu:0") is not None
    assert found.timed
    assert "1 damaged" in found.warnings[0]


def test_its_comma_form_and_no_times(tmp_path: Path) -> None:
    path = tmp_path / "dmon.csv"
    path.write_text("#gpu, pwr, sm\n#Idx, W, %\n0, 300, 98\n0, 310, 97\n")
    found = read_smi(path)
    assert found.series["power_w", "gpu:0"].value.tolist() == [300, 310]
    assert not found.timed


def test_pmon_lists_processes(tmp_path: Path) -> None:
    path = tmp_path / "pmon.txt"
    path.write_text(PMON)
    (process,) = read_smi(path).processes
    assert (process.pid, process.sm_frac, process.scope) == (12345, 0.98, "gpu:0")
    assert process.name == "python3 train.py"


def test_headings_alone_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "dmon.txt"
    path.write_text("# gpu pwr\n# Idx W\n")
    with pytest.raises(InputError, match="no line of values"):
        read_smi(path)
