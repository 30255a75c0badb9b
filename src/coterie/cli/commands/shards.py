"""`coterie shards`: which runner holds which shard, as a map and as a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.client import NO, YES, ClientCommand, Noun, client_command, fields, refuse, view_reader
from coterie.cli.output import Screen, lasting, plain, plural
from coterie.kernel.ids import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.observe.view import MessagesPage, Shard, ShardGroup, Shards

_GLYPHS = {"owned": "owned", "moving": "move", "no owner": "none"}
_STANDING = {"owned": "good", "moving": "warn", "no owner": "bad"}
_CELLS = 60
"""Shards per line of the map, in a pipe."""
_CELLS_LEAST = 20
"""The minimum, however narrow a terminal is."""


@click.group(cls=Noun, alone="map")
def command() -> None:
    """Which runner holds which shard.

    \b
    Example:
      coterie shards show default:42 --url postgresql://app@db.internal/app
    """


@command.command("map")
@client_command
async def show_map(ctx: ClientCommand) -> None:
    """A cell for each shard, a row for each runner.

    \b
    Example:
      coterie shards map --json
    """
    shards: Shards = (await view_reader(ctx).read(["shards"])).data["shards"]
    ctx.show(shards, lambda: drawn(ctx.screen, shards))


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """Every shard with its owner and epoch.

    \b
    Example:
      coterie shards list --json
    """
    shards: Shards = (await view_reader(ctx).read(["shards"])).data["shards"]
    rows = [(each.shard, each.owner or "none", str(each.epoch), _standing(ctx.screen, each)) for each in shards.shards]
    table = ctx.screen.table(("SHARD", "OWNER", "EPOCH", "STATE"), rows, right=("EPOCH",))
    ctx.show(shards.shards, lambda: table if rows else _EMPTY)


@command.command()
@click.argument("shard")
@client_command
async def show(ctx: ClientCommand, shard: str) -> int:
    """One shard. Exit code 1 if it has no owner.

    \b
    Example:
      coterie shards show default:42 --json
    """
    try:
        wanted = str(ShardId.parse(shard))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    data = (await view_reader(ctx).read(["shards", "messages"])).data
    found = next((each for each in data["shards"].shards if each.shard == wanted), None)
    if found is None:
        known = ", ".join(f"{each.group}:0 to {each.group}:{each.shards - 1}" for each in data["shards"].groups)
        refuse(f"there is no shard {wanted}: there are {known or 'none'}", hint="coterie shards list shows all of them")
    ctx.answer(plain(found), lambda: _shown(ctx, found, data["messages"]))
    return YES if found.owner is not None else NO


_EMPTY = "no shards yet: the first runner declares them (coterie run app.py)"


def drawn(screen: Screen, shards: Shards) -> str:
    """The map."""
    return "\n\n".join(_group(screen, group, shards) for group in shards.groups) or _EMPTY


def _group(screen: Screen, group: ShardGroup, shards: Shards) -> str:
    legend = "  ".join(f"{screen.glyph(glyph)} {word}" for word, glyph in _GLYPHS.items())
    head = f"group {group.group}, {group.shards:,} shards, {plural(len(group.runners), 'runner')}"
    mine = [each for each in shards.shards if each.group == group.group]
    owners: list[str | None] = [*group.runners, *([None] if group.owned < group.shards else [])]
    wide = max(len(owner or "no owner") for owner in owners) if owners else 0
    rows = [line for owner in owners for line in _row(screen, owner, mine, wide)]
    return "\n".join([screen.headed(head, legend), "", *rows, _summary(group)])


def _row(screen: Screen, owner: str | None, mine: list[Shard], wide: int) -> Iterator[str]:
    """A runner's shards, those that move at the end."""
    held = sorted((each for each in mine if each.owner == owner), key=lambda each: each.state == "moving")
    cells = [screen.glyph(_GLYPHS[each.state]) for each in held]
    lead = f"{owner or 'no owner':<{wide}}  {len(held):>2}   "
    wide = _CELLS if screen.columns is None else max(screen.columns - len(lead), _CELLS_LEAST)
    for start in range(0, max(len(cells), 1), wide):
        yield ((lead if not start else " " * len(lead)) + "".join(cells[start : start + wide])).rstrip()


def _summary(group: ShardGroup) -> str:
    balance = "-" if group.balance is None else f"{group.balance:.2f}"
    moving = f"   moving: {group.moving}" if group.moving else ""
    return f"balance {balance}{moving}   oldest epoch {group.oldest_epoch}, newest {group.newest_epoch}"


def _standing(screen: Screen, shard: Shard) -> str:
    to = f" to {shard.target}" if shard.state == "moving" else ""
    return f"{screen.glyph(_STANDING[shard.state])} {shard.state}{to}"


def _shown(ctx: ClientCommand, shard: Shard, messages: MessagesPage) -> str:
    late = next((each for each in messages.overdue if each.shard == shard.shard), None)
    pairs = [
        ("owner", f"{shard.owner or 'none'}, epoch {shard.epoch}"),
        ("target", shard.target or f"no runner serves group {shard.group}"),
        (
            "waiting",
            "" if late is None else f"{late.what}, due for {lasting(late.late_s)}: coterie messages show {late.id}",
        ),
    ]
    return f"{ctx.where}\n\n{ctx.screen.headed(shard.shard, _standing(ctx.screen, shard))}\n{fields(pairs)}"
