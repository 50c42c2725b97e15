"""What collectors and launchers write around a program's lines hides nothing from any reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprof.api import analyze
from gpuprof.errors import InputError
from gpuprof.inputs import kind_of
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.smi import read_smi
from gpuprof.readers.topology import read_topology
from gpuprof.readers.wrapping import unstored, unwrapped, wrapping_of
from gpuprof.readers.xid import read_xids

Wrap = Callable[[str, int], str]


def stamp(second: int) -> str:
    return f"2024-01-02T03:04:{second % 60:02}.678901234Z"


def docker(line: str, second: int) -> str:
    stored = {"log": line + "\n", "stream": "stderr", "time": stamp(second)}
    return json.dumps(stored, separators=(",", ":"))


def journal_json(line: str, second: int) -> str:
    stored = {"_HOSTNAME": "node1", "MESSAGE": line, "PRIORITY": "6"}
    return json.dumps({**stored, "__REALTIME_TIMESTAMP": str((1704164640 + second) * 10**6)})


COLLECTORS: dict[str, Wrap] = {
    "docker's file": docker,
    "containerd": lambda line, n: f"{stamp(n)} stderr F {line}",
    "docker logs -t": lambda line, n: f"{stamp(n)} {line}",
    "kubectl --prefix": lambda line, _: f"[pod/trainer-0/pytorch] {line}",
    "kubectl --prefix --timestamps": lambda line, n: f"[pod/trainer-0/pytorch] {stamp(n)} {line}",
    "journalctl": lambda line, n: f"Jan 02 03:04:{n % 60:02} node1 python3[1234]: {line}",
    "rsyslog": lambda line, n: f"2024-01-02T03:04:{n % 60:02}+00:00 n1 docker/a1[12]: {line}",
    "journalctl -o json": journal_json,
    "docker compose": lambda line, _: f"trainer-1  | {line}",
    "ray": lambda line, _: f"(RayTrainWorker pid=123, ip=10.0.0.4) {line}",
    "ray, coloured": lambda line, _: f"\x1b[36m(Trainer(a) pid=12)\x1b[0m {line}",
}
LAUNCHERS: dict[str, Wrap] = {
    "torchrun": lambda line, _: f"[default3]:{line}",
    "srun --label": lambda line, _: f" 3: {line}",
    "mpirun": lambda line, _: f"[1,3]<stderr>:{line}",
    "mpirun, Open MPI 5": lambda line, _: f"[prterun-n1-7@1,3]<stdout>: {line}",
    "srun in docker": lambda line, n: docker(f"3: {line}", n),
    "torchrun in a pod": lambda line, n: f"[pod/a-0/b] {stamp(n)} [default3]:{line}",
}
ALL = {**COLLECTORS, **LAUNCHERS}
DATED = {
    "docker's file",
    "containerd",
    "docker logs -t",
    "kubectl --prefix --timestamps",
    "rsyslog",
    "journalctl -o json",
    "srun in docker",
    "torchrun in a pod",
}
"""Those that say when, with the year and the zone."""

NCCL = (
    "loading <data> & \u001b[31mmore\u001b[0m",
    "[rank3]:host1:7:9 [0] NCCL INFO NCCL version 2.27.7+cuda12.4",
    'host1:7:9 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to "eth0".',
    "",
    "host1:7:9 [0] misc/socket.cc:456 NCCL WARN socketStartConnect: Connect to 10.0.0.2<9> failed",
)
WATCHDOG = tuple(
    f"[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation"
    f" timeout: WorkNCCL(SeqNum={12 if rank else 11}, OpType=ALLREDUCE, NumelIn=4096,"
    " NumelOut=4096, Timeout(ms)=600000) ran for 600123 milliseconds before timing out."
    for rank in (1, 2, 0)
)
RENDEZVOUS = (
    "starting",
    "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients"
    " joined.",
)
KERNEL = (
    "[  100.000001] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03",
    "[  123.456799] NVRM: Xid (PCI:0000:9b:00): 79, name=<unknown>, GPU has fallen off the bus.",
)
SMI = (
    "timestamp, index, utilization.gpu [%], power.draw [W]",
    *(f"2024/05/01 10:00:{n:02}.000, 0, {50 + n} %, 200.10 W" for n in range(9)),
)
TOPOLOGY = (
    "  \tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity",
    "GPU0\t X \tNV12\t0-15\t0",
    "GPU1\tNV12\t X \t0-15\t0",
)


def write(path: Path, lines: tuple[str, ...], wrap: Wrap = lambda line, _: line) -> Path:
    path.write_text("".join(wrap(line, n) + "\n" for n, line in enumerate(lines)))
    return path


@pytest.mark.parametrize("wrap", COLLECTORS.values(), ids=COLLECTORS)
def test_a_collected_log_of_nccl_reads_as_the_program_wrote_it(tmp_path: Path, wrap: Wrap) -> None:
    plain = read_nccl_log(write(tmp_path / "plain.log", NCCL))
    wrapped = read_nccl_log(write(tmp_path / "wrapped.log", NCCL, wrap))
    assert [(e.text, e.line) for e in wrapped.events] == [(e.text, e.line) for e in plain.events]
    assert wrapped.events[0].line == 5
    assert wrapped.processes == plain.processes and plain.processes[0].label == 3
    assert (wrapped.env, wrapped.versions) == (plain.env, plain.versions)


@pytest.mark.parametrize("lines", [WATCHDOG, RENDEZVOUS], ids=["watchdog", "rendezvous"])
@pytest.mark.parametrize("wrap", COLLECTORS.values(), ids=COLLECTORS)
def test_pytorchs_words_are_the_same_through_every_collector(
    tmp_path: Path, wrap: Wrap, lines: tuple[str, ...]
) -> None:
    path = tmp_path / "job.log"
    plain = analyze(write(path, lines)).findings
    assert plain and analyze(write(path, lines, wrap)).findings == plain


@pytest.mark.parametrize("wrap", LAUNCHERS.values(), ids=LAUNCHERS)
def test_launchers_labels_change_no_late_rank(tmp_path: Path, wrap: Wrap) -> None:
    """What the watchdog says of a rank counts, not on which node's or launcher's line it came."""
    found = analyze(write(tmp_path / "job.log", WATCHDOG, wrap)).findings
    assert [(one.cause, one.late_ranks) for one in found] == [("hang", (0,))]


@pytest.mark.parametrize("name", ALL)
def test_reports_of_the_driver(tmp_path: Path, name: str) -> None:
    """The text ends where it ended, and a collector's time, which is the epoch's, dates it."""
    (plain,) = read_xids(write(tmp_path / "dmesg.log", KERNEL)).events
    path = write(tmp_path / "kernel.log", KERNEL, ALL[name])
    assert kind_of(path) == "xid"
    (event,) = read_xids(path).events
    assert (event.code, event.pci, event.text) == (plain.code, plain.pci, plain.text)
    assert event.epoch is (name in DATED)


@pytest.mark.parametrize("wrap", ALL.values(), ids=ALL)
def test_nvidia_smi_in_a_container_beside_the_job(tmp_path: Path, wrap: Wrap) -> None:
    plain = read_smi(write(tmp_path / "plain.csv", SMI))
    path = write(tmp_path / "smi.log", SMI, wrap)
    assert kind_of(path) == "smi"
    wrapped = read_smi(path)
    assert len(wrapped.series) == len(plain.series) > 0
    for key, one in plain.series.items():
        assert wrapped.series[key].value.tolist() == one.value.tolist()


@pytest.mark.parametrize("wrap", ALL.values(), ids=ALL)
def test_a_topology_that_a_job_printed(tmp_path: Path, wrap: Wrap) -> None:
    path = write(tmp_path / "topo.txt", TOPOLOGY, wrap)
    assert kind_of(path) == "topology"
    assert read_topology(path).link("GPU0", "GPU1") == "NV12"


@pytest.mark.parametrize("wrap", ALL.values(), ids=ALL)
def test_indentation_survives(wrap: Wrap) -> None:
    """nvidia-smi -q tells depth by it: what a launcher puts before a line ends where it ends."""
    lines = ("GPU 00000000:07:00.0", "    Product Name : A", "    Clocks", "        SM : 1 MHz")
    text = "".join(wrap(line, n) + "\n" for n, line in enumerate(lines))
    assert unwrapped(text.encode()).decode().splitlines() == list(lines)


@pytest.mark.parametrize("label", ["{}: ", "[pod/trainer-{}/pytorch] ", "node-{}  | "])
def test_gpus_of_several_nodes_never_become_those_of_one(tmp_path: Path, label: str) -> None:
    """GPU 0 of each node would be one series, and their topologies one machine."""
    rows = tuple(label.format(node) + line for line in SMI for node in range(2))
    with pytest.raises(InputError, match="lines of several sources"):
        read_smi(write(tmp_path / "smi.log", rows))
    topology = tuple(label.format(node) + line for line in TOPOLOGY for node in range(2))
    assert kind_of(write(tmp_path / "topo.txt", topology)) == "unknown"


def test_a_second_node_that_speaks_later_is_not_mixed_in(tmp_path: Path) -> None:
    rows = (*("0: " + line for line in SMI), *("1: " + line for line in SMI[1:]))
    first = tuple(f"0: {SMI[-1]}" for _ in range(200))
    samples = read_smi(write(tmp_path / "smi.log", (rows[0], *first, *rows[1:])))
    assert {len(one.value) for one in samples.series.values()} == {209}


def test_what_a_program_writes_itself_now_and_then_stays() -> None:
    text = b"epoch 1\nepoch 2\n2024-01-02T03:04:05Z saved\n(pid=3) x\nepoch 3\n"
    assert unwrapped(text) == text


def test_lines_between_keep_what_they_have() -> None:
    """A shell's own line among those of a pod, and a node's under srun that Ray did not label."""
    lines = (
        b"+ kubectl logs -f a-0\n[pod/a-0/b] (pid=3) one\n[pod/a-0/b] two\n[pod/a-0/b] (pid=3) x\n"
    )
    assert unwrapped(lines) == b"+ kubectl logs -f a-0\none\ntwo\nx\n"


def test_a_bar_that_rewrites_its_line_hides_no_wrapping() -> None:
    bar = b"".join(b"\r%d%%|###|" % n for n in range(500))
    text = b"2024-01-02T03:04:05Z %s\n2024-01-02T03:04:06Z done\n" % bar
    assert wrapping_of(text, "ranks").off(text) == bar + b"\ndone\n"


@pytest.mark.parametrize(
    "line",
    [
        b'{"log":"host1:7:9 [0] NCCL INFO',
        b'{"log":7,"time":"2024-01-02T03:04:05Z"}',
        b'{"log":"\xff"}',
        b'{"MESSAGE":[78,67]}',
        b'{"step": 3, "loss": 2.5}',
    ],
)
def test_json_that_stores_no_line_stays_as_it_is(line: bytes) -> None:
    assert unstored(line + b"\n") == line + b"\n"


def test_times_that_no_clock_shows_are_left_out() -> None:
    for micros in ("9" * 19, "-5", "x" * 40):
        line = json.dumps({"MESSAGE": "text", "__REALTIME_TIMESTAMP": micros}).encode()
        assert unstored(line) == b"text\n"


def test_endless_labels_cost_no_endless_work() -> None:
    """Patterns are anchored and bounded: a hostile line is looked at once."""
    for filler in (b"(", b"[", b"a-1 ", b"[pod/", b"(a pid=", b"1", b" ", b"2024-01-02T"):
        text = (filler * (100_000 // len(filler)) + b"\n") * 3
        assert unwrapped(text) == text
