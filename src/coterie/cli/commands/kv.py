"""`coterie kv`: keys and values, shared by all processes of a cluster."""

from __future__ import annotations

import shlex
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

import click

from coterie.cli.client import WRONG, acts, asks, confirmed, read_json, refuse, refusing
from coterie.cli.noun import Noun
from coterie.cli.output import as_json, safe, tell

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
@asks
async def get(asking: ClientCommand, key: str) -> None:
    """The value of a key, as JSON.

    \b
    Example:
      coterie kv get settings:theme --json
    """
    value = await _value(asking, key)
    if value is None:
        _missing(key)
    asking.answer({"key": key, "value": value}, lambda: _json(value))


@command.command("set")
@click.argument("key")
@click.argument("value", metavar="JSON")
@click.option("--ttl", metavar="DURATION", help="After how long it expires (default: never).")
@acts
@asks
async def set_one(asking: ClientCommand, key: str, value: str, *, ttl: str | None, yes: bool, dry_run: bool) -> None:
    """Set a key to a value in JSON.

    \b
    Example:
      coterie kv set settings:theme '"dark"' --ttl 30d --yes
    """
    hint = f"""quote text twice, for JSON and for the shell: '"{value}"'"""
    given = read_json(value, what="the value", hint=hint)
    if given is None:
        refuse("null is no value", hint=f"coterie kv remove {key} removes the key", code=WRONG)
    before = await _value(asking, key)
    was = "it is not there yet" if before is None else f"it is {_json(before)} now"
    expires = "" if ttl is None else f" for {ttl}"
    if not confirmed(f"{key} will be {_json(given)}{expires}; {was}", "set it?", yes=yes, dry_run=dry_run):
        return
    with refusing():
        await asking.cluster.kv.set(key, given, ttl=ttl)
    undo = f"coterie kv remove {key}" if before is None else _set(key, before)
    asking.answer({"key": key, "value": given, "before": before}, _lines(f"set {key}", f"undo: {undo}"))


@command.command()
@click.argument("key")
@acts
@asks
async def remove(asking: ClientCommand, key: str, *, yes: bool, dry_run: bool) -> None:
    """Remove a key.

    \b
    Example:
      coterie kv remove settings:theme --yes
    """
    before = await _value(asking, key)
    if before is None:
        _missing(key)
    if not confirmed(f"{key} will be removed; it is {_json(before)} now", "remove it?", yes=yes, dry_run=dry_run):
        return
    with refusing():
        removed = await asking.cluster.kv.remove(key)
    told = _lines(f"removed {key}", f"undo: {_set(key, before)}")
    asking.answer({"key": key, "removed": removed, "before": before}, told)


@command.command("list")
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@asks
async def list_some(asking: ClientCommand, prefix: str, *, limit: int) -> None:
    """Keys that begin with a prefix, in their order.

    \b
    Example:
      coterie kv list settings: --limit 1000
    """
    found: list[tuple[str, Any]] = []
    total = await asking.cluster.kv.prefix(prefix).size()
    numbers = count(1)
    async for key, value in asking.cluster.kv.prefix(prefix).items():
        found.append((prefix + key, value))
        if next(numbers) == limit:
            break
    rows = [(key, _cut(asking, _json(value))) for key, value in found]
    shown = (
        asking.screen.table(("KEY", "VALUE"), rows)
        if rows
        else f'no keys begin with "{prefix}"'
        if prefix
        else "no keys"
    )
    asking.answer([{"key": key, "value": value} for key, value in found], f"{asking.where}\n\n{shown}")
    if total > len(found):
        tell(f"{len(found):,} of {total:,} are shown: --limit shows more", err=True)


async def _value(asking: ClientCommand, key: str) -> Any:
    with refusing():
        return await asking.cluster.kv.get(key)


def _missing(key: str) -> NoReturn:
    refuse(f"there is no key {key}", hint="coterie kv list shows which there are")


def _json(value: Any) -> str:
    return as_json(value)


def _lines(*lines: str) -> str:
    return "\n".join(safe(line, keep="") for line in lines)


def _set(key: str, value: Any) -> str:
    """The command that sets a key."""
    return f"coterie kv set {shlex.quote(key)} {shlex.quote(_json(value))}"


def _cut(asking: ClientCommand, text: str) -> str:
    return f"{text[:_SHOWN]}…" if asking.screen.is_terminal and len(text) > _SHOWN else text
