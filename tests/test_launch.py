"""`gpuprof run`: the job does not notice, and what trains in it is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpuprof.process import without_secrets
from gpuprof.run import load

RUN = [sys.executable, "-m", "gpuprof", "run", "--no-samples"]
TRAIN = """
    import torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(steps):
        for _ in range(steps):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
"""


def run_job(
    folder: Path, *command: str, options: tuple[str, ...] = ("--no-report",), **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, "--out", str(folder / "run"), *options, "--", *command],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(TRAIN) + textwrap.dedent(text))
    return str(folder / name)


@pytest.mark.parametrize(
    ("code", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -15), ("kill -KILL $$", -9)],
)
def test_exit_status_is_the_job_s(tmp_path: Path, code: str, status: int) -> None:
    """Also where a signal ended it: whoever started gpuprof sees the same as without it."""
    done = run_job(tmp_path, "sh", "-c", code)
    assert done.returncode == status
    assert load(tmp_path / "run").manifest.exit_status == status


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signals_reach_the_job(tmp_path: Path, name: str) -> None:
    """Once, and gpuprof waits for what the job makes of it."""
    number = getattr(signal, name)
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('got it', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [
        *RUN,
        "--no-report",
        "--out",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        "-c",
        code,
    ]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    time.sleep(0.2)
    job.send_signal(number)
    rest, _ = job.communicate(timeout=60)
    assert (rest, job.returncode) == ("got it\n", 5)


def test_output_and_input_are_the_job_s(tmp_path: Path) -> None:
    """Nothing is added to standard output, and standard input is passed on."""
    done = subprocess.run(
        [*RUN, "--no-report", "--out", str(tmp_path / "run"), "--", "sh", "-c", "cat; echo e >&2"],
        input="words",
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("words", "e\n")


def test_missing_command_is_one_line(tmp_path: Path) -> None:
    """Exit status 2: the usage is wrong."""
    done = run_job(tmp_path, "no-such-command")
    assert done.returncode == 2
    assert done.stderr.startswith("gpuprof: cannot start no-such-command")
    assert done.stderr.count("\n") == 1


def test_a_mistyped_command_costs_no_earlier_recording(tmp_path: Path) -> None:
    """Only a job that starts replaces what is in its directory."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank-00000.json").write_text("{}")
    done = run_job(tmp_path, "pyhton", "train.py")
    assert done.returncode == 2
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["rank-00000.json"]


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *RUN, "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("gpuprof: cannot write into gpuprof-runs")
    assert done.stderr.count("\n") == 1


def test_a_sampler_that_cannot_start_leaves_the_exit_status(tmp_path: Path) -> None:
    """The folder of its locks belongs to somebody else: one line, and the job's own status."""
    (tmp_path / f"gpuprof-{os.getuid()}").mkdir()
    (tmp_path / f"gpuprof-{os.getuid()}").chmod(0o777)
    done = subprocess.run(
        [*RUN[:-1], "--no-report", "--out", str(tmp_path / "run"), "--", "sh", "-c", "exit 7"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 7
    assert "belongs to somebody else" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "belongs to somebody else" in load(tmp_path / "run").manifest.notes[0]


def test_a_script_that_trains_is_recorded(tmp_path: Path) -> None:
    """Without a change to it; the verdict goes to standard error, the job's output stays pure."""
    pytest.importorskip("torch")
    path = script(tmp_path, "train(25)\nprint('trained')")
    done = run_job(tmp_path, sys.executable, path, options=())
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "Where one step goes" in done.stderr
    run = load(tmp_path / "run")
    assert run.manifest.launched_by == "run"
    assert (run.ranks[0].steps, run.ranks[0].state) == (25, "finished")
    assert [w.kind for w in run.ranks[0].windows] == ["timing", "attribution"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_job_that_is_ended_early_is_not_said_to_train_nothing(tmp_path: Path) -> None:
    """`os._exit`, or a signal, before the first window: neither window nor last record is there."""
    pytest.importorskip("torch")
    path = script(tmp_path, "import os\ntrain(3)\nos._exit(3)")
    done = run_job(tmp_path, sys.executable, path, options=())
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "ended before its first window" in done.stderr


def test_an_uncaught_exception_is_in_the_record(tmp_path: Path) -> None:
    """The traceback and the status are the script's own; the recording up to there is kept."""
    pytest.importorskip("torch")
    path = script(tmp_path, "train(12)\nraise KeyError('mine')")
    done = run_job(tmp_path, sys.executable, path, options=("--no-report", "--steps", "2"))
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'mine'\n")
    record = load(tmp_path / "run").ranks[0]
    assert (record.state, record.ended_by) == ("failed", "KeyError")
    assert record.windows


def test_two_ranks_under_torchrun(tmp_path: Path) -> None:
    """One directory for the job; each rank has its file; the launcher leaves none."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        train(10)
        dist.destroy_process_group()
        """,
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path)
    done = run_job(tmp_path, sys.executable, *launcher, options=("--no-report", "--steps", "2"))
    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "run")
    assert list(run.ranks) == [0, 1]
    assert [len(paths) for paths in run.traces.values()] == [1, 1]
    assert {r.world_size for r in run.ranks.values()} == {2}
    assert run.manifest.missing_ranks == []
    assert run.warnings == ()


def test_workers_that_torchrun_starts_anew_are_recorded(tmp_path: Path) -> None:
    """They are other processes with the ranks of those that died, and record in their place."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import os, time, torch.distributed as dist
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            train(3)
            if os.environ["RANK"] == "1":
                raise SystemExit(3)
            time.sleep(120)  # until the launcher ends it
        dist.init_process_group("gloo")
        train(10)
        dist.destroy_process_group()
        """,
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=1")
    done = run_job(
        tmp_path,
        *(sys.executable, *launcher, "--nproc-per-node=2", path),
        options=("--no-report", "--steps", "2"),
    )
    assert done.returncode == 0, done.stderr
    assert "another process" not in done.stderr
    run = load(tmp_path / "run")
    assert [(r.attempt, r.steps, r.state) for r in run.ranks.values()] == [(1, 10, "finished")] * 2
    assert [len(paths) for paths in run.traces.values()] == [1, 1]
    assert [w for w in run.warnings if "anew once" in w] == list(run.warnings)


def test_a_job_that_a_shell_repeats_until_it_works(tmp_path: Path) -> None:
    """What died gives its place to the next; what comes after a run that finished does not."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import os, sys
        steps = int(sys.argv[1])
        train(steps)
        sys.stdout.flush()
        if steps == 3:
            os.kill(os.getpid(), 9)
        """,
    )
    python = f"{sys.executable} {path}"
    line = f"{python} 3; {python} 12; {python} 15"
    done = run_job(tmp_path, "sh", "-c", line, options=("--no-report", "--steps", "2"))
    assert done.returncode == 0, done.stderr
    record = load(tmp_path / "run").ranks[0]
    assert (record.steps, record.state) == (12, "finished")
    assert "another process records rank 0" in done.stderr


def test_what_starts_after_gpuprof_run_was_killed_is_not_recorded(tmp_path: Path) -> None:
    """Nobody will report it: the job goes on as it would have without gpuprof."""
    pytest.importorskip("torch")
    path = script(tmp_path, "train(12)\nprint('trained')")
    line = f"kill -KILL $PPID; exec {sys.executable} {path}"
    done = run_job(tmp_path, "sh", "-c", line)
    assert (done.returncode, done.stdout, done.stderr) == (-9, "trained\n", "")
    assert load(tmp_path / "run").ranks == {}


def test_sessions_of_ranks_share_a_directory(tmp_path: Path) -> None:
    """Without `gpuprof run`, and without being told where: rank 0 reports for the whole job."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import gpuprof, time, torch.distributed as dist
        dist.init_process_group("gloo")
        with gpuprof.session(samples=False, steps=2):
            train(10)
            time.sleep(1.5 * dist.get_rank())
        dist.destroy_process_group()
        """,
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path]
    done = subprocess.run(
        [sys.executable, *launcher], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Where one step goes") == 1
    assert "2 of 2 ranks" in done.stdout
    (folder,) = (tmp_path / "gpuprof-runs").iterdir()
    assert [r.state for r in load(folder).ranks.values()] == ["finished", "finished"]


def test_a_script_with_its_own_session(tmp_path: Path) -> None:
    """It records into the job's directory, with the script's steps, and is reported once."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import gpuprof
        with gpuprof.session("elsewhere", steps=2) as prof:
            for _ in range(12):
                train(1)
                prof.step()
        """,
    )
    done = run_job(tmp_path, sys.executable, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "elsewhere").exists()
    assert load(tmp_path / "run").ranks[0].steps_source == "session"


def test_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    """gpuprof's stands in front of it only for as long as it takes to start."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.flag_of_mine = 7")
    code = (
        "import sys, sitecustomize; print(sys.flag_of_mine, sitecustomize.__file__);"
        " print([p for p in sys.path if 'startup' in p])"
    )
    done = run_job(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.splitlines() == [f"7 {tmp_path / 'sitecustomize.py'}", "[]"]


def test_modules_of_the_user_are_not_shadowed(tmp_path: Path) -> None:
    """Nothing of gpuprof's folders can be imported under a bare name in the job."""
    code = (
        "import importlib.util\n"
        "for name in ('startup', 'collectors', 'analyzers', 'reports', 'child', 'launch'):\n"
        "    assert importlib.util.find_spec(name) is None, name\n"
        "print('clean')\n"
    )
    path = tmp_path / "job" / "check.py"  # beside no run directory, which would be a `run`
    path.parent.mkdir()
    path.write_text(code)
    assert run_job(tmp_path, sys.executable, str(path)).stdout == "clean\n"


def test_a_python_without_gpuprof_s_packages_runs_the_job(tmp_path: Path) -> None:
    """The hook never breaks a start: what it lacks is a note in the manifest."""
    broken = tmp_path / "shadow" / "gpuprof"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('not this one')")
    environ = {"PYTHONPATH": str(broken.parent), "PYTHONSAFEPATH": "1"}
    code = "print('ran')"
    from gpuprof.launch import STARTUP

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": f"{STARTUP}{os.pathsep}{environ['PYTHONPATH']}",
            "GPUPROF_RUN_FOLDER": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert "not this one" in (tmp_path / "unhooked.log").read_text()


def test_secrets_stay_out_of_the_manifest() -> None:
    """A command line often carries a token; the directory is passed around."""
    given = ["python", "t.py", "--api-key", "abc", "--wandb_token=def", "--lr", "1", "--password"]
    kept = ["python", "t.py", "--api-key", "***", "--wandb_token=***", "--lr", "1", "--password"]
    assert without_secrets(given) == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("way", ["multiprocessing", "os.fork"])
def test_a_trainer_that_is_forked_after_torch_was_imported(tmp_path: Path, way: str) -> None:
    """The start hook's own hooks are the parent's: they are put in anew where training happens,
    and the record is finished however the child leaves."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        f"""
        if {way!r} == "os.fork":
            import os
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            else:
                train(12)
        else:
            import multiprocessing
            child = multiprocessing.get_context("fork").Process(target=train, args=(12,))
            child.start()
            child.join()
        """,
    )
    done = run_job(tmp_path, sys.executable, path, options=("--no-report", "--steps", "2"))
    assert (done.returncode, done.stderr) == (0, "")
    run = load(tmp_path / "run")
    assert [(r.steps, r.state) for r in run.ranks.values()] == [(12, "finished")]
    assert [len(paths) for paths in run.traces.values()] == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_that_do_not_train_leave_nothing(tmp_path: Path) -> None:
    """Workers of a DataLoader, also with a loader of their own inside, and the children of a
    process that is recorded already."""
    pytest.importorskip("torch")
    path = script(
        tmp_path,
        """
        import os
        from torch.utils.data import DataLoader, Dataset
        class Nested(Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, index):
                return sum(len(batch) for batch in DataLoader(range(30)))
        for _ in DataLoader(Nested(), num_workers=1, multiprocessing_context="fork"):
            pass
        train(12)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            for _ in range(3):
                optimizer.step()  # torch can't go backward in a child once its parent has
            os._exit(0)
        """,
    )
    done = run_job(tmp_path, sys.executable, path, options=("--no-report", "--steps", "2"))
    assert (done.returncode, done.stderr) == (0, "")
    run = load(tmp_path / "run")
    assert [(r.steps, r.state) for r in run.ranks.values()] == [(12, "finished")]
