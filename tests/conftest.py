"""What all tests need of the process that they run in."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does: no test asserts a time. The same
# examples are drawn each time, so that a change is judged by what it changed; GPUPROF_DRAW=1 draws
# new ones, to look for more.
settings.register_profile(
    "gpuprof",
    deadline=None,
    derandomize="GPUPROF_DRAW" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gpuprof")


def pytest_configure() -> None:
    """Takes Ctrl-C again where a shell that started the tests in the background had it ignored.

    Children inherit it, and a Python that finds SIGINT ignored never raises KeyboardInterrupt, so
    the tests of Ctrl-C would wait for it in vain.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
