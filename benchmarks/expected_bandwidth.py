"""Expected bus bandwidths against the nccl-tests tables in the labelled logs.

    python benchmarks/expected_bandwidth.py

A log that states NCCL's plan is expected at that plan's bandwidth; one that does not, by the model
with the machine that it names (`gpuprof plan communication` gives the same). Rows are of messages
from 8 MiB on, where bandwidth and not latency decides. The goal is 20 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.nccl_cases import CASES
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.fabric import Fabric, estimate, fabric_of
from gpuprof.analyzers.nccl.bandwidth import planned_busbw_gbps
from gpuprof.peaks import find
from gpuprof.readers.nccl_log import read_nccl_log

SMALLEST_BYTES = 8 << 20

MACHINES = {"a100-2-nodes-efa": ("A100-SXM4-40GB", 16, 8, 400.0)}
"""Named in the log as p4d.24xlarge: eight A100s and four network cards of 100 Gbit/s a node."""


def main() -> None:
    print(f"{'log':24}{'MiB':>7}{'measured':>10}{'expected':>10}{'error':>8}  from")
    for path in sorted((CASES / "nccl").glob("*.log.gz")):
        log = read_nccl_log(path)
        rows = [row for row in log.bandwidths if row.size_bytes >= SMALLEST_BYTES]
        if not rows:
            continue
        name = path.name.removesuffix(".log.gz")
        planned = planned_busbw_gbps(log)
        fabric, source = None, "no plan in the log, and no machine known"
        if planned is not None:
            size = max((one.size for one in log.communicators), default=2)
            fabric = Fabric(size, size, measured_bytes_per_s=planned * 1e9)
            source = f"NCCL's plan, {planned:.0f} GB/s"
        elif name in MACHINES:
            device, ranks, per_node, gbps = MACHINES[name]
            fabric = fabric_of(find(device), ranks, per_node, network_bytes_per_s=gbps * 1e9 / 8)
            source = f"{device}, {gbps:.0f} Gbit/s a node"
        for size in sorted({row.size_bytes for row in rows}):
            measured = max(row.bus_gbps for row in rows if row.size_bytes == size)
            found = fabric and estimate(CollectiveKind.ALL_REDUCE, size, fabric).busbw_bytes_per_s
            shown = f"{found / 1e9:10.1f}{found / 1e9 / measured - 1:8.0%}" if found else " " * 18
            print(f"{name:24}{size >> 20:7d}{measured:10.1f}{shown}  {source}")


if __name__ == "__main__":
    main()
