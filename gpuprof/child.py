"""Inside a process of a job that `gpuprof run` started, once it has imported torch."""

from __future__ import annotations

import atexit
import logging
import os
import sys

import msgspec

from gpuprof.leader import RUN_LEADER, is_gone
from gpuprof.recording import RUN_FOLDER, RUN_OPTIONS, Session

log = logging.getLogger("gpuprof")


class RunOptions(msgspec.Struct, kw_only=True):
    """What `gpuprof run` was asked to record."""

    steps: int = 10
    attribution: bool = True
    samples: bool = True


def arm() -> None:
    """Records this process if it trains: from its first step on, to its end.

    A launcher, a DataLoader's worker and a script that never steps leave nothing behind. A process
    that starts when `gpuprof run` has ended is not recorded.
    """
    if not os.environ.get(RUN_FOLDER) or is_gone(os.environ.get(RUN_LEADER, "")):
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
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forked(session))


def _forked(session: Session) -> None:
    """In a forked child: nothing of the parent's recording works here, so it waits anew."""
    try:
        if not session.arm_forked():
            return
        atexit.register(_end, session, os.getpid())
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(session, _end_with_multiprocessing)
    except Exception as error:
        log.warning("gpuprof: could not start: %s", error)


def _end_with_multiprocessing(session: Session) -> None:
    """A child that multiprocessing forks leaves past Python's own exit. multiprocessing calls this
    in it once it has dropped what its parent wanted done at the end."""
    from multiprocessing import util

    util.Finalize(None, _end, args=(session, os.getpid()), exitpriority=0)


def _end(session: Session, pid: int) -> None:
    if os.getpid() == pid:
        ended_by = getattr(sys, "last_type", None)
        session.close(ended_by.__name__ if ended_by is not None else "")
