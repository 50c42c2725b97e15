"""The sampler: one process a node that records GPUs and host until the job is gone.

    python -m gpuprof.collectors.sampler --out DIR [--pids PID[:RANK[:UUID,UUID]]…] [--parent PID]…

It writes `DIR/NODE-0000.jsonl` and so on (`gpuprof.sample_format` says what is in them) and ends
by itself when none of the processes that it watches is left. A second one for the same directory
on the same node hands its processes to the first and ends. The driver is read in a child process:
neither a crash nor a hang in there reaches this one, and this one never reaches the training.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from gpuprof import __version__
from gpuprof.collectors.host import Source, node_sources
from gpuprof.collectors.host_process import METRICS as PROCESS_METRICS
from gpuprof.collectors.host_process import ProcessReader, allowed
from gpuprof.collectors.nvml_worker import GIVEN_UP
from gpuprof.collectors.sampler_client import DISK_EXIT
from gpuprof.collectors.sampler_lock import Member, NodeLock, Roster, alive, born_ticks
from gpuprof.collectors.segments import MAX_BYTES, SegmentWriter
from gpuprof.collectors.tier_output import TierOutput
from gpuprof.collectors.worker_process import WorkerProcess
from gpuprof.counted import counted
from gpuprof.sample_format import (
    FORMAT,
    VERSION,
    Clock,
    End,
    Header,
    Note,
    Rank,
    Record,
    decoder,
    line,
    sticky_key,
)

POLL_S = 0.05
WATCH_S = 0.2
"""How often the watched processes and the roster are looked at."""
CLOCK_S = 30.0
"""How often both clocks are recorded together: a clock that is set shows within this time."""
HANDOVER_S = 2.0
"""A second sampler waits this long for the lock, lest the first one was just leaving."""
MAX_STICKY = 4096


class Sampler:
    """One recording of one node."""

    def __init__(
        self, out: Path, options: argparse.Namespace, lock: NodeLock, roster: Roster
    ) -> None:
        self.options, self.lock, self.roster = options, lock, roster
        self.node = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:64] or "node"
        self.sticky: dict[tuple[str, object], bytes] = {}
        self.writer = SegmentWriter(out, self.node, self._head, max_bytes=options.max_bytes)
        self.members: dict[int, Member] = {}
        self.columns = iter(range(1000))  # the worker's begin at 1000
        self.host = _grouped(node_sources(), self.columns)
        self.ranks: dict[int, tuple[ProcessReader, TierOutput]] = {}
        self.stopped = ""
        self.lost_told = 0
        self.worker: WorkerProcess | None = None
        if not options.no_gpu:
            rates = ["--fast-hz", str(options.fast_hz), "--slow-hz", str(options.slow_hz)]
            self.worker = WorkerProcess(rates, out / f"{self.node}-sampler.log")

    def run(self) -> None:
        """Records until nobody is left or the process is told to stop."""
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, lambda number, _: self._stop(signal.Signals(number).name))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the job
        self.watch()
        for output, _ in self.host:
            self.emit(output.declaration())
        due_host = due_watch = due_clock = 0.0
        while not self.stopped:
            now = time.monotonic()
            if now >= due_clock:
                due_clock = now + CLOCK_S
                self.emit([_clock()])
            if now >= due_watch:
                due_watch = now + WATCH_S
                self.watch()
            if now >= due_host:
                due_host = max(now, due_host + 1 / self.options.slow_hz)
                self.read_host()
            self.relay()
            time.sleep(POLL_S)
        self.finish()

    def finish(self) -> None:
        """Ends the worker and the recording; takes under a second."""
        if self.worker is not None:
            self.worker.stop()
        self.emit([_clock(), End(t=time.monotonic_ns(), why=self.stopped)])
        self.writer.close()
        self.roster.forget()
        self.lock.release()

    # ---- members ------------------------------------------------------------------------

    def watch(self) -> None:
        """Takes in who joined, lets go who left or died, and stops when nobody is left."""
        for member in self.roster.news():
            if member.leave:
                self.members.pop(member.pid, None)
                self.ranks.pop(member.pid, None)
            elif alive(member):
                known = self.members.get(member.pid)
                # A parent that is a rank too stays one.
                if known is None or known.role != "rank" or member.role == "rank":
                    self.members[member.pid] = member
                    if member.role == "rank":
                        self._join(member)
        gone = [pid for pid, member in self.members.items() if not alive(member)]
        for pid in gone:
            del self.members[pid]
            self.ranks.pop(pid, None)
        if not self.members:
            self._stop("all watched processes are gone")

    def _join(self, member: Member) -> None:
        cpus, mems = allowed(member.pid)
        self.emit(
            [Rank(pid=member.pid, rank=member.rank, uuids=member.uuids, cpus=cpus, mems=mems)]
        )
        if member.pid not in self.ranks:
            column = next(self.columns, None)
            if column is None:
                return  # hundreds of processes came and went: no more tables
            scope = f"rank:{member.rank}" if member.rank >= 0 else f"pid:{member.pid}"
            output = TierOutput(column, scope, "host", PROCESS_METRICS)
            self.ranks[member.pid] = ProcessReader(member.pid), output
            self.emit(output.declaration())
        if self.worker is not None:
            self.worker.tell(msgspec.json.encode(member) + b"\n")

    # ---- records ------------------------------------------------------------------------

    def read_host(self) -> None:
        for output, sources in self.host:
            started = time.monotonic_ns()
            values = [value for source in sources for value in source.attempt()]
            self.emit(output.reading(started, time.monotonic_ns() - started, values))
        for reader, output in list(self.ranks.values()):
            started = time.monotonic_ns()
            values = reader.read()
            self.emit(output.reading(started, time.monotonic_ns() - started, values))

    def relay(self) -> None:
        """Hands the worker's lines to the file and acts on what it says about itself."""
        if self.worker is None:
            return
        lines, happened = self.worker.poll()
        for text in lines:
            if not text.startswith((b'{"k":"row"', b'{"k":"ring"')):
                self._note_from_worker(text)
        if lines:
            self.write(b"".join(lines))
        if happened:
            self.emit([Note(t=time.monotonic_ns(), text=happened)])

    def _note_from_worker(self, text: bytes) -> None:
        try:
            record = decoder.decode(text)
        except msgspec.MsgspecError:
            return
        if isinstance(record, Rank):
            record.cpus, record.mems = allowed(record.pid)
            text = line(record)
        self._keep(record, text)
        if isinstance(record, Note) and record.text == GIVEN_UP and self.worker is not None:
            self.worker.skip.add(f"{record.scope.removeprefix('gpu:')}:{record.call}")

    def emit(self, records: Iterable[Record]) -> None:
        texts = []
        for record in records:
            text = line(record)
            self._keep(record, text)
            texts.append(text)
        if texts:
            self.write(b"".join(texts))

    def write(self, lines: bytes) -> None:
        """Appends lines; when the disk takes them again after a while, says how many it lost."""
        if self.writer.write(lines) and self.writer.lost_lines > self.lost_told:
            lost, self.lost_told = self.writer.lost_lines - self.lost_told, self.writer.lost_lines
            self.writer.write(
                line(
                    Note(
                        t=time.monotonic_ns(),
                        text=f"{counted(lost, 'record was', 'records were')} lost",
                    )
                )
            )

    def _keep(self, record: Record, text: bytes) -> None:
        """Remembers what each new segment has to repeat."""
        key = sticky_key(record)
        if key is not None:
            self.sticky.pop(key, None)  # the newest goes last
            if len(self.sticky) < MAX_STICKY:
                self.sticky[key] = text

    def _head(self, segment: int) -> list[bytes]:
        header = Header(
            format=FORMAT,
            version=VERSION,
            segment=segment,
            node=self.node,
            boot_id=_boot_id(),
            pid=os.getpid(),
            gpuprof=__version__,
        )
        return [line(header), line(_clock()), *self.sticky.values()]

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why


def _grouped(
    sources: Sequence[Source], columns: Iterable[int]
) -> list[tuple[TierOutput, list[Source]]]:
    """One table a scope: the sources of the same scope are read into one row."""
    by_scope: dict[str, list[Source]] = {}
    for source in sources:
        by_scope.setdefault(source.scope, []).append(source)
    return [
        (TierOutput(c, scope, "host", [name for s in group for name in s.metrics]), group)
        for c, (scope, group) in zip(columns, by_scope.items(), strict=False)
    ]


def _clock() -> Clock:
    before = time.monotonic_ns()
    unix = time.time_ns()
    return Clock(t=(before + time.monotonic_ns()) // 2, unix=unix)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _member(text: str) -> Member:
    pid, _, rest = text.partition(":")
    rank, _, uuids = rest.partition(":")
    if not pid.isdigit() or not (rank.lstrip("-").isdigit() or not rank):
        raise argparse.ArgumentTypeError(f"{text!r} is not PID[:RANK[:UUID,UUID]]")
    return Member(
        pid=int(pid),
        born=born_ticks(int(pid)) or 0,
        rank=int(rank or -1),
        uuids=[uuid for uuid in uuids.split(",") if uuid],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sampler; see the module's docstring.

    Exit status 0, also for a second one; `DISK_EXIT` when the folder cannot be written, or when
    records were lost because it could not.
    """
    parser = argparse.ArgumentParser(prog="python -m gpuprof.collectors.sampler")
    parser.add_argument("--out", type=Path, required=True, help="an existing folder")
    parser.add_argument("--pids", type=_member, nargs="*", default=[], metavar="PID[:RANK[:UUIDS]]")
    parser.add_argument("--parent", type=int, action="append", default=[], metavar="PID")
    parser.add_argument("--fast-hz", type=float, default=10.0, help="rate of the GPU gauges")
    parser.add_argument("--slow-hz", type=float, default=1.0, help="rate of everything else")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="bound of the recording")
    parser.add_argument("--no-gpu", action="store_true", help="host only")
    options = parser.parse_args(arguments)
    if not 0.1 <= options.fast_hz <= 100 or not 0.01 <= options.slow_hz <= options.fast_hz:
        parser.error("rates: 0.1 to 100 Hz, the slow one below the fast one")
    if not options.out.is_dir():
        # Not made here: a folder that was deleted since must not come back half filled.
        sys.stderr.write(f"gpuprof sampler: {options.out}: no such folder\n")
        return DISK_EXIT
    roster, lock = Roster(options.out), NodeLock(options.out)
    parents = [Member(pid=pid, born=born_ticks(pid) or 0, role="parent") for pid in options.parent]
    for member in (*options.pids, *parents):
        roster.append(member)
    until = time.monotonic() + HANDOVER_S
    while not lock.take():
        if time.monotonic() > until:
            return 0  # the other one has our members on its roster
        time.sleep(0.1)
    sampler = Sampler(options.out, options, lock, roster)
    sampler.run()
    return DISK_EXIT if sampler.writer.lost_lines else 0


if __name__ == "__main__":
    code = main()
    # Other samplers' threads (a segment being compressed) are not waited for.
    os._exit(code)
