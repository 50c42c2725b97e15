"""The command line: exit statuses, one line of error, and nothing on standard output but what was
asked for."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from fixtures.runs import training
from gpuprof import __version__
from gpuprof.cli import _debug_first, cli, main
from gpuprof.commands.plan import Count
from gpuprof.diagnosis import from_json


@dataclass
class Result:
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        status = caught.value.code
        captured = capsys.readouterr()
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    folder = tmp_path / "recorded"
    folder.mkdir()
    return training(5, load_us=3_000).trace.write(folder / "trace.json.gz")


def is_one_line(result: Result, *words: str, out: str = "") -> None:
    """Status 2, and one line on standard error that holds these words.

    Args:
        out: what standard output begins with; nothing else than nothing for most faults.
    """
    assert result.status == 2
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("gpuprof: ")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert result.out.startswith(out) and bool(result.out) == bool(out)


# Done


def test_analyze_prints_the_verdict_and_writes_the_reports(run: Run, trace: Path) -> None:
    result = run("analyze", trace)
    assert result.status == 0
    assert result.err == ""
    assert "waits for data" in result.out.replace("\n", " ")
    assert "gpuprof-report" in result.out
    assert {path.name for path in Path("gpuprof-report").iterdir()} == {
        "report.html",
        "diagnosis.json",
    }


def test_out_says_where(run: Run, trace: Path) -> None:
    assert run("analyze", trace, "--out", "deep/er").status == 0
    written = from_json(Path("deep/er/diagnosis.json").read_bytes())
    assert written.findings[0].cause == "dataloader"
    assert not Path("gpuprof-report").exists()


def test_json_to_standard_output_is_json_alone(run: Run, trace: Path) -> None:
    result = run("analyze", trace, "--json", "-")
    assert result.status == 0
    assert result.err == ""
    assert from_json(result.out.encode()).bound.class_ == "input"
    assert not Path("gpuprof-report").exists()


def test_json_to_a_file_beside_the_text(run: Run, trace: Path) -> None:
    result = run("analyze", trace, "--json", "mine.json", "--no-html")
    assert from_json(Path("mine.json").read_bytes()).findings
    assert "waits for data" in result.out.replace("\n", " ")
    assert not Path("gpuprof-report").exists()


def test_formats(run: Run, trace: Path) -> None:
    as_json = run("analyze", trace, "--format", "json", "--no-html").out
    assert from_json(as_json.encode()).findings
    as_markdown = run("analyze", trace, "--format", "md", "--no-html").out
    assert "#" in as_markdown
    assert "\x1b" not in as_markdown


def test_text_that_is_piped_has_no_colours(run: Run, trace: Path) -> None:
    assert "\x1b" not in run("analyze", trace, "--no-html").out


def test_cores_reach_the_advice(run: Run, trace: Path) -> None:
    out = run("analyze", trace, "--cores", 2, "--json", "-").out
    assert "num_workers=2," in from_json(out.encode()).findings[0].fixes[0].code


def test_a_folder_and_several_files_are_one_diagnosis(run: Run, trace: Path) -> None:
    training(5).trace.write(trace.parent / "other.json")
    result = run("analyze", trace.parent, "--json", "-")
    assert any("two traces of rank 0" in w for w in from_json(result.out.encode()).warnings)


def test_report_shows_what_analyze_wrote(run: Run, trace: Path) -> None:
    """The folder of `analyze --out` is at hand where the trace no longer is."""
    run("analyze", trace, "--out", "kept")
    for kept in ("kept", "kept/diagnosis.json"):
        assert run("report", kept, "-o", "again.html").out.strip() == "again.html"
        assert "waits for data" in Path("again.html").read_text(encoding="utf-8")
        written = from_json(Path("kept/diagnosis.json").read_bytes())
        assert from_json(run("report", kept, "--format", "json").out.encode()) == written
        for form in ("perfetto", "tensorboard"):
            result = run("report", kept, "--format", form)
            is_one_line(result, "without the events", "gpuprof analyze")


def test_report_shows_a_run_in_another_form(run: Run, trace: Path) -> None:
    assert run("report", trace, "-o", "mine.html").out.strip() == "mine.html"
    assert b"<html" in Path("mine.html").read_bytes()[:2_000]
    assert from_json(run("report", trace, "--format", "json").out.encode()).findings
    assert run("report", trace, "--format", "md", "-o", "mine.md").out == ""
    assert "#" in Path("mine.md").read_text(encoding="utf-8")
    assert "waits for data" in run("report", trace, "--format", "text").out.replace("\n", " ")


def test_a_truncated_trace_is_read_up_to_where_it_ends(run: Run, trace: Path) -> None:
    whole = gzip.decompress(trace.read_bytes())
    trace.write_bytes(gzip.compress(whole[: len(whole) * 2 // 3]))
    result = run("analyze", trace, "--json", "-")
    assert result.status == 0
    assert any("truncated" in note for note in from_json(result.out.encode()).files[0].notes)


def test_a_gzip_that_breaks_off_is_read_as_far_as_it_goes(run: Run, tmp_path: Path) -> None:
    path = training(40, kernels=(100,) * 5).trace.write(tmp_path / "big.json.gz")
    path.write_bytes(path.read_bytes()[:-200])
    result = run("analyze", path, "--json", "-")
    assert result.status == 0
    assert any("truncated" in note for note in from_json(result.out.encode()).files[0].notes)


# The user's faults: status 2, one line


def test_a_missing_file(run: Run) -> None:
    is_one_line(run("analyze", "nothing.json"), "nothing.json", "does not exist", "check the path")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.json", b""),
        ("empty.json.gz", gzip.compress(b"", mtime=0)),
        ("blank.json", b" \n "),
        ("binary.json", bytes(range(256)) * 50),
        ("elf", b"\x7fELF" + b"\0" * 500),
        ("cut.json.gz", gzip.compress(b'{"traceEvents": [' + b" " * 5_000, mtime=0)[:12]),
        ("notgzip.json.gz", b"\x1f\x8b" + b"\xff" * 100),
        ("text.json", b"hello, world\n" * 20),
        ("list.json", b"[1, 2, 3]"),
        ("other.json", b'{"name": "package", "version": "1.0"}'),
        ("no_events.json", b'{"schemaVersion": 1, "traceEvents": []}'),
        ("null.json", b"null"),
        ("page.html", b"<!DOCTYPE html><html></html>"),
    ],
)
def test_a_file_that_is_no_trace(run: Run, name: str, data: bytes) -> None:
    """One line that says what, where and what to do."""
    Path(name).write_bytes(data)
    is_one_line(run("analyze", name), name, ": ")


def test_a_folder_without_anything(run: Run) -> None:
    Path("void").mkdir()
    is_one_line(run("analyze", "void"), "void holds nothing that can be analyzed", "give Kineto")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read(run: Run, trace: Path) -> None:
    trace.chmod(0)
    is_one_line(run("analyze", trace), "Permission denied")


def test_an_out_that_can_not_be_written(run: Run, trace: Path) -> None:
    Path("file").touch()
    result = run("analyze", trace, "--out", "file/inside")
    # The verdict is worth more than the file that can't be written: it is printed all the same.
    is_one_line(result, "cannot write to file/inside", "--out", out="The GPU waits for data")
    assert "Report:" not in result.out


def test_an_out_that_is_a_file(run: Run, trace: Path) -> None:
    Path("file").touch()
    is_one_line(run("analyze", trace, "--out", "file"), "file")


def test_a_json_file_that_can_not_be_written(run: Run, trace: Path) -> None:
    result = run("analyze", trace, "--no-html", "--json", "missing/mine.json")
    is_one_line(result, "cannot write missing/mine.json", out="The GPU waits for data")


@pytest.mark.parametrize("form", ["html", "md", "json", "text"])
def test_a_report_that_can_not_be_written(run: Run, trace: Path, form: str) -> None:
    Path("file").touch()
    result = run("report", trace, "--format", form, "-o", "file/mine")
    is_one_line(result, "cannot write")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("analyze",), ("PATHS",)),
        (("nonsense",), ("nonsense",)),
        (("analyze", "x.json", "--nonsense"), ("--nonsense",)),
        (("analyze", "x.json", "--format", "pdf"), ("pdf", "md")),
        (("analyze", "x.json", "--cores", "0"), ("--cores", "0")),
        (("demo", "--fault", "nonsense"), ("nonsense", "dataloader")),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    is_one_line(run(*arguments), *words)


# Faults of gpuprof, interruptions, --debug


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("gpuprof.api.analyze_paths", fail)


def test_a_fault_of_gpuprof_is_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, RuntimeError("oh no"))
    result = run("analyze", "x")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "a fault of gpuprof itself, RuntimeError: oh no" in result.err
    assert "--debug" in result.err
    assert result.out == ""


def test_an_interruption_is_status_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    result = run("analyze", "x")
    assert result.status == 130
    assert result.err.strip() == "gpuprof: interrupted"


@pytest.mark.parametrize("arguments", [("--debug", "analyze", "x"), ("analyze", "x", "--debug")])
def test_debug_shows_where(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Wherever it stands: it is added to the end of a line that failed."""
    raising(monkeypatch, RuntimeError("oh no"))
    with pytest.raises(RuntimeError, match="oh no"):
        main(list(arguments))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["analyze", "x"], ["analyze", "x"]),
        (["analyze", "--debug", "x"], ["--debug", "analyze", "x"]),
        (["run", "--", "python", "a.py", "--debug"], ["run", "--", "python", "a.py", "--debug"]),
        (["run", "python", "a.py", "--debug"], ["run", "python", "a.py", "--debug"]),
        (["--debug", "run", "python", "--debug"], ["--debug", "run", "python", "--debug"]),
        (["report", "run", "--debug"], ["--debug", "report", "run"]),
    ],
)
def test_the_users_own_debug_option_stays_with_the_users_command(
    given: list[str], expected: list[str]
) -> None:
    assert _debug_first(given) == expected


def test_no_command_shows_the_help(run: Run) -> None:
    result = run()
    assert result.status in (0, 2)
    assert "gpuprof analyze trace.json.gz" in result.out + result.err


def test_debug_shows_a_users_fault_as_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "--debug", "analyze", "nothing.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" in done.stderr
    assert "nothing.json does not exist" in done.stderr


def test_the_module_runs_as_the_command_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "analyze", "nothing.json"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "gpuprof: nothing.json does not exist: check the path\n"


def test_a_reader_that_goes_away_is_no_fault(trace: Path) -> None:
    """gpuprof analyze … | head -1"""
    command = f"{sys.executable} -m gpuprof analyze {trace} --json - | head -c 10"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert done.stdout == '{\n  "schem'
    assert done.stderr == ""
    assert done.returncode == 0


def test_analyze_imports_neither_torch_nor_pandas_nor_plotly(trace: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gpuprof.cli import main\n"
        "try:\n    main(['analyze', sys.argv[1], '--out', sys.argv[2]])\n"
        "except SystemExit as stop:\n    status = stop.code\n"
        "heavy = {'torch', 'pandas', 'plotly', 'dask', 'tensorboard'}\n"
        "print('\\n' + repr((status, sorted(heavy & set(sys.modules)))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "(0, [])"


# Help


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    assert result.status == 0
    assert result.err == ""
    for name in cli.commands:
        assert name in result.out


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_of_every_command_has_examples_or_says_what_it_does(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: gpuprof {name}")
    assert len(result.out.splitlines()) > 5
    assert run(name, "-h").out == result.out


def test_version(run: Run) -> None:
    assert __version__ in run("--version").out


def test_the_demo_lists_its_faults(run: Run) -> None:
    result = run("demo", "--list")
    assert result.status == 0
    assert "dataloader" in result.out


def test_the_json_on_standard_output_parses_with_anything(run: Run, trace: Path) -> None:
    value = json.loads(run("analyze", trace, "--json", "-").out)
    assert value["schema"] == 1


# Forms, languages, shells


def test_json_alone_writes_files_only_where_a_folder_was_named(run: Run, trace: Path) -> None:
    plain = run("analyze", trace, "--json", "-")
    assert json.loads(plain.out)["schema"] == 1
    assert not Path("gpuprof-report").exists()
    named = run("analyze", trace, "--json", "-", "--out", "here")
    assert named.out == plain.out
    assert sorted(path.name for path in Path("here").iterdir()) == ["diagnosis.json", "report.html"]


def test_charts_stand_beside_the_report_when_asked_for(run: Run, trace: Path) -> None:
    assert run("analyze", trace, "--out", "here", "--charts").status == 0
    assert "Plotly" in Path("here/charts.html").read_text(encoding="utf-8")
    assert run("report", trace, "--format", "charts").out == "charts.html\n"


@pytest.mark.parametrize("form", ["text", "md"])
def test_the_language_is_an_option_and_an_environment_variable(
    run: Run, trace: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run("analyze", trace, "--format", form, "--lang", "zh-CN", "--out", "zh").out
    assert "等待数据" in said and "What to change" not in said
    assert 'lang="zh-CN"' in Path("zh/report.html").read_text(encoding="utf-8")
    monkeypatch.setenv("GPUPROF_LANG", "zh-CN")
    assert run("analyze", trace, "--format", form, "--out", "zh").out == said
    assert json.loads(run("analyze", trace, "--json", "-").out)["headline"].startswith("The GPU")
    is_one_line(run("analyze", trace, "--lang", "tlh"), "zh-CN")


def test_every_command_has_a_purpose_and_examples() -> None:
    """Help is the manual: nobody has another one at hand on a node."""
    assert {"analyze", "report", "compare", "gate", "run", "attach", "completion"} <= set(
        cli.commands
    )
    for name, command in cli.commands.items():
        text = command.help or ""
        assert "Examples:" in text, name
        assert f"gpuprof {name}" in text, name
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.name}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_gpuprof(run: Run, shell: str) -> None:
    script = run("completion", shell).out
    assert "_GPUPROF_COMPLETE" in script and "gpuprof" in script


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("_GPUPROF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "gpuprof ana")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "plain,analyze" in run().out
    monkeypatch.setenv("COMP_WORDS", "gpuprof report --form")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "plain,--format" in run().out


CLOSED = {
    "gate runs/a --max ": "dataloader=5%",
    "gate runs/a --max sync": "sync-points=5%",
    "demo --fault check": "checkpoint",
    "plan communication --device h1": "H100",
    "plan communication --pcie ": "4",
    "plan communication --strategy f": "fsdp",
    "report x --format t": "tensorboard",
    "attach --lang z": "zh-CN",
    "completion z": "zsh",
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_values_of_a_closed_set_are_completed(
    monkeypatch: pytest.MonkeyPatch, run: Run, shell: str
) -> None:
    monkeypatch.setenv("_GPUPROF_COMPLETE", f"{shell}_complete")
    for line, wanted in CLOSED.items():
        words = f"gpuprof {line}"
        begun = words.rsplit(" ", 1)[1]
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", begun if shell == "fish" else str(words.count(" ")))
        said = re.split(r"[,\s]", run().out)
        assert wanted in said, line


def test_every_option_with_a_closed_set_can_be_completed() -> None:
    """Either by its own type, or by a function of its own; free text and numbers need none."""

    def commands(group: click.Group) -> Iterator[click.Command]:
        for command in group.commands.values():
            yield from commands(command) if isinstance(command, click.Group) else (command,)

    free = (click.Path, click.types.IntParamType, click.types.FloatParamType, Count)
    for command in commands(cli):
        for option in command.params:
            flag = isinstance(option, click.Option) and option.is_flag
            if flag or isinstance(option.type, (click.Choice, *free)):
                continue
            assert option._custom_shell_complete is not None, (command.name, option.name)


def test_no_color_is_honoured_on_a_terminal(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuprof.conclude import analyze_here

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert analyze_here(str(trace.parent), "80", "colour") == 0
    coloured = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert analyze_here(str(trace.parent), "80", "colour") == 0
    plain = capsys.readouterr().out
    assert re.search(r"\x1b\[[\d;]*3\dm", coloured)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)


def test_a_width_of_zero_is_no_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some terminals and runners set COLUMNS=0; the answer must not vanish."""
    from gpuprof.api import analyze_paths
    from gpuprof.commands.output import show

    monkeypatch.setenv("COLUMNS", "0")
    analysis = analyze_paths(training(3).trace.write(tmp_path / "trace.json"))
    show(analysis, "text", "en")
    assert "Where one step goes" in capsys.readouterr().out
