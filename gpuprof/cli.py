"""The command line. Each command imports what it needs when it runs, so that `--help` is quick.

Exit status: 0 done; 2 wrong input or usage (one line on standard error); 3 a gate failed;
130 interrupted; 1 a fault of gpuprof.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from gpuprof import __version__
from gpuprof.commands.attach import attach
from gpuprof.commands.compare import compare
from gpuprof.commands.completion import a_command, completion, faults
from gpuprof.commands.gate import gate
from gpuprof.commands.output import APath, format_option, lang_option, width_of_output
from gpuprof.commands.output import deliver as _deliver
from gpuprof.commands.output import progress as _progress
from gpuprof.commands.plan import plan
from gpuprof.commands.report import report
from gpuprof.commands.watch import watch
from gpuprof.errors import GpuprofError
from gpuprof.pause import without_gc

DEFAULT_OUT = "gpuprof-report"
FAULT_STATUS = 1
INTERRUPTED_STATUS = 130

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuprof")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Why is my GPU not busy, what exactly do I change, how much faster will it be?

    \b
    Examples:
      gpuprof demo                       a real training loop with a planted fault, diagnosed
      gpuprof run -- python train.py     a job of your own, recorded and diagnosed
      gpuprof attach --pid 4711          a job that runs already, from outside
      gpuprof analyze trace.json.gz      the verdict on a recorded trace
      gpuprof analyze traces/            all ranks of a job in one diagnosis
      gpuprof compare before/ after/     what changed between two runs, and what is noise

    \b
    Exit status:
      0 done · 2 wrong input or usage · 3 a gate failed · 130 interrupted · 1 a fault of gpuprof;
      `run` ends as the job that it ran

    \b
    Environment:
      GPUPROF_LANG    language of reports, as --lang (en, zh-CN)
      NO_COLOR        no colours on a terminal, whatever it can do
    """
    context.obj = {"debug": debug}


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=APath())
@click.option(
    "-o",
    "--out",
    default=DEFAULT_OUT,
    show_default=True,
    type=APath(file_okay=False),
    help="Folder for report.html and diagnosis.json.",
)
@click.option(
    "--json",
    "json_file",
    type=APath(dir_okay=False, allow_dash=True),
    help="Also write the diagnosis as JSON to FILE; '-' prints it, and nothing else.",
    metavar="FILE|-",
)
@format_option
@click.option("--no-html", is_flag=True, help="Write no files, only print.")
@click.option(
    "--charts",
    is_flag=True,
    help="Also write charts.html: every statistic as an interactive figure, offline, 5 MB.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="CPU cores that a process of the run may use, for advice on workers.",
)
@lang_option
@click.pass_context
@without_gc()
def analyze(
    context: click.Context,
    paths: tuple[str, ...],
    out: str,
    json_file: str | None,
    form: str,
    no_html: bool,
    charts: bool,
    cores: int | None,
    lang: str,
) -> None:
    """Diagnose traces, folders of traces and run directories.

    PATHS may be Kineto traces (.json, .json.gz), folders of them with one trace a rank, run
    directories, and beside them logs of NCCL and nvidia-smi; all are joined into one diagnosis. It
    is printed, and written as report.html and diagnosis.json.

    \b
    Examples:
      gpuprof analyze trace.json.gz
      gpuprof analyze rank0.json.gz rank1.json.gz --out report
      gpuprof analyze traces/ nccl.log smi.csv --lang zh-CN
      gpuprof analyze traces/ --json -               the JSON alone, and no files
      gpuprof analyze traces/ --json - --out report  the JSON, and the files as well
    """
    _save_start_up()
    from gpuprof.api import analyze_paths

    with _progress() as told:
        analysis = analyze_paths(*paths, cores=cores, progress=told)
    named = context.get_parameter_source("out") is not click.core.ParameterSource.DEFAULT
    files = not no_html and (json_file != "-" or named)
    _deliver(analysis, out, json_file, form, files=files, lang=lang, charts=charts and not no_html)


@cli.command()
@click.option(
    "--fault",
    default="dataloader",
    show_default=True,
    shell_complete=faults,
    help="Which fault to plant; --list shows them.",
)
@click.option("--fixed", is_flag=True, help="Run the repaired form of the same workload.")
@click.option(
    "-o",
    "--out",
    default="gpuprof-demo",
    show_default=True,
    type=APath(file_okay=False),
    help="Folder for the recording and the report.",
)
@click.option("--list", "show", is_flag=True, help="List the faults that can be planted here.")
@format_option
@lang_option
def demo(fault: str, fixed: bool, out: str, show: bool, form: str, lang: str) -> None:
    """Record a real small training loop with a planted fault, and diagnose it.

    Runs on the GPU if there is one, else on the CPU, in under a minute. Needs torch.

    \b
    Examples:
      gpuprof demo --list
      gpuprof demo --fault checkpoint
      gpuprof demo --fault checkpoint --fixed       the repaired form of the same script
    """
    from gpuprof.demo import FAULTS, record_demo

    if show:
        for name, planted in FAULTS.items():
            click.echo(f"{name:15} {planted.summary}")
        return
    from gpuprof.api import analyze_paths

    folder = Path(out)
    with _progress() as told:
        recorded = record_demo(fault, folder, told, fixed=fixed)
        analysis = analyze_paths(
            *recorded.traces, *recorded.attribution, cores=_own_cores(), progress=told
        )
    said = f"Recorded {recorded.workload.name} on {recorded.device}; planted: {fault}."
    click.echo(f"{said}\n" if form == "text" else said, err=form != "text")
    _deliver(analysis, str(folder), None, form, files=True, lang=lang)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@lang_option
def doctor(as_json: bool, lang: str) -> None:
    """Say what can be recorded on this machine, what cannot, why, and how to get it.

    Exits with 1 when something is broken; what is merely missing is no failure.

    \b
    Examples:
      gpuprof doctor
      gpuprof doctor --json > doctor.json            for a bug report
    """
    from gpuprof.doctor import probe_host, probe_nvml
    from gpuprof.doctor_software import probe_software
    from gpuprof.reports.doctor import to_text

    checks = [*probe_software(), *probe_nvml(), *probe_host()]
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        click.echo(to_text(checks, lang=lang, width=width_of_output()), nl=False)
    if any(check.state == "broken" for check in checks):
        raise click.exceptions.Exit(1)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=a_command
)
@click.option(
    "-o",
    "--out",
    type=APath(file_okay=False),
    help="Run directory; all nodes of a job need the same, on a shared disk."
    " [default: gpuprof-runs/TIME-PID]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1, max=1000),
    default=10,
    show_default=True,
    help="Steps of a timing window.",
)
@click.option("--no-attribution", is_flag=True, help="Record no window with stacks and shapes.")
@click.option("--no-samples", is_flag=True, help="Do not sample GPUs and host.")
@click.option("--no-report", is_flag=True, help="Only record: no verdict, no report.")
@click.option("--quiet", is_flag=True, help="Write the report, but print no verdict.")
@lang_option
def run(
    command: tuple[str, ...],
    out: str | None,
    steps: int,
    no_attribution: bool,
    no_samples: bool,
    no_report: bool,
    quiet: bool,
    lang: str,
) -> None:
    """Run a job and record it, without a change to it.

    COMMAND gets the terminal, the signals and the exit status. Every Python process in it that
    trains is recorded. The verdict goes to standard error when the job has ended. Nothing is
    written between the job's own lines: `gpuprof watch` in a second terminal is the live view.

    \b
    Examples:
      gpuprof run -- python train.py --epochs 3
      gpuprof run --out runs/mine -- torchrun --nproc-per-node 8 train.py
    """
    from gpuprof.child import RunOptions
    from gpuprof.launch import Job, end_like, run_job, tell_verdict
    from gpuprof.process import default_folder

    os.environ["GPUPROF_LANG"] = lang  # the verdict is given by a process of its own
    options = RunOptions(steps=steps, attribution=not no_attribution, samples=not no_samples)
    ended = run_job(
        Job(command=command, folder=Path(out) if out else default_folder(), options=options)
    )
    tell_verdict(ended, report=not no_report, quiet=quiet)
    end_like(ended.status)


cli.add_command(attach)
cli.add_command(compare)
cli.add_command(completion)
cli.add_command(gate)
cli.add_command(plan)
cli.add_command(report)
cli.add_command(watch)


def _save_start_up() -> None:
    """Saves what a command that starts no other process need not pay.

    Nothing here does linear algebra: the threads that NumPy would start for it cost a tenth of a
    second. And it makes few cycles and then ends: collecting them would cost as much again.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()


def _own_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _debug_first(arguments: list[str]) -> list[str]:
    """Moves `--debug` to the front, since it is added at the end of a line that failed. What
    follows `run` or `--` belongs to the user's command."""
    command = next((word for word in arguments if not word.startswith("-")), None)
    stop = arguments.index(command) if command == "run" else len(arguments)
    stop = min(stop, arguments.index("--")) if "--" in arguments else stop
    own = [word for word in arguments[:stop] if word != "--debug"]
    debug = ["--debug"] if len(own) < stop else []
    return [*debug, *own, *arguments[stop:]]


def _explain(error: click.ClickException) -> None:
    """One line on wrong usage; the whole help where no command was given."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None or not isinstance(error, click.UsageError):
        click.echo(f"gpuprof: {message}", err=True)
    elif type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        click.echo(f"gpuprof: {message}: see {context.command_path} --help", err=True)


def _fault(error: Exception, debug: bool) -> NoReturn:
    """Ends a run that failed through no fault of the user's."""
    if debug:
        raise error
    click.echo(
        f"gpuprof: a fault of gpuprof itself, {type(error).__name__}: {error};"
        " --debug shows where, please report it",
        err=True,
    )
    sys.exit(FAULT_STATUS)


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line and exits."""
    given = _debug_first(list(sys.argv[1:] if arguments is None else arguments))
    debug = given[:1] == ["--debug"]
    try:
        status = cli.main(args=given, prog_name="gpuprof", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except GpuprofError as error:
        if debug:
            raise
        click.echo(f"gpuprof: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _explain(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("gpuprof: interrupted", err=True)
        sys.exit(INTERRUPTED_STATUS)
    except BrokenPipeError:
        # The reader of our output went away (| head): nothing to complain about.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if debug or error.errno not in _FULL:
            _fault(error, debug)
        click.echo(f"gpuprof: cannot write the output: {error.strerror}; make room", err=True)
        sys.exit(GpuprofError.exit_code)
    except Exception as error:
        _fault(error, debug)
    finally:
        gc.freeze()  # the interpreter's last collections would walk all there is and free nothing
