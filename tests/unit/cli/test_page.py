"""docs/cli.md has the whole tree, and what it shows can be typed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from coterie.cli import COMMANDS, cli
from coterie.observe.jobs.filter import JOB_QUALIFIERS, JOB_WORDS
from coterie.observe.message_filter import QUALIFIERS, STATES
from tests.unit.cli.command_runner import Said
from tests.unit.cli.stored_cluster import delivery
from tests.unit.cli.test_completion import commands
from tests.unit.cli.test_schedules import put
from tests.unit.cli.test_workflows import started, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.cli.stored_cluster import Stored

    Ask = Callable[..., Said]

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
EXAMPLES = [line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ ")]
OURS = ("call", "entities", "messages", "schedules", "workflows", "kv", "completion")
"""Those that are run here; the others only have to be understood."""


def test_the_tree_on_the_page_is_the_tree() -> None:
    tree = PAGE.partition("```\n")[2].partition("```")[0]
    assert {line.split()[1] for line in tree.splitlines() if line} == set(COMMANDS)


def test_every_command_has_an_example() -> None:
    for name, command in commands():
        if not isinstance(command, click.Group) and not command.hidden:
            assert any(f"{each} ".startswith(f"coterie {name} ") for each in EXAMPLES), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_understood(example: str) -> None:
    _, *args = shlex.split(example)
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and args:
        found = command.get_command(context, args[0])
        assert found is not None, example
        command, name, *args = found, *args
        if not isinstance(command, click.Group):
            command.make_context(name, args)  # refuses what it does not know


def test_the_examples_run(ask: Ask, stored: Stored) -> None:
    """In the order of the page, with an id and a token where it says so."""
    for id_ in ("order-7", "order-8"):
        started(stored, id_)
    put(stored, "report/acme")
    for example in EXAMPLES:
        _, name, *_ = args = shlex.split(example)
        if name in OURS:
            if "ID" in args:
                args[args.index("ID")] = stored.dead("vera", "charge", "o-1", 5)
            if "TOKEN" in args:
                shown = json.loads(ask("workflows", "show", "checkout/order-7", "--json").out)
                args[args.index("TOKEN")] = shown["deferreds"]["approval"]
            prepare(stored, args)
            said = ask(*args[1:]) if name != "completion" else completion(args)
            assert said.code == 0, (example, said)


def prepare(stored: Stored, args: list[str]) -> None:
    """What an example acts on."""
    if "reset" in args:
        stored.dead("alice", "slow")
    if "retry" in args and "--filter" in args:
        stored.dead("vera", "slow")
    if "published" in args:
        started(stored, "order-9", delivery, "failed", "order-9")
    if "fork" in args:
        until(stored, "order-9", "failed")


def completion(args: list[str]) -> Said:
    done = CliRunner().invoke(cli, args[1:])
    return Said(done.exit_code, done.output, "")


def test_qualifiers_and_states_are_those_of_the_code() -> None:
    of_messages, of_jobs = PAGE.partition("## Messages")[2].split("## Queues and jobs")
    for text, qualifiers, states in (
        (of_messages, QUALIFIERS, STATES),
        (of_jobs.partition("## Schedules")[0], JOB_QUALIFIERS, JOB_WORDS),
    ):
        assert set(re.findall(r"^\| `(\w+):", text, re.MULTILINE)) == set(qualifiers)
        for state in states:
            assert f"`{state}`" in text
