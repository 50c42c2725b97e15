"""`gpuprof completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GPUPROF_COMPLETE"
"""What the shell sets when it asks gpuprof itself; the name is click's convention."""

LIMIT = "5%"
"""What is proposed behind a cause: a shell puts a space behind what it completes, so that the name
alone would be wrong at once; a number is easily changed."""


def _items(values: dict[str, str], begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(value, help=about)
        for value, about in values.items()
        if value.lower().startswith(begun.lower())
    ]


def limits(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Causes with a share, for `--max`."""
    from gpuprof.analyzers.gate import LIMITED
    from gpuprof.reports.words import catalog, language_of_environment

    words = catalog(language_of_environment())
    causes = {f"{cause}={LIMIT}": words.name("cause", cause) for cause in LIMITED}
    return _items(causes, begun)


def faults(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """What the demo can plant, for `--fault`."""
    from gpuprof.demo import FAULTS

    return _items({name: planted.summary for name, planted in FAULTS.items()}, begun)


def devices(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """The devices of the table of peaks, by names that a shell takes without quotes, for
    `--device`."""
    from gpuprof.peaks import find, known_devices

    names = {}
    for device in known_devices():
        name = device.name.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").split()[0]
        meant = find(name)
        if any(character.isdigit() for character in name) and meant is not None:
            names[name] = meant.name
    return _items(names, begun)


def generations(
    context: click.Context, option: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The whole numbers that an option takes, where they are few."""
    allowed = option.type
    assert isinstance(allowed, click.IntRange) and allowed.min is not None and allowed.max
    return _items({str(n): "" for n in range(int(allowed.min), int(allowed.max) + 1)}, begun)


def a_command(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Files, for the command line that `run` is given: the shell looks them up itself."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes gpuprof's commands and options in a shell.

    \b
    Examples:
      eval "$(gpuprof completion bash)"                     in ~/.bashrc
      eval "$(gpuprof completion zsh)"                      in ~/.zshrc
      gpuprof completion fish > ~/.config/fish/completions/gpuprof.fish
    """
    from click.shell_completion import BashComplete, get_completion_class

    # Click asks the installed bash for its version before it prints; what is printed here may be
    # meant for another machine.
    class AnyBash(BashComplete):
        @staticmethod
        def _check_version() -> None:
            pass

    found = AnyBash if shell == "bash" else get_completion_class(shell)
    assert found is not None
    root = context.find_root()
    click.echo(found(root.command, {}, "gpuprof", VARIABLE).source())
