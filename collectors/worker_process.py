"""Keeps one NVML worker process running: starts it, relays what it writes, restarts it.

A crash inside the driver's library ends the worker only. It is started again after a pause that
doubles each time; a call that hung is left out of the next start. A worker that cannot be killed
(it sits in the kernel) is abandoned, never waited for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

WORKER = (sys.executable, "-m", "gpuprof.collectors.nvml_worker")
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0
"""A worker that ran this long was healthy: the pause starts small again."""
MAX_CRASHES_IN_A_ROW = 8
KILL_WAIT_S = 0.3
MAX_LINE_BYTES = 1 << 20


class WorkerProcess:
    """The worker and its successors; `poll` never blocks. `program` is another one, for tests."""

    def __init__(
        self, arguments: Sequence[str], log: Path, program: Sequence[str] = WORKER
    ) -> None:
        self._arguments, self._log, self._program = list(arguments), log, list(program)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._pause_s, self._start_at_s, self._started_s = FIRST_PAUSE_S, 0.0, 0.0
        self._crashes = 0
        self._told: list[bytes] = []
        self.generation = 0
        self.skip: set[str] = set()
        self.gave_up = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def tell(self, text: bytes) -> None:
        """A line for the worker's standard input, repeated to each successor."""
        self._told.append(text)
        self._send(text)

    def poll(self) -> tuple[list[bytes], str]:
        """Whole lines that the worker wrote, and what happened to it ("" for nothing)."""
        if self._process is None:
            if self.gave_up or time.monotonic() < self._start_at_s:
                return [], ""
            self._start()
            return [], ""
        data, ended = self._read()
        lines = []
        if data:
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-MAX_LINE_BYTES:]
            lines = [text + b"\n" for text in whole if text]
        return lines, self._ended() if ended else ""

    def stop(self) -> None:
        """Ends the worker: asks, then kills, then leaves it behind; under half a second."""
        process, self._process = self._process, None
        if process is None:
            return
        _close(process.stdin)
        try:
            process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_WAIT_S)
        _close(process.stdout)

    def _start(self) -> None:
        self.generation += 1
        skip = [part for label in sorted(self.skip) for part in ("--skip", label)]
        log_path = self._log if self._log.parent.is_dir() else Path(os.devnull)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._program, "--generation", str(self.generation), *self._arguments, *skip],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._started_s, self._rest = time.monotonic(), b""
        for text in self._told:
            self._send(text)

    def _send(self, text: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), text)

    def _read(self) -> tuple[bytes, bool]:
        assert self._process is not None
        assert self._process.stdout is not None
        parts: list[bytes] = []
        while True:
            try:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return b"".join(parts), False
            if not data:
                return b"".join(parts), True
            parts.append(data)

    def _ended(self) -> str:
        process, self._process = self._process, None
        assert process is not None
        _close(process.stdin)
        _close(process.stdout)
        try:
            code = process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        if time.monotonic() - self._started_s > STEADY_S:
            self._pause_s, self._crashes = FIRST_PAUSE_S, 0
        self._crashes += 1
        self._start_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        if self._crashes >= MAX_CRASHES_IN_A_ROW:
            self.gave_up = True
            return f"the NVML reader ended {self._crashes} times in a row ({how}): given up"
        return f"the NVML reader ended ({how}) and is started again"


def _close(pipe: IO[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        if pipe is not None:
            pipe.close()
