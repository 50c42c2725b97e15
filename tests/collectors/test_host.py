"""Host metrics from made-up /proc and /sys trees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpuprof.collectors.host import (
    node_sources,
    read_cpu,
    read_disks,
    read_interfaces,
    read_memory,
    read_pressure,
)
from gpuprof.collectors.host_cgroup import METRICS as CGROUP_METRICS
from gpuprof.collectors.host_cgroup import Cgroup
from gpuprof.collectors.host_process import (
    METRICS,
    ProcessReader,
    allowed,
    descendants,
    recorder_pids,
)
from gpuprof.collectors.nvml_readers import Failure
from gpuprof.sample_format import Status


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cpu_counts_seconds_over_all_cpus() -> None:
    text = "cpu  100 0 50 1000 25 0 5 7 0 0\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nctxt 42\n"
    busy, idle, iowait, steal, cpus, switches = read_cpu(text, ticks_per_s=100)
    assert (busy, idle, iowait, steal, cpus, switches) == (1.55, 10.0, 0.25, 0.07, 2, 42)


def test_what_meminfo_lacks_is_missing() -> None:
    values = read_memory("MemTotal: 4 kB\nMemAvailable: 2 kB\n")
    assert values[:2] == [4096, 2048]
    assert isinstance(values[3], Failure)


def test_pressure_totals_are_seconds() -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=250000\n"
    assert read_pressure(text) == [1.5, 0.25]


def test_partitions_do_not_count_twice(tmp_path: Path) -> None:
    (tmp_path / "sda").mkdir()
    line = "8 0 {} 10 0 100 5 20 0 200 5 0 3000 9 0 0 0\n"
    text = line.format("sda") + line.format("sda1") + line.format("loop0")
    assert read_disks(text, tmp_path) == [100 * 512, 200 * 512, 3.0]


def test_interfaces_are_read_by_name() -> None:
    text = "Inter-| Receive\n face |bytes\n  eth0: 10 1 0 2 0 0 0 0 20 1 0 3 0 0 0 0\n"
    assert read_interfaces(text) == {"eth0": [10, 20, 2, 3]}


def test_infiniband_words_become_bytes(tmp_path: Path) -> None:
    ports = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    for name, text in (("port_rcv_data", "100\n"), ("port_xmit_data", "200\n")):
        put(ports, name, text)
    put(tmp_path, "proc/net/dev", "")
    (source,) = (s for s in node_sources(tmp_path) if s.scope == "ib:mlx5_0/1")
    values = dict(zip(source.metrics, source.attempt(), strict=True))
    assert (values["rx_bytes"], values["tx_bytes"]) == (400, 800)
    assert isinstance(values["symbol_errors"], Failure)


def test_an_empty_machine_yields_failures_and_no_zero(tmp_path: Path) -> None:
    """A metric without its file must never read as 0."""
    for source in node_sources(tmp_path):
        assert all(isinstance(value, Failure) for value in source.attempt()), source.metrics


def cgroup(root: Path) -> dict[str, object]:
    return dict(zip(CGROUP_METRICS, Cgroup(root=root).read(), strict=True))


def test_version_2_takes_the_tightest_quota_on_the_way_up(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/pod/box\n")
    mount = "sys/fs/cgroup"
    put(tmp_path, f"{mount}/cgroup.controllers", "cpu memory")
    put(tmp_path, f"{mount}/pod/cpu.max", "200000 100000\n")
    put(
        tmp_path, f"{mount}/pod/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n"
    )
    put(tmp_path, f"{mount}/pod/box/cpu.max", "max 100000\n")
    put(tmp_path, f"{mount}/pod/box/memory.current", "1000\n")
    put(tmp_path, f"{mount}/pod/box/memory.max", "max\n")
    put(tmp_path, f"{mount}/pod/memory.max", "4000\n")
    put(tmp_path, f"{mount}/pod/box/memory.events", "oom 1\noom_kill 1\n")
    found = cgroup(tmp_path)
    assert found["cgroup_cpu_quota_cores"] == 2.0
    assert found["cgroup_throttled_periods"] == 4
    assert found["cgroup_throttled_s"] == 2.5
    assert found["cgroup_mem_limit_bytes"] == 4000
    assert found["cgroup_oom_kills"] == 1


def test_version_1_and_no_limit(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/x\n")
    put(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n")
    put(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.stat", "nr_throttled 3\nthrottled_time 1000000000\n")
    put(tmp_path, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n")
    found = cgroup(tmp_path)
    assert found["cgroup_cpu_quota_cores"] == 4.0
    assert found["cgroup_throttled_s"] == 1.0
    assert isinstance(found["cgroup_mem_limit_bytes"], Failure)


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    """In a container the group's path can name a hierarchy that is not mounted; and no escape."""
    put(tmp_path, "proc/self/cgroup", "0::/../../etc\n")
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert cgroup(tmp_path)["cgroup_cpu_quota_cores"] == 0.5


def process(
    root: Path, pid: int, *, children: str = "", ticks: int = 100, io: bool = True, parent: int = 1
) -> None:
    stat = f"{pid} (a) b) S {parent} {pid} 0 0 0 0 7 0 9 0 {ticks} 0 0 0 20 0 3 0 555 0 10\n"
    put(root, f"{pid}/stat", stat)
    put(root, f"{pid}/task/{pid}/stat", stat)
    put(root, f"{pid}/task/{pid}/children", children)
    put(root, f"{pid}/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n"
        "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n")  # fmt: skip
    if io:
        put(root, f"{pid}/io", "rchar: 1000\nread_bytes: 400\nwrite_bytes: 50\n")


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="needs Linux")
def test_a_worker_that_ended_stays_in_the_sums(tmp_path: Path) -> None:
    """A counter that fell when a DataLoader worker ended would read as a reset."""
    process(tmp_path, 10, children="11 12")
    process(tmp_path, 11, ticks=300)
    process(tmp_path, 12, ticks=500)
    reader = ProcessReader(10, tmp_path)
    first = dict(zip(METRICS, reader.read(), strict=True))
    assert first["workers"] == 2
    assert (first["switches_voluntary"], first["major_faults"]) == (5, 9)
    (tmp_path / "12/stat").unlink()
    second = dict(zip(METRICS, reader.read(), strict=True))
    assert second["workers"] == 1
    assert second["workers_cpu_s"] == first["workers_cpu_s"]
    assert second["workers_read_bytes"] == first["workers_read_bytes"] == 800


def test_a_process_of_another_user_hides_its_io(tmp_path: Path) -> None:
    process(tmp_path, 10, io=False)
    found = dict(zip(METRICS, ProcessReader(10, tmp_path).read(), strict=True))
    hidden = found["read_bytes"]
    assert isinstance(hidden, Failure)
    assert hidden.status is Status.NO_PERMISSION
    assert not isinstance(found["cpu_s"], Failure)


def test_a_process_that_ended_is_lost(tmp_path: Path) -> None:
    values = ProcessReader(99, tmp_path).read()
    assert all(isinstance(v, Failure) and v.status is Status.LOST for v in values)


def test_gpuprofs_own_processes_are_no_loader_workers(tmp_path: Path) -> None:
    """A rank starts the node's sampler (21, below its guard 20), and that one starts another."""
    process(tmp_path, 10, children="20 30")
    process(tmp_path, 20, children="21", parent=10)
    process(tmp_path, 21, children="22", parent=20)
    process(tmp_path, 22, parent=21)
    process(tmp_path, 30, parent=10)
    assert recorder_pids(10, 21, tmp_path) == {20, 21, 22}
    assert recorder_pids(30, 21, tmp_path) == set()


def test_affinity_and_descendants(tmp_path: Path) -> None:
    process(tmp_path, 10, children="11")
    process(tmp_path, 11, children="12")
    process(tmp_path, 12)
    assert allowed(10, tmp_path) == ("0-3", "0")
    assert allowed(99, tmp_path) == ("", "")
    assert sorted(descendants(10, tmp_path)) == [11, 12]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_this_machine_is_read() -> None:
    found = dict(zip(METRICS, ProcessReader(os.getpid()).read(), strict=True))
    assert not isinstance(found["cpu_s"], Failure)
    (cpu,) = (s for s in node_sources() if s.metrics[0] == "cpu_busy_s")
    assert not any(isinstance(value, Failure) for value in cpu.attempt())
