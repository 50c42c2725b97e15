"""Turns readings into records: rows, and the statuses of what could not be read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpuprof.collectors.nvml_readers import Failure, Value
from gpuprof.sample_format import Columns, Number, Record, Row, StatusChange

DECIMALS = 4
"""Shares to 0.01 %, power to 0.1 mW: finer than any of the sensors."""


class TierOutput:
    """One set of columns. Statuses are written when they change, before the row that has them.

    Several threads may use it: the one that reads, and the watchdog when that one hangs.
    """

    def __init__(
        self,
        c: int,
        scope: str,
        tier: str,
        names: Sequence[str],
        missing: dict[str, Failure] | None = None,
    ) -> None:
        self.c, self.scope, self.tier, self.names = c, scope, tier, list(names)
        self._missing = missing or {}
        self._last: dict[str, Failure] = {}
        self._lock = threading.Lock()

    def declaration(self) -> list[Record]:
        """What comes before the first row."""
        self._last = dict(self._missing)
        columns = Columns(c=self.c, scope=self.scope, tier=self.tier, names=self.names)
        return [columns, self._change(0)]

    def reading(self, t: int, d: int, values: Sequence[Value]) -> list[Record]:
        """The records of one reading, begun at `t` and done `d` ns later."""
        failed = dict(self._missing)
        row: list[Number | None] = []
        for name, value in zip(self.names, values, strict=True):
            if isinstance(value, Failure):
                failed[name] = value
                row.append(None)
            else:
                row.append(round(value, DECIMALS) if isinstance(value, float) else value)
        with self._lock:
            changed = failed != self._last
            self._last = failed
            records: list[Record] = [self._change(t)] if changed else []
        return [*records, Row(c=self.c, t=t, d=d, v=row)]

    def _change(self, t: int) -> StatusChange:
        return StatusChange(
            c=self.c,
            t=t,
            s={name: why.status.word for name, why in self._last.items()},
            why={name: why.why for name, why in self._last.items() if why.why},
        )
