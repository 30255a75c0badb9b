"""`coterie completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from coterie.cli.output import echo

_VARIABLE = "_COTERIE_COMPLETE"
"""The variable that click reads, made from the command's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script for shell completion.

    \b
    Example:
      coterie completion bash > ~/.local/share/bash-completion/completions/coterie
    """
    found = get_completion_class(shell)
    assert found is not None, "it is one of those that click has"
    echo(found(ctx.find_root().command, {}, "coterie", _VARIABLE).source())
