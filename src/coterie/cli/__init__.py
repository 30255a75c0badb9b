"""The `coterie` command: one module per subcommand, each imported only when needed.

Data goes to stdout, messages to stderr. Exit codes: 0 yes, 1 the answer is no, 2 wrong usage, 3 no runner or database
answered, 4 the database file was replaced while it was in use, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from coterie.settings import Settings

COMMANDS = {
    "status": "health, leaders, next cron runs, failures",
    "top": "status, live",
    "open": "open the page of this machine's runner in the browser",
    "runners": "the runners of the cluster, and how they are doing",
    "shards": "which runner holds which shard",
    "singletons": "leaders, and the states they saved",
    "cron": "when crons run, and how they went",
    "entities": "where entities are active, and one with its state",
    "messages": "persisted calls: pending ones, and dead ones",
    "queues": "queues of jobs: what waits, what runs, their limits",
    "pauses": "tasks, entity types and groups that are paused",
    "jobs": "jobs of tasks: those that wait and run, and dead ones",
    "schedules": "schedules made at run time, and what they have sent",
    "workflows": "runs of workflows, and what they wait for",
    "call": "call a method of an entity, and print its result as JSON",
    "kv": "keys and values, shared by all processes",
    "activity": "what people did with the page and with commands",
    "payloads": "which keys encrypt what is stored, and the change to another key",
    "completion": "print the script for shell completion",
    "demo": "a cluster on this machine, with buttons to break it",
    "run": "run runners of app.py or package.module:cluster",
    "doctor": "checks settings, database, clocks, ports, versions",
    "bench": "measure this machine",
    "check": "check the stored history for broken invariants",
    "config": "every setting, its value and where it came from",
    "migrate": "migrate the database to this version's schema",
}
"""Commands with a line of help; `coterie.cli.commands.<name>` holds each as `command`, except those in `_MODULES`."""

_MODULES = {"run": "coterie.cli.run.command", "demo": "coterie.cli.demo", "bench": "coterie.cli.bench"}


class _Lazy(click.Group):
    """Imports a command only when it runs or prints its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(_MODULES.get(cmd_name, f"coterie.cli.commands.{cmd_name}"))  # noqa: TID251 a name of the table above
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, line in sorted(COMMANDS.items())]  # imports none of them
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [each for each in found if each.value.startswith(incomplete)] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="coterie", message="%(version)s")
def cli() -> None:
    """A handful of Python processes that act as one.

    \b
    Example:
      coterie migrate --url postgresql://app@db.internal/app --plan
    """


def main(args: list[str] | None = None, *, settings: Settings | None = None) -> None:
    """The entry point: run a command, turn errors into two lines and an exit code.

    Args:
        args: The arguments; None: those of the process.
        settings: The settings of a program that has its own; None: those of the environment.
    """
    from coterie.errors import CoterieError

    try:
        outcome: Any = cli.main(args=args, prog_name="coterie", standalone_mode=False, obj=settings)
    except click.exceptions.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except CoterieError as error:
        sys.exit(_report(error))
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _report(error: Any) -> int:
    from coterie.cli.client import NO, REPLACED, UNANSWERED, WRONG
    from coterie.cli.output import echo, safe
    from coterie.errors import ConfigurationError, PersistenceError, ScheduleError, StorageReplaced

    echo(f"error: {safe(error.message, keep='')}", err=True)
    if isinstance(error, ScheduleError):
        for line in error.pointer.splitlines():
            echo(f"           {line}", err=True)
    if error.hint:
        echo(f"hint:  {safe(error.hint, keep='')}", err=True)
    if isinstance(error, ConfigurationError | ScheduleError):
        return WRONG
    if isinstance(error, StorageReplaced):
        return REPLACED
    return UNANSWERED if isinstance(error, PersistenceError) else NO
