"""`coterie schedules`: schedules made at run time: lists, previews, pauses, removes them, sends instants once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.cli.client import Noun, both, client_command, confirmable, confirmed, fields, refusing
from coterie.cli.commands.call import instant_of
from coterie.cli.commands.cron import upcoming_rows
from coterie.cli.output import Screen, echo, plain, plural, safe
from coterie.kernel.ids import is_job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.cron.api import Upcoming
    from coterie.schedules.api import ScheduleInfo
    from coterie.schedules.verdict import ScheduleOutcome

_HINT = "coterie schedules list shows all of them"
_SHOWN = 5


@click.group(cls=Noun)
def command() -> None:
    """Schedules made at run time: when they are due, and what they have sent.

    \b
    Example:
      coterie schedules show report/acme --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.argument("prefix", default="")
@click.option(
    "--limit", "-n", default=100, show_default=True, type=click.IntRange(1, 100_000), help="How many at most."
)
@client_command
async def list_some(ctx: ClientCommand, prefix: str, *, limit: int) -> None:
    """Schedules by name, or those whose names begin with PREFIX.

    \b
    Example:
      coterie schedules list report/ --limit 20
    """
    found = await ctx.cluster.schedules.list(prefix)
    now = await ctx.here.storage.now()
    shown = found[:limit]
    ctx.show([_fields(each) for each in shown], lambda: _table(ctx.screen, shown, now))
    if len(found) > limit:
        echo(f"{plural(len(found) - limit, 'more schedule')}: --limit, or a prefix", err=True)


@command.command()
@click.argument("name")
@client_command
async def show(ctx: ClientCommand, name: str) -> None:
    """One schedule: what it calls, its next instants, what became of the last ones.

    \b
    Example:
      coterie schedules show report/acme --json
    """
    schedules = ctx.cluster.schedules
    with refusing(hint=_HINT):
        found = await schedules.get(name)
        coming = () if found.next_at is None else await schedules.preview(name, count=_SHOWN)
        outcomes = await schedules.history(name, limit=_SHOWN)
    now = await ctx.here.storage.now()
    value = {"schedule": _fields(found), "upcoming": plain(coming), "history": [_told(each) for each in outcomes]}
    ctx.answer(value, lambda: _shown(ctx, found, coming, outcomes, now))


@command.command()
@click.argument("name")
@click.option("--count", "-n", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many instants.")
@client_command
async def preview(ctx: ClientCommand, name: str, *, count: int) -> None:
    """The next instants of a schedule, with a note where clocks change.

    \b
    Example:
      coterie schedules preview report/acme --count 10
    """
    with refusing(hint=_HINT):
        found = await ctx.cluster.schedules.get(name)
        coming = await ctx.cluster.schedules.preview(name, count=count)
    now = await ctx.here.storage.now()
    lines = "\n".join(upcoming_rows(coming, now)) or "it is never due again"
    ctx.answer({"name": name, "explained": found.explained, "instants": plain(coming)}, f"{found.explained}\n\n{lines}")


@command.command()
@click.argument("name")
@click.option("--limit", "-n", default=20, show_default=True, type=click.IntRange(1, 20), help="How many at most.")
@client_command
async def history(ctx: ClientCommand, name: str, *, limit: int) -> None:
    """What became of the last instants, newest first: the message or job that was sent, or why none was.

    \b
    Example:
      coterie schedules history report/acme --json
    """
    with refusing(hint=_HINT):
        outcomes = await ctx.cluster.schedules.history(name, limit=limit)
    now = await ctx.here.storage.now()
    ctx.show([_told(each) for each in outcomes], lambda: _outcomes(ctx.screen, outcomes, now))


@command.command()
@click.argument("name")
@confirmable
@client_command
async def pause(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Send nothing until it is resumed, also across restarts, and if it is put anew.

    \b
    Example:
      coterie schedules pause report/acme --yes
    """
    with refusing(hint=_HINT):
        await ctx.cluster.schedules.get(name)
    what = f"{name} will send nothing until it is resumed; what it has sent runs."
    if confirmed(what, "pause it?", yes=yes, dry_run=dry_run):
        async with ctx.act("pause-schedule", f"schedule {name}") as act:
            changed = await ctx.cluster.schedules.pause(name)
            act.result = f"paused {name}" if changed else f"{name} was paused already"
        undo = f"coterie schedules resume {safe(name, keep='')}"
        ctx.answer({"name": name, "paused": True, "changed": changed}, f"{safe(act.result, keep='')}\nundo: {undo}")


@command.command()
@click.argument("name")
@confirmable
@client_command
async def resume(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Let it continue from its next instant on.

    \b
    Example:
      coterie schedules resume report/acme --yes
    """
    with refusing(hint=_HINT):
        await ctx.cluster.schedules.get(name)
    what = f"{name} will send again from its next instant on; those that were due during the pause are skipped."
    if confirmed(what, "resume it?", yes=yes, dry_run=dry_run):
        async with ctx.act("resume-schedule", f"schedule {name}") as act:
            changed = await ctx.cluster.schedules.resume(name)
            act.result = f"resumed {name}" if changed else f"{name} was not paused"
        undo = f"coterie schedules pause {safe(name, keep='')}"
        ctx.answer({"name": name, "paused": False, "changed": changed}, f"{safe(act.result, keep='')}\nundo: {undo}")


@command.command()
@click.argument("name")
@click.option("--cancel", is_flag=True, help="Also cancel what it has sent lately and has not begun.")
@confirmable
@client_command
async def remove(ctx: ClientCommand, name: str, *, cancel: bool, yes: bool, dry_run: bool) -> None:
    """Remove a schedule: it sends nothing more.

    \b
    Example:
      coterie schedules remove report/acme --cancel --yes
    """
    with refusing(hint=_HINT):
        found = await ctx.cluster.schedules.get(name)
    sent = "what it has sent lately and has not begun is cancelled" if cancel else "what it has sent runs"
    what = f"{name} ({found.explained}, calls {found.calls}) will be removed; {sent}."
    if confirmed(what, "remove it?", yes=yes, dry_run=dry_run):
        async with ctx.act("remove-schedule", f"schedule {name}") as act:
            removed = await ctx.cluster.schedules.remove(name, cancel=cancel)
            act.result = f"removed {name}" if removed else f"{name} was removed already"
        undone = "this cannot be undone: the program puts it again"
        ctx.answer({"name": name, "removed": removed}, f"{safe(act.result, keep='')}; {undone}")


@command.command()
@click.argument("name")
@click.option("--since", required=True, metavar="INSTANT", help="The first instant, with its zone.")
@click.option("--until", required=True, metavar="INSTANT", help="The end: instants from then on are not sent.")
@confirmable
@client_command
async def backfill(ctx: ClientCommand, name: str, *, since: str, until: str, yes: bool, dry_run: bool) -> None:
    """Send instants of the past once more, whatever became of them; each is sent once only so.

    \b
    Example:
      coterie schedules backfill report/acme --since 2026-03-01T00:00:00Z --until 2026-03-08T00:00:00Z --yes
    """
    start, end = instant_of(since, option="--since"), instant_of(until, option="--until")
    with refusing(hint=_HINT):
        found = await ctx.cluster.schedules.get(name)
    what = f"{name} ({found.explained}) will send each instant from {since} to before {until} once more."
    if not confirmed(what, "send them?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("backfill", f"schedule {name}") as act:
        with refusing(hint="choose a shorter time"):
            ids = await ctx.cluster.schedules.backfill(name, start, end)
        noun = "job" if ids and is_job(ids[0]) else "message"
        act.result = f"{plural(len(ids), noun)} of {name} sent"
    follow = f"\nto follow them: coterie {noun}s show {ids[0]}" if ids else ""
    text = f"{safe(act.result, keep='')}; sent again, they are the same {noun}s{follow}"
    ctx.answer({"name": name, "messages": [str(each) for each in ids]}, text)


def _fields(schedule: ScheduleInfo) -> dict[str, Any]:
    told: dict[str, Any] = plain(schedule)
    return {**told, "is_over": schedule.is_over}


def _told(outcome: ScheduleOutcome) -> dict[str, Any]:
    return {
        "at": plain(outcome.at),
        "until": plain(outcome.until),
        "count": outcome.count,
        "message": outcome.message or None,
        "reason": outcome.reason or None,
    }


def _table(screen: Screen, found: Sequence[ScheduleInfo], now: datetime) -> str:
    if not found:
        return "no schedules: cluster.schedules.put(…) makes one"
    rows = [
        (each.name, each.explained, _next(screen, each, now), screen.time(each.last_at, now), each.calls)
        for each in found
    ]
    return screen.table(("SCHEDULE", "WHEN", "NEXT", "LAST", "CALLS"), rows, spare=("LAST", "WHEN"))


def _next(screen: Screen, schedule: ScheduleInfo, now: datetime) -> str:
    if schedule.paused_at is not None:
        return "paused"
    return "over" if schedule.next_at is None else screen.time(schedule.next_at, now)


def _shown(
    ctx: ClientCommand,
    schedule: ScheduleInfo,
    coming: Sequence[Upcoming],
    outcomes: Sequence[ScheduleOutcome],
    now: datetime,
) -> str:
    pairs = [
        ("when", f"{schedule.explained} ({schedule.schedule}, {schedule.timezone})"),
        ("calls", schedule.calls),
        ("next", "over" if schedule.is_over else "" if schedule.next_at is None else both(schedule.next_at, now)),
        ("last", both(schedule.last_at, now)),
        ("last sent", schedule.last_message or ""),
        ("paused", "" if schedule.paused_at is None else f"since {both(schedule.paused_at, now)}"),
        ("put", both(schedule.since, now)),
        ("start", "" if schedule.start is None else both(schedule.start, now)),
        ("end", "" if schedule.end is None else both(schedule.end, now)),
        ("missed", f"catch_up {schedule.catch_up}, overlap {schedule.overlap}"),
        ("shard", str(schedule.shard)),
    ]
    state = "paused" if schedule.paused_at is not None else "over" if schedule.is_over else ""
    parts = [
        ctx.where,
        f"{ctx.screen.headed(schedule.name, state)}\n{fields(pairs)}",
        "\n".join(upcoming_rows(coming, now)),
        _outcomes(ctx.screen, outcomes, now),
    ]
    return "\n\n".join(part for part in parts if part)


def _outcomes(screen: Screen, outcomes: Sequence[ScheduleOutcome], now: datetime) -> str:
    if not outcomes:
        return "it was not due yet"
    rows = [
        (
            screen.time(each.at, now) + (f" ({each.count:,} instants)" if each.count > 1 else ""),
            f"{screen.glyph('good')} sent" if each.message else f"{screen.glyph('warn')} skipped: {each.reason}",
            each.message or "-",
        )
        for each in outcomes
    ]
    return screen.table(("DUE", "RESULT", "SENT AS"), rows)
