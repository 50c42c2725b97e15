"""Inside a process of a job that `gpuprof run` started, once it has imported torch."""

from __future__ import annotations

import atexit
import os
import sys

import msgspec

from gpuprof.recording import RUN_FOLDER, RUN_OPTIONS, Session


class RunOptions(msgspec.Struct, kw_only=True):
    """What `gpuprof run` was asked to record."""

    steps: int = 10
    attribution: bool = True
    samples: bool = True


def arm() -> None:
    """Records this process if it trains: from its first step on, to its end.

    A launcher, a DataLoader's worker and a script that never steps leave nothing behind.
    """
    if not os.environ.get(RUN_FOLDER):
        return
    options = msgspec.json.decode(os.environ.get(RUN_OPTIONS, "{}"), type=RunOptions)
    session = Session(
        steps=options.steps,
        attribution=options.attribution,
        samples=options.samples,
        report=False,
        quiet=True,
    )
    session.arm()
    atexit.register(_end, session, os.getpid())


def _end(session: Session, pid: int) -> None:
    if os.getpid() == pid:
        ended_by = getattr(sys, "last_type", None)
        session.close(ended_by.__name__ if ended_by is not None else "")
