"""`coterie cron`: what runs when, how it went, and running, pausing and resuming it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.asking import acts, asks, confirmed
from coterie.cli.looking import both, fields, one_line, page, refusing
from coterie.cli.nouns import Noun
from coterie.cli.previewing import preview, upcoming_rows
from coterie.cli.showing import lasting
from coterie.cli.triggering import trigger
from coterie.observe.failures import worded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from coterie.cli.asking import Asking
    from coterie.cli.showing import Screen
    from coterie.cron.api import TickInfo, Upcoming
    from coterie.observe.view import CronLine

HINT = "coterie cron list shows all of them"
_SHOWN = 5


@click.group(cls=Noun)
def command() -> None:
    """What runs when, and how it went.

    \b
    Example:
      coterie cron history nightly --limit 20
    """


command.add_command(preview)
command.add_command(trigger)


@command.command("list")
@asks
async def list_all(asking: Asking) -> None:
    """All crons: when they run next, and how the last run went.

    \b
    Example:
      coterie cron list --json
    """
    lines, view = await page(asking, "cron")
    shown = table(asking.screen, lines, view.at, full=True) if lines else "no crons yet: @cluster.cron(…) defines one"
    asking.answer(lines, f"{asking.where}\n\n{shown}")


@command.command()
@click.argument("name")
@asks
async def show(asking: Asking, name: str) -> None:
    """One cron: its schedule, its next ticks, its last ones.

    \b
    Example:
      coterie cron show nightly --json
    """
    lines, view = await page(asking, "cron")
    crons = asking.cluster.crons
    with refusing(hint=HINT):
        await crons.get(name)
    line = next(each for each in lines if each.name == name)
    coming = await crons.preview(name, count=_SHOWN, after=view.at) if line.schedule else ()
    ticks = await crons.history(name, limit=_SHOWN)
    value = {"cron": line, "upcoming": coming, "history": ticks}
    asking.answer(value, lambda: _shown(asking, line, coming, ticks, view.at))


@command.command()
@click.argument("name")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@asks
async def history(asking: Asking, name: str, *, limit: int) -> None:
    """The last ticks, the newest first: scheduled and started apart, attempts, errors.

    \b
    Example:
      coterie cron history nightly --limit 50 --json
    """
    with refusing(hint=HINT):
        ticks = await asking.cluster.crons.history(name, limit=limit)
    now = await asking.here.storage.now()
    asking.answer(ticks, lambda: f"{asking.where}\n\n{_ticks(asking.screen, ticks, now)}")


@command.command()
@click.argument("name")
@acts
@asks
async def pause(asking: Asking, name: str, *, yes: bool, dry_run: bool) -> None:
    """Let no tick begin until it is resumed, also across restarts.

    \b
    Example:
      coterie cron pause nightly --yes
    """
    with refusing(hint=HINT):
        await asking.cluster.crons.get(name)
    if confirmed(
        f"{name} will run no more until it is resumed; what runs goes on.", "pause it?", yes=yes, dry_run=dry_run
    ):
        changed = await asking.cluster.crons.pause(name)
        done = f"paused {name}" if changed else f"{name} was paused already"
        asking.answer({"name": name, "paused": True, "changed": changed}, f"{done}\nundo: coterie cron resume {name}")


@command.command()
@click.argument("name")
@acts
@asks
async def resume(asking: Asking, name: str, *, yes: bool, dry_run: bool) -> None:
    """Let it run again from its next tick on.

    \b
    Example:
      coterie cron resume nightly --yes
    """
    with refusing(hint=HINT):
        await asking.cluster.crons.get(name)
    what = f"{name} will run again from its next tick on; ticks that its pause left out are skipped."
    if confirmed(what, "resume it?", yes=yes, dry_run=dry_run):
        changed = await asking.cluster.crons.resume(name)
        done = f"resumed {name}" if changed else f"{name} was not paused"
        asking.answer({"name": name, "paused": False, "changed": changed}, f"{done}\nundo: coterie cron pause {name}")


def table(screen: Screen, lines: Iterable[CronLine], now: datetime, *, full: bool = False) -> str:
    """All of them, a line each; in full also their schedule and who holds them."""
    rows = [
        (
            each.name,
            *((each.explained or "not known yet", each.runner or "nobody") if full else ()),
            _next(screen, each, now),
            screen.time(each.last_run_at, now),
            "" if each.took_s is None else lasting(each.took_s),
            result_of(screen, each),
        )
        for each in lines
    ]
    return screen.table(
        ("CRON", *(("WHEN", "ON") if full else ()), "NEXT", "LAST", "TOOK", "RESULT"), rows, spare=("TOOK", "LAST")
    )


def result_of(screen: Screen, line: CronLine) -> str:
    """How the last run went, unless something is wrong now."""
    if line.problem:
        return f"{screen.glyph('warn')} " + (f"missed {line.missed:,}: " if line.missed else "") + line.problem
    if line.outcome == "failed":
        return f"{screen.glyph('bad')} {one_line(line.error) or 'failed'}"
    return "running" if line.running else screen.glyph("good") if line.outcome == "ran" else ""


def _next(screen: Screen, line: CronLine, now: datetime) -> str:
    if line.paused_at is not None:
        return "paused"
    if line.overdue_s is not None:
        return f"OVERDUE {lasting(line.overdue_s)}"
    return "not known" if line.next_at is None else screen.time(line.next_at, now)


def _shown(asking: Asking, line: CronLine, coming: Sequence[Upcoming], ticks: Sequence[TickInfo], now: datetime) -> str:
    screen = asking.screen
    pairs = [
        ("when", f"{line.explained} ({line.schedule})" if line.schedule else "not known yet"),
        ("on", f"{line.runner or 'nobody'}, epoch {line.epoch}, group {line.group}"),
        ("paused", "" if line.paused_at is None else f"since {both(line.paused_at, now)}"),
        ("last run", f"{both(line.last_run_at, now)}, {line.runs:,} in all"),
        ("failures", f"{line.failures} in a row" if line.failures else ""),
    ]
    parts = [
        asking.where,
        f"{screen.headed(line.name, result_of(screen, line))}\n{fields(pairs)}",
        "\n".join(upcoming_rows(coming, now)),
        _ticks(screen, ticks, now),
        f"run it now: coterie cron trigger {line.name}",
    ]
    return "\n\n".join(part for part in parts if part)


def _ticks(screen: Screen, ticks: Sequence[TickInfo], now: datetime) -> str:
    rows = [
        (
            screen.time(each.scheduled_at, now) + (f" ({each.count:,} ticks)" if each.count > 1 else ""),
            each.kind,
            "-" if each.started_at is None else screen.time(each.started_at, now),
            "-" if each.late is None else lasting(each.late),
            "-" if each.took is None else lasting(each.took),
            str(each.attempt),
            each.runner or "-",
            _outcome(screen, each),
        )
        for each in ticks
    ]
    columns = ("SCHEDULED", "KIND", "STARTED", "LATE", "TOOK", "ATTEMPT", "ON", "RESULT")
    return (
        screen.table(columns, rows, right=("ATTEMPT",), spare=("ATTEMPT", "KIND", "STARTED"))
        if rows
        else "no ticks yet"
    )


def _outcome(screen: Screen, tick: TickInfo) -> str:
    if tick.outcome == "failed":
        return f"{screen.glyph('bad')} {worded(tick.errors[-1], texts=True) if tick.errors else 'failed'}"
    if tick.outcome == "skipped":
        return f"skipped: {tick.reason}"
    return f"{screen.glyph('good')} ran" if tick.outcome == "ran" else "running" if tick.attempt else "waiting"
