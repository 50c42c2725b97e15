"""The live view tells the present from what is on disk, half-written lines and all."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from gpuprof import run as run_format
from gpuprof.cli import main
from gpuprof.collectors.step_log import StepLog
from gpuprof.errors import InputError
from gpuprof.live import (
    PROGRESS,
    LiveGpu,
    LiveRank,
    Progress,
    end_progress,
    look,
    newest,
    note_progress,
)
from gpuprof.process import default_folder
from gpuprof.reports.live_view import render, spark
from gpuprof.reports.words import catalog


def recording(folder: Path, *, ended: bool = False) -> Path:
    """A run of two ranks that is under way: rank 1 is slow."""
    folder.mkdir()
    manifest = run_format.Manifest(job="j", command=["python", "train.py"])
    if ended:
        manifest.ended_unix_s = 2.0
    (folder / run_format.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    for rank in range(2):
        log = StepLog(folder, rank)
        for step in range(30):
            log.add((100 + 50 * rank) * 1_000_000, step * 1_000_000_000)
        log.flush(10**12)
    return folder


def shown(folder: Path, width: int = 100) -> str:
    now = look(folder)
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(render("title", now.ranks, now.gpus, now.host_busy, catalog(), width))
    return console.export_text()


def test_each_rank_tells_its_latest_steps(tmp_path: Path) -> None:
    now = look(recording(tmp_path / "run"))
    assert [rank.rank for rank in now.ranks] == [0, 1]
    assert [rank.steps for rank in now.ranks] == [30, 30]
    assert [rank.median_ms for rank in now.ranks] == [100.0, 150.0]
    assert not now.over and now.command == ("python", "train.py")
    assert "150.0 ms" in shown(now.folder).replace("\u00a0", " ")


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = recording(tmp_path / "run")
    [log] = folder.glob("steps-rank00000-*.jsonl")
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"n":30,"t":1,"us":[99')
    assert look(folder).ranks[0].steps == 30
    log.write_bytes(whole + b"\x00\xff garbage\n" + b'{"n":30,"t":1,"us":[1]}\n')
    assert look(folder).ranks[0].steps == 31


def test_a_run_that_has_only_begun_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert look(tmp_path / "run").ranks == ()
    assert "No rank has taken a step yet." in shown(tmp_path / "run")
    with pytest.raises(InputError, match="is no folder"):
        look(tmp_path / "missing")


def test_an_attachment_tells_its_ranks_while_it_records(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    manifest = run_format.Manifest(job="j", launched_by="attach")
    (folder / run_format.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    ends = [k * 120_000_000 for k in range(1, 5)]
    note_progress(folder, [Progress(0, "a", 7, ends), Progress(1, "a", 0, [])])
    now = look(folder)
    assert [(rank.steps, rank.median_ms) for rank in now.ranks] == [(7, 120.0), (0, None)]
    assert "120.0 ms" in shown(folder).replace("\u00a0", " ")
    (folder / PROGRESS).write_bytes(b'[{"rank": "x"}]')
    assert look(folder).ranks == ()
    end_progress(folder)
    assert [path.name for path in folder.iterdir()] == [run_format.MANIFEST]


def test_the_newest_run_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no run in gpuprof-runs"):
        newest()
    assert default_folder().parent == Path("gpuprof-runs")
    (tmp_path / "gpuprof-runs").mkdir()
    recording(tmp_path / "gpuprof-runs" / "only")
    assert newest().name == "only"


def test_the_view_fits_the_terminal_and_hostile_names_stay_text() -> None:
    bad = "\x1b[2J" + "x" * 300
    ranks = [LiveRank(r, bad, bad, 10**6, (1.0, 5.0) * 40, 2) for r in range(40)]
    gpus = [LiveGpu(bad, (0.5,) * 80, float("nan"), 1980.0, 6e10, 8e10)]
    console = Console(width=80, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(render(bad, ranks, gpus, (1.5, 2.0), catalog(), 80))
    text = console.export_text()
    assert "\x1b[2J" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 40


def test_a_spark_is_as_long_as_its_values() -> None:
    assert spark([0, 1, 2, 4], 10) == "▁▃▅█"
    assert spark([], 10) == "" and spark([0.0], 10) == "▁"
    assert len(spark(list(range(100)), 8)) == 8


def test_watch_shows_the_present_once_where_nobody_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recording(tmp_path / "run", ended=True)
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(folder), "--lang", "zh-CN"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "步数" in out and "train.py" in out
    assert json.loads((folder / "manifest.json").read_text())["job"] == "j"
