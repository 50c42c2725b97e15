"""Expected times and bus bandwidths against the nccl-tests tables in the labelled logs.

    python benchmarks/expected_bandwidth.py

Each row of each table is expected by what its own log states: the operation by its columns, NCCL's
plan where it is printed, else the network by the machine's type; the device is in the table's head.
A row is judged by its time where latency is most of what is expected, else by its bus bandwidth;
the goal is 20 %. In-place and out-of-place times of a size are taken together by the shorter.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.nccl_cases import CASES
from gpuprof.analyzers.collective_kinds import CollectiveKind
from gpuprof.analyzers.fabric import Estimate, Fabric, estimate, fabric_of
from gpuprof.analyzers.nccl.bandwidth import planned_busbw_gbps, ring_ceiling_gbps
from gpuprof.analyzers.nccl.graph import uneven_link
from gpuprof.analyzers.nccl.measured import operation
from gpuprof.analyzers.nccl.networks import network_of
from gpuprof.commlog import CommLog
from gpuprof.peaks import find
from gpuprof.readers.nccl_log import read_nccl_log

GOAL = 0.2

DEVICES = {"a100-2-nodes-efa": ("A100-SXM4-40GB", 8)}
"""What the head of a table says of its devices: their name, and ranks a node."""


def machine(name: str, log: CommLog) -> tuple[Fabric, str] | None:
    """What connects the ranks of a log, and where that is from; None where it does not say."""
    planned = planned_busbw_gbps(log)
    if planned is not None:
        size = max(log.world_size, 2)
        source = f"NCCL's plan of {ring_ceiling_gbps(log):g} GB/s: {planned:.0f}"
        link = uneven_link(log)
        if link is not None:
            source += f" over links of {link.back_gbps:g}, {link.there_gbps:g} in the plan"
        return Fabric(size, size, measured_bytes_per_s=planned * 1e9), source
    network = network_of(log)
    if network is None or name not in DEVICES:
        return None
    device, per_node = DEVICES[name]
    fabric = fabric_of(
        find(device), log.world_size, per_node,
        network_bytes_per_s=network.gbps * 1e9 / 8, hop_ns=network.hop_us * 1e3,
    )  # fmt: skip
    return fabric, f"{device}, {network.name}: {network.gbps:g} Gbit/s, {network.hop_us:g} µs a hop"


def row(size: int, time_us: float, busbw_gbps: float, expected: Estimate) -> bool:
    """Prints a line; whether it is within the goal."""
    assert expected.time_ns is not None and expected.busbw_bytes_per_s is not None
    by_time = expected.regime == "latency-bound"
    error = expected.time_ns / 1e3 / time_us - 1
    if not by_time:
        error = expected.busbw_bytes_per_s / 1e9 / busbw_gbps - 1
    fits = abs(error) <= GOAL
    print(
        f"{size:12d}{'time' if by_time else 'busbw':>7}"
        f"{time_us:11.1f}{expected.time_ns / 1e3:11.1f}"
        f"{busbw_gbps:9.2f}{expected.busbw_bytes_per_s / 1e9:9.2f}{error:8.1%}"
        f"  {'pass' if fits else 'FAIL'}"
    )
    return fits


def table(name: str, log: CommLog) -> tuple[int, int]:
    """Prints the table of a log; rows within the goal, and rows in all."""
    kinds = {operation(one, log.world_size) for one in log.bandwidths if one.size_bytes}
    kinds.discard(CollectiveKind.UNKNOWN)
    found = machine(name, log)
    if len(kinds) != 1 or found is None:
        print(
            f"{name}: not judged ({len(kinds)} operations, machine {'' if found else 'un'}known)\n"
        )
        return 0, 0
    kind, (fabric, source) = kinds.pop(), found
    print(
        f"{name}: {kind.name.lower()} of {fabric.ranks} ranks on {fabric.nodes} node(s); {source}"
    )
    print(f"{'bytes':>12}{'by':>7}{'µs':>11}{'expected':>11}{'GB/s':>9}{'expected':>9}{'error':>8}")
    fits = []
    for size in sorted({one.size_bytes for one in log.bandwidths if one.size_bytes}):
        rows = [one for one in log.bandwidths if one.size_bytes == size]
        best = min(rows, key=lambda one: one.time_us)
        fits.append(row(size, best.time_us, best.bus_gbps, estimate(kind, size, fabric)))
    print(f"{sum(fits)} of {len(fits)} rows within {GOAL:.0%}\n")
    return sum(fits), len(fits)


def main() -> None:
    right = total = 0
    for path in sorted((CASES / "nccl").glob("*.log.gz")):
        log = read_nccl_log(path)
        if log.bandwidths:
            fits, rows = table(path.name.removesuffix(".log.gz"), log)
            right, total = right + fits, total + rows
    print(f"in all {right} of {total} rows within {GOAL:.0%}")


if __name__ == "__main__":
    main()
