"""Damaged recordings of every kind through analyze, many: no traceback, no hang, no memory.

    python benchmarks/fuzz.py [NUMBER] [--from N] [--jobs N] [--kind KIND]

Input n of a kind is made from the seed "KIND n", so that a failure is named by both. Each input
has `MOST_S` s of the CPU, so that a busy machine makes no hangs; what waits for something is ended
after `MOST_WAIT_S` of the clock. The peak memory is that of the whole process that reads one after
another. Exit status 1 where anything failed.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.mutations import corpus, write_damaged
from gpuprof.api import analyze_paths
from gpuprof.diagnosis import to_json
from gpuprof.errors import GpuprofError

MOST_S = 10
MOST_WAIT_S = 300
MOST_BYTES = 1 << 30
AT_ONCE = 60
REPORT_EVERY = 2_400


@dataclass
class Batch:
    """What became of some inputs. slowest_s: CPU seconds of the slowest, and which it was."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    peak_bytes: int = 0


class HangError(Exception):
    """An input took longer than `MOST_S`."""


def _stop(_signal: int, _frame: object) -> None:
    raise HangError


def feed(inputs: list[tuple[str, int]]) -> Batch:
    """Reads inputs (kind, number), one after another."""
    batch = Batch()
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _stop)
    for kind, number in inputs:
        name = f"{kind} {number}"
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            path = write_damaged(kind, random.Random(name), Path(folder))
            begun = time.process_time()
            signal.alarm(MOST_WAIT_S)
            signal.setitimer(signal.ITIMER_PROF, MOST_S)
            try:
                to_json(analyze_paths(path).diagnosis)
                outcome = "read"
            except GpuprofError as error:
                outcome = "refused"
                if "\n" in str(error):
                    batch.failures.append(f"{name}: more than one line: {error}")
            except HangError:
                outcome = "hang"
                batch.failures.append(f"{name}: over {MOST_S} s")
            except Exception:
                outcome = "traceback"
                batch.failures.append(f"{name}: {traceback.format_exc()}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
            batch.slowest = max(batch.slowest, (time.process_time() - begun, name))
        batch.outcomes[outcome] += 1
    batch.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if batch.peak_bytes > MOST_BYTES:
        batch.failures.append(f"{inputs[0]} to {inputs[-1]}: {batch.peak_bytes / 1e6:,.0f} MB")
    return batch


def batches(kinds: list[str], first: int, number: int) -> Iterator[list[tuple[str, int]]]:
    """All inputs in turn over the kinds, in pieces."""
    inputs = [(kinds[n % len(kinds)], n // len(kinds)) for n in range(first, first + number)]
    return (inputs[i : i + AT_ONCE] for i in range(0, len(inputs), AT_ONCE))


def _told(total: Batch) -> str:
    outcomes = ", ".join(f"{n:,} {what}" for what, n in sorted(total.outcomes.items()))
    slowest_s, slowest = total.slowest
    return (
        f"{total.outcomes.total():,} inputs: {outcomes}; {len(total.failures)} failures; slowest"
        f" {slowest_s:.2f} s of CPU ({slowest}); peak {total.peak_bytes / 1e6:,.0f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", nargs="?", type=int, default=1_000, help="inputs")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--kind", choices=sorted(corpus()), help="of one kind only")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else sorted(corpus())
    total = Batch()
    with ProcessPoolExecutor(options.jobs) as pool:
        for batch in pool.map(feed, batches(kinds, options.first, options.number)):
            before = total.outcomes.total()
            total.outcomes += batch.outcomes
            total.slowest = max(total.slowest, batch.slowest)
            total.peak_bytes = max(total.peak_bytes, batch.peak_bytes)
            for failure in batch.failures:
                print(failure, flush=True)
            if total.outcomes.total() // REPORT_EVERY != before // REPORT_EVERY:
                print(_told(total), flush=True)
            total.failures += batch.failures
    print(_told(total))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
