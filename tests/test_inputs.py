"""What a user points at, sorted by kind."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from fixtures.runs import training
from gpuprof import inputs as module
from gpuprof.api import analyze
from gpuprof.diagnosis import to_json
from gpuprof.errors import InputError
from gpuprof.inputs import gather
from gpuprof.others import read_others

NCCL = "node1:7:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
SMI = "timestamp, utilization.gpu [%], power.draw [W]\n" + "".join(
    f"2024/05/01 10:00:{second:02}.000, {50 + second} %, 200.10 W\n" for second in range(9)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training(2).trace.write(tmp_path / "rank0.json")


def test_a_trace_is_a_trace_whatever_its_name(tmp_path: Path) -> None:
    odd = training(2).trace.write(tmp_path / "result.dat")
    assert gather([odd]).traces == [odd]


def test_several_paths_keep_their_order(tmp_path: Path) -> None:
    paths = [training(2).trace.write(tmp_path / name) for name in ("b.json", "a.json.gz")]
    assert gather(paths).traces == paths


def test_a_folder_is_searched_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("rank1.json.gz", "rank0.json", "deep/er/rank2.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        training(2).trace.write(path)
    found = [path.name for path in gather([tmp_path]).traces]
    assert found == ["rank0.json", "rank1.json.gz", "rank2.json"]


def test_hidden_files_folders_and_own_output_are_left_alone(trace: Path) -> None:
    folder = trace.parent
    (folder / ".cache").mkdir()
    training(2).trace.write(folder / ".cache" / "x.json")
    training(2).trace.write(folder / ".hidden.json")
    (folder / "diagnosis.json").write_text("{}")
    (folder / "manifest.json").write_text("{}")
    (folder / "empty.json").touch()
    found = gather([folder])
    assert found.traces == [trace]
    assert found.left_out == {}


def test_what_nothing_reads_is_left_out_and_noted(trace: Path) -> None:
    stranger = trace.parent / "package.json"
    stranger.write_text('{"name": "x", "version": "1"}')
    (trace.parent / "photo.png").write_bytes(b"\x89PNG")
    found = gather([trace.parent])
    assert found.traces == [trace]
    assert list(found.left_out) == [stranger]
    assert found.warnings == [f"{stranger} is no trace or is damaged and is left out"]


def test_ranks_whose_files_are_damaged_do_not_vanish_without_a_word(trace: Path) -> None:
    for rank in (1, 2):
        (trace.parent / f"rank{rank}.json.gz").write_bytes(b"\x1f\x8b damaged")
    (trace.parent / "rank3.json").touch()
    damaged, empty = gather([trace.parent]).warnings
    assert "rank1.json.gz is no trace or is damaged and is left out (and 1 more" in damaged
    assert "rank3.json is empty" in empty


def test_what_is_no_file_in_a_folder_is_told(trace: Path) -> None:
    """A pipe has no end to read to: left out, but not without a word."""
    pipe, hidden = trace.parent / "rank1.json", trace.parent / ".hidden"
    os.mkfifo(pipe)
    os.mkfifo(hidden)
    found = gather([trace.parent])
    assert found.traces == [trace]
    assert found.warnings == [f"{pipe} is a pipe, a socket or a device, no file, and is left out"]


def test_text_in_another_encoding_is_called_that(trace: Path) -> None:
    """Windows' shell writes UTF-16: it is neither damaged nor another kind of file."""
    other = trace.parent / "rank1.json"
    other.write_text('{"traceEvents": []}', encoding="utf-16")
    found = gather([trace.parent])
    assert [w for w in found.warnings if "UTF-16" in w and str(other) in w] == found.warnings
    with pytest.raises(InputError, match="is text in UTF-16, not in UTF-8"):
        analyze(other)


def test_a_name_that_no_disk_can_hold_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read") as caught:
        gather([tmp_path / ("x" * 5000)])
    assert len(str(caught.value)) < 400


def test_logs_go_to_their_own_readers(trace: Path) -> None:
    log = trace.parent / "job.log"
    log.write_text(NCCL * 5)
    found = gather([trace.parent])
    assert found.nccl_logs == [log]
    assert found.traces == [trace]


def test_windows_with_stacks_are_for_lines_only(trace: Path) -> None:
    lines = training(2).trace.write(trace.parent / "attribution-rank0.json.gz")
    found = gather([trace.parent])
    assert (found.traces, found.attribution) == ([trace], [lines])


def test_windows_with_stacks_alone_are_better_than_nothing(tmp_path: Path) -> None:
    lines = training(2).trace.write(tmp_path / "attribution-rank0.json")
    found = gather([tmp_path / "attribution-rank0.json"])
    assert (found.traces, found.attribution) == ([lines], [])


def test_a_folder_with_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(InputError, match="holds nothing that can be analyzed") as caught:
        gather([tmp_path])
    assert str(tmp_path) in str(caught.value)
    assert ".json.gz" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["smi.log", "nvidia-smi", "gpu.csv.1", "node3.valid", "q", "dmon.out.0"]
)
def test_a_folder_of_smi_logs_is_read_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SMI)
    assert gather([tmp_path]).smi_logs == [tmp_path / name]


def test_what_a_folder_holds_instead_is_named(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.md", "d.md", "e.md"):
        (tmp_path / name).write_text("hello")
    with pytest.raises(InputError) as caught:
        gather([tmp_path])
    assert "none of a.md, b.md, c.md and 2 more" in caught.value.hint


def test_a_trace_in_a_folder_speaks_for_itself(tmp_path: Path, trace: Path) -> None:
    """What no name speaks for is looked into only where there is nothing else."""
    (tmp_path / "q").write_text(SMI)
    found = gather([tmp_path])
    assert (found.traces, found.smi_logs) == ([trace], [])


def test_a_folder_with_a_window_with_stacks_only_is_read(tmp_path: Path) -> None:
    lines = training(2).trace.write(tmp_path / "attribution-rank0.json")
    assert gather([tmp_path]).traces == [lines]


def test_a_home_directory_is_no_folder_of_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.bin").touch()
    with pytest.raises(InputError, match="more than 3 files"):
        gather([tmp_path])


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        gather([tmp_path / "nothing.json"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_a_folder_does_not_hang(trace: Path) -> None:
    os.mkfifo(trace.parent / "pipe.json")
    assert gather([trace.parent]).traces == [trace]


def test_a_link_to_its_own_folder_does_not_hang(trace: Path) -> None:
    (trace.parent / "again").symlink_to(trace.parent, target_is_directory=True)
    assert gather([trace.parent]).traces == [trace]


def test_a_dangling_link_is_passed_over(trace: Path) -> None:
    (trace.parent / "gone.json").symlink_to(trace.parent / "nowhere.json")
    assert gather([trace.parent]).traces == [trace]


def test_a_path_that_is_no_utf8_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / "rank\udcff.json"
    try:
        path.write_bytes(training(2).trace.json())
    except OSError:
        pytest.skip("this disk holds no such names")
    diagnosis = analyze(path)
    assert diagnosis.inputs[0].endswith("rank\\udcff.json")
    assert to_json(diagnosis)


WARNED = "n1:10:11 [3] misc/x.cc:1 NCCL WARN something\n"
BOMB = '<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aa">]><system version="1">&a;</system>'


def test_a_damaged_topology_takes_nothing_with_it(tmp_path: Path) -> None:
    """The log beside it is read, and what is wrong is said; alone it is an error."""
    (tmp_path / "topo.xml").write_text(BOMB)
    with pytest.raises(InputError, match="declares a document type"):
        read_others(gather([tmp_path]))
    (tmp_path / "nccl.log").write_text(WARNED)
    inputs = gather([tmp_path])
    assert read_others(inputs).comm_log is not None
    (said,) = inputs.warnings
    assert "topo.xml declares a document type" in said
    assert said.endswith("; it is left out")


def test_utf16_is_no_obstacle(tmp_path: Path) -> None:
    """PowerShell's `>` writes it."""
    for name, text in (
        ("nccl.log", WARNED),
        ("topo.txt", "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"),
    ):
        (tmp_path / name).write_bytes(text.encode("utf-16"))
    inputs = gather([tmp_path])
    other = read_others(inputs)
    assert other.comm_log is not None
    assert [event.text for event in other.comm_log.events] == ["something"]
    assert other.topologies[0].link("GPU0", "GPU1") == "NV4"


def test_empty_log_is_no_trace_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "job.log").touch()
    with pytest.raises(InputError, match="is empty: the program") as error:
        gather([tmp_path / "job.log"])
    assert "torch.profiler" not in str(error.value)


JOINED = "DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.\n"


@pytest.mark.parametrize("said", [JOINED, NCCL], ids=["rendezvous", "nccl"])
@pytest.mark.parametrize("before", [100_000, 5_000_000])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("line", ["loading shard 17 of 512\n", "{'loss': 2.5, 'epoch': 1}\n"])
def test_a_job_that_talks_long_before_its_library(
    tmp_path: Path, said: str, before: int, packed: bool, line: str
) -> None:
    """What ends a job stands behind everything that it wrote before."""
    path = tmp_path / "job.log"
    data = (line * (before // len(line)) + said).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert gather([path]).nccl_logs == [path]


def test_a_job_that_goes_on_after_its_library_spoke(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("step\n" * 20_000 + JOINED + "retrying\n" * 1_000_000)
    assert gather([path]).nccl_logs == [path]


def test_data_that_quotes_a_library_is_no_log(trace: Path) -> None:
    """A data set of questions holds such lines; those of a job are not written as JSON."""
    data = trace.parent / "questions.jsonl"
    data.write_text('{"text": "x"}\n' * 10_000 + '{"text": "NCCL version 2.18.5 fails"}\n')
    assert gather([trace.parent]).nccl_logs == []


def test_a_note_that_names_nccl_takes_no_trace_with_it(trace: Path) -> None:
    """It is taken for a log, in which there is nothing: said, and left out."""
    (trace.parent / "notes.txt").write_text("We trained with NCCL over EFA.\n")
    (said,) = analyze(trace.parent).warnings[-1:]
    assert "notes.txt holds no line of NCCL" in said and said.endswith("; it is left out")
    with pytest.raises(InputError, match="holds no line of NCCL"):
        analyze(trace.parent / "notes.txt")


def test_a_log_of_several_nodes_gpus_takes_nothing_with_it(tmp_path: Path) -> None:
    (tmp_path / "smi.log").write_text("".join(f"{n}: {SMI.splitlines()[n]}\n" for n in range(2)))
    (tmp_path / "nccl.log").write_text(WARNED)
    inputs = gather([tmp_path])
    other = read_others(inputs)
    assert (other.comm_log is not None, other.samples) == (True, ())
    assert "smi.log holds the lines of several sources" in inputs.warnings[0]


XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize("prefix", ["", "Nov 15 12:02:0{n} n{n} kernel: "])
def test_kernel_logs_of_several_machines_all_count(tmp_path: Path, prefix: str) -> None:
    """The same bus address on two machines is two GPUs; which, the line or the file's name says."""
    for n in range(2):
        (tmp_path / f"node{n}.log").write_text(f"{prefix.format(n=n)}{XID}\n")
    titles = [one.title for one in analyze(tmp_path).findings]
    named = ("n0", "n1") if prefix else ("node0.log", "node1.log")
    assert len(titles) == 2
    assert all(any(f"of {name}:" in title for title in titles) for name in named)
