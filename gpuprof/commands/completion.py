"""`gpuprof completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GPUPROF_COMPLETE"
"""What the shell sets when it asks gpuprof itself; the name is click's convention."""


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
