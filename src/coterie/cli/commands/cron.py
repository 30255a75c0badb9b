"""`coterie cron`: lists crons and their runs, previews ticks, and triggers, pauses and resumes them.

The preview of an expression needs no cluster.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import click

from coterie.cli.client import (
    NO,
    UNANSWERED,
    YES,
    Noun,
    both,
    client,
    client_command,
    common,
    confirmable,
    confirmed,
    fields,
    list_page,
    one_line,
    page,
    refuse,
    refusing,
)
from coterie.cli.output import Screen, echo, lasting, relative, took
from coterie.cli.output import as_json as to_json
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.observe.failures import worded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.cron.api import CronInfo, TickInfo, Upcoming
    from coterie.observe.view import CronLine


_BEGUN_S = 15.0
"""A runner has started the run by then: a lost runner is replaced within ten seconds."""
_LOOK_S = 0.05
_RECENT = 100


@click.command()
@click.argument("name")
@confirmable
@client_command
async def trigger(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> int:
    """Run it once now, outside its schedule, and wait for its end.

    Exit code 1 if it failed, 3 if no runner has started it within 15 seconds.

    \b
    Example:
      coterie cron trigger nightly --yes
    """
    crons = ctx.cluster.crons
    with refusing(hint="coterie cron list shows all of them"):
        info = await crons.get(name)
    now = await ctx.here.storage.now()
    what = f"{name} will run once now, outside its schedule ({_next_run(info, now)})."
    if not confirmed(what, "run it?", yes=yes, dry_run=dry_run):
        return YES
    async with ctx.act("trigger", f"cron {name}") as act:
        tick = await crons.trigger(name)
        act.result = f"{name} runs once, as the tick {tick.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
    try:
        return await _watch(ctx, tick)
    except asyncio.CancelledError:
        echo(f"{name} keeps running: coterie cron history {name}", err=True)
        raise


async def _watch(ctx: ClientCommand, tick: TickInfo) -> int:
    begun = await _begun(ctx, tick)
    if not ctx.as_json:
        at = f"{tick.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
        echo(f"started on {begun.runner}, tick {at} ({tick.kind}), epoch {begun.epoch}")
    over = begun if begun.outcome is not None else await ctx.cluster.crons.wait(tick)
    ctx.answer(over, _ended(ctx, over))
    return YES if over.outcome == "ran" else NO


async def _begun(ctx: ClientCommand, tick: TickInfo) -> TickInfo:
    """The tick as soon as a runner has started it."""
    try:
        async with asyncio.timeout(_BEGUN_S):
            while True:
                for each in await ctx.cluster.crons.history(tick.cron, limit=_RECENT):
                    is_it = (each.kind, each.scheduled_at, each.number) == (tick.kind, tick.scheduled_at, tick.number)
                    if is_it and (each.attempt or each.outcome is not None):
                        return each
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        hint = f"it runs as soon as a runner holds it: coterie cron show {tick.cron}"
        refuse(f"no runner has started {tick.cron} within {_BEGUN_S:.0f}s", hint=hint, code=UNANSWERED)


def _ended(ctx: ClientCommand, tick: TickInfo) -> str:
    within = "" if tick.took is None else f" in {took(tick.took)}"
    if tick.outcome == "ran":
        return f"{ctx.screen.glyph('good')} finished{within}"
    if tick.outcome == "skipped":
        return f"{ctx.screen.glyph('warn')} skipped: {tick.reason}"
    why = f": {worded(tick.errors[-1], texts=True)}" if tick.errors else ""
    return f"{ctx.screen.glyph('bad')} failed{within}{why}"


def _next_run(info: CronInfo, now: datetime) -> str:
    if info.paused_at is not None:
        return "it is paused"
    if info.next_at is None:
        return "its schedule is not known yet"
    from coterie.cron.schedule import Schedule  # zones and calendars

    zone = Schedule(info.schedule, timezone=info.timezone, cron=info.name).zone
    local = info.next_at.astimezone(zone.info)
    return f"next scheduled: {local:%H:%M} {info.timezone}, {relative(info.next_at, now)}"


@click.command()
@click.argument("name", metavar="NAME|EXPR")
@click.option("--zone", metavar="ZONE", help="The time zone (default: the cron's, else UTC).")
@click.option("--count", "-n", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many ticks.")
@common
def preview(name: str, zone: str | None, count: int, url: str | None, as_json: bool) -> None:
    """The next ticks of a cron, or of an expression, with a note where clocks change.

    \b
    Example:
      coterie cron preview "0 3 * * *" --zone Europe/Zurich --count 4
    """
    if " " in name.strip() or name.startswith("@"):
        explained, coming, now = _expression(name, zone, count)
    else:
        explained, coming, now = asyncio.run(_cron(name, zone, count, url))
    echo(_as_json(name, explained, coming) if as_json else text(explained, coming, now))


def text(explained: str, coming: Sequence[Upcoming], now: datetime) -> str:
    """The schedule in words, and its ticks in the schedule's time zone and UTC."""
    return "\n".join([explained, "", *upcoming_rows(coming, now)])


def upcoming_rows(coming: Sequence[Upcoming], now: datetime) -> Iterator[str]:
    """Upcoming ticks, a line each."""
    wide = max((len(_local(each)) for each in coming), default=0)
    far = max((len(relative(each.at, now)) for each in coming), default=0)
    for each in coming:
        away = relative(each.at, now)
        yield f"  {_local(each):<{wide}}   {each.at:%H:%M} UTC   {away:<{far}}    {each.note}".rstrip()


def _local(tick: Upcoming) -> str:
    seconds = ":%S" if tick.local.second else ""
    return f"{tick.local:%a} {tick.local.day:>2} {tick.local:%b %Y  %H:%M{seconds} %Z}"


def _expression(expression: str, zone: str | None, count: int) -> tuple[str, Sequence[Upcoming], datetime]:
    from coterie.cron.api import preview as ticks_of
    from coterie.cron.schedule import Schedule

    schedule, now = Schedule(expression, timezone=zone or "UTC"), to_datetime(SystemClock().wall_ns())
    return schedule.explain(), ticks_of(schedule, after=now, count=count), now


async def _cron(name: str, zone: str | None, count: int, url: str | None) -> tuple[str, Sequence[Upcoming], datetime]:
    async with client(url) as cluster:
        now = await cluster._acting().storage.now()
        with refusing(hint='coterie cron list shows all of them; an expression has spaces: "0 3 * * *"'):
            explained = await cluster.crons.explain(name, timezone=zone)
            return explained, await cluster.crons.preview(name, timezone=zone, count=count, after=now), now


def _as_json(name: str, explained: str, coming: Sequence[Upcoming]) -> str:
    ticks = [{"at": each.at, "local": each.local.isoformat(), "note": each.note} for each in coming]
    return to_json({"name": name, "explained": explained, "ticks": ticks})


HINT = "coterie cron list shows all of them"
_SHOWN = 5


@click.group(cls=Noun)
def command() -> None:
    """Crons: when they run, and how they went.

    \b
    Example:
      coterie cron history nightly --limit 20
    """


command.add_command(preview)
command.add_command(trigger)


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """All crons: when they run next, and how the last run went.

    \b
    Example:
      coterie cron list --json
    """
    await list_page(ctx, "cron", partial(table, full=True), empty="no crons yet: @cluster.cron(…) defines one")


@command.command()
@click.argument("name")
@client_command
async def show(ctx: ClientCommand, name: str) -> None:
    """One cron: its schedule, its next ticks, its last ones.

    \b
    Example:
      coterie cron show nightly --json
    """
    lines, view = await page(ctx, "cron")
    crons = ctx.cluster.crons
    with refusing(hint=HINT):
        await crons.get(name)
    line = next(each for each in lines if each.name == name)
    coming = await crons.preview(name, count=_SHOWN, after=view.at) if line.schedule else ()
    ticks = await crons.history(name, limit=_SHOWN)
    value = {"cron": line, "upcoming": coming, "history": ticks}
    ctx.answer(value, lambda: _shown(ctx, line, coming, ticks, view.at))


@command.command()
@click.argument("name")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@client_command
async def history(ctx: ClientCommand, name: str, *, limit: int) -> None:
    """The last ticks, newest first: when they were scheduled and started, attempts, errors.

    \b
    Example:
      coterie cron history nightly --limit 50 --json
    """
    with refusing(hint=HINT):
        ticks = await ctx.cluster.crons.history(name, limit=limit)
    now = await ctx.here.storage.now()
    ctx.show(ticks, lambda: _ticks(ctx.screen, ticks, now))


@command.command()
@click.argument("name")
@confirmable
@client_command
async def pause(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Start no ticks until it is resumed, also across restarts.

    \b
    Example:
      coterie cron pause nightly --yes
    """
    with refusing(hint=HINT):
        await ctx.cluster.crons.get(name)
    if confirmed(
        f"{name} will not start until it is resumed; runs in progress continue.", "pause it?", yes=yes, dry_run=dry_run
    ):
        async with ctx.act("pause", f"cron {name}") as act:
            changed = await ctx.cluster.crons.pause(name)
            act.result = done = f"paused {name}" if changed else f"{name} was paused already"
        ctx.answer({"name": name, "paused": True, "changed": changed}, f"{done}\nundo: coterie cron resume {name}")


@command.command()
@click.argument("name")
@confirmable
@client_command
async def resume(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Run it again from its next tick on.

    \b
    Example:
      coterie cron resume nightly --yes
    """
    with refusing(hint=HINT):
        await ctx.cluster.crons.get(name)
    what = f"{name} will run again from its next tick on; ticks that were due during the pause are skipped."
    if confirmed(what, "resume it?", yes=yes, dry_run=dry_run):
        async with ctx.act("resume", f"cron {name}") as act:
            changed = await ctx.cluster.crons.resume(name)
            act.result = done = f"resumed {name}" if changed else f"{name} was not paused"
        ctx.answer({"name": name, "paused": False, "changed": changed}, f"{done}\nundo: coterie cron pause {name}")


def table(screen: Screen, lines: Iterable[CronLine], now: datetime, *, full: bool = False) -> str:
    """All crons, a line each; in full also their schedules and holders."""
    rows = [
        (
            each.name,
            *((each.explained or "not known yet", each.runner or "none") if full else ()),
            _next(screen, each, now),
            screen.time(each.last_run_at, now),
            took(each.took_s, unknown=""),
            result_of(screen, each),
        )
        for each in lines
    ]
    return screen.table(
        ("CRON", *(("WHEN", "ON") if full else ()), "NEXT", "LAST", "TOOK", "RESULT"), rows, spare=("TOOK", "LAST")
    )


def result_of(screen: Screen, line: CronLine) -> str:
    """The outcome of the last run, or the current problem."""
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


def _shown(
    ctx: ClientCommand, line: CronLine, coming: Sequence[Upcoming], ticks: Sequence[TickInfo], now: datetime
) -> str:
    screen = ctx.screen
    pairs = [
        ("when", f"{line.explained} ({line.schedule})" if line.schedule else "not known yet"),
        ("on", f"{line.runner or 'none'}, epoch {line.epoch}, group {line.group}"),
        ("paused", "" if line.paused_at is None else f"since {both(line.paused_at, now)}"),
        ("last run", f"{both(line.last_run_at, now)}, {line.runs:,} in all"),
        ("failures", f"{line.failures} in a row" if line.failures else ""),
    ]
    parts = [
        ctx.where,
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
            took(each.took),
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
