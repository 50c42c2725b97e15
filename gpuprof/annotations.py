"""`gpuprof.annotate`: names a part of the step, for the trace and for the verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "gpuprof."
MAX_NAME_CHARS = 200


class annotate:  # noqa: N801  (used as a function)
    """Names what happens inside, as `gpuprof.NAME` in the trace.

        with gpuprof.annotate("input"):
            batch = next_batch()

        @gpuprof.annotate("checkpoint")
        def save(): ...

    "input" and "checkpoint" are known to the verdict: idle time of the device inside them is
    charged to loading data and to saving. Any other name only shows where it is. Outside a traced
    window it costs some microseconds; without torch it does nothing. It can be nested.
    """

    def __init__(self, name: str) -> None:
        self.name = PREFIX + str(name)[:MAX_NAME_CHARS]
        self._open: list[Any] = []

    def __enter__(self) -> annotate:
        torch = sys.modules.get("torch")
        mark = None
        if torch is not None and hasattr(torch, "profiler"):
            mark = torch.profiler.record_function(self.name)
            mark.__enter__()
        self._open.append(mark)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mark = self._open.pop()
        if mark is not None:
            mark.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        name = self.name.removeprefix(PREFIX)

        @wraps(function)
        def named(*args: Any, **keywords: Any) -> Any:
            with annotate(name):
                return function(*args, **keywords)

        return named  # type: ignore[return-value]
