"""gpuprof: why is my GPU not busy, what do I change, how much faster will it be?

Importing this package costs milliseconds and imports neither torch nor pandas nor plotly:
every public name is loaded when it is first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuprof.annotations import annotate as annotate
    from gpuprof.api import analyze as analyze
    from gpuprof.compare_runs import compare as compare
    from gpuprof.diagnosis import Diagnosis as Diagnosis
    from gpuprof.errors import GpuprofError as GpuprofError
    from gpuprof.recording import session as session
    from gpuprof.run import load as load

_WHERE = {
    "Diagnosis": "gpuprof.diagnosis",
    "GpuprofError": "gpuprof.errors",
    "analyze": "gpuprof.api",
    "annotate": "gpuprof.annotations",
    "compare": "gpuprof.compare_runs",
    "load": "gpuprof.run",
    "session": "gpuprof.recording",
}

__all__ = [
    "Diagnosis",
    "GpuprofError",
    "__version__",
    "analyze",
    "annotate",
    "compare",
    "load",
    "session",
]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
