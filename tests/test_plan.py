"""`gpuprof plan communication` on the command line."""

from __future__ import annotations

import json

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
        (["--ranks", "8"], "what connects the GPUs is not known"),
        (["--ranks", "8", "--device", "Voodoo 2"], "no figures are known of 'Voodoo 2'"),
        (["--ranks", "16", "--device", "H100"], "no network between them"),
        (["--ranks", "12", "--device", "H100", "--network-gbps", "400"], "do not fill nodes"),
        ([*NODES, "--tensor", "8", "--params", "8b"], "send activations"),
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
