"""An attachment as a whole: what becomes of what the agents bring."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpuprof.attach import assemble, record
from gpuprof.commands.attach import _problem
from gpuprof.run import RankRecord


def test_no_room_for_the_recording_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that no step was recorded: the job is fine, the folder is not."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(assemble, "take_windows", full)
    one = RankRecord(rank=0)
    result = record.Recorded(tmp_path, [one])
    record._keep(one, None, {}, result)  # type: ignore[arg-type]
    assert _problem(result).endswith(f"into {tmp_path}: {os.strerror(errno.ENOSPC)}")
