# ruff: noqa: E501 (lines of logs and tables are quoted whole)
"""The log reader: prefixes, ranks, tables, bare texts, dates, chunks, and foreign files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.nccl_logs import VERSIONS, Job, build_log
from gpuprof.commlog import CommLog
from gpuprof.errors import InputError
from gpuprof.readers import nccl_calls
from gpuprof.readers import text as text_module
from gpuprof.readers.nccl_log import read_nccl_log
from gpuprof.readers.text import CHUNK_BYTES


def read(tmp_path: Path, *lines: str) -> CommLog:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return read_nccl_log(path)


@pytest.mark.parametrize(
    ("prefix", "host", "label"),
    [
        ("node1:10:11 [3] ", "node1", None),
        ("[1,5]<stdout>:node1:10:11 [3] ", "node1", 5),
        (" 5: node1:10:11 [3] ", "node1", 5),
        ("[default5]:node1:10:11 [3] ", "node1", 5),
        ("(Worker pid=3, ip=10.0.0.1) node1:10:11 [3] ", "node1", None),
        ("2026-01-02T03:04:05.1Z stdout F node1:10:11 [3] ", "node1", None),
        ("ip-172-31-89-192:10:11 [3] ", "ip-172-31-89-192", None),
    ],
)
def test_prefix_forms(tmp_path: Path, prefix: str, host: str, label: int | None) -> None:
    """Launchers and collectors put their own text first; host, pid and CUDA ordinal survive."""
    log = read(tmp_path, prefix + "NCCL INFO Using network IB")
    (process,) = log.processes
    assert (process.host, process.pid, process.label) == (host, 10, label)
    assert log.facts_of("network")[0].fields == {"network": "IB"}


def test_ordinal_is_not_the_rank(tmp_path: Path) -> None:
    """`[0]` is the CUDA ordinal; the rank comes from the communicator of the same process."""
    log = read(
        tmp_path,
        "n1:10:11 [0] NCCL INFO comm 0xab rank 9 nranks 16 cudaDev 0 busId 1c000 commId 0x7 - Init COMPLETE",
        "n1:10:11 [0] misc/x.cc:1 NCCL WARN something",
    )
    assert log.processes[0].ranks == {0: 9}
    assert log.events[0].rank == 9
    assert (log.events[0].source, log.events[0].source_line) == ("misc/x.cc", 1)


def test_process_with_several_gpus_has_several_ranks(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "n1:10:11 [0] NCCL INFO comm 0xa rank 0 nranks 2 cudaDev 0 busId 1c000 commId 0x7 - Init COMPLETE",
        "n1:10:12 [1] NCCL INFO comm 0xb rank 1 nranks 2 cudaDev 1 busId 2c000 commId 0x7 - Init COMPLETE",
        "n1:10:12 [1] misc/x.cc:1 NCCL WARN something",
    )
    assert log.processes[0].ranks == {0: 0, 1: 1}
    assert log.events[0].rank == 1


def test_communicators_are_joined_by_identity_and_by_order_before_it_existed(
    tmp_path: Path,
) -> None:
    new = [
        f"n1:{r}:1 [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 2 cudaDev {r} busId 1c000 commId 0x7 - Init START"
        for r in range(2)
    ]
    old = [
        f"n1:{r}:1 [{r}] NCCL INFO comm 0xb{r} rank {r} nranks 4 cudaDev {r} nvmlDev {r} - Init COMPLETE"
        for r in (0, 1, 3)
    ]
    log = read(tmp_path, *new, *old)
    first, second = log.communicators
    assert (first.identity, sorted(first.started), first.has_start) == ("0x7", [0, 1], True)
    assert (sorted(second.completed), second.missing) == ([0, 1, 3], (2,))


@pytest.mark.parametrize(
    ("text", "kind", "how", "direction", "gdr"),
    [
        ("Ring 00 : 3[3] -> 4[4] via P2P/IPC", "p2p", "IPC", "", None),
        ("Ring 00 : 7 -> 0 [receive] via NET/Socket/0", "net", "Socket", "receive", False),
        ("Channel 01 : 0[1c000] -> 1[2c000] via direct shared memory", "shm", "direct shared memory", "", None),
        ("Channel 01 : 0[1c000] -> 1[2c000] via SHM/direct/direct", "shm", "SHM/direct/direct", "", None),
        ("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "p2p", "CUMEM", "", None),
        ("Channel 01/0 : 0[0] -> 1[1] via P2P/indirect/3[1a]", "p2p", "indirect/3[1a]", "", None),
        ("Channel 01/0 : 0[0] -> 8[0] [send] via NET/IBext_v9/3(2)/GDRDMA", "net", "IBext_v9", "send", True),
        ("Channel 01/1 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/1/GDRDMA/Shared", "net", "AWS Libfabric", "send", True),
        ("Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA(PCI)", "net", "IB", "send", True),
        ("Channel 01/0 : 0[11000] -> 8[11000] [send] via NET/IB/1/GDRDMA comm 0x1 nRanks 16", "net", "IB", "send", True),
        ("CollNet 03 : 11 [receive] via COLLNET/SHARP/3/GDRDMA", "collnet", "SHARP", "receive", True),
    ],
)  # fmt: skip
def test_transports_of_all_releases(
    tmp_path: Path, text: str, kind: str, how: str, direction: str, gdr: bool | None
) -> None:
    (row,) = read(tmp_path, f"n1:10:11 [0] NCCL INFO {text}").transports
    assert (row.kind, row.how, row.direction, row.gdr) == (kind, how, direction, gdr)


def test_channels_of_one_pair_are_one_row(tmp_path: Path) -> None:
    lines = [
        f"n1:1:1 [0] NCCL INFO Channel {c:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM" for c in range(16)
    ]
    assert len(read(tmp_path, *lines).transports) == 1


def test_ring_order_is_read(tmp_path: Path) -> None:
    log = read(tmp_path, "n1:1:1 [0] NCCL INFO Channel 00/02 :    0   1   3   2")
    assert list(log.rings.values()) == [(0, 1, 3, 2)]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL version 2.10.3+cuda11.3",
        "[1,0]<stdout>:NCCL version 2.10.3+cuda11.3",
        "n1:1:1 [0] NCCL INFO NCCL version 2.10.3+cuda11.3",
        "RuntimeError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.10.3",
    ],
)
def test_version_line_in_any_place(tmp_path: Path, line: str) -> None:
    (row,) = read(tmp_path, line).versions
    assert (row.version, row.stated) == ("2.10.3", True)


def test_rccl_says_so(tmp_path: Path) -> None:
    row = read(tmp_path, "0: RCCL version : 2.20.5-develop:c246e25").versions[0]
    assert (row.library, row.version) == ("RCCL", "2.20.5")


def test_log_without_version_is_dated_by_its_texts(tmp_path: Path) -> None:
    """Two texts narrow the range: Bootstrap with a space, and a bus id in the brackets."""
    (row,) = read(
        tmp_path,
        "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "n1:1:1 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    ).versions
    assert (row.version, row.stated) == ("2.7.3-2.16.5", False)


def test_log_without_version_is_dated_by_source_lines(tmp_path: Path) -> None:
    (row,) = read(
        tmp_path,
        "n1:1:1 [0] proxy.cc:1458 NCCL WARN [Service thread] Accept failed Success",
        "n1:1:1 [0] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type",
        "n1:1:1 [0] proxy.cc:1521 NCCL WARN [Proxy Service 7] Failed to execute operation Close",
        "n1:1:1 [0] NCCL INFO misc/socket.cc:775 -> 3",
    ).versions
    assert (row.version, row.stated) == ("2.22.3", False)


def test_last_error_without_prefix_is_an_event(tmp_path: Path) -> None:
    log = read(tmp_path, "[rank3]: Last error:", "[rank3]: some text that NCCL wrote")
    assert [(e.level, e.rank, e.line) for e in log.events] == [("BARE", 3, 1), ("BARE", 3, 2)]


def test_old_warning_without_the_word_nccl(tmp_path: Path) -> None:
    """Up to 2.2 a line has no NCCL in it."""
    log = read(
        tmp_path, "node1:1000:1000 [0] include/socket.h:311 WARN Socket creation failed : no"
    )
    (event,) = log.events
    assert (event.level, event.source, event.text) == (
        "WARN",
        "include/socket.h",
        "Socket creation failed : no",
    )


def test_repeated_warning_is_counted(tmp_path: Path) -> None:
    log = read(tmp_path, *["n1:1:1 [0] x.cc:1 NCCL WARN again"] * 5)
    assert [(event.count, event.line) for event in log.events] == [(5, 1)]


def test_time_of_a_warning(tmp_path: Path) -> None:
    first, second = read(
        tmp_path,
        "[2026-01-02 03:04:05] n1:1:1 [0] x.cc:1 NCCL WARN one",
        "[2026-01-02 03:04:06.5] n1:1:1 [0] x.cc:1 NCCL WARN two",
    ).events
    assert first.time_ns is not None and second.time_ns is not None
    assert second.time_ns - first.time_ns == 1_500_000_000


def test_calls_keep_the_last_of_each_communicator(tmp_path: Path) -> None:
    lines = [
        f"n1:1:1 [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x1 count 64 datatype 7 "
        f"op 0 root 0 comm 0xab [nranks=2] stream 0x5"
        for n in range(100)
    ]
    tail = read(tmp_path, *lines).calls["0xab"]
    assert (tail.last, tail.calls, tail.line) == (99, 100, 100)
    assert tail.recent[99] == ("AllReduce", 64, 7, 0, 0)
    assert len(tail.recent) == nccl_calls.RECENT_CALLS


def test_busy_chunks_lose_no_last_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that stopped long before the others keeps its last number."""
    monkeypatch.setattr(nccl_calls, "HEAVY_CALLS", 10)
    monkeypatch.setattr(nccl_calls, "TAIL_BYTES", 1000)
    monkeypatch.setattr(text_module, "CHUNK_BYTES", 8000)
    lines = [
        f"n1:{r}:1 [{r}] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x1 count 64 datatype "
        f"7 op 0 root 0 comm 0xa{r} [nranks=2] stream 0x5"
        for n in range(400)
        for r in range(3)
        if not (r == 1 and n > 150)
    ]
    log = read(tmp_path, *lines)
    assert {handle: tail.last for handle, tail in log.calls.items()} == {
        "0xa0": 399,
        "0xa1": 150,
        "0xa2": 399,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_chunk_borders_change_nothing(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nccl.log"
    text, _, _ = build_log(Job(version, nodes=1, gpus=4, steps=5), "shm_full")
    path.write_text(text)
    whole = read_nccl_log(path)
    monkeypatch.setattr(text_module, "CHUNK_BYTES", 3000)
    parts = read_nccl_log(path)
    assert parts.counts == whole.counts
    assert parts.events == whole.events
    assert {(t.source, t.target, t.kind, t.direction) for t in parts.transports} == {
        (t.source, t.target, t.kind, t.direction) for t in whole.transports
    }
    assert parts.line_count == whole.line_count == text.count("\n")


def test_events_have_the_line_of_the_file(tmp_path: Path) -> None:
    text, _, _ = build_log(Job("2.27.7", nodes=1, gpus=4, steps=5), "shm_full")
    path = tmp_path / "nccl.log"
    path.write_text(text)
    lines = text.split("\n")
    for event in read_nccl_log(path).events:
        assert event.text[:40] in lines[event.line - 1]


def test_one_file_a_rank_is_one_log(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        path = tmp_path / f"nccl.{rank}.log"
        path.write_text(
            f"n{rank}:5:1 [0] NCCL INFO comm 0xa{rank} rank {rank} nranks 2 cudaDev 0 busId 1c000 commId 0x7 - Init COMPLETE\n"
        )
        paths.append(path)
    for log in (read_nccl_log(paths), read_nccl_log(tmp_path)):
        assert len(log.communicators) == 1 and not log.communicators[0].missing
        assert log.hosts == ("n0", "n1")


def test_gzip_and_missing_final_newline(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log.gz"
    path.write_bytes(
        gzip.compress(b"n1:1:1 [0] NCCL INFO Using network IB\nn1:1:1 [0] x.cc:1 NCCL WARN end")
    )
    log = read_nccl_log(path)
    assert log.events[0].text == "end" and log.facts_of("network")


def test_line_broken_by_another_rank_loses_only_itself(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "n1:1:1 [0] NCCL INFO   + NET[1.2] n1:2:2 [1] NCCL INFO Using network Socket",
        "n1:1:1 [0] NCCL INFO Using network IB",
    )
    assert [fact.fields["network"] for fact in log.facts_of("network")] == ["Socket", "IB"]


def test_text_at_the_end_of_a_progress_bar_is_found(tmp_path: Path) -> None:
    """A bar rewrites its line with carriage returns; the watchdog's message lands behind it."""
    path = tmp_path / "job.log"
    bar = b"".join(
        b"\rTokenizing:  %d%%|###| %d/100 [00:01<00:02, 155.57 examples/s]" % (n, n)
        for n in range(99)
    )
    path.write_bytes(
        bar
        + b"[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: x\n"
    )
    log = read_nccl_log(path)
    assert [event.rank for event in log.events] == [2]
    assert log.progress


@pytest.mark.parametrize("filler", [b"a", b"1 ", b"1%|", b"n:1:", b"[1] ", b"[1,1]<stdout>:"])
def test_endless_lines_cost_no_endless_work(tmp_path: Path, filler: bytes) -> None:
    """Patterns see a bounded part of a line, whatever stands before or behind NCCL's mark."""
    path = tmp_path / "hostile.log"
    long = filler * (300_000 // len(filler))
    path.write_bytes(
        b"\n".join(
            [
                long + b"NCCL WARN x" + long,
                long + b"NCCL INFO Using network IB" + long,
                b"NCCL INFO Channel 00 : 1 " + long,
                b"Watchdog " + long,
            ]
        )
    )
    assert read_nccl_log(path).events


def test_foreign_and_missing_files_are_one_line_errors(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("epoch 1 loss 2.0\n" * 50)
    with pytest.raises(InputError, match="holds no line of NCCL"):
        read_nccl_log(path)
    with pytest.raises(InputError, match="does not exist"):
        read_nccl_log(tmp_path / "nothing.log")
    with pytest.raises(InputError):
        read_nccl_log([])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [
                    b"n1:1:1 [0] NCCL INFO ", b"NCCL WARN ", b"NCCL INFO comm ", b"\r\n", b"Channel 00 : ",
                    b"opCount 1 sendbuff 0 recvbuff 0 count 1 datatype 1 op 1 root 1 comm 0x1",
                    b"[Rank 1] Watchdog caught", b"NCCL version 2.4", b"\xff\xfe", b"Last error:\n",
                ]
            ),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_any_bytes_are_read_or_refused(tmp_path: Path, parts: list[bytes]) -> None:
    """No input ends in another exception than InputError, and findings never fail on it."""
    from gpuprof.analyzers.nccl_causes import findings_from_commlog

    path = tmp_path / "any.log"
    path.write_bytes(b"".join(parts))
    try:
        log = read_nccl_log(path)
    except InputError:
        return
    findings_from_commlog(log)


def test_a_number_of_ranks_that_no_job_has_is_no_size(tmp_path: Path) -> None:
    """Ranks that are missing are listed: of 10^18 there would be no end."""
    path = tmp_path / "nccl.log"
    size = "999999999999999999"
    line = f"ncclCommInitRank comm 0x55aa rank 0 nranks {size} cudaDev 0 busId 1b000 commId 0x1 -"
    path.write_text(
        f"n0:1:5 [0] NCCL INFO NCCL version 2.21.5\nn0:1:5 [0] NCCL INFO {line} Init START\n"
    )
    log = read_nccl_log(path)
    assert all(comm.size < 10**6 for comm in log.communicators)


WARNED = "n1:10:11 [3] misc/x.cc:1 NCCL WARN something"
SAID = "n1:10:11 [3] NCCL INFO NCCL_ALGO set by environment to Ring."


@pytest.mark.parametrize(
    "coloured",
    [
        lambda text: "".join(f"\x1b[36m{line}\x1b[0m\n" for line in text.splitlines()),
        lambda text: text.replace("NCCL ", "\x1b[01;31m\x1b[KNCCL\x1b[m\x1b[K "),  # grep --color
        lambda text: text.replace(" [3]", "\x1b(B\x1b[m [3]"),  # tput sgr0
    ],
)
def test_colours_hide_nothing(tmp_path: Path, coloured: Callable[[str], str]) -> None:
    """Launchers colour whole lines, grep the word it looked for; values end where they end."""
    path = tmp_path / "nccl.log"
    path.write_text(coloured(f"{SAID}\n{WARNED}\n"))
    log = read_nccl_log(path)
    assert [(s.variable, s.value) for s in log.env] == [("NCCL_ALGO", "Ring")]
    assert [(e.text, e.line, log.host(e.process)) for e in log.events] == [("something", 2, "n1")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings_of_windows(tmp_path: Path, encoding: str) -> None:
    """PowerShell's `kubectl logs … > nccl.log` writes UTF-16; also across chunks."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path = tmp_path / "nccl.log"
    text = f"{mark}{SAID}\r\n" + "é x\r\n" * (CHUNK_BYTES // 8) + f"{WARNED}\r\n"
    path.write_bytes(text.encode(encoding))
    log = read_nccl_log(path)
    assert [(s.variable, s.value) for s in log.env] == [("NCCL_ALGO", "Ring")]
    assert [e.line for e in log.events] == [CHUNK_BYTES // 8 + 2]


def test_a_packed_log_that_is_cut_off_is_read_and_said(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log.gz"
    noise = "".join(f"n1:10:11 [3] NCCL INFO {n * 2654435761:x}\n" for n in range(20_000))
    path.write_bytes(gzip.compress(f"{WARNED}\n{noise}".encode())[:-4000])
    damaged: list[str] = []
    log = read_nccl_log(path, damaged)
    assert [e.text for e in log.events] == ["something"]
    assert damaged == [f"{path}: the gzip stream is cut off, so its end is missing"]
