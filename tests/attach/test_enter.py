"""What is said where the agent has refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpuprof.attach import enter, targets
from gpuprof.recording import RUN_FOLDER

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def refusal(state: str, **environment: str) -> enter.GpuprofError:
    target = targets.hold(os.getpid())
    target.environment = environment
    try:
        return enter._refusal(target, {"state": state, "why": "ValueError: no"})
    finally:
        target.close()


def test_a_job_under_gpuprof_run_is_recorded_already(tmp_path: Path) -> None:
    """Where, is known: nothing has to be put in to see it."""
    error = refusal("session", **{RUN_FOLDER: str(tmp_path)})
    assert isinstance(error, enter.RecordsItselfError)
    assert error.folder == tmp_path
    assert f"gpuprof analyze {tmp_path}" in error.hint


@pytest.mark.parametrize("state", ["busy", "no-torch", "importing", "session"])
def test_each_refusal_names_the_process_and_what_to_do(state: str) -> None:
    error = refusal(state)
    assert str(os.getpid()) in error.message
    assert error.hint


def test_a_failure_of_the_agent_is_passed_on() -> None:
    assert "ValueError: no" in refusal("failed").message
