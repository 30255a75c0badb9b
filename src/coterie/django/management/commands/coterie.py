"""`manage.py coterie …`: the command line of coterie, with the settings of the project.

manage.py coterie run --workers 2     runners of this project
manage.py coterie status              and every other command of `coterie --help`
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, handle_default_options

from coterie import cli
from coterie.django.configuration import project_cluster

_PROGRAM = "coterie.django:program"


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Passes everything on; only `--settings` and `--pythonpath` are Django's."""

    help = "The command line of coterie with the settings of this project: run, status, migrate, …"
    requires_system_checks: list[str] = []  # noqa: RUF012 Django's; `run` makes them

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """Run a command of coterie; ends by `SystemExit`."""
        self._run(arguments)

    def run_from_argv(self, argv: list[str]) -> None:
        """As `manage.py` calls it: options of coterie are no options of Django."""
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        options, arguments = parser.parse_known_args(argv[2:])
        handle_default_options(options)
        self._run(arguments)

    def print_help(self, prog_name: str, subcommand: str) -> None:  # noqa: ARG002 Django's
        """`manage.py help coterie`."""
        self._run(["--help"])

    def _run(self, arguments: list[str]) -> None:
        name, *options = arguments or ["--help"]
        if name != "run" or {"-h", "--help"} & set(options):
            cli.main([name, *options], settings=project_cluster().settings)
            return
        self.check()
        _pass_path_on()
        cli.main([name, _PROGRAM, *options], settings=project_cluster().settings)


def _pass_path_on() -> None:
    """Let the processes of `run --workers` find the modules of the project, wherever `manage.py` was started."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in dict.fromkeys([sys.path[0], *known]) if place]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
