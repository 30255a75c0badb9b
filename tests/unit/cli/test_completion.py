"""Help and completion of the whole tree."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from coterie.cli import COMMANDS, cli
from tests.unit.cli.command_runner import coterie

PROGRAM = "from coterie.cli import main; main()"


def complete(*words: str) -> list[str]:
    """What a shell is told behind these words, of which the last one is not finished."""
    *args, incomplete = words
    made = ShellComplete(cli, {}, "coterie", "_COTERIE_COMPLETE")
    return [each.value for each in made.get_completions(args, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "completion", shell)
    assert (said.code, said.err) == (0, "")
    assert f"_COTERIE_COMPLETE={shell}_complete" in said.out


def test_a_shell_completes_nouns_verbs_and_options() -> None:
    assert complete("me") == ["messages"]
    assert complete("messages", "") == ["edit", "list", "purge", "retry", "show"]
    assert "--dry-run" in complete("messages", "purge", "--")
    assert complete("messages", "list", "--state", "d") == ["dead", "done"]


def test_the_command_answers_a_shell_that_asks() -> None:
    environ = {**os.environ, "_COTERIE_COMPLETE": "bash_complete", "COMP_WORDS": "coterie me", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,messages\n"


def commands() -> list[tuple[str, click.Command]]:
    """Every command of the tree, with its verbs."""
    found: list[tuple[str, click.Command]] = []
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {verb}", each) for verb, each in command.commands.items()]
    return found


def test_every_help_has_an_example_that_begins_with_its_command() -> None:
    """With long options only."""
    for name, command in commands():
        if command.hidden:
            continue
        text = inspect.cleandoc(command.help or "")
        assert "\b\nExample:\n" in text, name
        example = text.partition("Example:\n")[2]
        assert f"coterie {name.partition(' ')[0]}" in example, name
        if " " in name:
            assert f"coterie {name}" in example, name
