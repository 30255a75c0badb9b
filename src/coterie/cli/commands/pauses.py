"""`coterie pauses`: tasks, entity types and groups of which nothing is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.client import Noun, client_command, confirmable, confirmed
from coterie.cli.output import safe

if TYPE_CHECKING:
    from coterie.cli.client import ClientCommand
    from coterie.tasks.pauses import Pauses

KINDS = {"task": "tasks", "entity": "entities", "group": "groups"}
_kind = click.argument("kind", type=click.Choice(tuple(KINDS)))


@click.group(cls=Noun)
def command() -> None:
    """Tasks, entity types and groups that are paused. Queues and crons have commands of their own for that.

    \b
    Example:
      coterie pauses pause task send_email --yes
    """


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """What is paused, and since when.

    \b
    Example:
      coterie pauses list --json
    """
    found = await ctx.here.storage.pauses.list()
    lines = [f"{each.kind} {safe(each.name, keep='')}  paused {each.paused_at:%Y-%m-%d %H:%M:%S} UTC" for each in found]
    ctx.show(found, lambda: "\n".join(lines) or "nothing is paused")


@command.command()
@_kind
@click.argument("name")
@confirmable
@client_command
async def pause(ctx: ClientCommand, kind: str, name: str, *, yes: bool, dry_run: bool) -> None:
    """Begin nothing of it until it is resumed, also across restarts. What runs ends.

    \b
    Example:
      coterie pauses pause entity Account --yes
    """
    await _change(ctx, kind, name, paused=True, yes=yes, dry_run=dry_run)


@command.command()
@_kind
@click.argument("name")
@confirmable
@client_command
async def resume(ctx: ClientCommand, kind: str, name: str, *, yes: bool, dry_run: bool) -> None:
    """Let it begin again what waits.

    \b
    Example:
      coterie pauses resume entity Account --yes
    """
    await _change(ctx, kind, name, paused=False, yes=yes, dry_run=dry_run)


async def _change(ctx: ClientCommand, kind: str, name: str, *, paused: bool, yes: bool, dry_run: bool) -> None:
    what = f"{kind} {name}"
    verb, undo = ("pause", "resume") if paused else ("resume", "pause")
    will = "will begin nothing until it is resumed; what runs ends" if paused else "will begin again what waits"
    if not confirmed(f"{what} {will}.", f"{verb} it?", yes=yes, dry_run=dry_run):
        return
    pauses: Pauses = getattr(ctx.cluster, KINDS[kind])
    async with ctx.act(f"{verb}-{kind}", what) as act:
        changed = await (pauses.pause if paused else pauses.resume)(name)
        done, before = ("paused", "was paused already") if paused else ("resumed", "was not paused")
        act.result = f"{done} {what}" if changed else f"{what} {before}"
    undone = f"undo: coterie pauses {undo} {kind} {safe(name, keep='')}"
    told = {"kind": kind, "name": name, "paused": paused, "changed": changed}
    ctx.answer(told, f"{safe(act.result, keep='')}\n{undone}")
