"""`coterie cron trigger`: run a cron once now, and see it through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from coterie.cli.asking import NO, NOBODY, YES, acts, asks, confirmed, refuse
from coterie.cli.looking import refusing
from coterie.cli.showing import relative, tell
from coterie.observe.failures import worded

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.cli.asking import Asking
    from coterie.cron.api import CronInfo, TickInfo

_BEGUN_S = 15.0
"""By then somebody has begun it: a runner that is lost is replaced within ten seconds."""
_LOOK_S = 0.05
_RECENT = 100


@click.command()
@click.argument("name")
@acts
@asks
async def trigger(asking: Asking, name: str, *, yes: bool, dry_run: bool) -> int:
    """Run it once now, outside its schedule, and wait for its end.

    Exit code 1 if it failed, 3 if nobody has begun it within 15 seconds.

    \b
    Example:
      coterie cron trigger nightly --yes
    """
    crons = asking.cluster.crons
    with refusing(hint="coterie cron list shows all of them"):
        info = await crons.get(name)
    now = await asking.here.storage.now()
    what = f"{name} will run once now, outside its schedule ({_next_run(info, now)})."
    if not confirmed(what, "run it?", yes=yes, dry_run=dry_run):
        return YES
    tick = await crons.trigger(name)
    try:
        return await _watch(asking, tick)
    except asyncio.CancelledError:
        tell(f"{name} goes on: coterie cron history {name}", err=True)
        raise


async def _watch(asking: Asking, tick: TickInfo) -> int:
    begun = await _begun(asking, tick)
    if not asking.as_json:
        at = f"{tick.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
        tell(f"started on {begun.runner}, tick {at} ({tick.kind}), epoch {begun.epoch}")
    over = begun if begun.outcome is not None else await asking.cluster.crons.wait(tick)
    asking.answer(over, _ended(asking, over))
    return YES if over.outcome == "ran" else NO


async def _begun(asking: Asking, tick: TickInfo) -> TickInfo:
    """The tick as soon as somebody has begun it."""
    try:
        async with asyncio.timeout(_BEGUN_S):
            while True:
                for each in await asking.cluster.crons.history(tick.cron, limit=_RECENT):
                    is_it = (each.kind, each.scheduled_at, each.number) == (tick.kind, tick.scheduled_at, tick.number)
                    if is_it and (each.attempt or each.outcome is not None):
                        return each
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        hint = f"it runs as soon as a runner holds it: coterie cron show {tick.cron}"
        refuse(f"nobody has begun {tick.cron} within {_BEGUN_S:.0f}s", hint=hint, code=NOBODY)


def _ended(asking: Asking, tick: TickInfo) -> str:
    took = "" if tick.took is None else f" in {tick.took.total_seconds():.1f}s"
    if tick.outcome == "ran":
        return f"{asking.screen.glyph('good')} finished{took}"
    if tick.outcome == "skipped":
        return f"{asking.screen.glyph('warn')} skipped: {tick.reason}"
    why = f": {worded(tick.errors[-1], texts=True)}" if tick.errors else ""
    return f"{asking.screen.glyph('bad')} failed{took}{why}"


def _next_run(info: CronInfo, now: datetime) -> str:
    if info.paused_at is not None:
        return "it is paused"
    if info.next_at is None:
        return "its schedule is not known yet"
    from coterie.cron.schedule import Schedule  # zones and calendars

    zone = Schedule(info.schedule, timezone=info.timezone, cron=info.name).zone
    local = info.next_at.astimezone(zone.info)
    return f"next scheduled: {local:%H:%M} {info.timezone}, {relative(info.next_at, now)}"
