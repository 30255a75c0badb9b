"""`coterie queues`: what waits and runs in each queue of jobs, its limits, and whether it is paused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.cli.client import WRONG, Noun, client_command, confirmable, confirmed, fields, page, refuse
from coterie.cli.output import Screen, lasting, plural, safe
from coterie.observe.jobs.acts import known_queue, pause_queue, set_queue_limits
from coterie.observe.jobs.queues import rate_text
from coterie.tasks.definition import count_of, rate_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.observe.view import JobsPage, QueueLine

_EMPTY = "no queues yet: the first runner of a program with @cluster.task(…) makes them"


@click.group(cls=Noun)
def command() -> None:
    """Queues of jobs: what waits, what runs, and their limits.

    \b
    Example:
      coterie queues limits emails --concurrency 40 --yes
    """


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """All queues. `default:*` are the tasks of group `default` that have no queue.

    \b
    Example:
      coterie queues list --json
    """
    found, view = await page(ctx, "jobs")
    ctx.show(found.queues, lambda: table(ctx.screen, found.queues, view.at) if found.queues else _EMPTY)


@command.command()
@click.argument("name")
@client_command
async def show(ctx: ClientCommand, name: str) -> None:
    """One queue: what waits and runs, its limits, and who decides what starts.

    \b
    Example:
      coterie queues show emails --json
    """
    found, view = await page(ctx, "jobs")
    line = _line(found, name)
    ctx.answer(line, lambda: _shown(ctx.screen, line, view.at))


@command.command()
@click.argument("name")
@confirmable
@client_command
async def pause(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Start no jobs of it until it is resumed, also across restarts. Those that run end.

    \b
    Example:
      coterie queues pause emails --yes
    """
    await _paused(ctx, name, paused=True, yes=yes, dry_run=dry_run)


@command.command()
@click.argument("name")
@confirmable
@client_command
async def resume(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Let it start jobs again.

    \b
    Example:
      coterie queues resume emails --yes
    """
    await _paused(ctx, name, paused=False, yes=yes, dry_run=dry_run)


@command.command()
@click.argument("name")
@click.option("--concurrency", metavar="N", help="How many run at once, in the whole cluster; none: no limit.")
@click.option("--partition-concurrency", metavar="N", help="How many of one partition run at once; none: no limit.")
@click.option("--rate", metavar="RATE", help="How many start: 50/s, 10/d; none: no limit.")
@click.option("--reset", is_flag=True, help="Back to the limits of the program.")
@confirmable
@client_command
async def limits(
    ctx: ClientCommand,
    name: str,
    *,
    concurrency: str | None,
    partition_concurrency: str | None,
    rate: str | None,
    reset: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Set limits that beat those of the program, until --reset. Those that are not given stay.

    \b
    Example:
      coterie queues limits emails --concurrency 40 --rate 100/s --yes
    """
    options = {"concurrency": concurrency, "partition_concurrency": partition_concurrency, "rate": rate}
    given = {option: text for option, text in options.items() if text is not None}
    if reset is bool(given):
        refuse("which limits?", hint="give --concurrency, --partition-concurrency or --rate; or --reset", code=WRONG)
    wanted = {option: _limit(option, text, name) for option, text in given.items()}
    found, _ = await page(ctx, "jobs")
    line = _line(found, name)
    words = ", ".join(f"{option.replace('_', ' ')} {given[option]}" for option in given) or "the program's limits"
    if not confirmed(f"{name} will have {words} (now: {limits_text(line)}).", "set them?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("limits", f"queue {name}") as act:
        changed = await set_queue_limits(ctx.here, name, wanted, reset=reset)
        act.result = f"{name} has {words}"
    undo = f"coterie queues limits {safe(name, keep='')} --reset"
    text = f"{safe(act.result, keep='')}" + ("" if reset else f"\nundo: {undo}")
    ctx.answer({"name": name, **changed, "is_set": not reset}, text)


async def _paused(ctx: ClientCommand, name: str, *, paused: bool, yes: bool, dry_run: bool) -> None:
    found, _ = await page(ctx, "jobs")
    line = _line(found, name)
    if paused:
        verb, undo = "pause", "resume"
        what = f"{name} will start no jobs until it is resumed; what runs ends ({plural(line.running, 'job')})"
    else:
        verb, undo = "resume", "pause"
        what = f"{name} will start jobs again; waiting: {line.waiting:,}"
    if not confirmed(f"{what}.", f"{verb} it?", yes=yes, dry_run=dry_run):
        return
    queue = f"queue {name}"
    async with ctx.act("pause-queue", queue) if paused else ctx.act("resume-queue", queue) as act:
        changed = await pause_queue(ctx.here, name, paused=paused)
        done, before = ("paused", "was paused already") if paused else ("resumed", "was not paused")
        act.result = f"{done} {name}" if changed else f"{name} {before}"
    undone = f"undo: coterie queues {undo} {safe(name, keep='')}"
    ctx.answer({"name": name, "paused": paused, "changed": changed}, f"{safe(act.result, keep='')}\n{undone}")


def _limit(option: str, text: str, name: str) -> Any:
    """A limit as it was written; None: no limit."""
    if text == "none":
        return None
    if option == "rate":
        return rate_of(text, what=f"queue {name!r}")
    if not (text.isascii() and text.isdigit()):
        refuse(f'--{option.replace("_", "-")} is "{text[:40]}"', hint="write a whole number, or none", code=WRONG)
    return count_of(int(text[:12]), called=option, what=f"queue {name!r}")


def _line(found: JobsPage, name: str) -> QueueLine:
    known = known_queue(found.queues, name)
    if known is None:
        names = ", ".join(each.name for each in found.queues[:20])
        refuse(f"there is no queue {name}", hint=f"there are {names}" if names else _EMPTY)
    return known


def table(screen: Screen, lines: Iterable[QueueLine], now: datetime) -> str:
    """All queues, a line each."""
    rows = [
        (
            each.name,
            f"{each.waiting:,}",
            "-" if each.oldest_s is None else lasting(max(each.oldest_s, 0.0)),
            f"{each.running:,}",
            f"{each.scheduled:,}",
            f"{each.parked:,}",
            f"{each.dead:,}",
            limits_text(each),
            state(screen, each, now),
        )
        for each in lines
    ]
    columns = ("QUEUE", "WAITING", "OLDEST", "RUNNING", "SCHEDULED", "PARKED", "DEAD", "LIMITS", "STATE")
    numbers = ("WAITING", "RUNNING", "SCHEDULED", "PARKED", "DEAD")
    return screen.table(columns, rows, right=numbers, spare=("SCHEDULED", "LIMITS", "PARKED"))


def limits_text(line: QueueLine) -> str:
    """`20 at once, 2 a partition, 50/s`; a dash without any."""
    parts = [
        "" if line.concurrency is None else f"{line.concurrency:,} at once",
        "" if line.partition_concurrency is None else f"{line.partition_concurrency:,} a partition",
        "" if line.rate is None else rate_text(line.rate),
    ]
    text = ", ".join(part for part in parts if part) or "-"
    return f"{text} (set)" if line.is_set else text


def state(screen: Screen, line: QueueLine, now: datetime) -> str:
    """Whether it is well, paused, at its limit, or what is wrong."""
    if line.paused_at is not None:
        return f"paused {screen.time(line.paused_at, now)}"
    if line.problem:
        return f"{screen.glyph('warn')} {line.problem}"
    is_full = line.concurrency is not None and line.running >= line.concurrency
    return f"{screen.glyph('good')} {'at its limit' if is_full else 'running' if line.running else 'idle'}"


def _shown(screen: Screen, line: QueueLine, now: datetime) -> str:
    expected = line.expected_wait_s
    oldest = "" if line.oldest_s is None else f", the oldest for {lasting(max(line.oldest_s, 0.0))}"
    pairs = [
        ("waiting", f"{line.waiting:,}{oldest}"),
        ("running", f"{line.running:,}"),
        ("scheduled", f"{line.scheduled:,}"),
        ("parked", f"{line.parked:,}"),
        ("dead", f"{line.dead:,}"),
        ("limits", limits_text(line)),
        ("expected", "" if expected is None else f"none waits longer than {lasting(expected)}"),
        ("group", line.group),
        ("held by", ", ".join(line.runners) or "none"),
    ]
    which = "" if line.name.endswith(":*") else f'\nits jobs: coterie jobs list --filter "queue:{line.name}"'
    return f"{screen.headed(line.name, state(screen, line, now))}\n{fields(pairs)}\n{which}".rstrip()
