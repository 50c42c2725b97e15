"""Speed and memory of reading an NCCL log of 512 interleaved ranks.

    python benchmarks/nccl_log.py [--megabytes 100] [--ranks 512]

Writes a log of the wanted size (start-up of all ranks, then calls, transports of more
communicators, lines of no interest and the job's own output, in random order of ranks), reads it in
a fresh process and prints a table. The goal is 100 MB/s on one core and less than 300 MB.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.nccl_faults import Plan
from fixtures.nccl_logs import Job, interleave, start_up

MEASURE = """
import resource, sys, time
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.analyzers.nccl_causes import findings_from_commlog
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wall, cpu = time.perf_counter(), time.process_time()
log = read_nccl_log(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
judged = time.perf_counter()
found = findings_from_commlog(log)
judged = time.perf_counter() - judged
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = len(log.processes), len(log.transports), len(found)
print(log.size_bytes, wall, cpu, judged, peak, base, *rows)
"""


def write_log(path: Path, size_bytes: int, ranks: int) -> None:
    """A healthy log of about this size."""
    rng = random.Random(7)
    job = Job("2.27.7", nodes=ranks // 8, gpus=8, seed=7, launcher="none")
    plan = Plan()
    with path.open("w") as file:
        starts = [start_up(job, rank, plan) for rank in range(ranks)]
        file.write("\n".join(interleave(rng, starts)) + "\n")
        heads = [job.info(rank, "") for rank in range(ranks)]
        number = 0
        while file.tell() < size_bytes:
            block: list[str] = []
            for _ in range(20_000):
                rank = rng.randrange(ranks)
                head = heads[rank]
                kind = rng.random()
                number += 1
                if kind < 0.5:
                    block.append(
                        f"{head}AllReduce: opCount {number // ranks:x} sendbuff 0x7f1200000000 "
                        f"recvbuff 0x7f1200000000 count 1048576 datatype 7 op 0 root 0 comm "
                        f"{job.handles[rank]} [nranks={ranks}] stream 0x55aa00"
                    )
                elif kind < 0.8:
                    other = rank ^ rng.choice((1, 2, 4, 8, 16, 32))
                    via = "P2P/CUMEM/read" if other // 8 == rank // 8 else "NET/IB/3/GDRDMA"
                    way = "" if other // 8 == rank // 8 else "[send] "
                    block.append(
                        f"{head}Channel {rng.randrange(32):02d}/0 : {rank}[{rank % 8}] -> "
                        f"{other % ranks}[{other % 8}] {way}via {via}"
                    )
                elif kind < 0.9:
                    block.append(
                        head
                        + rng.choice(
                            (
                                "threadThresholds 8/8/64 | 4096/8/64 | 512 | 512",
                                "P2P Chunksize set to 131072",
                                "channel.cc:42 Cuda Alloc Size 1216 pointer 0x7f4036e00000",
                                "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1 [2] 2/-1/-1->0->-1",
                            )
                        )
                    )
                else:
                    block.append(
                        f"[{rank}] step {number} loss 2.31 lr 0.0001 tokens/s 123123 norm 1.2"
                    )
            file.write("\n".join(block) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=512)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        start = time.perf_counter()
        write_log(path, arguments.megabytes * 1_000_000, arguments.ranks)
        made = time.perf_counter() - start
        output = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True
        ).stdout.split()
    size, wall, cpu, judged, peak, base = (float(word) for word in output[:6])
    heads = ("size", "ranks", "MB/s wall", "MB/s core", "peak MB", "judge s")
    print("{:>10} {:>6} {:>10} {:>10} {:>8} {:>8}".format(*heads))
    print(
        f"{size / 1e6:8.0f}MB {arguments.ranks:6d} {size / 1e6 / wall:10.0f} "
        f"{size / 1e6 / cpu:10.0f} {peak / 1024:8.0f} {judged:8.2f}"
    )
    print(
        f"written in {made:.0f} s; {output[6]} processes, {output[7]} distinct transports, "
        f"{output[8]} findings; the interpreter with imports takes {base / 1024:.0f} MB"
    )


if __name__ == "__main__":
    main()
