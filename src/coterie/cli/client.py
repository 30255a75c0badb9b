"""The frame of most commands: connect as a client, read or change something, print the answer, exit with a code.

Also the options that every command takes, JSON arguments, and reading and formatting pages of the read model.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from coterie.cli.output import Screen, as_json, echo, instant, relative, safe
from coterie.cluster import Cluster
from coterie.errors import CoterieError
from coterie.kernel.clock import SystemClock
from coterie.kernel.ids import new_incarnation
from coterie.kernel.random import Random
from coterie.observe.pages import ViewReader
from coterie.settings import Settings
from coterie.settings.secret import redacted_url
from coterie.storage.contracts.activity import Act
from coterie.storage.engines import file_of, open_storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.observe.view import View
    from coterie.storage.interface import Storage


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--json`."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    return click.option("--url", metavar="URL", help="The database (default: COTERIE_URL, else ./coterie.db).")(command)


def settings_for(url: str | None) -> Settings:
    """Settings as the command's process sees them: of the program that runs it, else of the environment."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.find_object(Settings)
    if given is not None:
        return given if url is None else given.but(url=url)
    return Settings.load({} if url is None else {"url": url})


def storage_for(settings: Settings) -> Storage:
    """The storage alone, whatever its schema: for commands that look at the database itself."""
    chance = Random()
    return open_storage(
        settings, incarnation=new_incarnation(chance), clock=SystemClock(), chance=chance, check_schema=False
    )


YES, NO, WRONG, UNANSWERED, REPLACED = 0, 1, 2, 3, 4
"""Exit codes: the answer is yes; it is no; wrong usage; no answer; the database file was replaced."""


@dataclass(frozen=True)
class ClientCommand:
    """A running command.

    Args:
        cluster: A client of the cluster.
        screen: Where the answer goes.
        as_json: Whether to print JSON for a program.
    """

    cluster: Cluster
    screen: Screen
    as_json: bool

    def answer(self, value: Any, text: str | Callable[[], str]) -> None:
        """Print data on stdout: one JSON document for a program, text for people."""
        echo(as_json(value) if self.as_json else text if isinstance(text, str) else text())

    def show(self, value: Any, text: Callable[[], str]) -> None:
        """The same; people see first which cluster answers."""
        self.answer(value, lambda: f"{self.where}\n\n{text()}")

    @property
    def here(self) -> Client:
        """The connected client, for what the public API does not offer."""
        return self.cluster._acting()

    @asynccontextmanager
    async def act(self, name: str, what: str) -> AsyncIterator[ActRecord]:
        """A block that does something which is recorded, as acts of the page are: who, and what came of it.

        Args:
            name: The act, by the name that the page has for it.
            what: The thing that it is done to.
        """
        record = ActRecord()
        try:
            yield record
        except CoterieError as error:
            record.result = f"refused: {error.message}"
            raise
        except asyncio.CancelledError:
            record.result = "stopped: a part may be done"
            raise
        finally:
            act = Act(who=_user(), origin="command line", act=name, what=what, result=record.result or "failed")
            await self.here.record(act)

    @property
    def where(self) -> str:
        """The cluster that answers: the first line of every view."""
        settings = self.cluster.settings
        return f"cluster {settings.name} on {redacted_url(settings.url)}"


class ActRecord:
    """What came of an act: set by the block that does it."""

    def __init__(self) -> None:
        self.result = ""


def _user() -> str:
    """The user of the operating system, and the host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # in a container: a number without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


class Noun(click.Group):
    """A command with verbs: `coterie cron list`. Without a verb it runs its default one, which changes nothing.

    Args:
        alone: The default verb.
    """

    def __init__(self, *args: Any, alone: str = "list", **options: Any) -> None:
        super().__init__(*args, **options)
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`coterie cron --json` is `coterie cron list --json`."""
        if ctx.resilient_parsing:  # shell completion: complete the verbs
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self._alone, *args]
        return super().parse_args(ctx, args)


def client_command(command: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., int]:
    """Make a command of a coroutine function: it is passed a `ClientCommand`, and its result is the exit code.

    Takes `--url`, `--json` and `--color`.
    """

    @click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
    @common
    @wraps(command)
    def run(*args: Any, url: str | None, as_json: bool, colour: bool | None, **options: Any) -> int:
        async def ask() -> int | None:
            async with client(url) as cluster:
                return await command(ClientCommand(cluster, Screen(colour=colour), as_json), *args, **options)

        return asyncio.run(ask()) or YES

    return run


def confirmable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that changes something; see `confirmed`."""
    command = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


@asynccontextmanager
async def client(url: str | None) -> AsyncIterator[Cluster]:
    """A connected client of the cluster. A missing database file is not created: there is no cluster in it."""
    cluster = Cluster(settings=settings_for(url))
    require_file(cluster.settings)
    async with cluster.connect():
        yield cluster


def require_file(settings: Settings) -> None:
    """Refuse a database file that does not exist, instead of creating it."""
    file = file_of(settings)
    if file is not None and not file.exists():
        hint = "coterie run starts one; --url or COTERIE_URL names another database"
        refuse(f"there is no cluster at {file}: the file does not exist", hint=hint, code=UNANSWERED)


def confirmed(what: str, question: str, *, yes: bool, dry_run: bool) -> bool:
    """Print what will be done, and ask for confirmation; False if it was declined, or with `dry_run`.

    Raises:
        click.exceptions.Exit: There is no terminal to ask on, and no `--yes`.
    """
    echo(safe(what, keep=""), err=True)
    if dry_run:
        echo("nothing was done (--dry-run)", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        refuse(f"{what.rstrip('.')}; no terminal to ask", hint="add --yes, or look first with --dry-run")
    return click.confirm(safe(question), err=True)


def refuse(problem: str, *, hint: str = "", code: int = NO) -> NoReturn:
    """Exit with an error in two lines, on stderr."""
    echo(f"error: {safe(problem, keep='')}", err=True)
    if hint:
        echo(f"hint:  {safe(hint, keep='')}", err=True)
    raise click.exceptions.Exit(code)


def read_json(text: str, *, what: str, hint: str) -> Any:
    """Decode a JSON argument; invalid JSON ends the command.

    Args:
        text: The argument as written.
        what: What it is, for the error: `the value`.
        hint: What to write instead.
    """
    try:
        return msgspec.json.decode(text.encode())
    except (ValueError, RecursionError) as error:
        problem = str(error).removeprefix("JSON is malformed: ")
        return refuse(f"{what} is no JSON: {problem}", hint=hint, code=WRONG)


_APART_S = 0.4
"""Time between two readings, to compute rates per second."""


def view_reader(ctx: ClientCommand) -> ViewReader:
    """The reader of pages for a command."""
    return ViewReader(ctx.here)


async def page(ctx: ClientCommand, name: str) -> tuple[Any, View]:
    """A page, and the view that it is from."""
    view = await view_reader(ctx).read([name])
    return view.data[name], view


async def list_page(
    ctx: ClientCommand, name: str, table: Callable[[Screen, Any, datetime], str], *, empty: str
) -> None:
    """Print a page that is a list; `empty` if nothing is on it."""
    lines, view = await page(ctx, name)
    ctx.show(lines, lambda: table(ctx.screen, lines, view.at) if lines else empty)


async def sampled(ctx: ClientCommand, name: str) -> tuple[Any, View]:
    """The same after two readings, so that it has rates per second."""
    look = view_reader(ctx)
    first = await look.read(["runners"])
    if first.data["runners"]:
        await asyncio.sleep(_APART_S)
    view = await look.read([name])
    return view.data[name], view


@contextmanager
def refusing(*, hint: str = "") -> Iterator[None]:
    """Turn "unknown to the cluster" errors into exit code "no", in two lines."""
    try:
        yield
    except ValueError as error:
        refuse(str(error), hint=hint)


def both(at: datetime | None, now: datetime) -> str:
    """An instant in full, and relative to now."""
    return "never" if at is None else f"{instant(at)} ({relative(at, now)})"


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """The properties of a thing, a line each; those without a value are left out."""
    wide = max((len(name) for name, _ in pairs), default=0)
    further = f"\n{'':<{wide}}  "  # so that the next line of a value does not look like another property
    shown = ((name, further.join(value.split("\n"))) for name, value in pairs if value)
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in shown)


def quick(seconds: float | None) -> str:
    """`0.8 ms`, `1.2 s`; None is a dash."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def counted(number: float | None) -> str:
    """`1,204`; an unknown number is a dash, never 0."""
    return "-" if number is None else f"{number:,.0f}"


def one_line(text: str | None) -> str:
    """The first line of a text."""
    return (text or "").partition("\n")[0]
