"""The process that talks to the driver: started, watched and restarted by the sampler.

    python -m gpuprof.collectors.nvml_worker [--generation N] [--fast-hz 10] [--slow-hz 1]
                                             [--skip GPU:READER]…

Records go to standard output, one JSON line each. Each GPU has two threads, one for the fast
readings and one for the slow ones, so that a call that hangs holds up nothing but its own tier;
all GPUs tick together. The main thread writes, watches the others, and leaves when standard input
ends. A call on a GPU that will not come back ends the process: its successor leaves it out.
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuprof.collectors.gpu_view import process_view, rank_environ, rank_uuids
from gpuprof.collectors.nvml import Gpu, facts, load_pynvml
from gpuprof.collectors.nvml_plan import EVENTS
from gpuprof.collectors.nvml_readers import Failure, Value, failure
from gpuprof.collectors.sampler_lock import Member
from gpuprof.collectors.tier_output import TierOutput
from gpuprof.collectors.watchdog import Watchdog
from gpuprof.sample_format import Device, Event, Note, Rank, Record, Ring, Status, Window, line

HUNG_EXIT = 75
GIVEN_UP = "given up"
"""What the worker says before it ends because of a call: its successor leaves that call out."""
UUID_WAIT_S = 60.0
"""How long a rank waits to be joined to its GPUs, while the driver starts."""
QUEUE_LINES = 20_000
"""What waits for a stalled disk; beyond it readings are dropped."""
LOST_TICKS = 10
"""A lost GPU is asked only every so many ticks: it may come back, but not soon."""
VIEW_EVERY_S = 5.0
"""Listing processes costs the driver milliseconds."""
WRITE_EVERY_S = 0.05
EVENT_WAIT_MS = 500
START_DELAY_S = 0.05


class Worker:
    """Owns the threads of one run of the process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stop = threading.Event()
        self.lines: queue.Queue[bytes] = queue.Queue(QUEUE_LINES)
        self.dog = Watchdog()
        self.uuids: dict[int, str] = {}
        self.gpus: int | None = None
        """How many GPUs will tell their UUID; None until the driver has started."""
        self.started_s = time.monotonic() + START_DELAY_S
        self._columns = iter(range(options.generation * 1000, (options.generation + 1) * 1000))
        self._columns_lock = threading.Lock()

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                self.lines.put_nowait(line(record))
            except queue.Full:
                return

    def note(self, text: str, scope: str = "", call: str = "") -> None:
        self.put([Note(t=time.monotonic_ns(), text=text, scope=scope, call=call)])

    def columns(self) -> int:
        with self._columns_lock:
            return next(self._columns)

    def spawn(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def ticks(self, period_s: float) -> Any:
        """Waits for each tick of the common grid; ticks that were overslept are left out."""
        n = 0
        while not self.stop.is_set():
            due_s = self.started_s + n * period_s
            # The process never waits for its threads, so they need not hear of its end.
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield n
            n = max(n + 1, int((time.monotonic() - self.started_s) / period_s) + 1)

    # ---- threads ------------------------------------------------------------------------

    def run_driver(self) -> None:
        """Starts the driver's library and one thread a GPU."""
        on_call = self.dog.watch("start")
        on_call("nvmlInit")
        try:
            nvml = load_pynvml()
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except Exception as error:
            self.note(f"NVML cannot be used: {error or type(error).__name__}", call="nvmlInit")
            return
        finally:
            on_call("")
        handles: dict[int, Any] = {}
        for index in range(count):
            try:
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except Exception as error:
                why = failure(error)
                self.put([Device(g=index, status=why.status.word, why=why.why)])
        self.gpus = len(handles)
        for index, handle in handles.items():
            self.spawn(self.run_gpu, nvml, handle, index)
        self.spawn(self.run_events, nvml, handles)
        if not self.options.no_views:
            self.spawn(self.run_views)

    def run_gpu(self, nvml: Any, handle: Any, index: int) -> None:
        """Probes a GPU, then reads its fast tiers until the end."""
        scope = f"gpu:{index}"
        skip = {label for gpu, label in self.options.skip if gpu == index}
        on_call = self.dog.watch("start", index)
        try:
            on_call("facts")
            known = {} if "facts" in skip else facts(nvml, handle)
        except Exception as error:
            why = failure(error)
            self.uuids[index] = ""
            self.put([Device(g=index, status=why.status.word, why=why.why)])
        else:
            self.uuids[index] = str(known.get("uuid", ""))
            self.put(
                [
                    Device(
                        g=index,
                        uuid=self.uuids[index],
                        name=str(known.get("name", "")),
                        facts=known,
                    )
                ]
            )
        gpu = Gpu(nvml, handle, skip=skip)
        gpu.probe(on_call)
        on_call("")
        outputs = {
            name: TierOutput(self.columns(), scope, name, tier.metrics, tier.missing)
            for name, tier in gpu.tiers.items()
        }
        for output in outputs.values():
            self.put(output.declaration())
        self.spawn(self.run_slow, gpu, outputs["slow"], index)
        fast_call = self.dog.watch("fast", index, outputs["fast"])
        gpm_call = self.dog.watch("gpm", index, outputs["gpm"])
        lost = False
        for n in self.ticks(1 / self.options.fast_hz):
            if lost and n % LOST_TICKS:
                continue
            values = self.read(gpu, outputs["fast"], fast_call)
            lost = bool(values) and all(
                isinstance(value, Failure) and value.status is Status.LOST for value in values
            )
            if gpu.tiers["gpm"].readers and n % self.gpm_every == 0:
                self.read(gpu, outputs["gpm"], gpm_call)

    @property
    def gpm_every(self) -> int:
        """GPM wants more than 100 ms between two looks: every second tick at 10 Hz."""
        return max(1, round(float(self.options.fast_hz) / 5))

    def run_slow(self, gpu: Gpu, output: TierOutput, index: int) -> None:
        """Reads a GPU's slow tier and empties the driver's rings."""
        scope = f"gpu:{index}"
        on_call = self.dog.watch("slow", index, output)
        measured = False
        for _ in self.ticks(1 / self.options.slow_hz):
            self.read(gpu, output, on_call)
            on_call("rings")
            rings = gpu.drain_rings()
            on_call("")
            for ring in rings:
                steps = [
                    (after - before) // 1000
                    for before, after in zip(ring.time_ns, ring.time_ns[1:], strict=False)
                ]
                self.put(
                    [Ring(scope=scope, m=ring.metric, t=ring.time_ns[0], dt=steps, v=ring.values)]
                )
                if ring.metric == "ring_util_frac" and len(steps) >= 5 and not measured:
                    middle_us = sorted(steps)[len(steps) // 2]
                    measured = True
                    self.put(
                        [
                            Window(
                                scope=scope,
                                window_ns=middle_us * 1000,
                                samples=len(steps) + 1,
                                clock=gpu.ring_clock,
                            )
                        ]
                    )

    def read(self, gpu: Gpu, output: TierOutput, on_call: Callable[[str], None]) -> list[Value]:
        started = time.monotonic_ns()
        values = gpu.read(output.tier, on_call)
        if values:
            self.put(output.reading(started, time.monotonic_ns() - started, values))
        return values

    def run_events(self, nvml: Any, handles: dict[int, Any]) -> None:
        """Waits for Xids and what else the driver reports by itself."""
        index_of = {}
        try:
            events = nvml.nvmlEventSetCreate()
        except Exception as error:
            self.note(f"events cannot be had: {error}")
            return
        for index, handle in handles.items():
            try:
                supported = nvml.nvmlDeviceGetSupportedEventTypes(handle)
                wanted = int(supported) & sum(EVENTS)
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                index_of[_address(handle)] = index
            except Exception as error:
                self.note(f"no events: {error}", scope=f"gpu:{index}")
        while not self.stop.is_set() and index_of:
            try:
                data = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            except Exception as error:
                self.note(f"events ended: {error}")
                return
            name = EVENTS.get(data.eventType, f"event_{data.eventType:#x}")
            index = index_of.get(_address(data.device), -1)
            self.put(
                [Event(scope=f"gpu:{index}", t=time.monotonic_ns(), type=name, data=data.eventData)]
            )

    def run_views(self) -> None:
        """Lists who uses the GPUs, every few seconds."""
        on_call = self.dog.watch("views")
        for _ in self.ticks(VIEW_EVERY_S):
            on_call("processes")
            try:
                self.put(process_view())
            except Exception as error:
                self.note(f"processes cannot be listed: {error or type(error).__name__}")
                return
            finally:
                on_call("")

    # ---- main thread --------------------------------------------------------------------

    def serve(self) -> int:
        """Writes records and watches the threads until standard input ends."""
        self.spawn(self.run_driver)
        inbox = b""
        while True:
            ready, _, _ = select.select([sys.stdin.fileno()], [], [], WRITE_EVERY_S)
            if ready:
                data = os.read(sys.stdin.fileno(), 1 << 16)
                if not data:
                    self.stop.set()
                    self.flush()
                    return 0
                *whole, inbox = (inbox + data).split(b"\n")
                for text in whole:
                    self.join(text)
            given_up = self.look_for_hung()
            self.flush()
            if given_up:
                return HUNG_EXIT

    def look_for_hung(self) -> bool:
        """Reports calls without an answer; True when one will not come back."""
        given_up = False
        for hung, fresh in self.dog.hung():
            scope = "" if hung.gpu is None else f"gpu:{hung.gpu}"
            if fresh:
                why = f"no answer from the driver ({hung.label})"
                self.note(f"{why} for {hung.waited_s:.1f} s", scope, call=hung.label)
                if hung.output is not None:
                    unknown = Failure(Status.ERROR, why)
                    values = [unknown] * len(hung.output.names)
                    self.put(hung.output.reading(int(hung.since_s * 1e9), 0, values))
            if hung.lost:
                given_up = True
                self.note(GIVEN_UP, scope, call=hung.label)
        return given_up

    def join(self, text: bytes) -> None:
        """A rank that the sampler tells of: finds out which GPUs it has."""
        try:
            member = msgspec.json.decode(text, type=Member)
        except msgspec.MsgspecError:
            return
        self.spawn(self._join, member)

    def _join(self, member: Member) -> None:
        uuids = member.uuids
        if not uuids:
            until = time.monotonic() + UUID_WAIT_S
            while time.monotonic() < until and (self.gpus is None or len(self.uuids) < self.gpus):
                time.sleep(0.1)
            known = [self.uuids.get(index, "") for index in range(max(self.uuids, default=-1) + 1)]
            uuids = [uuid for uuid in rank_uuids(rank_environ(member.pid), known) if uuid]
        self.put([Rank(pid=member.pid, rank=member.rank, uuids=uuids)])

    def flush(self) -> None:
        """Hands over all waiting lines, in few large writes."""
        waiting: list[bytes] = []
        while True:
            try:
                waiting.append(self.lines.get_nowait())
            except queue.Empty:
                break
        data = memoryview(b"".join(waiting))
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _skipped(text: str) -> tuple[int, str]:
    gpu, _, label = text.partition(":")
    return int(gpu), label


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m gpuprof.collectors.nvml_worker")
    parser.add_argument("--generation", type=int, default=1)
    parser.add_argument("--fast-hz", type=float, default=10.0)
    parser.add_argument("--slow-hz", type=float, default=1.0)
    parser.add_argument("--skip", type=_skipped, action="append", default=[])
    parser.add_argument("--no-views", action="store_true")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(0.001)  # the threads are many and short: let none wait 5 ms for another
    try:
        return Worker(options).serve()
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    code = main()
    # Threads can be inside the driver: neither wait for them nor let nvmlShutdown race them.
    os._exit(code)
