"""What most commands do: connect as a client, ask or act, answer, and leave with an exit code."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import click

from coterie.cli.options import common, settings_for
from coterie.cli.showing import Screen, as_json, safe, tell
from coterie.cluster import Cluster
from coterie.settings.secret import redacted_url
from coterie.storage.engines import file_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from coterie.connection import Connection

YES, NO, WRONG, NOBODY, REPLACED = 0, 1, 2, 3, 4
"""Exit codes: the answer is yes; it is no; the question is wrong; nobody answered; the database file was replaced."""


@dataclass(frozen=True)
class Asking:
    """A command at work.

    Args:
        cluster: A client of the cluster that is asked.
        screen: Where the answer goes.
        as_json: Whether it is for a program.
    """

    cluster: Cluster
    screen: Screen
    as_json: bool

    def answer(self, value: Any, text: str | Callable[[], str]) -> None:
        """Data, on stdout: one JSON document for a program, text for people."""
        tell(as_json(value) if self.as_json else text if isinstance(text, str) else text())

    @property
    def here(self) -> Connection:
        """What the client is connected by, for what its public face does not show."""
        return self.cluster._acting()  # noqa: SLF001 this house's own

    @property
    def where(self) -> str:
        """Who answers: the first line of every view."""
        settings = self.cluster.settings
        return f"cluster {settings.name} on {redacted_url(settings.url)}"


def asks(command: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., int]:
    """Have a coroutine be a command: it is given an `Asking`, and what it returns is the exit code. Takes `--url`,
    `--json` and `--color`.
    """

    @click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
    @common
    @wraps(command)
    def run(*args: Any, url: str | None, as_json: bool, colour: bool | None, **options: Any) -> int:
        async def ask() -> int | None:
            async with client(url) as cluster:
                return await command(Asking(cluster, Screen(colour=colour), as_json), *args, **options)

        return asyncio.run(ask()) or YES

    return run


def acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that changes something; see `confirmed`."""
    command = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


@asynccontextmanager
async def client(url: str | None) -> AsyncIterator[Cluster]:
    """A cluster to ask, connected. A file that is not there is not made: nobody has begun a cluster in it."""
    cluster = Cluster(settings=settings_for(url))
    file = file_of(cluster.settings)
    if file is not None and not file.exists():
        hint = "coterie run starts one; --url or COTERIE_URL names another database"
        refuse(f"there is no cluster at {file}: the file does not exist", hint=hint, code=NOBODY)
    async with cluster.connect():
        yield cluster


def confirmed(what: str, question: str, *, yes: bool, dry_run: bool) -> bool:
    """Say what will be done, and ask whether to do it; false: it was only said, or declined.

    Raises:
        click.exceptions.Exit: There is nobody to ask, and no `--yes`.
    """
    tell(safe(what, keep=""), err=True)
    if dry_run:
        tell("nothing was done (--dry-run)", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        refuse(f"{what.rstrip('.')}; no terminal to ask", hint="add --yes, or look first with --dry-run")
    return click.confirm(safe(question), err=True)


def refuse(problem: str, *, hint: str = "", code: int = NO) -> NoReturn:
    """End with an error in two lines, on stderr."""
    tell(f"error: {safe(problem, keep='')}", err=True)
    if hint:
        tell(f"hint:  {safe(hint, keep='')}", err=True)
    raise click.exceptions.Exit(code)
