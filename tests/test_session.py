"""The session: what it records, and that nothing of it reaches the loop."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpuprof
from gpuprof.collectors.torch_profiler import Window
from gpuprof.run import RankRecord, rank_file

torch = pytest.importorskip("torch")

SHORT = (
    Window(kind="trace", skip=2, steps=3),
    Window(kind="attribution", skip=1, steps=2, stacks=True, shapes=True),
)
QUIET: dict[str, Any] = {"samples": False, "report": False, "windows": SHORT}


def make_step() -> Any:
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def record_of(folder: Path, rank: int = 0) -> RankRecord:
    return msgspec.json.decode((folder / rank_file(rank)).read_bytes(), type=RankRecord)


def run_script(text: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_records_windows_steps_and_what_they_are(tmp_path: Path) -> None:
    """The planned windows are in the directory, under the names that the record gives."""
    step = make_step()
    with gpuprof.session(tmp_path / "run", **QUIET) as prof:
        for _ in range(12):
            step()
            prof.step()
    run = gpuprof.load(tmp_path / "run")
    record = run.ranks[0]
    assert [(w.kind, w.first_step, w.steps) for w in record.windows] == [
        ("timing", 3, 3),
        ("attribution", 8, 2),
    ]
    assert all((run.path / w.file).stat().st_size == w.size_bytes for w in record.windows)
    assert (record.steps, record.steps_source, record.state) == (12, "session", "finished")
    assert record.torch == torch.__version__
    assert record.cores is not None
    assert record.cores <= (os.cpu_count() or 1)
    assert run.warnings == ()
    assert run.manifest.command


def test_steps_are_found_from_the_optimizer(tmp_path: Path) -> None:
    """Without prof.step() nothing is lost."""
    step = make_step()
    with gpuprof.session(tmp_path, **QUIET):
        for _ in range(12):
            step()
    record = record_of(tmp_path)
    assert (record.steps, record.steps_source, len(record.windows)) == (12, "optimizer", 2)


def test_said_steps_replace_found_ones_without_counting_twice(tmp_path: Path) -> None:
    """The optimizer ends the first step before the user says so: it is one step, not two."""
    step = make_step()
    with gpuprof.session(tmp_path, **QUIET) as prof:
        for _ in range(4):
            for _ in range(3):  # three optimizer steps are one step, says the user
                step()
            prof.step()
    assert record_of(tmp_path).steps == 3 + 3  # three were counted before the first word


def test_losses_are_bit_equal_with_and_without(tmp_path: Path) -> None:
    """Recording changes no result."""
    plain = make_step()
    expected = [plain() for _ in range(12)]
    step = make_step()
    with gpuprof.session(tmp_path, **QUIET):
        observed = [step() for _ in range(12)]
    assert observed == expected


def test_everything_is_undone_at_the_end(tmp_path: Path) -> None:
    """After the session the process is as it was before."""
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    def state() -> list[object]:
        return [
            torch.save,
            os.fsync,
            dataloader._BaseDataLoaderIter.__next__,
            torch.autograd.profiler.profile._prepare_trace,
            torch.Tensor.item,
            "item" in vars(torch.Tensor),
            torch.Tensor.__repr__,
            len(optimizer._global_optimizer_post_hooks),
            dict(os.environ),
            list(sys.meta_path),
        ]

    step = make_step()
    before = state()
    with gpuprof.session(tmp_path, **QUIET):
        for _ in range(7):  # ends inside the attribution window
            step()
    assert state() == before
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_of_the_loop_pass_untouched(tmp_path: Path, error: BaseException) -> None:
    """The very same exception arrives, and what was recorded until then is kept."""
    step = make_step()
    with pytest.raises(type(error)) as caught, gpuprof.session(tmp_path, **QUIET):
        for _ in range(6):
            step()
        raise error
    assert caught.value is error
    record = record_of(tmp_path)
    assert (record.state, record.ended_by) == ("failed", type(error).__name__)
    assert len(record.windows) == 1


def test_a_nested_session_adds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The outer one records on; the inner one's steps are its steps."""
    step = make_step()
    with gpuprof.session(tmp_path / "outer", **QUIET):
        with gpuprof.session(tmp_path / "inner", **QUIET) as inner:
            for _ in range(12):
                step()
                inner.step()
        step()
    assert not (tmp_path / "inner").exists()
    assert record_of(tmp_path / "outer").steps_source == "session"
    assert len(record_of(tmp_path / "outer").windows) == 2
    assert [r.message for r in caplog.records if "records already" in r.message]


def test_a_session_records_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Entering it again, inside itself or later, does not overwrite the recording."""
    step = make_step()
    prof = gpuprof.session(tmp_path, **QUIET)
    with prof, prof:
        for _ in range(8):
            step()
    steps = record_of(tmp_path).steps
    with prof:
        step()
    assert (steps, record_of(tmp_path).steps) == (8, 8)
    assert "records once" in caplog.text


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    """Files of an earlier run in the same directory never mix with the new one's."""
    step = make_step()
    (tmp_path / "notes.txt").write_text("mine")
    for stale in ("trace-7-rank00000.json.gz", "attribution-rank00003.json.gz", rank_file(3)):
        (tmp_path / stale).write_bytes(b"{}")
        os.utime(tmp_path / stale, (1, 1))
    for steps in (12, 7):
        with gpuprof.session(tmp_path, **QUIET):
            for _ in range(steps):
                step()
    names = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}
    assert names == {
        "manifest.json",
        "notes.txt",
        "rank-00000.json",
        "steps-rank00000-0000.jsonl",
        "trace-rank00000.json.gz",
    }


def test_default_directory_and_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word of configuration: a run directory, the verdict, the report."""
    step = make_step()
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        with gpuprof.session(samples=False) as prof:
            for _ in range(25):
                step()
    finally:
        os.chdir(before)
    assert prof.path is not None
    folder = tmp_path / prof.path
    assert folder.parent == tmp_path / "gpuprof-runs"
    assert (folder / "report.html").is_file()
    assert (folder / "diagnosis.json").is_file()
    assert "Where one step goes" in capsys.readouterr().out


def test_a_failing_analysis_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """No window, nothing to judge: that is said, and the training's process goes on."""
    step = make_step()
    with gpuprof.session(tmp_path, samples=False, windows=SHORT):
        step()
    assert capsys.readouterr().out == ""
    assert len(caplog.records) == 1
    assert "no verdict" in caplog.text
    assert "before the first window" in " ".join(gpuprof.load(tmp_path).warnings)


def test_users_profiler_is_never_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A profiler that runs already keeps all its events, and gpuprof says what it left out."""
    step = make_step()
    with (
        torch.profiler.profile() as users,
        gpuprof.session(tmp_path, **QUIET),
    ):
        for _ in range(12):
            step()
    assert sum(e.count for e in users.key_averages() if e.key == "aten::linear") == 12
    record = record_of(tmp_path)
    assert (record.windows, record.steps) == ([], 12)
    assert "already active" in record.failures[0].text
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_users_profiler_in_its_warm_up_is_noticed(tmp_path: Path) -> None:
    """torch does not say that a scheduled profiler warms up: its trace would come out empty."""
    step = make_step()
    schedule = torch.profiler.schedule(wait=0, warmup=6, active=3, repeat=1)
    with (
        torch.profiler.profile(schedule=schedule) as users,
        gpuprof.session(tmp_path, **QUIET),
    ):
        for _ in range(11):
            step()
            users.step()
    assert sum(e.count for e in users.key_averages() if e.key == "aten::linear") == 3
    assert record_of(tmp_path).windows == []


def test_users_profiler_that_starts_in_a_window_gets_it(tmp_path: Path) -> None:
    """gpuprof's own stops first; the user's records as if it were alone."""
    step = make_step()
    with gpuprof.session(tmp_path, **QUIET):
        for _ in range(4):
            step()
        with torch.profiler.profile() as users:
            step()
            step()
        step()
    assert sum(e.count for e in users.key_averages() if e.key == "aten::linear") == 2
    record = record_of(tmp_path)
    assert record.windows == []
    assert "has been started" in record.failures[0].text


def test_workers_inherit_nothing(tmp_path: Path) -> None:
    """Forked loader workers, and spawned ones, leave no file, no line and no step of theirs."""
    for method in ("fork", "spawn"):
        done = run_script(
            f"""
            import gpuprof, torch
            from torch.utils.data import DataLoader, TensorDataset
            def main():
                data = TensorDataset(torch.ones(64, 8))
                model = torch.nn.Linear(8, 8)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                with gpuprof.session("run", samples=False, report=False):
                    loader = DataLoader(data, 4, num_workers=2, multiprocessing_context="{method}")
                    for batch, in loader:
                        optimizer.zero_grad()
                        model(batch).sum().backward()
                        optimizer.step()
            if __name__ == "__main__":
                main()
            """,
            tmp_path,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "gpuprof" not in done.stderr
        run = gpuprof.load(tmp_path / "run")
        assert (list(run.ranks), run.ranks[0].steps, run.warnings) == ([0], 16, ())


def test_inference_steps_are_batches(tmp_path: Path) -> None:
    """A loop without an optimizer has the batches of its loader as steps."""
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(8, 8)
    with gpuprof.session(tmp_path, **QUIET), torch.no_grad():
        for (batch,) in DataLoader(TensorDataset(torch.ones(30, 8)), 1):
            model(batch)
    record = record_of(tmp_path)
    assert record.steps_source == "loader"
    assert len(record.windows) == 2


def test_without_torch_only_samples(tmp_path: Path) -> None:
    """A script that has no torch runs as ever, and the recording says what it lacks."""
    done = run_script(
        """
        import sys
        sys.modules["torch"] = None
        import gpuprof
        with gpuprof.session("run", samples=False, report=False) as prof:
            prof.step()
        print("done")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert "torch was not imported" in gpuprof.load(tmp_path / "run").warnings[0]


def test_torch_imported_inside_the_session_is_seen(tmp_path: Path) -> None:
    """The session may open before the imports."""
    done = run_script(
        """
        import gpuprof
        with gpuprof.session("run", samples=False, report=False, steps=2):
            import torch
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(9):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(gpuprof.load(tmp_path / "run").traces[0]) == 1


@pytest.mark.parametrize("trouble", ["in the way", "deleted", "full"])
def test_a_disk_that_refuses_is_one_line(tmp_path: Path, trouble: str) -> None:
    """No directory, a directory that vanishes, a disk that is full: training goes on."""
    done = run_script(
        f"""
        import resource, shutil, signal, pathlib
        import gpuprof, torch
        trouble = {trouble!r}
        if trouble == "in the way":
            pathlib.Path("run").write_text("a file")
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gpuprof.session("run", report=False):
            for step in range(30):
                if step == 3 and trouble == "deleted":
                    shutil.rmtree("run")
                if step == 3 and trouble == "full":
                    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
        print("trained")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "gpuprof" in line]
    assert len(lines) == 1, done.stderr
    assert "goes on" in lines[0]


def test_annotate_names_a_part(tmp_path: Path) -> None:
    """As a context and as a decorator; in the trace it bears its name."""
    from gpuprof.readers.kineto import read_trace

    step = make_step()

    @gpuprof.annotate("checkpoint")
    def save() -> int:
        return 5

    with gpuprof.session(tmp_path, **QUIET):
        for _ in range(12):
            with gpuprof.annotate("input"), gpuprof.annotate("inner"):
                step()
            assert save() == 5
    names = set(read_trace(tmp_path / "trace-rank00000.json.gz").names)
    assert {"gpuprof.input", "gpuprof.inner", "gpuprof.checkpoint"} <= names


def test_lines_that_wait_for_the_device_are_named(tmp_path: Path) -> None:
    """The caller's file and line, once for what a user sees as one call."""
    step = make_step()
    with gpuprof.session(tmp_path, **QUIET):
        for _ in range(12):
            step()
            str(torch.ones(3))
    found = {(line.call, Path(line.file).name): line for line in record_of(tmp_path).sync_lines}
    assert ("print(tensor)", "test_session.py") in found
    item = found[(".item()", "test_session.py")]
    assert "loss.item()" in Path(__file__).read_text().splitlines()[item.line - 1]
    assert item.device == "cpu"
    assert len(found) == 2


def test_lines_that_save_and_load_are_named_outside_the_windows_too(tmp_path: Path) -> None:
    """A save every hundredth step is in no window; the loop runs since before all of them."""
    from torch.utils.data import DataLoader

    step = make_step()
    torch.save({}, tmp_path / "before.pt")  # outside the session: not its business
    with gpuprof.session(tmp_path / "run", **QUIET):
        for number in DataLoader(list(range(15))):
            step()
            if number == 13:
                torch.save({}, tmp_path / "model.pt")
    record = record_of(tmp_path / "run")
    source = Path(__file__).read_text().splitlines()
    found = {line.kind: source[line.line - 1].strip() for line in record.call_lines}
    assert found["checkpoint"] == 'torch.save({}, tmp_path / "model.pt")'
    assert found["input"] == "for number in DataLoader(list(range(15))):"
    assert {line.function for line in record.call_lines} == {
        "test_lines_that_save_and_load_are_named_outside_the_windows_too"
    }


def test_frames_of_ours_are_no_lines_of_the_user(tmp_path: Path) -> None:
    """The innermost line around a wrapped call is the user's, not the wrapper's."""
    from torch.utils.data import DataLoader

    from gpuprof.analyzers.places import is_user_frame
    from gpuprof.readers.kineto import read_trace

    step = make_step()
    with gpuprof.session(tmp_path, **QUIET):
        for _, _ in zip(range(12), DataLoader(list(range(20))), strict=False):
            torch.save({}, tmp_path / "model.pt")
            step()
    frames = set(read_trace(tmp_path / "attribution-rank00000.json.gz").names)
    users = {frame.split("(")[0] for frame in frames if is_user_frame(frame)}
    assert not {u for u in users if Path(u).name in ("hooks.py", "sync_lines.py")}
    assert not [u for u in users if Path(u).name == "torch_profiler.py"]


def test_importing_session_imports_no_torch() -> None:
    """The public names stay light."""
    code = (
        "import sys, gpuprof; gpuprof.session; gpuprof.annotate('x'); gpuprof.load;"
        " print([m for m in ('torch', 'pandas', 'plotly', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("left", ["nothing", "an ended run"])
def test_variables_that_outlived_their_run_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """A shell inside `gpuprof run` may live on: out= is where it records, and it says the verdict
    itself."""
    from gpuprof.run import Manifest
    from gpuprof.run_writer import write_record

    old = tmp_path / "old"
    if left == "an ended run":
        old.mkdir()
        write_record(old / "manifest.json", Manifest(job="old", ended_unix_s=1.0))
    before = sorted(old.iterdir()) if old.exists() else None
    monkeypatch.setenv("GPUPROF_RUN_FOLDER", str(old))
    session = gpuprof.session(tmp_path / "mine", windows=[], samples=False, report=False)
    with session:
        session.step()
    assert session.path == tmp_path / "mine"
    assert (tmp_path / "mine" / "manifest.json").is_file()
    assert (sorted(old.iterdir()) if old.exists() else None) == before


def test_a_session_of_a_run_that_goes_on_records_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuprof.run import Manifest
    from gpuprof.run_writer import write_record

    write_record(tmp_path / "manifest.json", Manifest(job="now"))
    monkeypatch.setenv("GPUPROF_RUN_FOLDER", str(tmp_path))
    session = gpuprof.session(tmp_path / "mine", windows=[], samples=False, report=False)
    with session:
        session.step()
    assert session.path == tmp_path
    assert not (tmp_path / "mine").exists()
