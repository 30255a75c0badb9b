"""`coterie activity`: what people did with the page and with commands, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.client import ClientCommand, client_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.output import Screen
    from coterie.storage.contracts.activity import ActRow


@click.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@client_command
async def command(asking: ClientCommand, *, limit: int) -> None:
    """What people did with the page and with commands, the newest first: who, from where, and what came of it.

    It is kept as long as the setting key_retention says.

    \b
    Example:
      coterie activity --limit 20 --json
    """
    rows = await asking.here.storage.activity.list(most=limit)
    now = await asking.here.storage.now()
    value = [
        {"at": row.at, "who": row.who, "from": row.origin, "act": row.act, "what": row.what, "result": row.result}
        for row in rows
    ]
    asking.answer(value, lambda: f"{asking.where}\n\n{table(asking.screen, rows, now)}")


def table(screen: Screen, rows: Sequence[ActRow], now: datetime) -> str:
    """All of them, a line each."""
    if not rows:
        return "nothing was done"
    lines = [(screen.time(row.at, now), row.who, row.origin, row.act, row.what, row.result) for row in rows]
    return screen.table(("WHEN", "WHO", "FROM", "ACT", "WHAT", "RESULT"), lines, spare=("FROM", "WHO"))
