"""`coterie status`: the health, leaders, next cron runs and failures on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.client import NO, YES, ClientCommand, client_command, counted, quick, sampled
from coterie.cli.commands.cron import table as cron_table
from coterie.cli.commands.queues import table as queue_table
from coterie.cli.commands.singletons import table as singleton_table
from coterie.cli.output import Screen, plain, plural, safe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from coterie.observe.view import Overview

_WIDE = 92
"""The width from which figures are placed side by side."""
GLYPHS = {"healthy": "good", "degraded": "warn", "unhealthy": "bad"}


@click.command()
@client_command
async def command(ctx: ClientCommand) -> int:
    """Is it healthy? Who leads? What next? What failed?

    Exit code 1 if it is unhealthy, 3 if the database does not answer.

    \b
    Example:
      coterie status --url postgresql://app@db.internal/app
    """
    overview, view = await sampled(ctx, "overview")
    settings = ctx.cluster.settings
    value = {"cluster": settings.name, "at": view.at, **plain(overview)}
    ctx.answer(value, lambda: text(overview, where=ctx.where, now=view.at, screen=ctx.screen))
    return NO if overview.status == "unhealthy" else YES


def text(overview: Overview, *, where: str, now: datetime, screen: Screen) -> str:
    """The screen. Problems come first."""
    parts = [
        screen.headed(where, standing(overview, screen)),
        "\n".join(_reasons(overview, screen)),
        _figures(overview, screen),
        singleton_table(screen, overview.singletons, now) if overview.singletons else "",
        cron_table(screen, overview.crons, now) if overview.crons else "",
        queue_table(screen, overview.queues, now) if overview.queues else "",
        _dead(overview),
    ]
    return "\n\n".join(part for part in parts if part)


def piped(overview: Overview, *, where: str, now: datetime) -> str:
    """The screen as text without colours and of any width, wherever this process writes to."""
    screen = Screen(colour=False)
    screen.is_terminal, screen.is_utf8 = False, True
    return safe(text(overview, where=where, now=now, screen=screen))


def standing(overview: Overview, screen: Screen) -> str:
    """The health of the cluster: a glyph and its word."""
    return f"{screen.glyph(GLYPHS[overview.status])} {overview.status}"


def _reasons(overview: Overview, screen: Screen) -> Iterator[str]:
    for reason in overview.reasons:
        yield f"  {screen.glyph(GLYPHS[reason.status])} {safe(str(reason), keep='')}"
        if reason.hint:
            yield f"      {reason.hint}"


def _figures(overview: Overview, screen: Screen) -> str:
    runners = f"{overview.healthy_runners} of {overview.runners} healthy"
    shards = f"{counted(overview.owned_shards)} of {counted(overview.shards)} owned"
    entities = "not all answered" if overview.entities is None else f"{counted(overview.entities)} resident"
    waiting = "not all answered" if overview.waiting is None else counted(overview.waiting)
    stored = f"waiting {waiting}   dead {counted(overview.dead)}"
    stored += f"   from SQL {counted(overview.incoming)}" if overview.incoming else ""
    if screen.columns is not None and screen.columns < _WIDE:
        return (
            f"runners      {runners}\nshards       {shards}\nentities     {entities}\n"
            f"messages     {_traffic(overview)}\n             {stored}"
        )
    return (
        f"runners      {runners:<17}  shards   {shards:<19}  entities  {entities}\n"
        f"messages     {_traffic(overview):<47}  {stored}"
    )


def _traffic(overview: Overview) -> str:
    if overview.calls_s is None:
        return "no runner answered"
    rate = f"{counted(overview.calls_s)}/s in"
    if overview.p50_s is None:
        return rate
    return f"{rate}, p50 {quick(overview.p50_s)}, p99 {quick(overview.p99_s)}"


def _dead(overview: Overview) -> str:
    lines = [
        f"{plural(dead, f'dead {what}')}: coterie {what}s list --state dead"
        for dead, what in ((overview.dead, "message"), (overview.dead_jobs, "job"))
        if dead
    ]
    return "\n".join(lines)
