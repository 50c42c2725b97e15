"""`gpuprof gate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import click

from gpuprof.commands.completion import limits
from gpuprof.commands.output import (
    APath,
    format_option,
    lang_option,
    progress,
    width_of_output,
    write,
)

GATE_STATUS = 3


def _share(value: str) -> float | None:
    """`5%` and `0.05` are the same; None where it is no share."""
    number = value.strip()
    scale = 0.01 if number.endswith("%") else 1.0
    try:
        share = float(number.removesuffix("%")) * scale
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def _limits(given: Sequence[str]) -> dict[str, float]:
    from gpuprof.analyzers.gate import LIMITED

    allowed = {}
    for item in given:
        cause, equals, value = item.partition("=")
        share = _share(value)
        if not equals or share is None:
            raise click.BadParameter(
                f"{item!r} is not CAUSE=SHARE, as in dataloader=5%", param_hint="--max"
            )
        if cause not in LIMITED:
            raise click.BadParameter(
                f"{cause!r} is no cause; there are {', '.join(LIMITED)}", param_hint="--max"
            )
        if cause in allowed:
            raise click.BadParameter(
                f"{cause} has two limits; give one: the last would hide the others",
                param_hint="--max",
            )
        allowed[cause] = share
    return allowed


@click.command()
@click.argument("run", type=APath())
@click.option("--baseline", type=APath(), help="A run, or its diagnosis.json, to compare to.")
@click.option(
    "--max",
    "maxima",
    multiple=True,
    metavar="CAUSE=SHARE",
    shell_complete=limits,
    help="Largest share of the step that a cause may take, as dataloader=5% (repeatable).",
)
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    help="Slowdown against the baseline that is allowed. A change within noise never fails."
    " [default: 0]",
)
@click.option("--strict", is_flag=True, help="Fail on what could not be judged, too.")
@click.option("--junit", type=APath(dir_okay=False), help="Write JUnit XML.", metavar="FILE")
@click.option(
    "--sarif",
    type=APath(dir_okay=False),
    help="Write SARIF, with the lines of your code.",
    metavar="FILE",
)
@format_option
@lang_option
def gate(
    run: str,
    baseline: str | None,
    maxima: tuple[str, ...],
    max_slowdown: float | None,
    strict: bool,
    junit: str | None,
    sarif: str | None,
    form: str,
    lang: str,
) -> None:
    """Fail when a run is worse than it may be: exit status 3, the reasons one a line.

    RUN and the baseline are what `analyze` takes, or a diagnosis.json that was kept.

    \b
    Examples:
      gpuprof gate runs/mine --max dataloader=5% --max sync-points=2%
      gpuprof gate runs/mine --baseline main/diagnosis.json --max-slowdown 5 --junit gate.xml
    """
    if max_slowdown is not None and not math.isfinite(max_slowdown):
        raise click.UsageError(
            f"--max-slowdown {max_slowdown} allows everything; give a percentage"
        )
    if baseline is None and max_slowdown is not None:
        raise click.UsageError("--max-slowdown needs --baseline RUN")
    allowed = _limits(maxima)
    if baseline is None and not allowed:
        raise click.UsageError("nothing to check: give --max CAUSE=SHARE or --baseline RUN")
    from gpuprof.analyzers.compare import compare_runs
    from gpuprof.analyzers.gate import check_run
    from gpuprof.compare_runs import load_run
    from gpuprof.reports import gate as shown

    comparison = None
    with progress() as told:
        now = load_run(run, told)
        if baseline is not None:
            old = load_run(baseline, told)
            comparison = compare_runs(old.diagnosis, now.diagnosis, old.samples, now.samples)
    checks = check_run(now.diagnosis, allowed, comparison, (max_slowdown or 0.0) / 100)
    if junit:
        from gpuprof.reports.junit import to_junit

        write(Path(junit), to_junit(checks, strict=strict))
    if sarif:
        from gpuprof.reports.sarif import to_sarif

        document = to_sarif(now.diagnosis, checks, root=Path.cwd(), strict=strict)
        write(Path(sarif), document)
    if form == "text":
        said = shown.to_text(checks, strict=strict, lang=lang, width=width_of_output())
    else:
        show = {"json": shown.to_json, "md": shown.to_markdown}[form]
        said = show(checks, strict=strict, lang=lang)
    click.echo(said, nl=False)
    if not shown.is_open(checks, strict=strict):
        raise click.exceptions.Exit(GATE_STATUS)
