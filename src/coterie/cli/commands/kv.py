"""`coterie kv`: keys and values, shared by all processes of a cluster."""

from __future__ import annotations

import shlex
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

import click

from coterie.cli.client import WRONG, Noun, client_command, confirmable, confirmed, read_json, refuse, refusing
from coterie.cli.output import as_json, echo, safe

if TYPE_CHECKING:
    from coterie.cli.client import ClientCommand

_SHOWN = 60
"""Characters of a value in a list on a terminal."""


@click.group(cls=Noun)
def command() -> None:
    """Keys and values, shared by all processes.

    \b
    Example:
      coterie kv get settings:theme --url postgresql://app@db.internal/app
    """


@command.command()
@click.argument("key")
@client_command
async def get(ctx: ClientCommand, key: str) -> None:
    """The value of a key, as JSON.

    \b
    Example:
      coterie kv get settings:theme --json
    """
    value = await _value(ctx, key)
    if value is None:
        _missing(key)
    ctx.answer({"key": key, "value": value}, lambda: as_json(value))


@command.command("set")
@click.argument("key")
@click.argument("value", metavar="JSON")
@click.option("--ttl", metavar="DURATION", help="After how long it expires (default: never).")
@confirmable
@client_command
async def set_one(ctx: ClientCommand, key: str, value: str, *, ttl: str | None, yes: bool, dry_run: bool) -> None:
    """Set a key to a value in JSON.

    \b
    Example:
      coterie kv set settings:theme '"dark"' --ttl 30d --yes
    """
    hint = f"""quote text twice, for JSON and for the shell: '"{value}"'"""
    given = read_json(value, what="the value", hint=hint)
    if given is None:
        refuse("null is no value", hint=f"coterie kv remove {key} removes the key", code=WRONG)
    before = await _value(ctx, key)
    was = "it does not exist yet" if before is None else f"it is {as_json(before)} now"
    expires = "" if ttl is None else f" for {ttl}"
    if not confirmed(f"{key} will be {as_json(given)}{expires}; {was}", "set it?", yes=yes, dry_run=dry_run):
        return
    with refusing():
        await ctx.cluster.kv.set(key, given, ttl=ttl)
    undo = f"coterie kv remove {key}" if before is None else _set(key, before)
    ctx.answer({"key": key, "value": given, "before": before}, _lines(f"set {key}", f"undo: {undo}"))


@command.command()
@click.argument("key")
@confirmable
@client_command
async def remove(ctx: ClientCommand, key: str, *, yes: bool, dry_run: bool) -> None:
    """Remove a key.

    \b
    Example:
      coterie kv remove settings:theme --yes
    """
    before = await _value(ctx, key)
    if before is None:
        _missing(key)
    if not confirmed(f"{key} will be removed; it is {as_json(before)} now", "remove it?", yes=yes, dry_run=dry_run):
        return
    with refusing():
        removed = await ctx.cluster.kv.remove(key)
    text = _lines(f"removed {key}", f"undo: {_set(key, before)}")
    ctx.answer({"key": key, "removed": removed, "before": before}, text)


@command.command("list")
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@client_command
async def list_some(ctx: ClientCommand, prefix: str, *, limit: int) -> None:
    """Keys that begin with a prefix, in their order.

    \b
    Example:
      coterie kv list settings: --limit 1000
    """
    found: list[tuple[str, Any]] = []
    total = await ctx.cluster.kv.prefix(prefix).size()
    numbers = count(1)
    async for key, value in ctx.cluster.kv.prefix(prefix).items():
        found.append((prefix + key, value))
        if next(numbers) == limit:
            break
    rows = [(key, _cut(ctx, as_json(value))) for key, value in found]
    shown = (
        ctx.screen.table(("KEY", "VALUE"), rows) if rows else f'no keys begin with "{prefix}"' if prefix else "no keys"
    )
    ctx.show([{"key": key, "value": value} for key, value in found], lambda: shown)
    if total > len(found):
        echo(f"{len(found):,} of {total:,} are shown: --limit shows more", err=True)


async def _value(ctx: ClientCommand, key: str) -> Any:
    with refusing():
        return await ctx.cluster.kv.get(key)


def _missing(key: str) -> NoReturn:
    refuse(f"there is no key {key}", hint="coterie kv list shows all keys")


def _lines(*lines: str) -> str:
    return "\n".join(safe(line, keep="") for line in lines)


def _set(key: str, value: Any) -> str:
    """The command that sets a key."""
    return f"coterie kv set {shlex.quote(key)} {shlex.quote(as_json(value))}"


def _cut(ctx: ClientCommand, text: str) -> str:
    return f"{text[:_SHOWN]}…" if ctx.screen.is_terminal and len(text) > _SHOWN else text
