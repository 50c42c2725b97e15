"""`gpuprof plan communication` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuprof.cli import cli
from gpuprof.errors import GpuprofError

COMMAND = ["plan", "communication"]
NODES = ["--ranks", "32", "--device", "H100", "--network-gbps", "3200"]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, [*COMMAND, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_step_of_a_model() -> None:
    """What is sent, how often, and what share of a step it is at most."""
    printed = run(*NODES, "--params", "8b", "--strategy", "fsdp", "--step-ms", "900")
    assert "32 ranks on 4 nodes of 8, links of NVIDIA H100" in printed
    assert "H100 NVL" not in printed
    assert "parameters, forward and backward" in printed
    assert "% of the step where nothing overlaps" in printed


def test_json_alone() -> None:
    """For other programs."""
    document = json.loads(run(*NODES, "--params", "8e9", "--json"))
    assert document["ranks"] == 32
    assert {row["regime"] for row in document["table"]} >= {"latency-bound", "at bandwidth"}
    (item,) = document["step"]
    assert item["calls"] * item["size_bytes"] == pytest.approx(16e9)
    assert item["total_us"] == pytest.approx(item["calls"] * item["time_us"], rel=1e-3)


def test_a_measured_bandwidth_goes_before_the_device() -> None:
    """What nccl-tests said of this very group."""
    document = json.loads(run("--ranks", "8", "--device", "H100", "--busbw", "100", "--json"))
    assert document["table"][-1]["busbw_gb_per_s"] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "8"], "what connects the GPUs of a node is not known"),
        (["--ranks", "8", "--device", "Voodoo 2"], "no figures are known of 'Voodoo 2'"),
        (["--ranks", "16", "--device", "H100"], "no network between them"),
        (["--ranks", "12", "--device", "H100", "--network-gbps", "400"], "do not fill nodes"),
        ([*NODES, "--tensor", "8", "--params", "8b"], "send activations"),
        (["--ranks", "8", "--device", "A40"], "bridges connect at most 2 NVIDIA A40, not 8"),
        (["--ranks", "2", "--device", "L4"], "has no links of its own"),
        (["--ranks", "8", "--device", "H100", "--step-ms", "9"], "compared with a step's messages"),
        (
            [
                *NODES,
                "--pipeline",
                "4",
                "--layers",
                "2",
                "--params",
                "8b",
                "--hidden",
                "9",
                "--sequence",
                "9",
            ],
            "2 layers",
        ),
        (
            [*NODES, "--tensor", "5", "--params", "8b", "--hidden", "9", "--sequence", "9"],
            "can't be divided",
        ),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], said: str) -> None:
    """In one line, with what to give."""
    with pytest.raises(GpuprofError, match=said) as caught:
        CliRunner().invoke(cli, [*COMMAND, *arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


PLANNED = """n0:1:2 [0] NCCL INFO NCCL version 2.27.7+cuda12.8
n0:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1
n0:1:2 [0] NCCL INFO comm 0xa rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
n0:1:2 [0] NCCL INFO ncclCommInitRank comm 0xa rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 17000 \
commId 0x1 - Init COMPLETE
"""


def test_a_log_of_one_node_is_of_one_node(tmp_path: Path) -> None:
    """Its plan holds for eight ranks, and inside the nodes of sixteen, whose network it can't know;
    a folder of logs is as good as one."""
    (tmp_path / "nccl.log").write_text(PLANNED, encoding="utf-8")
    log = ["--log", str(tmp_path)]
    assert "8 ranks on one node, as NCCL planned it" in run("--ranks", "8", *log)
    with pytest.raises(GpuprofError, match="no network between them"):
        run("--ranks", "16", *log)
    narrow = json.loads(run("--ranks", "16", "--network-gbps", "100", *log, "--json"))
    assert narrow["table"][-1]["busbw_gb_per_s"] < 100 / 8 * 2


def test_a_table_of_nccl_tests_alone(tmp_path: Path) -> None:
    """Without a line of NCCL: what it measured."""
    path = tmp_path / "all_reduce.txt"
    path.write_text(
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "  1073741824     268435456     float     sum      -1    10737  100.00  175.00      0\n",
        encoding="utf-8",
    )
    assert "8 ranks on one node, measured" in run("--ranks", "8", "--log", str(path))


@pytest.mark.parametrize("number", ["0", "1e30", "7x", "-3"])
def test_numbers_that_are_no_model(number: str) -> None:
    """Said, and not planned."""
    done = CliRunner().invoke(cli, [*COMMAND, *NODES, "--params", number])
    assert done.exit_code == 2
