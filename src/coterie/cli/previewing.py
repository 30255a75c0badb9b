"""`coterie cron preview`: the next ticks of a cron or an expression. An expression needs no cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from coterie.cli.asking import client
from coterie.cli.looking import refusing
from coterie.cli.options import common
from coterie.cli.showing import as_json as to_json
from coterie.cli.showing import relative, tell
from coterie.kernel.clock import SystemClock, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from coterie.cron.api import Upcoming


@click.command()
@click.argument("name", metavar="NAME|EXPR")
@click.option("--zone", metavar="ZONE", help="Whose clocks (default: the cron's, else UTC).")
@click.option("--count", "-n", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many ticks.")
@common
def preview(name: str, zone: str | None, count: int, url: str | None, as_json: bool) -> None:
    """The next ticks of a cron, or of an expression, with a word where clocks change.

    \b
    Example:
      coterie cron preview "0 3 * * *" --zone Europe/Zurich --count 4
    """
    if " " in name.strip() or name.startswith("@"):
        explained, coming, now = _expression(name, zone, count)
    else:
        explained, coming, now = asyncio.run(_cron(name, zone, count, url))
    tell(_as_json(name, explained, coming) if as_json else text(explained, coming, now))


def text(explained: str, coming: Sequence[Upcoming], now: datetime) -> str:
    """The schedule in words, and its ticks by both clocks."""
    return "\n".join([explained, "", *upcoming_rows(coming, now)])


def upcoming_rows(coming: Sequence[Upcoming], now: datetime) -> Iterator[str]:
    """Ticks to come, a line each."""
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
        now = await cluster._acting().storage.now()  # noqa: SLF001 this house's own
        with refusing(hint='coterie cron list shows all of them; an expression has spaces: "0 3 * * *"'):
            explained = await cluster.crons.explain(name, timezone=zone)
            return explained, await cluster.crons.preview(name, timezone=zone, count=count, after=now), now


def _as_json(name: str, explained: str, coming: Sequence[Upcoming]) -> str:
    ticks = [{"at": each.at, "local": each.local.isoformat(), "note": each.note} for each in coming]
    return to_json({"name": name, "explained": explained, "ticks": ticks})
