"""What a job that stands has to say itself: its flight recorder's dumps, and NCCL's RAS."""

from __future__ import annotations

import os
import pickle
import socketserver
import threading
from pathlib import Path

import pytest

from fixtures.flight_recorder import dump, entry
from gpuprof.attach import job_says, targets
from gpuprof.attach.job_ranks import Member, expected_ranks
from gpuprof.readers.flight_recorder import read_flight_recorder
from tests.readers.test_ras import BEHIND, answer


def member(rank: int = 0, **environment: str) -> Member:
    """This process as a rank of a job."""
    process = targets.read_process(os.getpid())
    assert process is not None
    return Member(process.pid, process.pid, process.born, rank, 4, environment)


def test_a_dump_that_the_job_has_left(tmp_path: Path) -> None:
    """It is copied under the rank's name; one from before the job is not this job's."""
    prefix = tmp_path / "dump_"
    content = dump(groups={"0": range(2)}, entries=[entry("0", 7)])
    (tmp_path / "dump_3").write_bytes(pickle.dumps(content))
    (tmp_path / "dump_2").write_bytes(pickle.dumps(content))
    os.utime(tmp_path / "dump_2", (1e9, 1e9))
    ranks = [member(rank, TORCH_FR_DUMP_TEMP_FILE=str(prefix)) for rank in (2, 3)]
    assert job_says.keep_dumps(ranks, tmp_path) == 1
    found = read_flight_recorder(tmp_path / "flight")
    assert list(found.ranks) == [3]


def test_a_job_is_asked_to_dump_through_its_pipe(tmp_path: Path) -> None:
    """The pipe is there when the job was started with one."""
    os.mkfifo(tmp_path / "pipe_0.pipe")
    prefix = tmp_path / "dump_"
    heard = []

    def job() -> None:
        with (tmp_path / "pipe_0.pipe").open("rb") as pipe:
            ready.set()
            heard.append(pipe.readline())
        content = dump(groups={"0": range(2)}, entries=[entry("0", 7)])
        (tmp_path / "unfinished").write_bytes(pickle.dumps(content))
        (tmp_path / "unfinished").replace(f"{prefix}0")

    ready = threading.Event()
    thread = threading.Thread(target=job)
    thread.start()
    # The reader's open returns when a writer comes: hold one until both ends are there.
    keeper = os.open(tmp_path / "pipe_0.pipe", os.O_RDWR)
    assert ready.wait(60)
    one = member(
        TORCH_FR_DUMP_TEMP_FILE=str(prefix),
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=str(tmp_path / "pipe_"),
    )
    assert job_says._ask(one)
    os.close(keeper)
    thread.join(60)
    assert heard == [b"1\n"]
    assert job_says.keep_dumps([one], tmp_path) == 1


def test_ras_is_asked_in_its_own_words() -> None:
    """The whole answer is read; a port where something else talks gives none."""
    said = answer(BEHIND.format(ahead=2, behind=1))
    asked = []
    talk: list[str] = []

    class Ras(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline())
            self.wfile.write(talk[0].encode())

    with socketserver.TCPServer(("127.0.0.1", 0), Ras) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for text, expected in ((said, said), ("220 mail.example", "")):
            talk[:] = [text]
            assert job_says.ask_ras("127.0.0.1", server.server_address[1]) == expected
        server.shutdown()
    assert asked[0] == b"VERBOSE STATUS\n"
    assert job_says.ask_ras("127.0.0.1", server.server_address[1]) == ""


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, [1]),
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, [1, 2, 3]),
        ({"RANK": "0", "MASTER_ADDR": "node7"}, []),
        ({}, []),
    ],
)
def test_ranks_that_belong_on_this_host(environment: dict[str, str], missing: list[int]) -> None:
    """The launcher says how many; else all do where nobody else could reach the address."""
    assert expected_ranks([member(0, **environment)]) == missing


def test_only_lines_of_the_libraries_are_kept(tmp_path: Path) -> None:
    """The watchdog's and NCCL's; what the program itself prints stays where it is."""
    log = tmp_path / "nccl.log"
    said = "node0:7:9 [0] NCCL WARN Connection closed by remote peer"
    log.write_text(f"secret of the program\n{said}\n")
    out = tmp_path / "out"
    out.mkdir()
    ranks = [member(rank, NCCL_DEBUG_FILE=str(log)) for rank in (0, 1)]
    job_says.keep_logs(ranks, out)
    (kept,) = (out / "nccl").glob("nccl-*")  # one file, however many ranks write to it
    assert kept.read_text() == said + "\n"
